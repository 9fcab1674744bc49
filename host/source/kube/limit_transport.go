package kube

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// What one answer may take. A list of 250,000 endpoints is some 60 MiB, decompressed; a refusal is a sentence. Streams
// have no end, and client-go bounds each of their objects.
const (
	maxListBytes  = 512 << 20
	maxErrorBytes = 64 << 10
)

// limitTransport is a transport whose answers end: client-go reads them whole before it looks at them, and a server that never
// stops would take the node's memory.
type limitTransport struct{ http.RoundTripper }

func (b limitTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		return response, err
	}
	switch {
	case response.StatusCode >= http.StatusMultipleChoices:
		response.Body = &limitedBody{ReadCloser: response.Body, remaining: maxErrorBytes, truncate: true}
	case response.StatusCode != http.StatusSwitchingProtocols && !isWatch(r.URL):
		response.Body = &limitedBody{ReadCloser: response.Body, remaining: maxListBytes}
	}
	return response, nil
}

func isWatch(u *url.URL) bool {
	switch u.Query().Get("watch") {
	case "1", "true":
		return true
	}
	return false
}

// limitedBody is a body that ends: what is left out of a refusal is not missed, and of a list it is an error.
type limitedBody struct {
	io.ReadCloser
	remaining int
	truncate  bool
}

func (l *limitedBody) Read(p []byte) (int, error) {
	if l.remaining <= 0 {
		if l.truncate {
			return 0, io.EOF
		}
		return 0, fmt.Errorf("the answer is larger than %d MiB", maxListBytes>>20)
	}
	n, err := l.ReadCloser.Read(p[:min(len(p), l.remaining)])
	l.remaining -= n
	return n, err
}

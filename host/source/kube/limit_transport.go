package kube

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Limits on response bodies. A list of 250,000 endpoints is about 60 MiB uncompressed. Watches are not limited here:
// client-go limits each of their objects.
const (
	maxListBytes  = 512 << 20
	maxErrorBytes = 64 << 10
)

// limitTransport limits the size of response bodies. client-go reads them into memory before it parses them, so an
// endless response would exhaust the node's memory.
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

// limitedBody is a response body of limited size. Beyond the limit, truncate ends it; otherwise reading fails.
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
		return 0, fmt.Errorf("response is larger than %d MiB", maxListBytes>>20)
	}
	n, err := l.ReadCloser.Read(p[:min(len(p), l.remaining)])
	l.remaining -= n
	return n, err
}

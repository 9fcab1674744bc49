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
	maxList    = 512 << 20
	maxRefusal = 64 << 10
)

// bound is a transport whose answers end: client-go reads them whole before it looks at them, and a server that never
// stops would take the node's memory.
type bound struct{ http.RoundTripper }

func (b bound) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	switch {
	case answer.StatusCode >= http.StatusMultipleChoices:
		answer.Body = &limited{ReadCloser: answer.Body, left: maxRefusal, cut: true}
	case answer.StatusCode != http.StatusSwitchingProtocols && !streams(r.URL):
		answer.Body = &limited{ReadCloser: answer.Body, left: maxList}
	}
	return answer, nil
}

func streams(u *url.URL) bool {
	switch u.Query().Get("watch") {
	case "1", "true":
		return true
	}
	return false
}

// limited is a body that ends: what is left out of a refusal is not missed, and of a list it is an error.
type limited struct {
	io.ReadCloser
	left int
	cut  bool
}

func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		if l.cut {
			return 0, io.EOF
		}
		return 0, fmt.Errorf("the answer is larger than %d MiB", maxList>>20)
	}
	n, err := l.ReadCloser.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

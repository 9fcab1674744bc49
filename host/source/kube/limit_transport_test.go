package kube

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

type endlessBody byte

func (e endlessBody) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

func (endlessBody) Close() error { return nil }

type endlessTransport int

func (a endlessTransport) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(a), Body: endlessBody('A')}, nil
}

func TestEndlessResponseBodyIsLimited(t *testing.T) {
	read := func(status int, url string, most int64) (int64, error) {
		answer, err := limitTransport{endlessTransport(status)}.RoundTrip(httptest.NewRequest(http.MethodGet, url, nil))
		if err != nil {
			t.Fatal(err)
		}
		return io.Copy(io.Discard, io.LimitReader(answer.Body, most))
	}
	const api = "https://192.0.2.1/api/v1/services"
	if n, err := read(http.StatusForbidden, api, 1<<30); n != maxErrorBytes || err != nil {
		t.Errorf("a refusal: %d bytes, %v", n, err)
	}
	if n, err := read(http.StatusForbidden, api+"?watch=true", 1<<30); n != maxErrorBytes || err != nil {
		t.Errorf("a watch refused: %d bytes, %v", n, err)
	}
	if n, err := read(http.StatusOK, api, 1<<30); n != maxListBytes || err == nil || !strings.Contains(err.Error(), "larger than 512 MiB") {
		t.Errorf("a list: %d bytes, %v", n, err)
	}
	const stream = maxListBytes + 1<<20
	if n, err := read(http.StatusOK, api+"?allowWatchBookmarks=true&watch=true", stream); n != stream || err != nil {
		t.Errorf("a stream: %d bytes, %v", n, err)
	}
}

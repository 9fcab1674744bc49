package kube

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	gostrings "strings"
	"sync"
)

// RequestCount counts requests to an API server, as kube-proxy's rest_client_requests_total does.
type RequestCount struct {
	Code   string // of HTTP; "<error>" when there was no answer
	Method string
	Host   string
	Count  uint64
}

// noAnswer is what client-go has for a code when there is none.
const noAnswer = "<error>"

// requests counts what goes through it.
type requests struct {
	mu sync.Mutex
	n  map[RequestCount]uint64 // N is 0 in the keys
}

// counted is a transport that counts.
type counted struct {
	http.RoundTripper
	requests *requests
}

func (c counted) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := c.RoundTripper.RoundTrip(r)
	k := RequestCount{Code: noAnswer, Method: r.Method, Host: r.URL.Host}
	if err == nil {
		k.Code = strconv.Itoa(answer.StatusCode)
	}
	c.requests.mu.Lock()
	c.requests.n[k]++
	c.requests.mu.Unlock()
	return answer, err
}

// Requests are the counts since the start, sorted.
func (c *Client) Requests() []RequestCount {
	c.requests.mu.Lock()
	defer c.requests.mu.Unlock()
	var out []RequestCount
	for k, n := range c.requests.n {
		k.Count = n
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b RequestCount) int {
		return cmp.Or(gostrings.Compare(a.Host, b.Host), gostrings.Compare(a.Method, b.Method), gostrings.Compare(a.Code, b.Code))
	})
	return out
}

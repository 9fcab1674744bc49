package kube

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// RequestCount counts requests to an API server, as kube-proxy's rest_client_requests_total does.
type RequestCount struct {
	Code   string // HTTP status; "<error>" when there was no response
	Method string
	Host   string
	Count  uint64
}

// noResponse is the code that client-go's metric uses when there was no response.
const noResponse = "<error>"

// requestCounter counts requests by code, method and host.
type requestCounter struct {
	mu     sync.Mutex
	counts map[RequestCount]uint64 // Count is 0 in the keys
	timer  atomic.Pointer[requestTimer]
}

// requestTimer reports how long requests take.
type requestTimer struct {
	now     func() time.Time
	observe func(verb, host string, d time.Duration)
}

// TimeRequests has observe called with the time from each request to the header of its response, as kube-proxy's
// rest_client_request_duration_seconds has it. Watches are not observed.
func (c *Client) TimeRequests(now func() time.Time, observe func(verb, host string, d time.Duration)) {
	c.requests.timer.Store(&requestTimer{now, observe})
}

// countingTransport counts the requests that pass through it.
type countingTransport struct {
	http.RoundTripper
	requests *requestCounter
}

func (c countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	timer, begin := c.requests.timer.Load(), time.Time{}
	if timer != nil {
		begin = timer.now()
	}
	response, err := c.RoundTripper.RoundTrip(r)
	if timer != nil && !strings.Contains(r.URL.RawQuery, "watch=true") {
		timer.observe(r.Method, r.URL.Host, timer.now().Sub(begin))
	}
	k := RequestCount{Code: noResponse, Method: r.Method, Host: r.URL.Host}
	if err == nil {
		k.Code = strconv.Itoa(response.StatusCode)
	}
	c.requests.mu.Lock()
	c.requests.counts[k]++
	c.requests.mu.Unlock()
	return response, err
}

// Requests returns the counts since the start, sorted.
func (c *Client) Requests() []RequestCount {
	c.requests.mu.Lock()
	defer c.requests.mu.Unlock()
	var out []RequestCount
	for k, n := range c.requests.counts {
		k.Count = n
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b RequestCount) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), strings.Compare(a.Method, b.Method), strings.Compare(a.Code, b.Code))
	})
	return out
}

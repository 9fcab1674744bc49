package controller

import (
	"net/http"
	"strings"
)

// The paths of health.
const (
	livez  = "/livez"
	readyz = "/readyz"
)

// health serves /livez: 200 while the process answers, and /readyz: 503 with a reason while notReady returns one.
func health(notReady func() string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(livez, func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc(readyz, func(w http.ResponseWriter, _ *http.Request) {
		if reason := notReady(); reason != "" {
			http.Error(w, reason, http.StatusServiceUnavailable)
		}
	})
	return mux
}

// notReady returns what keeps this controller from leading, or from taking over; "" once nothing has. An API server that is away
// later does not count: no other controller would do better.
func (c *controller) notReady() string {
	if unread := c.caches.unread(); len(unread) > 0 {
		return "not read from the API server yet: " + strings.Join(unread, ", ")
	}
	if !c.election.known.Load() {
		return "the Lease " + leaseName + " has been neither read nor taken yet"
	}
	return ""
}

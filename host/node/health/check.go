package health

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strconv"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/util/httpserve"
)

// check is the health check of one Service.
type check struct {
	phased[tally.HealthCheck]
	servers map[netip.AddrPort]*server
}

// server is the HTTP server of a check on one address.
type server struct {
	stop context.CancelFunc
	done chan struct{}
}

// serviceHealth is the response body of a health check port, as in kube-proxy.
type serviceHealth struct {
	Service             serviceName `json:"service"`
	LocalEndpoints      int         `json:"localEndpoints"`
	ServiceProxyHealthy bool        `json:"serviceProxyHealthy"`
}

type serviceName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// localEndpoints returns the number of ready endpoints on this node to report: the smaller of planned and programmed.
func (c *check) localEndpoints(f model.Family) int {
	return min(*c.planned.Local.At(f), *c.programmed.Local.At(f))
}

// listen stops and starts the servers of checks as planned, in this order: ports may move from one Service to another. The caller
// holds the lock. Sockets are opened and closed in goroutines, so that the engine does not wait for them.
func (h *Health) listen(changed []*check) {
	for _, c := range changed {
		for at, s := range c.servers {
			if !slices.Contains(h.addresses(c), at) {
				s.stop()
				h.closing[at] = s.done
				delete(c.servers, at)
			}
		}
	}
	for _, c := range changed {
		for _, at := range h.addresses(c) {
			if c.servers[at] == nil && h.ctx.Err() == nil {
				c.servers[at] = h.start(c, at)
			}
		}
	}
}

// addresses returns where a check is to listen.
func (h *Health) addresses(c *check) (out []netip.AddrPort) {
	for _, a := range h.addrs {
		if c.planned.Port != 0 && *c.planned.Serves.At(model.FamilyOf(a)) {
			out = append(out, netip.AddrPortFrom(a, c.planned.Port))
		}
	}
	return out
}

// overlap reports whether no two sockets can listen on these addresses at a time.
func overlap(a, b netip.AddrPort) bool {
	return a.Port() == b.Port() && model.FamilyOf(a.Addr()) == model.FamilyOf(b.Addr()) &&
		(a == b || a.Addr().IsUnspecified() || b.Addr().IsUnspecified())
}

// start runs a server on an address, after the servers whose sockets are in its way have closed.
func (h *Health) start(c *check, at netip.AddrPort) *server {
	ctx, stop := context.WithCancel(h.ctx)
	s := &server{stop: stop, done: make(chan struct{})}
	name, family := c.planned.Service, model.FamilyOf(at.Addr())
	o := httpserve.Options{
		Name:    "Service " + name.String() + ": spec.healthCheckNodePort",
		Network: "tcp4", Address: at.String(),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { h.serveCheck(w, c, family) }),
		Limiter: h.limiter, Log: h.opt.Log, After: h.opt.After,
	}
	if family == model.IPv6 {
		o.Network = "tcp6"
	}
	if h.opt.OnListenError != nil {
		o.OnError = func(err error) { h.opt.OnListenError(name, err) }
	}
	var previous []chan struct{}
	for other, done := range h.closing {
		if overlap(at, other) {
			previous = append(previous, done)
		}
	}
	h.wg.Go(func() {
		defer h.released(at, s)
		defer stop()
		for _, done := range previous {
			<-done
		}
		httpserve.ListenAndServeRetry(ctx, o)
	})
	return s
}

// released records that a server has closed its socket.
func (h *Health) released(at netip.AddrPort, s *server) {
	close(s.done)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closing[at] == s.done {
		delete(h.closing, at)
	}
}

// serveCheck responds for the IP family of the probe: a dual-stack Pod is one endpoint in each family.
func (h *Health) serveCheck(w http.ResponseWriter, c *check, f model.Family) {
	now := h.opt.Now()
	h.mu.Lock()
	body := serviceHealth{
		Service:             serviceName{c.planned.Service.Namespace, c.planned.Service.Name},
		LocalEndpoints:      c.localEndpoints(f),
		ServiceProxyHealthy: h.healthy(now),
	}
	h.mu.Unlock()
	code := http.StatusServiceUnavailable
	if body.LocalEndpoints > 0 && body.ServiceProxyHealthy {
		code = http.StatusOK
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(body.LocalEndpoints))
	writeJSON(w, code, body)
}

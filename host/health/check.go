package health

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"

	"github.com/sluice-proxy/sluice/host/httpserve"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/planner"
)

// check is the health check of one Service.
type check struct {
	phased[planner.HealthCheck]
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

// listen starts and stops the servers of a check as planned. The caller holds the lock. Sockets are opened and closed in
// goroutines, so that the engine does not wait for them.
func (h *Health) listen(c *check) {
	want := map[netip.AddrPort]bool{}
	if c.planned.Port != 0 {
		for _, a := range h.addrs {
			if *c.planned.Serves.At(model.FamilyOf(a)) {
				want[netip.AddrPortFrom(a, c.planned.Port)] = true
			}
		}
	}
	for at, s := range c.servers {
		if !want[at] {
			s.stop()
			h.closing[at] = s.done
			delete(c.servers, at)
		}
	}
	for at := range want {
		if c.servers[at] == nil && h.ctx.Err() == nil {
			c.servers[at] = h.start(c, at)
		}
	}
}

// start runs a server on an address, after the previous server of that address has closed: a Service may have been
// recreated under another name.
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
	previous := h.closing[at]
	h.wg.Go(func() {
		defer h.released(at, s)
		defer stop()
		if previous != nil {
			<-previous
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

package planner

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/service"
)

// udpPort is a UDP Service port in one family.
type udpPort struct {
	port   string
	family model.Family
}

// staleBuilder collects the frontends of a Service whose UDP flows may be stale: an endpoint stopped serving, the first one
// started serving, or the Service port is new to this process. An endpoint that terminates keeps its flows while it still serves, or,
// where the Service asks for it, until it is gone (proposed by KEP-5989).
type staleBuilder struct {
	serving map[udpPort][]netip.AddrPort // sorted
	flows   []plan.StaleUDPFlows
}

// add adds a port with its frontends. before is what was serving. keep counts endpoints as serving as long as they terminate.
func (b *staleBuilder) add(before map[udpPort][]netip.AddrPort, p *service.Port, keep bool, frontends []*plan.Frontend) {
	if p.Name.Protocol != model.UDP {
		return
	}
	var now []netip.AddrPort
	for j := range p.Endpoints {
		if e := &p.Endpoints[j]; keepsUDPFlows(e, keep) {
			now = append(now, e.Addr)
		}
	}
	if b.serving == nil {
		b.serving = map[udpPort][]netip.AddrPort{}
	}
	at := udpPort{p.Name.Port, p.Family}
	b.serving[at] = now
	old, known := before[at]
	if keep && anyMissing(now, old) {
		known = false // it may be the first that serves, beside others that only terminate
	}
	if known && (len(old) > 0 || len(now) == 0) && !anyMissing(old, now) {
		return
	}
	for _, f := range frontends {
		b.flows = append(b.flows, plan.StaleUDPFlows{Frontend: f.Key, Serving: now})
	}
}

// keepsUDPFlows reports whether an endpoint keeps its UDP flows; keep is whether the Service asks for it as long as it terminates.
func keepsUDPFlows(e *service.Endpoint, keep bool) bool {
	return e.Serving || e.Ready || e.HeldCluster || e.HeldLocal || keep && e.Terminating
}

// anyMissing reports whether now lacks an address of old; both are sorted.
func anyMissing(old, now []netip.AddrPort) bool {
	return slices.ContainsFunc(old, func(a netip.AddrPort) bool {
		_, found := slices.BinarySearchFunc(now, a, netip.AddrPort.Compare)
		return !found
	})
}

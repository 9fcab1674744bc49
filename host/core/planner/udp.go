package planner

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// udpPort is a UDP Service port in one family.
type udpPort struct {
	port   string
	family model.Family
}

// udpEndpoints are the endpoints of a UDP Service port in one family that keep their flows.
type udpEndpoints struct {
	serving []netip.AddrPort // sorted
	// leaving are those that terminate and do not serve any more, with the time since when, Unix milliseconds, where the Service
	// asks for their flows to be kept; nil: none. They are in serving until they have been kept for as long as they may.
	leaving map[netip.AddrPort]int64
}

func (e *udpEndpoints) keeps(a netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(e.serving, a, netip.AddrPort.Compare)
	return found
}

// kept returns those of serving that do not serve.
func (e *udpEndpoints) kept() (out []netip.AddrPort) {
	for a := range e.leaving {
		if e.keeps(a) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return out
}

// UDPDrains counts what becomes of the UDP flows to endpoints that terminate and stop serving, where the Service asks for them to
// be kept (KEP-5989).
type UDPDrains struct {
	Kept    int // endpoints whose flows begin to be kept
	Expired int // endpoints that still terminate and whose flows have been kept for as long as they may
}

// udpRound determines in a round of a Service which endpoints keep their UDP flows. An endpoint keeps them while it serves or,
// where the Service asks for it, while it terminates.
type udpRound struct {
	svc       *model.Service
	at        int64 // Unix milliseconds
	before    map[udpPort]udpEndpoints
	now       map[udpPort]udpEndpoints
	stale     []udpPort // an endpoint does not keep its flows any more, or is the first one
	drains    UDPDrains
	requeueAt int64 // when the first of kept expires, Unix milliseconds; 0: none does
}

// add adds a port.
func (u *udpRound) add(p *eligibility.Port) {
	if p.Name.Protocol != model.UDP {
		return
	}
	at := udpPort{p.Name.Port, p.Family}
	old, known := u.before[at]
	var now udpEndpoints
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		if e.Serving || e.Ready || e.HeldCluster || e.HeldLocal || u.keeps(e, &old, &now) {
			now.serving = append(now.serving, e.Addr)
		}
	}
	if u.now == nil {
		u.now = map[udpPort]udpEndpoints{}
	}
	u.now[at] = now
	// A new one may be the first that serves, beside others that only terminate.
	first := len(old.serving) == 0 && len(now.serving) > 0 || u.svc.KeepUDP && anyMissing(now.serving, old.serving)
	if known && (first || anyMissing(old.serving, now.serving)) {
		u.stale = append(u.stale, at)
	}
}

// keep keeps the endpoints of a port as they were.
func (u *udpRound) keep(at udpPort, before map[udpPort]udpEndpoints) {
	if e, known := before[at]; known {
		if u.now == nil {
			u.now = map[udpPort]udpEndpoints{}
		}
		u.now[at] = e
	}
}

// keeps reports whether an endpoint that does not serve keeps its flows nevertheless, and adds it to those that leave.
func (u *udpRound) keeps(e *eligibility.Endpoint, old, now *udpEndpoints) bool {
	if !u.svc.KeepUDP || !e.Terminating {
		return false
	}
	since, known := old.leaving[e.Addr]
	if !known {
		since = u.at
		u.drains.Kept++
	}
	if now.leaving == nil {
		now.leaving = map[netip.AddrPort]int64{}
	}
	now.leaving[e.Addr] = since
	if u.svc.MaxKeepUDP == 0 {
		return true
	}
	until := since + u.svc.MaxKeepUDP.Milliseconds()
	if until > u.at {
		u.requeueAt = earlier(u.requeueAt, until)
		return true
	}
	if old.keeps(e.Addr) {
		u.drains.Expired++
	}
	return false
}

// stales reports whether flows through a frontend of the Service may be stale.
func (u *udpRound) stales(f *plan.Frontend) bool {
	return f.Key.Protocol == model.UDP && slices.Contains(u.stale, udpPort{f.Owner.Port, f.Key.Family()})
}

// anyMissing reports whether now lacks an address of old; both are sorted.
func anyMissing(old, now []netip.AddrPort) bool {
	return slices.ContainsFunc(old, func(a netip.AddrPort) bool {
		_, found := slices.BinarySearchFunc(now, a, netip.AddrPort.Compare)
		return !found
	})
}

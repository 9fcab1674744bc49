package planner

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// randomUDPChange is like randomChange, over UDP and TCP, with Services that keep flows.
func randomUDPChange(r *rand.Rand) model.Change {
	c := randomChange(r)
	if c.Service != nil {
		for i := range c.Service.Ports {
			if r.IntN(4) > 0 {
				c.Service.Ports[i].Protocol = model.UDP
			}
		}
		if c.Service.KeepUDP = r.IntN(3) == 0; c.Service.KeepUDP && r.IntN(2) == 0 {
			c.Service.MaxKeepUDP = 5 * time.Second
		}
	}
	if c.Slice != nil {
		for _, p := range slices.Clone(c.Slice.Ports) {
			p.Protocol = model.UDP
			c.Slice.Ports = append(c.Slice.Ports, p)
		}
	}
	return c
}

// udpFlow is a flow to a destination: translated to an endpoint, or with the destination as its endpoint.
type udpFlow struct{ to, endpoint netip.AddrPort }

// frontendOf returns the frontend of a destination.
func frontendOf(p *plan.Plan, to netip.AddrPort) *plan.Frontend {
	if f := p.Frontends[plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: model.UDP}]; f != nil {
		return f
	}
	if !slices.Contains(p.Global.NodePortAddrs, to.Addr()) {
		return nil
	}
	return p.Frontends[plan.Key{Addr: netip.IPv4Unspecified(), Port: to.Port(), Protocol: model.UDP}]
}

// isStale determines by the sentences of rules 38 and 63 whether a flow is stale. expired reports whether an endpoint has kept
// its flows for as long as KEP-5989 allows.
func isStale(p *Planner, flow udpFlow, expired func(model.PortName, netip.AddrPort) bool) bool {
	f := frontendOf(p.Current(), flow.to)
	if f == nil {
		return flow.endpoint != flow.to
	}
	svc := p.cluster.Services[f.Owner.Service]
	i := slices.IndexFunc(svc.Ports, func(q model.ServicePort) bool { return q.Name == f.Owner.Port && q.Protocol == f.Owner.Protocol })
	for _, e := range eligibility.SelectEndpoints(svc, &svc.Ports[i], model.IPv4, p.cluster.Slices[svc.Name], p.nodeInfo).Endpoints {
		if e.Addr == flow.endpoint {
			return !(e.Ready || e.Serving || svc.KeepUDP && e.Terminating && (svc.MaxKeepUDP == 0 || !expired(f.Owner, e.Addr)))
		}
	}
	return true
}

// TestStaleUDPOfPartialPlans: whatever the steps in which changes are planned, nothing stale is left after the last one.
func TestStaleUDPOfPartialPlans(t *testing.T) {
	partial, seeds := 0, uint64(100)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 39))
		settings := testSettings()
		settings.Policies = nil
		p := New(settings, nil)
		planInSteps(p)
		p.stepCost = 100 // a few frontends
		p.Apply([]model.Change{{Kind: model.Synced}})
		now := time.Unix(1_000_000, 0)
		var flows []udpFlow
		for range 80 {
			for range 1 + r.IntN(3) {
				c := randomUDPChange(r)
				if c.Service != nil {
					c.Service.MaxKeepUDP = 0
				}
				p.Apply([]model.Change{c})
			}
			pending := map[plan.Key]bool{}
			for remaining := 1; remaining > 0; {
				result := p.PlanNow(now)
				if remaining = result.Remaining; remaining > 0 {
					partial++
				}
				for _, k := range result.StaleUDP {
					pending[k] = true
				}
				if remaining > 0 && r.IntN(2) == 0 && len(result.FormerNodePortAddrs) == 0 {
					continue // the deletion waits
				}
				all := p.UDPFlows(slices.Collect(maps.Keys(pending)))
				all.Former = result.FormerNodePortAddrs
				clear(pending)
				flows = slices.DeleteFunc(flows, func(f udpFlow) bool { stale, _ := all.Find(f.to, f.endpoint); return stale })
				flows = append(flows, randomFlows(r, p.Current())...)
			}
			for _, f := range flows {
				if isStale(p, f, nil) {
					t.Fatalf("seed %d: the flow to %s at %s is stale\n%s", seed, f.to, f.endpoint, plan.Format(p.Current()))
				}
			}
		}
	}
	if partial < 100 {
		t.Errorf("%d plans are partial", partial)
	}
}

// randomFlows returns flows that begin under a plan.
func randomFlows(r *rand.Rand, p *plan.Plan) (flows []udpFlow) {
	for range 6 {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, []byte{1, 96, 97}[r.IntN(3)], 0, byte(1 + r.IntN(5))}), []uint16{80, 81, 30000, 30001, 30002}[r.IntN(5)])
		f := frontendOf(p, to)
		switch {
		case f == nil:
			flows = append(flows, udpFlow{to, to})
		case len(f.Pool.Endpoints) > 0:
			if e := f.Pool.Endpoints[r.IntN(len(f.Pool.Endpoints))]; e.Weight > 0 {
				flows = append(flows, udpFlow{to, e.Addr})
			}
		}
	}
	return flows
}

// TestStaleUDPMatchesReferenceImplementation follows random flows over random changes: what is deleted after each Plan is what is
// stale, no flow more and none less.
func TestStaleUDPMatchesReferenceImplementation(t *testing.T) {
	type leaving struct {
		port     model.PortName
		endpoint netip.AddrPort
	}
	stale, kept := 0, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 38))
		settings := testSettings()
		settings.Policies = nil
		p := New(settings, nil)
		p.Apply([]model.Change{{Kind: model.Synced}})
		p.PlanNow(time.Unix(1_000_000, 0))
		now := time.Unix(1_000_000, 0)
		var flows []udpFlow
		since := map[leaving]time.Time{} // since when endpoints terminate and do not serve, where the Service asks
		for range 80 {
			for range 1 + r.IntN(2) {
				p.Apply([]model.Change{randomUDPChange(r)})
			}
			now = now.Add(time.Duration(r.IntN(3)) * time.Second)
			result := p.PlanNow(now)
			now2 := map[leaving]time.Time{}
			for _, svc := range p.cluster.Services {
				for i := range svc.Ports {
					port := eligibility.SelectEndpoints(svc, &svc.Ports[i], model.IPv4, p.cluster.Slices[svc.Name], p.nodeInfo)
					for _, e := range port.Endpoints {
						if at := (leaving{port.Name, e.Addr}); svc.KeepUDP && e.Terminating && !e.Ready && !e.Serving {
							if now2[at] = since[at]; now2[at].IsZero() {
								now2[at] = now
							}
						}
					}
				}
			}
			since = now2
			expired := func(port model.PortName, a netip.AddrPort) bool {
				return now.Sub(since[leaving{port, a}]) >= 5*time.Second
			}
			all := p.UDPFlows(result.StaleUDP)
			all.Former = result.FormerNodePortAddrs
			flows = slices.DeleteFunc(flows, func(f udpFlow) bool {
				deleted, _ := all.Find(f.to, f.endpoint)
				want := isStale(p, f, expired)
				if deleted != want {
					t.Fatalf("seed %d: flow to %s at %s: deleted %v, stale %v\n%s", seed, f.to, f.endpoint, deleted, want, plan.Format(p.Current()))
				}
				if deleted {
					stale++
				} else {
					kept++
				}
				return deleted
			})
			flows = append(flows, randomFlows(r, p.Current())...)
		}
	}
	if stale < 1000 || kept < 1000 {
		t.Errorf("%d flows were deleted, %d kept", stale, kept)
	}
}

package planner

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// rules are the settings that apply to all frontends.
type rules struct {
	MasqueradeAll bool         // masquerade every ClusterIP connection
	NodeAddrs     []netip.Addr // this node's addresses
	Global        plan.Global
	Caps          *plan.Caps // of the backend; nil: no limits
}

// frontends returns the frontends of a Service port in one family that the Service's quota has room for. outcomes: those of their
// connections are counted. longLived: their policy says so.
func (r *rules) frontends(round *round, d *policy.PortDecision, outcomes, longLived bool) []*plan.Frontend {
	svc, p, f := round.svc, d.Port, d.Port.Family
	empty := plan.Reject
	if p.HasEligible {
		empty = plan.Drop
	}
	var cluster, local plan.Pool
	udp := round.udp.now[udpPort{p.Name.Port, f}]
	if p.UsesCluster {
		cluster = buildPool(p, &d.Cluster, false, &udp, plan.Reject)
	}
	if p.UsesLocal {
		local = buildPool(p, &d.Local, true, &udp, empty)
	}
	var out []*plan.Frontend
	fit := plan.NewFitter(r.Caps)
	add := func(kind plan.Kind, addr netip.Addr, port uint16) {
		if round.quota.frontends[kind] == 0 && round.quota.first != nil {
			return
		}
		fe := &plan.Frontend{
			Key:  plan.Key{Addr: addr, Port: port, Protocol: p.Name.Protocol},
			Kind: kind, Owner: p.Name, Affinity: svc.Affinity, Outcomes: outcomes,
			RetryRefused: svc.RetryRefused && p.Name.Protocol == model.TCP,
			LongLived:    longLived && p.Name.Protocol != model.SCTP,
		}
		switch {
		case kind == plan.ClusterIP:
			fe.Pool, fe.Balance, fe.Masquerade = cluster, balanceOf(d.Cluster.Balance), r.masqueradeInternal(f)
			if svc.InternalLocal {
				fe.Pool, fe.Balance = local, balanceOf(d.Local.Balance)
			}
		default:
			fe.Pool, fe.Balance, fe.Masquerade = cluster, balanceOf(d.Cluster.Balance), plan.MasqueradeAlways
			if svc.ExternalLocal {
				outside := local
				fe.Outside, fe.Masquerade = &outside, plan.MasqueradeFromNode
			}
		}
		if kind == plan.LoadBalancer {
			fe.SourceRanges = round.ranges[familyIndex(f)].list
		}
		if round.quota.take(fe) {
			out = append(out, fit.Fit(fe))
		}
	}
	for _, a := range round.addrs {
		if a.Served && model.FamilyOf(a.IP) == f {
			add(a.Kind, a.IP, p.Spec.Port)
		}
	}
	if p.Spec.NodePort != 0 {
		addr := netip.IPv4Unspecified()
		if f == model.IPv6 {
			addr = netip.IPv6Unspecified()
		}
		add(plan.NodePort, addr, p.Spec.NodePort)
	}
	return out
}

func (r *rules) masqueradeInternal(f model.Family) plan.Masquerade {
	switch {
	case r.MasqueradeAll:
		return plan.MasqueradeAlways
	case r.Global.DetectsPods(f):
		return plan.MasqueradeOutside
	}
	return plan.MasqueradeNever
}

func familyIndex(f model.Family) int {
	if f == model.IPv6 {
		return 1
	}
	return 0
}

// sourceRanges returns the first ranges of a Service in a family, at most limit. When one contains an address of this node,
// the load balancer addresses are added: a packet from the node to such an address has that address as its source.
func (r *rules) sourceRanges(svc *model.Service, f model.Family, limit int) ranges {
	var out ranges
	if len(svc.LoadBalancerIPs) == 0 {
		return out
	}
	for _, p := range svc.SourceRanges { // which the source has normalized
		if model.FamilyOf(p.Addr()) == f {
			out.list = append(out.list, p)
		}
	}
	if limit > 0 && len(out.list) > limit {
		out.omitted = len(out.list) - limit
		out.list = out.list[:limit]
	}
	allowsNode := slices.ContainsFunc(out.list, func(p netip.Prefix) bool { return slices.ContainsFunc(r.NodeAddrs, p.Contains) })
	if allowsNode {
		for _, a := range ofFamily(svc.LoadBalancerIPs, f) {
			out.list = append(out.list, netip.PrefixFrom(a, a.BitLen()))
		}
		out.list = plan.NormalizePrefixes(out.list)
	}
	return out
}

// buildPool builds a pool from a decision: endpoints with weight, and terminating ones as draining, except those whose UDP flows
// are deleted, which IPVS would carry on; udp are those of a UDP port that keep them. empty is the verdict of a pool without
// weight.
func buildPool(p *eligibility.Port, d *policy.Decision, local bool, udp *udpEndpoints, empty plan.Verdict) plan.Pool {
	out := plan.Pool{Verdict: empty}
	n := 0
	for i := range p.Endpoints {
		if d.Weights[i] > 0 || p.Endpoints[i].Terminating {
			n++
		}
	}
	if n > 0 {
		out.Endpoints = make([]plan.Endpoint, 0, n)
	}
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		if local && !e.Local {
			continue
		}
		m := plan.Endpoint{Addr: e.Addr, Weight: d.Weights[i], Remote: e.Node != "" && !e.Local}
		switch {
		case m.Weight == 0 && p.Name.Protocol == model.UDP && !udp.keeps(e.Addr):
			continue
		case e.Terminating && !e.Ready, d.KeepDraining != nil && d.KeepDraining[i]:
			m.Phase = plan.Draining
		case m.Weight == 0:
			continue
		}
		if d.ResetAt != nil {
			m.Deadline = d.ResetAt[i]
		}
		if m.Weight > 0 {
			out.Verdict = plan.Forward
		}
		out.Endpoints = append(out.Endpoints, m)
	}
	if d.Refused > 0 {
		m := plan.Endpoint{Addr: netip.AddrPortFrom(plan.Refusing(p.Family), p.Spec.Port), Weight: d.Refused}
		at, _ := slices.BinarySearchFunc(out.Endpoints, m, func(a, b plan.Endpoint) int { return a.Addr.Compare(b.Addr) })
		out.Endpoints = slices.Insert(out.Endpoints, at, m)
	}
	if len(out.Endpoints) == 0 {
		out.Endpoints = nil
	}
	return out
}

func ofFamily(addrs []netip.Addr, f model.Family) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		if model.FamilyOf(a) == f {
			out = append(out, a)
		}
	}
	return out
}

func balanceOf(b uint8) plan.Balance {
	switch b {
	case abi.BalanceRoundRobin:
		return plan.RoundRobin
	case abi.BalanceSourceHash:
		return plan.SourceHash
	case abi.BalanceLeastConnections:
		return plan.LeastConnections
	}
	return plan.Random
}

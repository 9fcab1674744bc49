package planner

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/service"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// rules are the settings that every frontend follows.
type rules struct {
	MasqueradeAll bool         // masquerade every ClusterIP connection
	NodeAddrs     []netip.Addr // this node's addresses, for source ranges that name it
	Global        plan.Global  // tells whether sources can be told to be Pods
}

// PortDecision is a Service port in one family with the decisions for the lists that it uses.
type PortDecision struct {
	Port    *service.Port
	Cluster policy.Decision // when Port.UsesCluster
	Local   policy.Decision // when Port.UsesLocal
}

// frontends gives what a Service port in one family wants, in the order of its addresses.
func (r *rules) frontends(svc *model.Service, d *PortDecision) []*plan.Frontend {
	p, f := d.Port, d.Port.Family
	empty := plan.Reject
	if p.HasEligible {
		empty = plan.Drop
	}
	var cluster, local plan.Pool
	if p.UsesCluster {
		cluster = pool(p, &d.Cluster, false, plan.Reject)
	}
	if p.UsesLocal {
		local = pool(p, &d.Local, true, empty)
	}
	var out []*plan.Frontend
	add := func(kind plan.Kind, addr netip.Addr, port uint16) *plan.Frontend {
		fe := &plan.Frontend{
			Key:  plan.Key{Addr: addr, Port: port, Protocol: p.Name.Protocol},
			Kind: kind, Owner: p.Name, Affinity: svc.Affinity,
		}
		out = append(out, fe)
		return fe
	}
	internal := func(fe *plan.Frontend) {
		fe.Pool, fe.Balance = cluster, balance(d.Cluster.Balance)
		if svc.InternalLocal {
			fe.Pool, fe.Balance = local, balance(d.Local.Balance)
		}
		switch {
		case r.MasqueradeAll:
			fe.Masquerade = plan.MasqueradeAlways
		case r.Global.DetectsPods(f):
			fe.Masquerade = plan.MasqueradeOutside
		}
	}
	external := func(fe *plan.Frontend) {
		fe.Pool, fe.Balance, fe.Masquerade = cluster, balance(d.Cluster.Balance), plan.MasqueradeAlways
		if svc.ExternalLocal {
			outside := local
			fe.Outside, fe.Masquerade = &outside, plan.MasqueradeFromNode
		}
	}
	for _, a := range ofFamily(svc.ClusterIPs, f) {
		internal(add(plan.ClusterIP, a, p.Spec.Port))
	}
	for _, a := range ofFamily(svc.ExternalIPs, f) {
		external(add(plan.ExternalIP, a, p.Spec.Port))
	}
	for _, a := range ofFamily(svc.LoadBalancerIPs, f) {
		fe := add(plan.LoadBalancer, a, p.Spec.Port)
		external(fe)
		fe.SourceRanges = r.sourceRanges(svc, f)
	}
	if p.Spec.NodePort != 0 {
		addr := netip.IPv4Unspecified()
		if f == model.IPv6 {
			addr = netip.IPv6Unspecified()
		}
		external(add(plan.NodePort, addr, p.Spec.NodePort))
	}
	return out
}

// sourceRanges are a Service's ranges of a family, sorted. Where one holds an address of this node, the load balancer
// addresses may connect too: a packet from the node to such an address has it as its source.
func (r *rules) sourceRanges(svc *model.Service, f model.Family) []netip.Prefix {
	var out []netip.Prefix
	node := false
	for _, p := range svc.SourceRanges {
		if model.FamilyOf(p.Addr()) == f {
			out = append(out, p.Masked())
			node = node || slices.ContainsFunc(r.NodeAddrs, p.Contains)
		}
	}
	if node {
		for _, a := range ofFamily(svc.LoadBalancerIPs, f) {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return plan.NormalizePrefixes(out)
}

// pool makes a pool of a decision: the endpoints with weight, and the leaving ones as draining endpoints.
func pool(p *service.Port, d *policy.Decision, local bool, empty plan.Verdict) plan.Pool {
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
		m := plan.Endpoint{Addr: e.Addr, Weight: d.Weights[i]}
		switch {
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

func balance(b uint8) plan.Balance {
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

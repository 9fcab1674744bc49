package plan

import (
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/service"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Rules are the settings that every frontend follows.
type Rules struct {
	MasqueradeAll bool           // masquerade every ClusterIP connection
	PodSources    []netip.Prefix // see Global.PodSources
	PodInterfaces []string       // see Global.PodInterfaces
	NodeAddrs     []netip.Addr   // this node's addresses, for source ranges that name it
}

// detects tells whether sources can be told to be Pods, in a family.
func (r *Rules) detects(f model.Family) bool {
	return len(r.PodInterfaces) > 0 || slices.ContainsFunc(r.PodSources, func(p netip.Prefix) bool {
		return model.FamilyOf(p.Addr()) == f
	})
}

// Decided is a Service port in one family with the decisions for the lists that it uses.
type Decided struct {
	Port    *service.Port
	Cluster policy.Decision // when Port.UsesCluster
	Local   policy.Decision // when Port.UsesLocal
}

// frontends gives what a Service port in one family wants, in the order of its addresses.
func (r *Rules) frontends(svc *model.Service, d *Decided) []*Frontend {
	p, f := d.Port, d.Port.Family
	empty := Reject
	if p.Any {
		empty = Drop
	}
	var cluster, local Pool
	if p.UsesCluster {
		cluster = pool(p, &d.Cluster, false, Reject)
	}
	if p.UsesLocal {
		local = pool(p, &d.Local, true, empty)
	}
	var out []*Frontend
	add := func(kind Kind, addr netip.Addr, port uint16) *Frontend {
		fe := &Frontend{
			Key:  Key{Addr: addr, Port: port, Protocol: p.Name.Protocol},
			Kind: kind, Owner: p.Name, Affinity: svc.Affinity,
		}
		out = append(out, fe)
		return fe
	}
	internal := func(fe *Frontend) {
		fe.Pool, fe.Balance = cluster, balance(d.Cluster.Balance)
		if svc.InternalLocal {
			fe.Pool, fe.Balance = local, balance(d.Local.Balance)
		}
		switch {
		case r.MasqueradeAll:
			fe.Masquerade = MasqueradeAlways
		case r.detects(f):
			fe.Masquerade = MasqueradeOutside
		}
	}
	external := func(fe *Frontend) {
		fe.Pool, fe.Balance, fe.Masquerade = cluster, balance(d.Cluster.Balance), MasqueradeAlways
		if svc.ExternalLocal {
			outside := local
			fe.Outside, fe.Masquerade = &outside, MasqueradeFromNode
		}
	}
	for _, a := range ofFamily(svc.ClusterIPs, f) {
		internal(add(ClusterIP, a, p.Spec.Port))
	}
	for _, a := range ofFamily(svc.ExternalIPs, f) {
		external(add(ExternalIP, a, p.Spec.Port))
	}
	for _, a := range ofFamily(svc.LoadBalancerIPs, f) {
		fe := add(LoadBalancer, a, p.Spec.Port)
		external(fe)
		fe.SourceRanges = r.sourceRanges(svc, f)
	}
	if p.Spec.NodePort != 0 {
		addr := netip.IPv4Unspecified()
		if f == model.IPv6 {
			addr = netip.IPv6Unspecified()
		}
		external(add(NodePort, addr, p.Spec.NodePort))
	}
	return out
}

// sourceRanges are a Service's ranges of a family, sorted. Where one holds an address of this node, the load balancer
// addresses may connect too: a packet from the node to such an address has it as its source.
func (r *Rules) sourceRanges(svc *model.Service, f model.Family) []netip.Prefix {
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
	return Prefixes(out)
}

// pool makes a pool of a decision: the endpoints with weight, and the leaving ones as draining members.
func pool(p *service.Port, d *policy.Decision, local bool, empty Verdict) Pool {
	out := Pool{Verdict: empty}
	n := 0
	for i := range p.Endpoints {
		if d.Weights[i] > 0 || p.Endpoints[i].Terminating {
			n++
		}
	}
	if n > 0 {
		out.Members = make([]Member, 0, n)
	}
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		if local && !e.Local {
			continue
		}
		m := Member{Addr: e.Addr, Weight: d.Weights[i]}
		switch {
		case e.Terminating && !e.Ready, d.Keep != nil && d.Keep[i]:
			m.Phase = Draining
		case m.Weight == 0:
			continue
		}
		if d.ResetAt != nil {
			m.Deadline = d.ResetAt[i]
		}
		if m.Weight > 0 {
			out.Verdict = Forward
		}
		out.Members = append(out.Members, m)
	}
	if len(out.Members) == 0 {
		out.Members = nil
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

func balance(b uint8) Balance {
	switch b {
	case abi.BalanceRoundRobin:
		return RoundRobin
	case abi.BalanceSourceHash:
		return SourceHash
	case abi.BalanceLeastConnections:
		return LeastConnections
	}
	return Random
}

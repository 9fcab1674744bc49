package nftables

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// probePlan returns a plan with every kind of frontend and rule, at addresses for documentation.
func probePlan(families []model.Family) *plan.Plan {
	p := &plan.Plan{
		Global:    plan.Global{MasqueradeMark: 1 << 14, PodInterfaces: []string{"veth*"}},
		Frontends: map[plan.Key]*plan.Frontend{},
	}
	for _, f := range families {
		at := func(last byte) netip.Addr {
			if f == model.IPv6 {
				return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: last})
			}
			return netip.AddrFrom4([4]byte{192, 0, 2, last})
		}
		half := netip.PrefixFrom(at(0), at(0).BitLen()-7)
		p.Global.NodePortAddrs = append(p.Global.NodePortAddrs, at(1))
		p.Global.PodSources = append(p.Global.PodSources, half)
		p.Global.ServiceCIDRs = append(p.Global.ServiceCIDRs, half)
		endpoints := []plan.Endpoint{{Addr: netip.AddrPortFrom(at(201), 1), Weight: 2}, {Addr: netip.AddrPortFrom(at(202), 1), Weight: 1}}
		pool, reject, drop := plan.Pool{Endpoints: endpoints}, plan.Pool{Verdict: plan.Reject}, plan.Pool{Verdict: plan.Drop}
		unspecified := netip.IPv4Unspecified()
		if f == model.IPv6 {
			unspecified = netip.IPv6Unspecified()
		}
		for i, fe := range []plan.Frontend{
			{Kind: plan.ClusterIP, Key: plan.Key{Addr: at(2)}, Pool: pool, Masquerade: plan.MasqueradeOutside, Affinity: time.Hour, Outcomes: true},
			{Kind: plan.ClusterIP, Key: plan.Key{Addr: at(3)}, Pool: reject, Masquerade: plan.MasqueradeOutside},
			{Kind: plan.ClusterIP, Key: plan.Key{Addr: at(4)}, Pool: pool, Masquerade: plan.MasqueradeAlways, Balance: plan.SourceHash},
			{Kind: plan.LoadBalancer, Key: plan.Key{Addr: at(5)}, Pool: pool, Outside: &drop, Masquerade: plan.MasqueradeFromNode, SourceRanges: []netip.Prefix{half}},
			{Kind: plan.NodePort, Key: plan.Key{Addr: unspecified}, Pool: pool, Outside: &pool, Masquerade: plan.MasqueradeFromNode, Affinity: time.Minute},
		} {
			fe.Key.Port, fe.Key.Protocol = 80, model.TCP
			fe.Owner = model.PortName{Service: model.Name{Namespace: "probe", Name: fmt.Sprintf("service%d-%d", f, i)}, Protocol: model.TCP}
			p.Frontends[fe.Key] = &fe
		}
	}
	return p
}

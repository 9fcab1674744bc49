package planner

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// TestClusterIPIsNoEndpointWithoutServiceCIDRs: the slice of a tenant names the address of a victim's Service, before or after
// that has it.
func TestClusterIPIsNoEndpointWithoutServiceCIDRs(t *testing.T) {
	tenant, victim := model.Name{Namespace: "tenant", Name: "web"}, model.Name{Namespace: "victim", Name: "db"}
	service := func(name model.Name, edit func(*model.Service)) model.Change {
		s := &model.Service{Name: name, ClusterIPs: addrs("10.96.0.1"), Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}}}
		edit(s)
		return model.Change{Kind: model.ServiceKind, Name: name, Service: s}
	}
	at := func(list ...string) func(*model.Service) {
		return func(s *model.Service) { s.ClusterIPs = addrs(list...) }
	}
	endpoints := func(name string, list ...string) model.Change {
		s := slice(tenant, 0)
		s.Name.Name = name
		for _, a := range addrs(list...) {
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: a, Ready: true, Serving: true})
		}
		return model.Change{Kind: model.SliceKind, Name: s.Name, Slice: s}
	}
	cidr := model.Change{Kind: model.ServiceCIDRKind, Name: model.Name{Name: "c"}, CIDR: &model.ServiceCIDR{Name: "c", CIDRs: prefixes("10.99.0.0/16")}}
	own, named := service(tenant, at("10.96.0.1")), endpoints("a", "10.96.0.9", "10.244.0.1")
	for name, c := range map[string]struct {
		changes []model.Change
		want    string
	}{
		"nobody's address":              {nil, "10.96.0.9 10.244.0.1"},
		"another Service's":             {[]model.Change{service(victim, at("10.96.0.9"))}, "10.244.0.1"},
		"the second one of another's":   {[]model.Change{service(victim, at("10.96.0.8", "10.96.0.9"))}, "10.244.0.1"},
		"its own":                       {[]model.Change{service(tenant, at("10.96.0.9"))}, "10.244.0.1"},
		"of a Service that is deleted":  {[]model.Change{service(victim, at("10.96.0.9")), {Kind: model.ServiceKind, Name: victim}}, "10.96.0.9 10.244.0.1"},
		"of a Service that got another": {[]model.Change{service(victim, at("10.96.0.9")), service(victim, at("10.96.0.8"))}, "10.96.0.9 10.244.0.1"},
		"of two, one of which stays": {[]model.Change{service(victim, at("10.96.0.9")), service(tenant, at("10.96.0.9")), service(tenant, at("10.96.0.1"))},
			"10.244.0.1"},
		"in two slices, one of which is deleted": {[]model.Change{endpoints("b", "10.96.0.9"), {Kind: model.SliceKind, Name: model.Name{Namespace: "tenant", Name: "b"}},
			service(victim, at("10.96.0.9"))}, "10.244.0.1"},
		// A tenant may write external IPs, and may not take the endpoints of others away. Load balancer IPs may be addresses of
		// Nodes with endpoints.
		"another's external IP":      {[]model.Change{service(victim, func(s *model.Service) { s.ExternalIPs = addrs("10.96.0.9", "10.244.0.1") })}, "10.96.0.9 10.244.0.1"},
		"another's load balancer IP": {[]model.Change{service(victim, func(s *model.Service) { s.LoadBalancerIPs = addrs("10.96.0.9") })}, "10.96.0.9 10.244.0.1"},
		// ServiceCIDR objects contain all ClusterIPs.
		"with ServiceCIDRs":               {[]model.Change{cidr, service(victim, at("10.96.0.9"))}, "10.96.0.9 10.244.0.1"},
		"after the last ServiceCIDR went": {[]model.Change{cidr, service(victim, at("10.96.0.9")), {Kind: model.ServiceCIDRKind, Name: cidr.Name}}, "10.244.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			all := append([]model.Change{own, named}, c.changes...)
			for _, together := range []bool{false, true} {
				p := New(testSettings(), nativePlugins)
				p.Apply([]model.Change{{Kind: model.Synced}})
				for i := range all {
					p.Apply(all[i : i+1])
					if !together {
						p.PlanNow(time.Unix(1000, 0))
					}
				}
				p.PlanNow(time.Unix(1000, 0))
				var got []string
				for _, f := range p.Current().Frontends {
					if f.Owner.Service == tenant {
						for _, e := range f.Pool.Endpoints {
							got = append(got, e.Addr.Addr().String())
						}
					}
				}
				if strings.Join(got, " ") != c.want {
					t.Errorf("together %v: endpoints %v, want %s", together, got, c.want)
				}
				var unchanging []string // by the rules for a cluster that does not change
				rules := p.settings.EndpointRules(p.cluster)
				for _, a := range []string{"10.96.0.9", "10.244.0.1"} {
					if rules.Check(netip.MustParseAddr(a)) == nil {
						unchanging = append(unchanging, a)
					}
				}
				if strings.Join(unchanging, " ") != c.want {
					t.Errorf("together %v: EndpointRules allows %v, want %s", together, unchanging, c.want)
				}
				x, err := p.Explain(tenant)
				if err != nil {
					t.Fatal(err)
				}
				if refused := strings.Contains(fmt.Sprint(x.Omitted), "10.96.0.9 is the ClusterIP of a Service"); refused == strings.Contains(c.want, "10.96.0.9") {
					t.Errorf("together %v: %v", together, x.Omitted)
				}
			}
		})
	}
}

// TestManyServicesNamingOneAddressCostWhatTheyAre: a tenant's slices name one address many times.
func TestManyServicesNamingOneAddressCostWhatTheyAre(t *testing.T) {
	var c clusterIPs
	cluster := model.NewSnapshot()
	c.follow(cluster)
	const services, times = 300, 50
	at := netip.MustParseAddr("10.96.0.9")
	slices := make([]*model.EndpointSlice, services)
	for i := range slices {
		slices[i] = slice(model.Name{Namespace: "tenant", Name: fmt.Sprint("s", i)}, 0)
		for range times {
			slices[i].Endpoints = append(slices[i].Endpoints, model.SliceEndpoint{Addr: at})
		}
		change := model.Change{Kind: model.SliceKind, Name: slices[i].Name, Slice: slices[i]}
		c.change(cluster, &change)
		cluster.Apply(change)
	}
	if n := len(c.named); n != 1 {
		t.Fatalf("%d addresses", n)
	}
	victim := model.Change{Kind: model.ServiceKind, Name: model.Name{Name: "v"}, Service: &model.Service{ClusterIPs: []netip.Addr{at}}}
	if got := c.change(cluster, &victim); len(got) != services {
		t.Errorf("%d Services, want %d", len(got), services)
	}
	for _, s := range slices {
		change := model.Change{Kind: model.SliceKind, Name: s.Name}
		c.change(cluster, &change)
		cluster.Apply(change)
	}
	if len(c.named) != 0 {
		t.Errorf("left: %+v", c.named)
	}
}

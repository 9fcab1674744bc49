package planner

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// limited returns a planner with a Service whose limits leave out frontends of every kind, and a Service that has its addresses
// already.
func limited(t *testing.T, l Limits) *Planner {
	t.Helper()
	name := model.Name{Namespace: "voice", Name: "media"}
	p := New(Settings{Node: "n0", Planning: Planning{ServiceLimits: l}}, nativePlugins)
	svc := &model.Service{Name: name, ClusterIPs: addrs("10.96.0.1", "fd00:96::1"), LoadBalancerIPs: addrs("192.0.2.7", "2001:db8::7"), ExternalIPs: addrs("198.51.100.1"),
		Ports: []model.ServicePort{{Name: "a", Protocol: model.UDP, Port: 80, NodePort: 30080}, {Name: "b", Protocol: model.UDP, Port: 81, NodePort: 30081}}}
	s := slice(name, 1)
	s.Ports = []model.SlicePort{{Name: "a", Protocol: model.UDP, Port: 8080}, {Name: "b", Protocol: model.UDP, Port: 8081}}
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: name, Service: svc}, {Kind: model.SliceKind, Name: name, Slice: s},
		nodeChange(&model.Node{Name: "n0", Addresses: addrs("10.0.0.1", "fd00::1")}), {Kind: model.Synced}})
	p.PlanNow(time.Unix(1000, 0))
	return p
}

// TestConnectionsToFrontendsThatALimitLeftOutAreExplained: whatever the kind and the limit, a connection either has a frontend,
// or the limit that it lacks.
func TestConnectionsToFrontendsThatALimitLeftOutAreExplained(t *testing.T) {
	to := []string{"10.96.0.1:80", "10.96.0.1:81", "[fd00:96::1]:80", "[fd00:96::1]:81", "10.0.0.1:30080", "10.0.0.1:30081", "[fd00::1]:30080", "[fd00::1]:30081",
		"192.0.2.7:80", "192.0.2.7:81", "[2001:db8::7]:80", "[2001:db8::7]:81", "198.51.100.1:80", "198.51.100.1:81"}
	for _, l := range []Limits{{Frontends: 1}, {Frontends: 3}, {Frontends: 5}, {Frontends: 13}, {Elements: 1}, {Elements: 4}, {}} {
		p := limited(t, l)
		tracer := p.Current().Tracer(p.NodeAddrs())
		missing := 0
		for _, a := range to {
			at := netip.MustParseAddrPort(a)
			o := tracer.Trace(plan.Flow{From: netip.MustParseAddr(map[bool]string{true: "203.0.113.9", false: "2001:db8:9::9"}[at.Addr().Is4()]), To: at, Protocol: model.UDP})
			d, kind, left := p.LeftOut(at, model.UDP)
			if left == (o.Frontend != nil) {
				t.Errorf("limits %+v: %s: frontend %v, left out: %v", l, a, o.Frontend, left)
			}
			if !left {
				continue
			}
			missing++
			if d.Frontend.Port != at.Port() || (kind == plan.NodePort) != (at.Port() > 30000) || d.Owner.String() != "voice/media:"+map[bool]string{true: "a", false: "b"}[at.Port()%2 == 0] ||
				!strings.Contains(d.Why, "serviceLimits.") {
				t.Errorf("limits %+v: %s: %s %s", l, a, kind, d)
			}
			if want := fmt.Sprintf("%d are left out", 14-len(p.Current().Frontends)); !strings.Contains(d.Got, want) {
				t.Errorf("limits %+v: got %q, want %q", l, d.Got, want)
			}
		}
		if missing != 14-len(p.Current().Frontends) {
			t.Errorf("limits %+v: %d of %d frontends are missing", l, missing, len(p.Current().Frontends))
		}
		for _, a := range []string{"10.96.0.1:82", "192.0.2.8:80", "10.0.0.2:30080", "10.0.0.1:80", "198.51.100.1:30080"} {
			if d, _, left := p.LeftOut(netip.MustParseAddrPort(a), model.UDP); left {
				t.Errorf("limits %+v: %s: %s", l, a, d)
			}
		}
		if d, _, left := p.LeftOut(netip.MustParseAddrPort("198.51.100.1:81"), model.TCP); left {
			t.Errorf("limits %+v: TCP: %s", l, d)
		}
	}
}

func TestFrontendsWithoutSourceRangesAreNamed(t *testing.T) {
	name := model.Name{Namespace: "shop", Name: "web"}
	for ranges, want := range map[string]string{
		"": "", "203.0.113.0/24": "NodePort external IP IPv6", "2001:db8::/32": "NodePort external IP IPv4", "203.0.113.0/24 2001:db8::/32": "NodePort external IP",
	} {
		p := New(Settings{Node: "n0"}, nativePlugins)
		svc := &model.Service{Name: name, ClusterIPs: addrs("10.96.0.1", "fd00:96::1"), LoadBalancerIPs: addrs("192.0.2.7", "2001:db8::7"), ExternalIPs: addrs("198.51.100.1"),
			Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80, NodePort: 30080}}}
		for r := range strings.FieldsSeq(ranges) {
			svc.SourceRanges = append(svc.SourceRanges, netip.MustParsePrefix(r))
		}
		p.Apply([]model.Change{{Kind: model.ServiceKind, Name: name, Service: svc}, nodeChange(&model.Node{Name: "n0", Addresses: addrs("10.0.0.1")}), {Kind: model.Synced}})
		p.PlanNow(time.Unix(1000, 0))
		x, err := p.Explain(name)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range x.Unrestricted() {
			why := WhyUnrestricted(f)
			got += f.Kind.String() + ": " + why + "\n"
		}
		for _, w := range []string{"NodePorts", "external IPs", "range of IPv4", "range of IPv6"} {
			wanted := strings.Contains(want, strings.TrimSuffix(strings.TrimPrefix(w, "range of "), "s"))
			if strings.Contains(got, w) != wanted {
				t.Errorf("ranges %q: %q: %v, want %v", ranges, got, !wanted, wanted)
			}
		}
		if strings.Contains(got, "ClusterIP") {
			t.Errorf("ranges %q: %q", ranges, got)
		}
	}
}

func TestEndpointsWithoutThePortOfTheServiceAreNamed(t *testing.T) {
	svc := &model.Service{Name: model.Name{Namespace: "shop", Name: "web"}, ClusterIPs: addrs("10.96.0.1"), Ports: []model.ServicePort{{Name: "https", Protocol: model.TCP, Port: 443}}}
	slice := func(ports, endpoints string) *model.EndpointSlice {
		s := &model.EndpointSlice{Family: model.IPv4}
		for p := range strings.FieldsSeq(ports) {
			n, proto, _ := strings.Cut(p, "/")
			s.Ports = append(s.Ports, model.SlicePort{Name: n, Protocol: map[string]model.Protocol{"TCP": model.TCP, "UDP": model.UDP}[proto], Port: 8443})
		}
		for e := range strings.FieldsSeq(endpoints) {
			pod, a, _ := strings.Cut(e, "=")
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.MustParseAddr(a), Pod: pod})
		}
		return s
	}
	const named = "; a targetPort that is a name must be that of a container port of these Pods"
	for what, c := range map[string]struct {
		list []*model.EndpointSlice
		want string
	}{
		"all have it":              {[]*model.EndpointSlice{slice("https/TCP", "web-0=10.1.0.1"), slice("http/TCP https/TCP", "web-1=10.1.0.2")}, ""},
		"another protocol":         {[]*model.EndpointSlice{slice("https/UDP", "web-0=10.1.0.1 web-1=10.1.0.2")}, "https 443/TCP IPv4: not at Pod web-0, Pod web-1: their EndpointSlices have it with protocol UDP"},
		"another name":             {[]*model.EndpointSlice{slice("http/TCP metrics/TCP", "web-0=10.1.0.1")}, "https 443/TCP IPv4: not at Pod web-0: their EndpointSlices do not have the port, but http/TCP, metrics/TCP" + named},
		"no port":                  {[]*model.EndpointSlice{slice("", "web-0=10.1.0.1")}, "https 443/TCP IPv4: not at Pod web-0: their EndpointSlices do not have the port, but none" + named},
		"no name":                  {[]*model.EndpointSlice{slice("/TCP", "=10.1.0.1")}, "https 443/TCP IPv4: not at 10.1.0.1: their EndpointSlices do not have the port, but (unnamed)/TCP" + named},
		"some of a new version":    {[]*model.EndpointSlice{slice("https/TCP", "web-0=10.1.0.1"), slice("http/TCP", "web-1=10.1.0.2")}, "https 443/TCP IPv4: not at Pod web-1: their EndpointSlices do not have the port, but http/TCP" + named},
		"a slice for each port":    {[]*model.EndpointSlice{slice("https/TCP", "web-0=10.1.0.1"), slice("http/TCP", "web-0=10.1.0.1")}, ""},
		"another family":           {[]*model.EndpointSlice{{Family: model.IPv6, Endpoints: []model.SliceEndpoint{{Addr: netip.MustParseAddr("fd00::1")}}}}, ""},
		"no endpoints":             {[]*model.EndpointSlice{slice("http/TCP", "")}, ""},
		"more Pods than are named": {[]*model.EndpointSlice{slice("http/TCP", "a=10.1.0.1 b=10.1.0.2 c=10.1.0.3 d=10.1.0.4 e=10.1.0.5 f=10.1.0.6 g=10.1.0.7 h=10.1.0.8 i=10.1.0.9 j=10.1.0.10 k=10.1.0.11 l=10.1.0.12")}, "https 443/TCP IPv4: not at Pod a, Pod b, Pod c, Pod d, Pod e, Pod f, Pod g, Pod h, Pod i, Pod j and 2 more: their EndpointSlices do not have the port, but http/TCP" + named},
	} {
		got := ""
		for _, w := range withoutPort(svc, c.list) {
			got += w.String()
		}
		if got != c.want {
			t.Errorf("%s: got  %s\nwant %s", what, got, c.want)
		}
	}
}

// A limit of something else does not explain why there is no frontend.
func TestOnlyLimitsOfFrontendsLeaveThemOut(t *testing.T) {
	p := limited(t, Limits{SourceRanges: 1})
	name := model.Name{Namespace: "voice", Name: "media"}
	svc := *p.cluster.Services[name]
	svc.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("10.0.2.0/24")}
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: name, Service: &svc}})
	p.PlanNow(time.Unix(1001, 0))
	if len(p.Omitted()) == 0 {
		t.Fatal("no source range is left out")
	}
	if d, _, left := p.LeftOut(netip.MustParseAddrPort("10.96.0.1:80"), model.UDP); left {
		t.Errorf("a frontend that is in the plan: %s", d)
	}
}

// TestTheSearchForEndpointsWithoutAPortIsBounded: whoever explains a Service of a hostile namespace does not stop the node.
func TestTheSearchForEndpointsWithoutAPortIsBounded(t *testing.T) {
	svc := &model.Service{ClusterIPs: addrs("10.96.0.1")}
	for i := range 1000 {
		svc.Ports = append(svc.Ports, model.ServicePort{Name: fmt.Sprint("p", i), Protocol: model.TCP, Port: uint16(i + 1)})
	}
	var list []*model.EndpointSlice
	for i := range 1000 {
		s := &model.EndpointSlice{Family: model.IPv4}
		for j := range 1000 {
			s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{byte(10 + i>>8), byte(i), byte(j >> 8), byte(j)})})
		}
		list = append(list, s)
	}
	found := withoutPort(svc, list)
	looked := 0
	for _, w := range found {
		looked += w.Count
	}
	if len(found) == 0 || looked > maxLooked {
		t.Errorf("%d ports, %d endpoints", len(found), looked)
	}
}

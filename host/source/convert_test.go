//lint:file-ignore SA1019 Endpoints are deprecated, but clusters mirror them and so does sluice.

package source

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/ipaddr"
)

// service makes a Service of one port, with edits.
func service(edit func(*corev1.Service)) *corev1.Service {
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1"},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}},
		},
	}
	edit(o)
	return o
}

func ptr[T any](v T) *T { return &v }

func TestExcludedServicesAreSkipped(t *testing.T) {
	for want, edit := range map[Skip]func(*corev1.Service){
		"":               func(*corev1.Service) {},
		SkipOtherProxy:   func(o *corev1.Service) { o.Labels = map[string]string{LabelProxyName: ""} },
		SkipExternalName: func(o *corev1.Service) { o.Spec.Type = corev1.ServiceTypeExternalName },
		SkipNoClusterIP:  func(o *corev1.Service) { o.Spec.ClusterIP, o.Spec.ClusterIPs = "", nil },
		SkipHeadless:     func(o *corev1.Service) { o.Spec.ClusterIP, o.Spec.ClusterIPs = "None", []string{"None"} },
		SkipInvalid:      func(o *corev1.Service) { o.Spec.ClusterIP, o.Spec.ClusterIPs = "x", []string{"x"} },
	} {
		s, skip, problems := Service(service(edit))
		if skip != want || (s == nil) != (want != "") || (len(problems) > 0) != (want == SkipInvalid) {
			t.Errorf("skip %q, want %q (%v, %v)", skip, want, s, problems)
		}
	}
	if _, skip, _ := Service(service(func(o *corev1.Service) { o.Labels = map[string]string{LabelHeadless: "no"} })); skip != SkipHeadless {
		t.Errorf("the headless label with any value: %q", skip)
	}
}

func TestServiceFields(t *testing.T) {
	lb := func(o *corev1.Service) {
		o.Spec.Type = corev1.ServiceTypeLoadBalancer
		o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
	}
	for name, c := range map[string]struct {
		edit func(*corev1.Service)
		got  func(*model.Service) any
		want any
	}{
		"the legacy clusterIP": {
			func(o *corev1.Service) { o.Spec.ClusterIPs = nil },
			func(s *model.Service) any { return s.ClusterIPs }, "[10.96.0.1]",
		},
		"both families": {
			func(o *corev1.Service) { o.Spec.ClusterIPs = []string{"fd00::1", "10.096.000.1"} },
			func(s *model.Service) any { return s.ClusterIPs }, "[fd00::1 10.96.0.1]",
		},
		"the policy's annotation": {
			func(o *corev1.Service) { o.Annotations = map[string]string{"sluice.dev/policy": "p"} },
			func(s *model.Service) any { return s.Policy }, "p",
		},
		"UDP flows to terminating endpoints are kept": {
			func(o *corev1.Service) { o.Annotations = map[string]string{"sluice.dev/udp-drain": "keep"} },
			func(s *model.Service) any { return s.KeepUDP }, "true",
		},
		"UDP flows to terminating endpoints are kept as KEP-5989 proposes": {
			func(o *corev1.Service) {
				o.Annotations = map[string]string{"service.kubernetes.io/udp-connection-handling": "PreserveDuringTermination"}
			},
			func(s *model.Service) any { return fmt.Sprint(s.KeepUDP, s.MaxKeepUDP) }, "true 6m0s",
		},
		"refused connections are tried again": {
			func(o *corev1.Service) { o.Annotations = map[string]string{"sluice.dev/refused-connections": "retry"} },
			func(s *model.Service) any { return s.RetryRefused }, "true",
		},
		"UDP flows by default": {
			func(o *corev1.Service) {
				o.Annotations = map[string]string{"service.kubernetes.io/udp-connection-handling": "Default"}
			},
			func(s *model.Service) any { return s.KeepUDP }, "false",
		},
		"UDP flows, both annotations": {
			func(o *corev1.Service) {
				o.Annotations = map[string]string{"service.kubernetes.io/udp-connection-handling": "PreserveDuringTermination", "sluice.dev/udp-drain": "keep"}
			},
			func(s *model.Service) any { return fmt.Sprint(s.KeepUDP, s.MaxKeepUDP) }, "true 0s",
		},
		"the annotation with settings": {
			func(o *corev1.Service) { o.Annotations = map[string]string{"sluice.dev/settings": ` {"p": 1}`} },
			func(s *model.Service) any { return s.Settings }, ` {"p": 1}`,
		},
		"settings that are too long are cut, and still too long": {
			func(o *corev1.Service) {
				o.Annotations = map[string]string{"sluice.dev/settings": strings.Repeat("x", 256<<10)}
			},
			func(s *model.Service) any { return len(s.Settings) }, model.MaxSettings + 1,
		},
		"settings are not among the annotations for plugins": {
			func(o *corev1.Service) {
				o.Annotations = map[string]string{"sluice.dev/settings": "{}", "sluice.dev/policy": "p"}
			},
			func(s *model.Service) any { _, has := s.Annotations.Get("sluice.dev/settings"); return has }, false,
		},
		"affinity by default is three hours": {
			func(o *corev1.Service) { o.Spec.SessionAffinity = "ClientIP" },
			func(s *model.Service) any { return s.Affinity }, 3 * time.Hour,
		},
		"affinity None with a timeout is none": {
			func(o *corev1.Service) {
				o.Spec.SessionAffinity = "None"
				o.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr(int32(5))}}
			},
			func(s *model.Service) any { return s.Affinity }, "0s",
		},
		"internalTrafficPolicy": {
			func(o *corev1.Service) { o.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal) },
			func(s *model.Service) any { return s.InternalLocal }, true,
		},
		"externalTrafficPolicy of what is internal only is ignored": {
			func(o *corev1.Service) { o.Spec.ExternalTrafficPolicy = "Local" },
			func(s *model.Service) any { return s.ExternalLocal }, false,
		},
		"externalTrafficPolicy applies to external IPs": {
			func(o *corev1.Service) {
				o.Spec.ExternalTrafficPolicy, o.Spec.ExternalIPs = "Local", []string{"192.0.2.1"}
			},
			func(s *model.Service) any { return s.ExternalLocal }, true,
		},
		"healthCheckNodePort of a load balancer with Local": {
			func(o *corev1.Service) {
				lb(o)
				o.Spec.ExternalTrafficPolicy, o.Spec.HealthCheckNodePort = "Local", 30000
			},
			func(s *model.Service) any { return s.HealthCheckNodePort }, 30000,
		},
		"healthCheckNodePort means nothing with Cluster": {
			func(o *corev1.Service) { lb(o); o.Spec.HealthCheckNodePort = 30000 },
			func(s *model.Service) any { return s.HealthCheckNodePort }, 0,
		},
		"load balancers in the way, by name, and as destination": {
			func(o *corev1.Service) {
				o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
					{IP: "203.0.113.1", IPMode: ptr(corev1.LoadBalancerIPModeProxy)}, {Hostname: "x.example.org"},
					{IP: "203.0.113.2", IPMode: ptr(corev1.LoadBalancerIPModeVIP)}, {IP: "203.0.113.3"},
				}
			},
			func(s *model.Service) any { return s.LoadBalancerIPs }, "[203.0.113.2 203.0.113.3]",
		},
		"source ranges tolerate blanks and host bits": {
			func(o *corev1.Service) { o.Spec.LoadBalancerSourceRanges = []string{" 10.1.2.3/8\t", "fd00::/8", ""} },
			func(s *model.Service) any { return s.SourceRanges }, "[10.0.0.0/8 fd00::/8]",
		},
		"a /0 lifts the restriction of its family": {
			func(o *corev1.Service) {
				o.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "0.0.0.0/0", "fd00::/8"}
			},
			func(s *model.Service) any { return s.SourceRanges }, "[fd00::/8]",
		},
		"a /0 alone is no restriction": {
			func(o *corev1.Service) { o.Spec.LoadBalancerSourceRanges = []string{"0.0.0.0/0"} },
			func(s *model.Service) any { return s.SourceRanges == nil }, true,
		},
		"the same number on two protocols": {
			func(o *corev1.Service) {
				o.Spec.Ports = []corev1.ServicePort{{Name: "a", Protocol: "TCP", Port: 53, NodePort: 30053}, {Name: "b", Protocol: "UDP", Port: 53, NodePort: 30053}, {Name: "c", Protocol: "SCTP", Port: 53}}
			},
			func(s *model.Service) any { return s.Ports }, "[{a TCP 53 30053} {b UDP 53 30053} {c SCTP 53 0}]",
		},
		"no protocol is TCP": {
			func(o *corev1.Service) { o.Spec.Ports = []corev1.ServicePort{{Port: 53}} },
			func(s *model.Service) any { return s.Ports }, "[{ TCP 53 0}]",
		},
		"creation": {
			func(o *corev1.Service) { o.CreationTimestamp = metav1.Unix(1700000000, 0) },
			func(s *model.Service) any { return s.Created }, 1700000000,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, skip, problems := Service(service(c.edit))
			if skip != "" || len(problems) > 0 {
				t.Fatalf("%s %v", skip, problems)
			}
			if got := fmt.Sprint(c.got(s)); got != fmt.Sprint(c.want) {
				t.Errorf("got %s, want %v", got, c.want)
			}
		})
	}
}

func TestInvalidServiceFieldIsReportedAndDroppedAlone(t *testing.T) {
	for field, edit := range map[string]func(*corev1.Service){
		"spec.clusterIPs[1]":            func(o *corev1.Service) { o.Spec.ClusterIPs = append(o.Spec.ClusterIPs, "ff02::1") },
		"spec.externalIPs[1]":           func(o *corev1.Service) { o.Spec.ExternalIPs = []string{"192.0.2.1", "169.254.169.254"} },
		"spec.loadBalancerSourceRanges": func(o *corev1.Service) { o.Spec.LoadBalancerSourceRanges = []string{"any"} },
		"status.loadBalancer.ingress[0].ip": func(o *corev1.Service) {
			o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "0.0.0.0"}}
		},
		"status.loadBalancer.ingress[0].ipMode": func(o *corev1.Service) {
			o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: ptr(corev1.LoadBalancerIPMode("x"))}}
		},
		"metadata.annotations[sluice.dev/refused-connections]": func(o *corev1.Service) {
			o.Annotations = map[string]string{"sluice.dev/refused-connections": "3"}
		},
		"metadata.annotations[sluice.dev/udp-drain]": func(o *corev1.Service) {
			o.Annotations = map[string]string{"sluice.dev/udp-drain": "60s"}
		},
		"metadata.annotations[service.kubernetes.io/udp-connection-handling]": func(o *corev1.Service) {
			o.Annotations = map[string]string{"service.kubernetes.io/udp-connection-handling": "preserveDuringTermination"}
		},
		"spec.sessionAffinity":       func(o *corev1.Service) { o.Spec.SessionAffinity = "Cookie" },
		"spec.internalTrafficPolicy": func(o *corev1.Service) { o.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicy("x")) },
		"spec.externalTrafficPolicy": func(o *corev1.Service) { o.Spec.ExternalTrafficPolicy = "x" },
		"spec.ports[1].port":         func(o *corev1.Service) { o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: "x", Port: 0}) },
		"spec.ports[0].nodePort":     func(o *corev1.Service) { o.Spec.Ports[0].NodePort = -1 },
		"spec.ports[1].protocol": func(o *corev1.Service) {
			o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: "x", Port: 1, Protocol: "tcp"})
		},
		"spec.ports[1].name": func(o *corev1.Service) {
			o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: "http", Port: 81})
		},
	} {
		t.Run(field, func(t *testing.T) {
			s, _, problems := Service(service(edit))
			if s == nil || len(s.Ports) != 1 || fmt.Sprint(s.ClusterIPs) != "[10.96.0.1]" {
				t.Errorf("more was lost than the field: %+v", s)
			}
			if !slices.ContainsFunc(problems, func(p Problem) bool {
				return p.Field == field && strings.HasPrefix(p.Error(), "Service shop/web: "+field+": ")
			}) {
				t.Errorf("problems: %v", problems)
			}
		})
	}
}

func TestInvalidSourceRangesCloseTheLoadBalancer(t *testing.T) {
	s, _, _ := Service(service(func(o *corev1.Service) {
		o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
		o.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/40"}
	}))
	if len(s.LoadBalancerIPs) != 0 || len(s.ClusterIPs) != 1 {
		t.Errorf("open to all clients: %+v", s)
	}
}

func slice(edit func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
	}
	edit(o)
	return o
}

func TestSliceFields(t *testing.T) {
	plain := model.SliceEndpoint{Addr: netip.MustParseAddr("10.0.0.1"), Ready: true, Serving: true}
	for name, c := range map[string]struct {
		edit  func(*discoveryv1.EndpointSlice)
		want  []model.SliceEndpoint
		ports string
	}{
		"nil conditions": {func(*discoveryv1.EndpointSlice) {}, []model.SliceEndpoint{plain}, "[{http TCP 8080}]"},
		"conditions": {
			func(o *discoveryv1.EndpointSlice) {
				o.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(false), Terminating: ptr(true)}
			},
			[]model.SliceEndpoint{{Addr: plain.Addr, Terminating: true}}, "[{http TCP 8080}]",
		},
		"only the first address, leading zeros and all": {
			func(o *discoveryv1.EndpointSlice) { o.Endpoints[0].Addresses = []string{"010.000.0.01", "10.0.0.2"} },
			[]model.SliceEndpoint{plain}, "[{http TCP 8080}]",
		},
		"ports without name or number are ignored": {
			func(o *discoveryv1.EndpointSlice) {
				o.Ports = append(o.Ports, discoveryv1.EndpointPort{Port: ptr(int32(1))}, discoveryv1.EndpointPort{Name: ptr("x")},
					discoveryv1.EndpointPort{Name: ptr("y"), Port: ptr(int32(0))}, discoveryv1.EndpointPort{Name: ptr(""), Port: ptr(int32(53)), Protocol: ptr(corev1.ProtocolUDP)})
			},
			[]model.SliceEndpoint{plain}, "[{http TCP 8080} { UDP 53}]",
		},
		"hints, place and Pod": {
			func(o *discoveryv1.EndpointSlice) {
				o.Endpoints[0] = discoveryv1.Endpoint{
					Addresses: []string{"10.0.0.1"}, NodeName: ptr("n1"), Zone: ptr("a"),
					Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "b"}}, ForNodes: []discoveryv1.ForNode{{Name: "n1"}}},
					TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web-x"},
				}
			},
			[]model.SliceEndpoint{{
				Addr: plain.Addr, Node: "n1", Zone: "a", Ready: true, Serving: true, Pod: "web-x",
				Hints: &model.Hints{Zones: []string{"a", "b"}, Nodes: []string{"n1"}},
			}}, "[{http TCP 8080}]",
		},
		"a target that is not a Pod": {
			func(o *discoveryv1.EndpointSlice) {
				o.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Node", Name: "n1"}
			},
			[]model.SliceEndpoint{plain}, "[{http TCP 8080}]",
		},
		"an IPv4-mapped address is IPv4": {
			func(o *discoveryv1.EndpointSlice) { o.Endpoints[0].Addresses[0] = "::ffff:10.0.0.1" },
			[]model.SliceEndpoint{plain}, "[{http TCP 8080}]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, skip, problems := Slice(slice(c.edit))
			if skip != "" || len(problems) > 0 {
				t.Fatalf("%s %v", skip, problems)
			}
			if d := cmp.Diff(c.want, s.Endpoints, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
			if got := fmt.Sprint(s.Ports); got != c.ports {
				t.Errorf("ports %s, want %s", got, c.ports)
			}
		})
	}
}

func TestExcludedSlicesAreSkipped(t *testing.T) {
	for want, edit := range map[Skip]func(*discoveryv1.EndpointSlice){
		"":             func(*discoveryv1.EndpointSlice) {},
		SkipFQDN:       func(o *discoveryv1.EndpointSlice) { o.AddressType = discoveryv1.AddressTypeFQDN },
		SkipNoService:  func(o *discoveryv1.EndpointSlice) { o.Labels = nil },
		SkipHeadless:   func(o *discoveryv1.EndpointSlice) { o.Labels[LabelHeadless] = "" },
		SkipOtherProxy: func(o *discoveryv1.EndpointSlice) { o.Labels[LabelProxyName] = "x" },
		SkipInvalid:    func(o *discoveryv1.EndpointSlice) { o.AddressType = "IPv5" },
	} {
		if s, skip, _ := Slice(slice(edit)); skip != want || (s == nil) != (want != "") {
			t.Errorf("skip %q, want %q", skip, want)
		}
	}
}

func TestUnsafeEndpointAddressesAreRejected(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.1", "255.255.255.255", "fd00::1", "10.0.0.256", "x", "10.0.0.1%eth0"} {
		s, _, problems := Slice(slice(func(o *discoveryv1.EndpointSlice) {
			o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}})
		}))
		if len(s.Endpoints) != 1 || len(problems) != 1 || problems[0].Field != "endpoints[1].addresses[0]" {
			t.Errorf("%s: %v %v", addr, s.Endpoints, problems)
		}
	}
}

func TestLabelsOfNamespacesAreThoseThatAreDeclared(t *testing.T) {
	o := &metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"env": "prod", "long": strings.Repeat("x", 1<<20), "odd": "\xff"}}
	for i := range 10_000 {
		o.Labels[fmt.Sprint("other", i)] = strings.Repeat("y", 64)
	}
	n, problems := Namespace(o, []string{"absent", "env", "long", "odd"})
	if want := map[string]string{"env": "prod"}; !maps.Equal(n.Labels, want) {
		t.Errorf("labels %q, want %q", n.Labels, want)
	}
	if got := fmt.Sprint(problems); len(problems) != 2 || !problems[0].Warning || len(got) > 500 ||
		!strings.Contains(got, "Namespace shop: metadata.labels[long]: 1048576 bytes, plugins see at most 63") || !strings.Contains(got, "metadata.labels[odd]: not UTF-8") {
		t.Errorf("problems %.1000s", got)
	}
}

func TestNodeFields(t *testing.T) {
	o := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"topology.kubernetes.io/zone": "a", "pool": "", "long": strings.Repeat("x", 64), "odd": "\xff"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.1.0.0/24"},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"},
				{Type: corev1.NodeHostName, Address: "n1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"}, {Type: corev1.NodeInternalIP, Address: "n1.lan"},
			},
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1.5")},
		},
	}
	n, problems := Node(o)
	if got := fmt.Sprint(n.Zone, n.Addresses, n.PodCIDRs, n.MilliCPU, n.Leaving); got != "a[10.0.0.1 fd00::1 203.0.113.1] [10.1.0.0/24] 1500 false" {
		t.Errorf("got %s", got)
	}
	if want := map[string]string{"topology.kubernetes.io/zone": "a", "pool": ""}; !maps.Equal(n.Labels, want) {
		t.Errorf("labels %q, want %q", n.Labels, want)
	}
	if len(problems) != 1 || problems[0].Field != "status.addresses[4].address" {
		t.Errorf("problems %v", problems)
	}
	o.Spec.Taints = []corev1.Taint{{Key: "node.kubernetes.io/unreachable"}}
	if n, _ := Node(o); n.Leaving {
		t.Error("any other taint means nothing to a proxy")
	}
	o.Spec.Taints = append(o.Spec.Taints, corev1.Taint{Key: "ToBeDeletedByClusterAutoscaler"})
	if n, _ := Node(o); !n.Leaving {
		t.Error("the autoscaler's taint means leaving")
	}
	o.Spec.Taints, o.DeletionTimestamp = nil, ptr(metav1.Unix(1, 0))
	if n, _ := Node(o); !n.Leaving {
		t.Error("deletion means leaving")
	}
	o.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("-1")
	if n, problems := Node(o); n.MilliCPU != 0 || len(problems) != 2 {
		t.Errorf("negative CPU: %d %v", n.MilliCPU, problems)
	}
	o.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("9E")
	if n, _ := Node(o); n.MilliCPU != maxMilliCPU {
		t.Errorf("absurd CPU: %d", n.MilliCPU)
	}
}

func TestMirrorGroupsByPortsAndFamilyUpToTheLimit(t *testing.T) {
	many := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Port: 1}}}
	for i := range 1100 {
		many.Addresses = append(many.Addresses, corev1.EndpointAddress{IP: fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)})
	}
	list, problems := Mirror(&corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"},
		Subsets:    []corev1.EndpointSubset{many, {Ports: many.Ports, Addresses: []corev1.EndpointAddress{{IP: "fd00::1"}, {IP: "10.9.0.1"}}}},
	})
	if len(list) != 2 || len(list[0].Endpoints) != 1001 || len(list[1].Endpoints) != 1 || list[1].Family != model.IPv6 {
		t.Errorf("%d slices", len(list))
	}
	if len(problems) != 1 || problems[0].Field != "subsets[0]" {
		t.Errorf("problems %v", problems)
	}
	if list, _ := Mirror(&corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"control-plane.alpha.kubernetes.io/leader": "{}"}},
		Subsets:    []corev1.EndpointSubset{many},
	}); len(list) != 0 {
		t.Error("a leader election lock was mirrored")
	}
}

// FuzzAddresses: what is accepted is canonical, and what netip accepts without a zone is accepted.
func FuzzAddresses(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "010.00.0.001", "::ffff:010.0.0.1", "fd00::/8", " 10.1.2.3/8 ", "0/0", "1.2.3.4.5", "::1%lo", "10.0.0.0/+8"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ipaddr.Parse(s)
		if err == nil && (a.Is4In6() || a.Zone() != "" || a != netip.MustParseAddr(a.String())) {
			t.Errorf("ipaddr.Parse(%q) = %v", s, a)
		}
		if b, strict := netip.ParseAddr(s); strict == nil && b.Zone() == "" && (err != nil || a != b.Unmap()) {
			t.Errorf("ipaddr.Parse(%q) = %v, %v; netip has %v", s, a, err, b)
		}
		p, err := ipaddr.ParsePrefix(s)
		if err == nil && (!p.IsValid() || p != p.Masked() || p != netip.MustParsePrefix(p.String())) {
			t.Errorf("ipaddr.ParsePrefix(%q) = %v", s, p)
		}
		if q, strict := netip.ParsePrefix(s); strict == nil && !q.Addr().Is4In6() && (err != nil || p != q.Masked()) {
			t.Errorf("ipaddr.ParsePrefix(%q) = %v, %v; netip has %v", s, p, err, q)
		}
	})
}

// TestProblemsOfAnObjectAreBounded: they are kept, compared and logged, and a tenant may write thousands.
func TestProblemsOfAnObjectAreBounded(t *testing.T) {
	var bad []string
	for range 5000 {
		bad = append(bad, "127.0.0.1")
	}
	s, _, problems := Service(service(func(o *corev1.Service) { o.Spec.ExternalIPs = append(bad, "192.0.2.1") }))
	if len(problems) != maxProblems+1 || !strings.Contains(problems[maxProblems].Error(), "4980 more problems") {
		t.Fatalf("%d problems, the last one %v", len(problems), problems[len(problems)-1])
	}
	if len(s.ExternalIPs) != 1 {
		t.Errorf("external IPs %v", s.ExternalIPs)
	}
}

package dir_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
	"github.com/sluice-proxy/sluice/host/source/dir"
)

// TestManifestsRoundTripRandomClusters writes random clusters as Kubernetes objects, reads them back, and compares what
// becomes of connections.
func TestManifestsRoundTripRandomClusters(t *testing.T) {
	folder := t.TempDir()
	forwarded := 0
	for seed := range uint64(150) {
		// A link-local address is refused as an external address, as by the API server.
		c := testgen.NewCluster(seed, testgen.ClusterOptions{NodeAddrs: parseAddrs("192.168.0.1", "192.168.7.7", "10.244.0.254", "fd00:192::1", "fd00:192::7")})
		text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects(c)})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "all.json"), text, 0o644); err != nil {
			t.Fatal(err)
		}
		read, problems, err := dir.Load(folder)
		if err != nil || len(problems) > 0 {
			t.Fatalf("seed %d: %v %v\n%s", seed, problems, err, text)
		}
		want, got := resolver(c, c.Snapshot()), resolver(c, read)
		for range 60 {
			f := c.Flow()
			w, g := outcome(want.Trace(f)), outcome(got.Trace(f))
			if w != g {
				t.Fatalf("seed %d: %s → %s/%s: got %s, want %s\n%s", seed, f.From, f.To, f.Protocol, g, w, text)
			}
			if len(want.Trace(f).Candidates) > 0 {
				forwarded++
			}
		}
	}
	if forwarded < 1000 {
		t.Errorf("only %d connections were forwarded", forwarded)
	}
}

func resolver(c *testgen.Cluster, s *model.Snapshot) *plan.Tracer {
	p := planner.New(c.Settings, nil)
	p.Replace(s)
	p.Plan(time.Unix(1_700_000_000, 0))
	return p.Current().Tracer(p.NodeAddrs())
}

func outcome(o plan.Outcome) string {
	text := fmt.Sprintf("ours %v, %s, %+v", o.Matched, o.Verdict, o.Candidates)
	if o.Frontend != nil {
		text += fmt.Sprintf(", %s, affinity %s", o.Frontend.Owner, o.Frontend.Affinity)
	}
	return text
}

func objects(c *testgen.Cluster) (out []any) {
	for _, ch := range c.Changes {
		switch {
		case ch.Service != nil:
			out = append(out, serviceObject(ch.Service))
		case ch.Slice != nil:
			out = append(out, sliceObject(ch.Slice))
		case ch.Node != nil:
			n := &corev1.Node{TypeMeta: kind("v1", "Node"), ObjectMeta: metav1.ObjectMeta{Name: ch.Node.Name, Labels: map[string]string{corev1.LabelTopologyZone: ch.Node.Zone}}}
			for _, a := range ch.Node.Addresses {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
			}
			out = append(out, n)
		case ch.CIDR != nil:
			out = append(out, &networkingv1.ServiceCIDR{
				TypeMeta: kind("networking.k8s.io/v1", "ServiceCIDR"), ObjectMeta: metav1.ObjectMeta{Name: ch.CIDR.Name},
				Spec: networkingv1.ServiceCIDRSpec{CIDRs: texts(ch.CIDR.CIDRs)},
			})
		}
	}
	return out
}

func serviceObject(s *model.Service) *corev1.Service {
	o := &corev1.Service{TypeMeta: kind("v1", "Service"), ObjectMeta: metav1.ObjectMeta{Namespace: s.Name.Namespace, Name: s.Name.Name}}
	o.Spec.Type = corev1.ServiceTypeClusterIP
	o.Spec.ClusterIPs = texts(s.ClusterIPs)
	o.Spec.ClusterIP = o.Spec.ClusterIPs[0]
	o.Spec.ExternalIPs = texts(s.ExternalIPs)
	o.Spec.LoadBalancerSourceRanges = texts(s.SourceRanges)
	for _, p := range s.Ports {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: corev1.Protocol(p.Protocol.String()), Port: int32(p.Port), NodePort: int32(p.NodePort)})
		if p.NodePort != 0 {
			o.Spec.Type = corev1.ServiceTypeNodePort
		}
	}
	for _, a := range s.LoadBalancerIPs {
		o.Spec.Type = corev1.ServiceTypeLoadBalancer
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
	}
	if s.InternalLocal {
		local := corev1.ServiceInternalTrafficPolicyLocal
		o.Spec.InternalTrafficPolicy = &local
	}
	if s.ExternalLocal {
		o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if s.Affinity > 0 {
		seconds := int32(s.Affinity / time.Second)
		o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		o.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
	return o
}

func sliceObject(s *model.EndpointSlice) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{
		TypeMeta: kind("discovery.k8s.io/v1", "EndpointSlice"), AddressType: discoveryv1.AddressType(s.Family.String()),
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Name.Namespace, Name: s.Name.Name, Labels: map[string]string{discoveryv1.LabelServiceName: s.Service.Name}},
	}
	for _, p := range s.Ports {
		number, proto := int32(p.Port), corev1.Protocol(p.Protocol.String())
		o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &number, Protocol: &proto})
	}
	for _, e := range s.Endpoints {
		oe := discoveryv1.Endpoint{Addresses: []string{e.Addr.String()}, NodeName: &e.Node, Zone: &e.Zone,
			Conditions: discoveryv1.EndpointConditions{Ready: &e.Ready, Serving: &e.Serving, Terminating: &e.Terminating}}
		if e.Ready && e.Serving && !e.Terminating {
			oe.Conditions = discoveryv1.EndpointConditions{} // absent conditions have this meaning
		}
		if len(e.ForZones())+len(e.ForNodes()) > 0 {
			oe.Hints = &discoveryv1.EndpointHints{}
		}
		for _, z := range e.ForZones() {
			oe.Hints.ForZones = append(oe.Hints.ForZones, discoveryv1.ForZone{Name: z})
		}
		for _, n := range e.ForNodes() {
			oe.Hints.ForNodes = append(oe.Hints.ForNodes, discoveryv1.ForNode{Name: n})
		}
		o.Endpoints = append(o.Endpoints, oe)
	}
	return o
}

func kind(version, name string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: name}
}

func texts[T fmt.Stringer](list []T) (out []string) {
	for _, v := range list {
		out = append(out, v.String())
	}
	return out
}

func parseAddrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

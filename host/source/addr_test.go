package source

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	netutils "k8s.io/utils/net"

	"github.com/sluice-proxy/sluice/host/util/ipaddr"
)

// TestAddressesAreParsedAsKubernetesDoes: objects that older API servers have accepted stay, with leading zeros, which are
// decimal.
func TestAddressesAreParsedAsKubernetesDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	parts := []string{"0", "00", "1", "01", "001", "010", "08", "09", "099", "0255", "255", "256", "0256", "000000000010", "", "-1", "+1", "1e1", "0x1", "a"}
	accepted := 0
	for range 50_000 {
		octets := make([]string, 3+r.IntN(3))
		for i := range octets {
			octets[i] = parts[r.IntN(len(parts))]
			if r.IntN(3) > 0 {
				octets[i] = strings.Repeat("0", r.IntN(3)) + fmt.Sprint(r.IntN(256))
			}
		}
		text := strings.Join(octets, ".")
		if r.IntN(4) == 0 {
			text = []string{"::ffff:", "::", "64:ff9b::", "1:2:3:4:5:6:"}[r.IntN(4)] + text
		}
		want, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
		got, err := ipaddr.Parse(text)
		if ok != (err == nil) || ok && got != want.Unmap() {
			t.Fatalf("%q: %v, %v; Kubernetes %v, %v", text, got, err, want, ok)
		}
		if ok {
			accepted++
		}
		if strings.HasPrefix(text, "::ffff:") {
			continue // mapped ranges are refused
		}
		text += "/" + []string{"0", "8", "08", "16", "024", "32", "33", "64", "128", "", "+8", "x"}[r.IntN(12)]
		_, n, err := netutils.ParseCIDRSloppy(text)
		prefix, perr := ipaddr.ParsePrefix(text)
		if (err == nil) != (perr == nil) || err == nil && prefix.String() != n.String() {
			t.Fatalf("%q: %v, %v; Kubernetes %v, %v", text, prefix, perr, n, err)
		}
	}
	if accepted < 1000 {
		t.Errorf("%d addresses are valid", accepted)
	}
}

// TestLeadingZerosInEveryFieldOfAnOldObject: the object is used, and two spellings of an address are the same address.
func TestLeadingZerosInEveryFieldOfAnOldObject(t *testing.T) {
	svc, _, problems := Service(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "010.096.000.010", ClusterIPs: []string{"010.096.000.010"}, ExternalIPs: []string{"198.051.100.001", "198.51.100.1"},
			LoadBalancerSourceRanges: []string{"010.000.000.000/08", " 172.016.0.0/12 "}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.000.002.007"}, {IP: "::ffff:192.0.2.07"}}}},
	})
	if len(problems) > 0 || fmt.Sprint(svc.ClusterIPs, svc.ExternalIPs, svc.LoadBalancerIPs, svc.SourceRanges) != "[10.96.0.10] [198.51.100.1] [192.0.2.7] [10.0.0.0/8 172.16.0.0/12]" {
		t.Errorf("%v %+v", problems, svc)
	}
	s, _, problems := Slice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"010.244.001.008"}}},
	})
	if len(problems) > 0 || fmt.Sprint(s.Endpoints[0].Addr) != "10.244.1.8" {
		t.Errorf("%v %+v", problems, s)
	}
	n, problems := Node(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"010.244.001.000/024"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.000.002.010"}}},
	})
	if len(problems) > 0 || fmt.Sprint(n.Addresses, n.PodCIDRs) != "[192.0.2.10] [10.244.1.0/24]" {
		t.Errorf("%v %+v", problems, n)
	}
	c, problems := ServiceCIDR(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "k"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"010.096.000.000/012"}}})
	if len(problems) > 0 || fmt.Sprint(c.CIDRs) != "[10.96.0.0/12]" {
		t.Errorf("%v %+v", problems, c)
	}
}

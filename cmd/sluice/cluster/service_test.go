package cluster

import (
	"fmt"
	"net/netip"
	"strconv"
	"testing"
)

// TestServiceTypeChanges: each type has its frontends and no others.
func TestServiceTypeChanges(t *testing.T) {
	s := newScene(t, "types")
	n1, n2 := s.nodes["n1"], s.nodes["n2"]
	s.apply(web)
	s.pod("a", "web", n1, "")
	s.pod("b", "web", n2, "")
	r := s.run("n1", "")
	vip := s.vip("web", false)
	restart := func(phase string) {
		t.Helper()
		if wrote := r.restartedByKill(nil); wrote != "0" {
			t.Errorf("%s: the restart wrote %s messages:\n%s", phase, wrote, r.log)
		}
	}
	s.expect(n1.client, vip, "a b")
	open := s.converse(n1.client, vip)

	s.kubectl("patch", "service", "web", "-p", `{"spec":{"type":"NodePort"}}`)
	number, err := strconv.ParseUint(s.kubectl("get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"), 10, 16)
	s.must(err)
	port := netip.AddrPortFrom(n1.addr, uint16(number))
	s.expect(s.outside, port, "a b")
	restart("NodePort")
	s.expect(s.outside, port, "a b")
	s.expect(n1.client, vip, "a b")
	fromOutside := s.converse(s.outside, port)

	balancer := netip.MustParseAddrPort("192.0.2.10:80")
	s.must(s.network.Route(netip.PrefixFrom(balancer.Addr(), 32), n1.Node))
	s.kubectl("patch", "service", "web", "-p", `{"spec":{"type":"LoadBalancer"}}`)
	s.kubectl("patch", "service", "web", "--subresource=status", "-p", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.10"}]}}}`)
	s.expect(s.outside, balancer, "a b")
	s.kubectl("patch", "service", "web", "-p", `{"spec":{"externalTrafficPolicy":"Local"}}`)
	s.expect(s.outside, balancer, "a")
	s.expect(n1.client, balancer, "a b") // a Pod counts as internal, whichever address it connects to
	restart("LoadBalancer")
	s.expect(s.outside, balancer, "a")
	s.kubectl("patch", "service", "web", "--subresource=status", "-p", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.10","ipMode":"Proxy"}]}}}`)
	s.expectNoFrontend(s.outside, balancer)
	s.kubectl("patch", "service", "web", "--subresource=status", "-p", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.10","ipMode":"VIP"}]}}}`)
	s.expect(s.outside, balancer, "a")

	s.kubectl("patch", "service", "web", "--type=merge", "-p",
		`{"spec":{"type":"ExternalName","externalName":"example.com","clusterIP":null,"clusterIPs":null,"externalTrafficPolicy":null}}`)
	s.expectSilent(n1.client, vip)
	s.expectNoFrontend(s.outside, balancer)
	s.expectRefused(s.outside, port)
	restart("ExternalName")
	s.expectRefused(s.outside, port)
	open.expectAlive()
	fromOutside.expectAlive()

	s.kubectl("patch", "service", "web", "--type=merge", "-p", `{"spec":{"type":"ClusterIP","externalName":null}}`)
	again := s.vip("web", false)
	s.expect(n1.client, again, "a b")
	restart("ClusterIP again")
	s.expect(n1.client, again, "a b")
	s.expectRefused(s.outside, port)
}

// TestServiceGainsAndLosesSecondIPFamily: the families are independent.
func TestServiceGainsAndLosesSecondIPFamily(t *testing.T) {
	s := newScene(t, "families")
	n1, n2 := s.nodes["n1"], s.nodes["n2"]
	s.apply(web)
	s.pod("a", "web", n1, "")
	b := s.pod("b", "web", n2, "")
	r := s.run("n1", "")
	four := s.vip("web", false)
	s.expect(n1.client, four, "a b")
	open := s.converse(n1.client, four)

	s.kubectl("patch", "service", "web", "-p", `{"spec":{"type":"NodePort","ipFamilyPolicy":"RequireDualStack"}}`)
	six := s.vip("web", true)
	s.expect(n1.client, six, "a b")
	s.expect(n1.client, four, "a b")
	number, err := strconv.ParseUint(s.kubectl("get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"), 10, 16)
	s.must(err)
	for _, node := range []netip.Addr{n1.addr, n1.addr6} {
		s.expect(s.outside, netip.AddrPortFrom(node, uint16(number)), "a b")
	}
	b.ready(false)
	s.expect(n1.client, six, "a")
	s.expect(n1.client, four, "a")
	open6 := s.converse(n1.client, six)
	if wrote := r.restartedByKill(func() { b.ready(true) }); wrote == "0" {
		t.Error("the restart did not take b in again")
	}
	for _, vip := range []netip.AddrPort{four, six} {
		s.expect(n1.client, vip, "a b")
	}

	s.kubectl("patch", "service", "web", "-p", fmt.Sprintf(
		`{"spec":{"ipFamilyPolicy":"SingleStack","ipFamilies":["IPv4"],"clusterIPs":["%s"]}}`, four.Addr()))
	s.expectSilent(n1.client, six)
	s.expectRefused(s.outside, netip.AddrPortFrom(n1.addr6, uint16(number)))
	s.expect(n1.client, four, "a b")
	open.expectAlive()
	open6.expectAlive()
}

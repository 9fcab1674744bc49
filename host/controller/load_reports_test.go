package controller

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/sluice-proxy/sluice/host/controller/loads"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
)

func (l *lab) loadReports(log *testenv.Buffer) *loadReports {
	l.Helper()
	c, err := clientsOf(&rest.Config{Host: "https://192.0.2.1"})
	if err != nil {
		l.Fatal(err)
	}
	return newLoadReports(c, l.services, config.Default(), slog.New(slog.NewTextHandler(log, nil)))
}

func service(name, annotation string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "u", Annotations: map[string]string{LoadReports: annotation, "other": "x"}}}
}

// TestAnnotationAsksForLoad: what is no port is said once, and in a few lines a minute for all.
func TestAnnotationAsksForLoad(t *testing.T) {
	l := newLab(t)
	var log testenv.Buffer
	r := l.loadReports(&log)
	add := func(s *corev1.Service) { _ = l.services.GetStore().Add(narrow(s)) }
	add(service("web", "8085"))
	add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "without", UID: "u"}})
	bad := []string{"", "0", "http", "65536", "-1", "+80", "080", " 80", "80 ", "80,81", "1e3", "\x1b[31m" + strings.Repeat("x", 10_000)}
	for i, text := range bad {
		add(service(fmt.Sprint("bad", i), text))
	}
	for range 2 {
		if got := fmt.Sprint(r.wanted()); got != "map[shop/web:8085]" {
			t.Error(got)
		}
		if r.counts.InvalidAnnotations != len(bad) {
			t.Errorf("%d invalid annotations are counted, want %d", r.counts.InvalidAnnotations, len(bad))
		}
		if n := strings.Count(log.String(), "\n"); n != invalidLines || len(log.String()) > 300*invalidLines {
			t.Errorf("%d lines:\n%s", n, log.String())
		}
	}
	kept := narrow(service("web", "8085")).(*corev1.Service)
	if got := fmt.Sprint(kept.Annotations); got != "map["+LoadReports+":8085]" || kept.UID != "u" {
		t.Error(got, kept.UID)
	}
	if same(kept, narrow(service("web", "8086"))) || !same(kept, narrow(service("web", "8085"))) {
		t.Error("another annotation is a change")
	}
	for i := range 2 * loads.MaxServices {
		add(service(fmt.Sprintf("many%03d", i), "80"))
	}
	if n := len(r.wanted()); n != loads.MaxServices || r.counts.OmittedServices != loads.MaxServices+1 {
		t.Errorf("%d Services, %d left out", n, r.counts.OmittedServices)
	}
}

// TestOnlyThePodsOwnAddressIsAsked: everything else in a slice is refused, before the API server is asked if that can be.
func TestOnlyThePodsOwnAddressIsAsked(t *testing.T) {
	good := func() *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.0.5"}, {IP: "fd00::5"}}, HostIPs: []corev1.HostIP{{IP: "192.0.2.1"}}}
		return p
	}
	for _, test := range []struct {
		what, addr, want string
		change           func(*corev1.Pod)
	}{
		{"its address", "10.244.0.5", "", func(*corev1.Pod) {}},
		{"its other address", "fd00::5", "", func(*corev1.Pod) {}},
		{"another address", "10.244.0.6", "has other addresses", func(*corev1.Pod) {}},
		{"no address yet", "10.244.0.5", "has other addresses", func(p *corev1.Pod) { p.Status.PodIPs = nil }},
		{"hostNetwork", "10.244.0.5", "uses the network of its Node", func(p *corev1.Pod) { p.Spec.HostNetwork = true }},
		{"the Node's address", "10.244.0.5", "has the address of its Node", func(p *corev1.Pod) { p.Status.HostIPs[0].IP = "10.244.0.5" }},
		{"another Pod of that name", "10.244.0.5", "has another UID", func(p *corev1.Pod) { p.UID = "v" }},
		{"ended", "10.244.0.5", "does not run", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		{"failed", "10.244.0.5", "does not run", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }},
	} {
		p := good()
		test.change(p)
		if got := refused(p, loads.Endpoint{Addr: netip.MustParseAddr(test.addr), Pod: "p", UID: "u"}); got != test.want {
			t.Errorf("%s: %q, want %q", test.what, got, test.want)
		}
	}

	l := newLab(t)
	r := l.loadReports(&testenv.Buffer{})
	l.apply("Service", "shop/web", "{clusterIP: 10.96.0.7, clusterIPs: [10.96.0.7, 'fd00:96::7']}")
	ended, cancel := context.WithCancel(t.Context())
	cancel() // asking the API server fails, with another error
	for addr, want := range map[string]string{
		"127.0.0.1": "loopback", "169.254.169.254": "", "10.96.0.7": "ClusterIP of a Service", "fd00:96::7": "ClusterIP of a Service", "::ffff:127.0.0.1": "loopback",
		"0.0.0.0": "unspecified", "224.0.0.1": "multicast",
	} {
		err := r.check(ended, "shop", loads.Endpoint{Addr: netip.MustParseAddr(addr), Pod: "p", UID: "u"})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Pod") {
			t.Errorf("%s: %v, want %s", addr, err, want)
		}
	}
	for _, e := range []loads.Endpoint{{Pod: "p"}, {UID: "u"}, {}} {
		e.Addr = netip.MustParseAddr("10.244.0.5")
		if err := r.check(ended, "shop", e); err == nil || !strings.Contains(err.Error(), "names no Pod") {
			t.Errorf("%+v: %v", e, err)
		}
	}
	if err := r.check(ended, "shop", loads.Endpoint{Addr: netip.MustParseAddr("10.244.0.5"), Pod: "../../secrets", UID: "u"}); err == nil {
		t.Error("a name that is a path")
	}
}

func TestEndpointsOfASlice(t *testing.T) {
	yes, no := true, false
	ref := func(kind, namespace string) *corev1.ObjectReference {
		return &corev1.ObjectReference{Kind: kind, Namespace: namespace, Name: "p", UID: "u"}
	}
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Endpoints: []discoveryv1.Endpoint{
		{Addresses: []string{"10.0.0.1"}, TargetRef: ref("Pod", "shop")},
		{Addresses: []string{"10.0.0.2"}, TargetRef: ref("Pod", "")},
		{Addresses: []string{"10.0.0.3"}, TargetRef: ref("Pod", "bank")},
		{Addresses: []string{"10.0.0.4"}, TargetRef: ref("Node", "")},
		{Addresses: []string{"10.0.0.5"}},
		{Addresses: []string{"10.0.0.6"}, Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &yes}, TargetRef: ref("Pod", "")},
		{Addresses: []string{"10.0.0.7"}, Conditions: discoveryv1.EndpointConditions{Ready: &no, Serving: &no}, TargetRef: ref("Pod", "")},
		{Addresses: []string{"example.com"}, TargetRef: ref("Pod", "")},
		{},
	}}
	want := "[{10.0.0.1 p u} {10.0.0.2 p u} {10.0.0.3  } {10.0.0.4  } {10.0.0.5  } {10.0.0.6 p u}]"
	if got := fmt.Sprint(appendEndpoints(nil, narrow(s).(*discoveryv1.EndpointSlice))); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

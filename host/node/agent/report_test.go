package agent

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
)

const sliceOfWeb = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints:
- {addresses: [10.244.0.1], conditions: {ready: true}, nodeName: n0, targetRef: {kind: Pod, name: web-a, namespace: shop}}
- {addresses: [10.244.0.2], conditions: {ready: false, serving: true, terminating: true}, nodeName: n1, targetRef: {kind: Pod, name: web-b, namespace: shop}}
`

// TestStatusAndDrainsOfARunningAgent: with a draining endpoint, whose connections the mode counts, and a rejected configuration.
func TestStatusAndDrainsOfARunningAgent(t *testing.T) {
	r := newRig(t, noServers)
	r.opts.Version = "v1.2.3"
	r.opts.Modes[0].Stats = func(context.Context, int) ([]backend.ServerStats, error) {
		return []backend.ServerStats{{Frontend: plan.Key{Protocol: 6}, Destinations: []backend.DestinationStats{
			{Addr: netip.MustParseAddrPort("10.244.0.1:8080"), Active: 9}, {Addr: netip.MustParseAddrPort("10.244.0.2:8080"), Active: 3, Inactive: 5},
		}}}, nil
	}
	r.write("manifests/a.yaml", manifests)
	r.write("manifests/b.yaml", sliceOfWeb)
	stop := r.run()
	var s *api.Status
	status := func(done func() bool) {
		t.Helper()
		testenv.Eventually(t, "the condition", func() bool {
			var err error
			s, err = stateclient.OnSocket(r.opts.Socket).Status(t.Context())
			return err == nil && done()
		})
	}
	status(func() bool { return s.Synced != nil && s.Kernel.InSync })
	if s.Version != "v1.2.3" || s.Mode != "nftables" || s.Node != "n0" || s.Source != r.path("manifests") || s.API != nil || len(s.Failing)+len(s.Degraded) > 0 {
		t.Errorf("%+v", s)
	}
	if want := (api.PlanSize{Services: 1, Frontends: 1, Endpoints: 1, Draining: 1}); s.Plan != want || s.Kernel.Frontends != 1 {
		t.Errorf("sizes %+v, kernel %+v", s.Plan, s.Kernel)
	}
	x, err := stateclient.OnSocket(r.opts.Socket).Drains(t.Context())
	if err != nil || len(x.Drains) != 1 || x.Node != "n0" {
		t.Fatalf("%+v, %v", x, err)
	}
	d := x.Drains[0]
	if d.Service != "shop/web" || d.Address != "10.244.0.2:8080" || d.Pod != "web-b" || d.Node != "n1" || d.Stage != api.StageDraining || d.Weight != 0 {
		t.Errorf("%+v", d)
	}
	if d.Connections == nil || *d.Connections != 3 || d.Since == nil || time.Since(*d.Since) > time.Hour {
		t.Errorf("%v connections since %v", d.Connections, d.Since)
	}

	r.configure(noServers + "nonsense: 1\n")
	status(func() bool {
		return len(s.Failing) == 1 && strings.Contains(s.Failing[0].Text, "nonsense") && s.Failing[0].Next != ""
	})
	r.write("manifests/b.yaml", strings.Split(sliceOfWeb, "- {addresses: [10.244.0.2]")[0])
	status(func() bool { return s.Plan.Draining == 0 })
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestTraceAsksTheRunningAgentByNames: a Pod that EndpointSlices name, and a Service with its only port.
func TestTraceAsksTheRunningAgentByNames(t *testing.T) {
	r := newRig(t, noServers)
	r.write("manifests/a.yaml", manifests)
	r.write("manifests/b.yaml", sliceOfWeb)
	stop := r.run()
	testenv.Eventually(t, "the condition", func() bool {
		s, err := stateclient.OnSocket(r.opts.Socket).Status(t.Context())
		return err == nil && s.Synced != nil
	})
	x, err := stateclient.OnSocket(r.opts.Socket).Trace(t.Context(), &api.FlowQuery{From: "web-b", To: "web", Namespace: "shop"})
	if err != nil || x.Verdict != "DNAT" || len(x.Endpoints) != 1 || x.Endpoints[0].Address != "10.244.0.1:8080" || x.Node != "n0" || x.Configuration == "" {
		t.Fatalf("%+v, %v", x, err)
	}
	if want := (api.TracedFlow{From: "10.244.0.2", To: "10.96.0.1:80", Protocol: "TCP"}); *x.Flow != want {
		t.Errorf("%+v, want %+v", *x.Flow, want)
	}
	for _, c := range []struct{ from, to, protocol, want string }{
		{"shop/nobody", "web", "", "from: Pod shop/nobody: its address is not known: no EndpointSlice names it; use its IP address"},
		{"web-a", "wbe", "", "to: Service shop/wbe: not found"},
		{"web-a", "web:443", "", "to: Service shop/web: no port 443; it has 80/TCP"},
		{"web-a", "web:80", "udp", "to: Service shop/web: no port 80/udp; it has 80/TCP"},
		{"2001:db8::1", "web", "", "to: Service shop/web: has no ClusterIP of the IP family of 2001:db8::1"},
		{"web-a", "[2001:db8::1]:80", "", `to: "[2001:db8::1]:80" is not of the same IP family as 10.244.0.1`},
		{"fe80::1%eth0", "10.96.0.1:80", "", "must not have a zone"},
	} {
		if _, err := stateclient.OnSocket(r.opts.Socket).Trace(t.Context(), &api.FlowQuery{From: c.from, To: c.to, Protocol: c.protocol, Namespace: "shop"}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s to %s: %v, want %s", c.from, c.to, err, c.want)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

package kube

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"k8s.io/client-go/rest"
)

// TestPeersAreWhereConnectionsLead: whatever name a kubeconfig has for the API server, or a proxy before it.
func TestPeersAreWhereConnectionsLead(t *testing.T) {
	r := newFixture(t, nil)
	r.server.put(svc("web"))
	if got := r.source.opt.Client.Peers(); len(got) > 0 {
		t.Errorf("%v before the first connection", got)
	}
	r.run()
	r.waitSynced()
	if got := r.source.opt.Client.Peers(); !slices.Equal(got, []netip.Addr{netip.MustParseAddr("127.0.0.1")}) {
		t.Errorf("%v, want the address of the server", got)
	}
	select {
	case <-r.source.opt.Client.PeersChanged():
	default:
		t.Error("the change is not signalled")
	}
}

type pipe struct {
	net.Conn
	to net.TCPAddr
}

func (p pipe) RemoteAddr() net.Addr { return &p.to }

func TestPeersAreBoundedAndTheLatestStay(t *testing.T) {
	p := &peers{changed: make(chan struct{}, 1)}
	config := &rest.Config{}
	next := 0
	config.Dial = func(context.Context, string, string) (net.Conn, error) {
		return pipe{to: net.TCPAddr{IP: net.IPv4(10, 0, byte(next>>8), byte(next)), Port: 443}}, nil
	}
	p.watch(config)
	for next = range 3 * maxPeers {
		if next%2 == 1 {
			next = 0 // the first one is used again and again
		}
		if _, err := config.Dial(t.Context(), "tcp", "api:443"); err != nil {
			t.Fatal(err)
		}
	}
	c := &Client{peers: p}
	got := c.Peers()
	if len(got) != maxPeers || got[0] != netip.MustParseAddr("10.0.0.0") || got[maxPeers-1] != netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", 3*maxPeers-2)) {
		t.Errorf("%d addresses: %v", len(got), got)
	}
}

// TestOtherNodesHaveAddresses: a mode that adds addresses to the node needs to know those of others, also between full lists.
func TestOtherNodesHaveAddresses(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(everyServiceNeedsNodes))
	own := withUIDAndCPU(node("n1", "z1"), "uid-1", 4000)
	own.Spec.PodCIDRs = []string{"10.244.1.0/24"}
	r.server.put(own, svc("web"))
	r.run()
	r.waitSynced()
	has := func(n *model.Node) bool {
		return n != nil && fmt.Sprint(n.Addresses, n.PodCIDRs) == "[192.0.2.1] [10.244.1.0/24]"
	}
	if n := r.node("n1"); !has(n) {
		t.Errorf("%+v", n)
	}
	lists := r.server.requestCount("GET /api/v1/nodes?", "metadata.name%21%3D")
	testenv.Eventually(t, "lists of metadata", func() bool { return r.server.requestCount("GET /api/v1/nodes?", "metadata.name%21%3D") > lists+3 })
	late := withUIDAndCPU(node("n2", "z1"), "uid-2", 4000)
	late.Spec.PodCIDRs = []string{"10.244.1.0/24"}
	r.server.put(late)
	testenv.Eventually(t, "a new Node", func() bool { return has(r.node("n2")) })
	if n := r.node("n1"); !has(n) {
		t.Errorf("after lists of metadata: %+v", n)
	}
}

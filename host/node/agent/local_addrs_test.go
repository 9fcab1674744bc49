package agent

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/config"
)

// gateways are what the routes of a host have, or why they cannot be read.
type gateways struct {
	list  []netip.Addr
	err   error
	reads atomic.Int64
}

// TestGatewaysStayReachableWhileRoutesCannotBeRead: in a mode that adds the addresses of Services to the node, a Service claims a
// gateway.
func TestGatewaysStayReachableWhileRoutesCannotBeRead(t *testing.T) {
	r := newRig(t, "mode: ipvs\nsyncPeriod: 1s\n")
	gateway := netip.MustParseAddr("192.0.2.1")
	var current atomic.Pointer[gateways]
	set := func(g *gateways) { current.Store(g) }
	set(&gateways{list: []netip.Addr{gateway}})
	r.opts.Modes[0].Name = config.ModeIPVS
	r.opts.Modes[0].Gateways = func() ([]netip.Addr, error) {
		g := current.Load()
		g.reads.Add(1)
		return slices.Clone(g.list), g.err
	}
	r.write("manifests/shop.yaml", `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], externalIPs: [192.0.2.1], ports: [{name: http, port: 80}]}
`)
	served := func() bool {
		p, _ := r.kernel.Table(fake.Name)
		for k := range p.Frontends {
			if k.Addr == gateway {
				return true
			}
		}
		return false
	}
	stop := r.run()
	testenv.Eventually(t, "the condition", func() bool { p, _ := r.kernel.Table(fake.Name); return len(p.Frontends) == 1 })
	unreadable := &gateways{err: errors.New("interrupted")}
	set(unreadable)
	testenv.Eventually(t, "the condition", func() bool { return unreadable.reads.Load() >= 3 }) // what the first one told is in force
	if served() {
		t.Fatalf("the node takes its gateway away while its routes cannot be read\n%s", r.log)
	}
	if n := strings.Count(r.log.String(), "interrupted"); n != 1 {
		t.Errorf("the reason is logged %d times", n)
	}
	set(&gateways{})
	testenv.Eventually(t, "served", served) // another gateway now
	set(&gateways{list: []netip.Addr{gateway}})
	testenv.Eventually(t, "the condition", func() bool { return !served() })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

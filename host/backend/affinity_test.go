package backend_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// TestClientsThatReturnAfterTheTimeoutMayMove: with a timeout of 125 s, clients that return every 120 s stay, and of those that
// return every 130 s some get another endpoint. The fake forwards by what remains of the plan in each mode, by a clock of its
// own.
func TestClientsThatReturnAfterTheTimeoutMayMove(t *testing.T) {
	for _, caps := range backends() {
		for _, at := range []string{"10.96.0.10:80/TCP ClusterIP", "[fd00:10:96::a]:80/TCP ClusterIP", "203.0.113.2:80/TCP LoadBalancer"} {
			for pause, wantSticky := range map[time.Duration]bool{120 * time.Second: true, 124 * time.Second: true, 125 * time.Second: false, 130 * time.Second: false} {
				t.Run(fmt.Sprintf("%s %s every %s", caps.Name, at, pause), func(t *testing.T) {
					to, client := netip.MustParseAddrPort(at[:strings.Index(at, "/")]), netip.MustParseAddr("10.244.9.9")
					endpoint := "10.244.1.%d:8080"
					if to.Addr().Is6() {
						endpoint, client = "[fd00:10:244::%d]:8080", netip.MustParseAddr("fd00:10:244:9::9")
					}
					text := "global\n masquerade-mark 1\nservice shop/web\n port http " + at + " affinity=2m5s\n  forward\n"
					for i := range 4 {
						text += fmt.Sprintf("   "+endpoint+" weight 1\n", i+1)
					}
					p, err := plan.Parse(text)
					if err != nil {
						t.Fatal(err)
					}
					k := fake.NewKernel(fake.Options{Caps: caps})
					if _, err := fake.Open(k).Apply(context.Background(), p, nil); err != nil {
						t.Fatal(err)
					}
					went := map[netip.AddrPort]bool{}
					for i := range 50 {
						c := k.Connect(fake.Packet{From: netip.AddrPortFrom(client, 0), To: to, Protocol: model.TCP})
						if i > 0 && c.Sticky != wantSticky {
							t.Fatalf("connection %d: sticky %t", i, c.Sticky)
						}
						went[c.Endpoint] = true
						k.Advance(pause)
					}
					if len(went) == 1 != wantSticky {
						t.Errorf("went to %d endpoints", len(went))
					}
				})
			}
		}
	}
}

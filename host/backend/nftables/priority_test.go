package nftables

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// others is a table of another program at the usual priority, which translates Service addresses, a NodePort and an address of
// its own to p2.
func others(family, addrs, own, to string) string {
	const table = `
table %[1]s others {
	chain elsewhere { meta l4proto { tcp, udp } %[1]s daddr { %[2]s } dnat to %[4]s; meta l4proto tcp %[1]s daddr %[3]s dnat to %[4]s; }
	chain prerouting { type nat hook prerouting priority dstnat; jump elsewhere; }
	chain output { type nat hook output priority -100; jump elsewhere; }
}
`
	return fmt.Sprintf(table, family, addrs, own, to)
}

func TestOthersDoNotTranslateConnectionsToServicesWhoeverCameFirst(t *testing.T) {
	tables := others("ip", "10.96.0.10, 203.0.113.1, 203.0.113.2, 192.168.0.1", "203.0.113.99", "10.244.0.2:9000") +
		others("ip6", "fd00:10:96::a, 2001:db8:1::1, 2001:db8:1::2, fd00:192::1", "2001:db8:1::99", "[fd00:10:244::2]:9000")
	for _, first := range []string{"sluice", "others"} {
		t.Run(first+" first", func(t *testing.T) {
			d := newTestEnv(t, 2)
			if first == "others" {
				d.mustNFT(tables)
			}
			var text []string
			for _, proto := range []string{"TCP", "UDP"} {
				for _, key := range []string{"10.96.0.10:80/%s ClusterIP", "203.0.113.1:80/%s ExternalIP", "203.0.113.2:80/%s LoadBalancer", "*4:30080/%s NodePort",
					"[fd00:10:96::a]:80/%s ClusterIP", "[2001:db8:1::1]:80/%s ExternalIP", "[2001:db8:1::2]:80/%s LoadBalancer", "*6:30080/%s NodePort"} {
					text = append(text, frontend(fmt.Sprintf(key, proto)+" masquerade=never", "1"))
				}
			}
			d.apply(service(text...))
			if first == "sluice" {
				d.mustNFT(tables)
			}
			for _, from := range []*testnet.Host{d.client, d.pods[1], d.lab.Node} {
				for _, to := range []string{"10.96.0.10:80", "203.0.113.1:80", "203.0.113.2:80", "192.168.0.1:30080",
					"[fd00:10:96::a]:80", "[2001:db8:1::1]:80", "[2001:db8:1::2]:80", "[fd00:192::1]:30080"} {
					for _, network := range []string{"tcp", "udp"} {
						if got := d.ask(from, network, to); got.Server != "p1" {
							t.Errorf("%s asks %s %s: %s, want p1", from.Name, network, to, got.Server)
						}
					}
				}
				if from == d.pods[1] {
					continue // it would ask itself
				}
				for _, to := range []string{"203.0.113.99:80", "[2001:db8:1::99]:80"} {
					if got := d.ask(from, "tcp", to); got.Server != "p2" {
						t.Errorf("%s asks %s, which is no Service's: %s, want p2", from.Name, to, got.Server)
					}
				}
			}
		})
	}
}

// TestTablesAtAnotherPriorityAreReplacedWithoutLoss starts from what older versions have created.
func TestTablesAtAnotherPriorityAreReplacedWithoutLoss(t *testing.T) {
	d := newTestEnv(t, 4)
	p := largeTestPlan(t, "1 2")
	d.mustApply(p, nil)
	stop := d.connectRepeatedly("10.97.0.10:80", time.Millisecond)
	rounds := 5
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		var old strings.Builder
		for _, family := range []string{"ip", "ip6"} {
			for _, hook := range []string{"prerouting", "output"} {
				fmt.Fprintf(&old, "delete chain %[1]s sluice %[2]s\nadd chain %[1]s sluice %[2]s { type nat hook %[2]s priority -100; }\nadd rule %[1]s sluice %[2]s jump services\n", family, hook)
			}
		}
		d.mustNFT(old.String())
		d.restart()
		if _, err := d.b.Read(context.Background()); !IsForeignTable(err) || !strings.Contains(err.Error(), "priority -100, not") {
			t.Fatalf("%v, want the priority", err)
		}
		d.mustApply(p, nil)
		d.expectPlan(p)
		list, err := d.nft("", "list", "chains")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(list, "dstnat;") || strings.Contains(list, "priority -100;") || strings.Count(list, "priority dstnat - 1;")+strings.Count(list, "priority -101;") != 4 {
			t.Fatalf("%s", list)
		}
		if got := d.tables(); got != ourTables {
			t.Fatal(got)
		}
	}
	if n := stop(100); n < 100 {
		t.Errorf("%d connections", n)
	}
	d.restart()
	if r := d.report(p, nil); r.Messages != 0 {
		t.Errorf("%d messages after a restart, want none", r.Messages)
	}
}

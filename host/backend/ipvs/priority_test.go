package ipvs

import (
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestNATRulesOfOthersDoNotSeeConnectionsToServices: as in mode nftables, another program's chain at the usual priority neither
// translates nor marks connections that IPVS is to balance, whoever came first.
func TestNATRulesOfOthersDoNotSeeConnectionsToServices(t *testing.T) {
	const others = `
table ip others {
	chain elsewhere { ip daddr { 10.96.0.80, 203.0.113.5, 192.168.0.1 } meta l4proto tcp ct mark set 0x80 dnat to 10.244.0.2:9000; }
	chain prerouting { type nat hook prerouting priority dstnat; jump elsewhere; }
	chain output { type nat hook output priority -100; jump elsewhere; }
}
table ip6 others {
	chain elsewhere { ip6 daddr { fd00:10:96::80, fd00:192::1 } meta l4proto tcp ct mark set 0x80 dnat to [fd00:10:244::2]:9000; }
	chain prerouting { type nat hook prerouting priority dstnat; jump elsewhere; }
	chain output { type nat hook output priority -100; jump elsewhere; }
}
`
	for _, first := range []string{"sluice", "others"} {
		t.Run(first+" first", func(t *testing.T) {
			d := newEnv(t)
			load := func() {
				if _, err := d.run(others, "nft", "-f", "-"); err != nil {
					t.Fatal(err)
				}
			}
			if first == "others" {
				load()
			}
			b := d.open()
			d.apply(b, parse(t, `service shop/web
  port http  10.96.0.80:80/TCP          ClusterIP   masquerade=never balance=random
    forward 1 endpoint, total 1
      10.244.0.1:9000  weight 1  100.0 %  active
  port http  *4:30080/TCP               NodePort    masquerade=always balance=random
    forward 1 endpoint, total 1
      10.244.0.1:9000  weight 1  100.0 %  active
  port http  203.0.113.5:80/TCP         LoadBalancer  masquerade=always balance=random
    forward 1 endpoint, total 1
      10.244.0.1:9000  weight 1  100.0 %  active
    outside forward 1 endpoint, total 1
      10.244.0.1:9000  weight 1  100.0 %  active
  port http  [fd00:10:96::80]:80/TCP    ClusterIP   masquerade=never balance=random
    forward 1 endpoint, total 1
      [fd00:10:244::1]:9000  weight 1  100.0 %  active
  port http  *6:30080/TCP               NodePort    masquerade=always balance=random
    forward 1 endpoint, total 1
      [fd00:10:244::1]:9000  weight 1  100.0 %  active
`), nil)
			if first == "sluice" {
				load()
			}
			for _, from := range []*testnet.Host{d.Client, d.Pods[1], d.Lab.Node} {
				for _, to := range []string{"10.96.0.80:80", "192.168.0.1:30080", "203.0.113.5:80", "[fd00:10:96::80]:80", "[fd00:192::1]:30080"} {
					if a := d.ask(from, "tcp", to); a.Server != "p1" {
						t.Errorf("%s asks %s: %s, want p1", from.Name, to, a.Server)
					}
				}
			}
		})
	}
}

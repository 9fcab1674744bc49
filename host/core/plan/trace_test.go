package plan_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// The cluster of the cases below. 10.244.1.x are local Pods, 10.244.2.x are elsewhere.
const resolveText = `
global
  node-port-addresses  192.168.0.1 fd00:192::1
  pod-sources          10.244.0.0/16
  service-cidrs        10.96.0.0/16 fd00:10:96::/112
  masquerade-mark      0x4000
service shop/web
  port http 10.96.0.10:80/TCP ClusterIP masquerade=outside
    forward
      10.244.1.5:8080 weight 1
      10.244.2.6:8080 weight 3
      10.244.2.7:8080 weight 0 draining
  port http *4:30080/TCP NodePort masquerade=always
    forward
      10.244.1.5:8080 weight 1
      10.244.2.6:8080 weight 3
  port http 198.51.100.1:80/TCP ExternalIP masquerade=always
    forward
      10.244.1.5:8080 weight 1
  port http 203.0.113.7:80/TCP LoadBalancer masquerade=always
    source-ranges 10.244.1.0/24 172.16.0.0/12
    forward
      10.244.1.5:8080 weight 1
service shop/local
  port - 10.96.0.20:80/TCP ClusterIP masquerade=outside
    drop
  port - *4:30081/TCP NodePort masquerade=from-node
    forward
      10.244.1.5:8080 weight 1
      10.244.2.6:8080 weight 1
    outside forward
      10.244.1.5:8080 weight 1
  port - 203.0.113.8:80/TCP LoadBalancer masquerade=from-node
    forward
      10.244.2.6:8080 weight 1
    outside drop
service shop/empty
  port - 10.96.0.30:80/UDP ClusterIP masquerade=outside
    reject
  port - 203.0.113.9:80/UDP LoadBalancer
    source-ranges 172.16.0.0/12
    reject
  port - 10.96.0.40:80/UDP ExternalIP
    reject
service shop/six
  port - [fd00:10:96::1]:80/SCTP ClusterIP masquerade=outside
    forward
      [fd00:10:244::1]:80 weight 1
`

func TestTraceFollowsServiceRules(t *testing.T) {
	p, err := plan.Parse(resolveText)
	if err != nil {
		t.Fatal(err)
	}
	const (
		pod, hairpinPod = "10.244.1.9", "10.244.1.5"
		node, outside   = "192.168.0.1", "172.16.0.9"
		all             = "10.244.1.5:8080 25%, 10.244.2.6:8080 75%"
		allM            = "10.244.1.5:8080 25% masq, 10.244.2.6:8080 75% masq"
		five, fiveM     = "10.244.1.5:8080 100%", "10.244.1.5:8080 100% masq"
	)
	for _, c := range []struct {
		rule           string // number in host/RULES.md, and the case
		from, to, want string
	}{
		{"19 ClusterIP from a Pod, weighted, without the draining endpoint", pod, "10.96.0.10:80/TCP", all},
		{"31 hairpin masquerades towards itself only", hairpinPod, "10.96.0.10:80/TCP", "10.244.1.5:8080 25% masq, 10.244.2.6:8080 75%"},
		{"32 off-cluster source to a ClusterIP", outside, "10.96.0.10:80/TCP", allM},
		{"32 this node is not a Pod", node, "10.96.0.10:80/TCP", allM},
		{"32 no detector in the family, no masquerade", "fd00:99::1", "[fd00:10:96::1]:80/SCTP", "[fd00:10:244::1]:80 100%"},
		{"31 hairpin needs no detector", "fd00:10:244::1", "[fd00:10:96::1]:80/SCTP", "[fd00:10:244::1]:80 100% masq"},
		{"20 external address", outside, "198.51.100.1:80/TCP", fiveM},
		{"28 policy Cluster masquerades Pods too", pod, "198.51.100.1:80/TCP", fiveM},
		{"20 other ports of an external address are left alone", outside, "198.51.100.1:81/TCP", "untouched"},
		{"21 NodePort", outside, "192.168.0.1:30080/TCP", allM},
		{"21 NodePort of another protocol", outside, "192.168.0.1:30080/UDP", "untouched"},
		{"21 NodePort on another address of the node", outside, "192.168.0.2:30080/TCP", "untouched"},
		{"22 NodePort on loopback", "127.0.0.1", "127.0.0.1:30080/TCP", "untouched"},
		{"21 NodePort on a Service address", outside, "198.51.100.1:30080/TCP", "untouched"},
		{"21 families are apart", "fd00:99::1", "[fd00:192::1]:30080/TCP", "untouched"},
		{"21 other ports of the node", outside, "192.168.0.1:22/TCP", "untouched"},
		{"24 no endpoint anywhere", pod, "10.96.0.30:80/UDP", "reject"},
		{"25 internal policy Local, none local", pod, "10.96.0.20:80/TCP", "drop"},
		{"25 external policy Local, none local", outside, "203.0.113.8:80/TCP", "drop outside"},
		{"29 … but a Pod gets all, unmasqueraded", pod, "203.0.113.8:80/TCP", "10.244.2.6:8080 100%"},
		{"29 … and this node gets all, masqueraded", node, "203.0.113.8:80/TCP", "10.244.2.6:8080 100% masq"},
		{"29 outside client keeps its address", outside, "192.168.0.1:30081/TCP", five + " outside"},
		{"29 Pod to a Local NodePort", pod, "192.168.0.1:30081/TCP", "10.244.1.5:8080 50%, 10.244.2.6:8080 50%"},
		{"29 loopback is this node", "127.0.0.1", "192.168.0.1:30081/TCP", "10.244.1.5:8080 50% masq, 10.244.2.6:8080 50% masq"},
		{"26 wrong port of a ClusterIP", pod, "10.96.0.10:81/TCP", "reject"},
		{"26 wrong protocol of a ClusterIP", pod, "10.96.0.10:80/UDP", "reject"},
		{"26 unused address in the Service range", pod, "10.96.0.99:80/TCP", "drop"},
		{"26 other port of a frontend's address in the Service range", pod, "10.96.0.40:81/UDP", "untouched"},
		{"26 outside the Service range", pod, "10.97.0.99:80/TCP", "untouched"},
		{"27 in range", outside, "203.0.113.7:80/TCP", fiveM},
		{"27 Pod in range", pod, "203.0.113.7:80/TCP", fiveM},
		{"27 Pod out of range", "10.244.2.9", "203.0.113.7:80/TCP", "drop"},
		{"27 this node out of range", node, "203.0.113.7:80/TCP", "drop"},
		{"27 the range comes before the reject", outside, "203.0.113.9:80/UDP", "reject"},
		{"27 the range comes before the reject, out of range", pod, "203.0.113.9:80/UDP", "drop"},
		{"27 not for NodePorts of the same Service", "8.8.8.8", "192.168.0.1:30080/TCP", allM},
	} {
		t.Run(strings.ReplaceAll(c.rule, " ", "_"), func(t *testing.T) {
			k := key(t, c.to)
			got := p.Trace(plan.Flow{From: netip.MustParseAddr(c.from), To: netip.AddrPortFrom(k.Addr, k.Port), Protocol: k.Protocol},
				plan.NodeAddrs{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.0.2")})
			if s := outcome(got); s != c.want {
				t.Errorf("%s → %s: got %s, want %s", c.from, c.to, s, c.want)
			}
			if got.Why == "" {
				t.Error("no reason given")
			}
		})
	}
}

func outcome(o plan.Outcome) string {
	if !o.Matched {
		return "untouched"
	}
	var parts []string
	for _, c := range o.Candidates {
		s := fmt.Sprintf("%s %.0f%%", c.Addr, 100*c.Share)
		if c.Masquerade {
			s += " masq"
		}
		parts = append(parts, s)
	}
	if o.Verdict != plan.Forward {
		parts = append(parts, o.Verdict.String())
	}
	s := strings.Join(parts, ", ")
	if o.Outside {
		s += " outside"
	}
	return s
}

func TestTraceDetectsPodsByInterface(t *testing.T) {
	p, err := plan.Parse(strings.Replace(resolveText, "pod-sources          10.244.0.0/16", "pod-interfaces cali* cni0", 1))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		iface, from string
		pod         bool
	}{
		{"cali123", "172.16.0.9", true}, {"cali", "172.16.0.9", true}, {"cni0", "172.16.0.9", true},
		{"cni01", "172.16.0.9", false}, {"eth0", "10.244.1.9", false}, {"", "192.168.0.1", false}, {"cali9", "192.168.0.1", true},
	} {
		flow := plan.Flow{From: netip.MustParseAddr(c.from), Interface: c.iface, To: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: model.TCP}
		got := p.Trace(flow, plan.NodeAddrs{netip.MustParseAddr("192.168.0.1")})
		if got.Candidates[0].Masquerade == c.pod {
			t.Errorf("%s on %q: counts as a Pod: %v, want %v", c.from, c.iface, !c.pod, c.pod)
		}
	}
}

func TestTracePrefersExactAddressToNodePort(t *testing.T) {
	p, err := plan.Parse(`
global
  node-port-addresses 192.168.0.1
  masquerade-mark 1
service a/b
  port - *4:30000/TCP NodePort
    drop
  port x 192.168.0.1:30000/TCP ExternalIP
    reject
`)
	if err != nil {
		t.Fatal(err)
	}
	got := p.Trace(plan.Flow{From: netip.MustParseAddr("8.8.8.8"), To: netip.MustParseAddrPort("192.168.0.1:30000"), Protocol: model.TCP}, nil)
	if got.Verdict != plan.Reject {
		t.Errorf("got %s", outcome(got))
	}
}

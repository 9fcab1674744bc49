package kubeproxy

import (
	"context"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// node is a network namespace.
type node struct {
	testing.TB
	*testnet.Host
}

func newNode(t testing.TB, tools ...string) node {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			msg := tool + " is missing: apt-get install iptables nftables"
			if os.Getenv("CI") != "" {
				t.Fatal(msg)
			}
			t.Skip(msg)
		}
	}
	lab, err := testnet.New(netip.MustParseAddr("192.168.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lab.Close)
	return node{t, lab.Node}
}

// try runs a program in the namespace.
func (n node) try(stdin string, args ...string) (out string, err error) {
	derr := n.Do(func() error {
		cmd := exec.Command(args[0], args[1:]...)
		if stdin != "" {
			r, w, err := os.Pipe()
			if err != nil {
				return err
			}
			go func() { io.WriteString(w, stdin); w.Close() }()
			cmd.Stdin = r
			defer r.Close()
		}
		b, err := cmd.CombinedOutput()
		out = string(b)
		return err
	})
	return out, derr
}

func (n node) run(stdin string, args ...string) string {
	n.Helper()
	out, err := n.try(stdin, args...)
	if err != nil {
		n.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// find returns the leftovers, one per line.
func (n node) find() string {
	n.Helper()
	var found []Leftover
	err := n.Do(func() (err error) {
		found, err = Find(context.Background(), PortRange{30000, 32767})
		return err
	})
	if err != nil {
		n.Fatal(err)
	}
	return lines(found)
}

func (n node) remove() string {
	n.Helper()
	var found []Leftover
	err := n.Do(func() (err error) {
		found, err = Remove(context.Background(), PortRange{30000, 32767})
		return err
	})
	if err != nil {
		n.Fatal(err)
	}
	return lines(found)
}

func lines(found []Leftover) string {
	var out []string
	for _, l := range found {
		out = append(out, l.String())
	}
	return strings.Join(out, "\n")
}

func TestFindReturnsNothingOnACleanNode(t *testing.T) {
	n := newNode(t)
	if got := n.find() + n.remove(); got != "" {
		t.Error(got)
	}
}

func TestRemoveDeletesOnlyKubeProxysNftablesTables(t *testing.T) {
	n := newNode(t, "nft")
	others := "table ip sluice { chain services { } ; }\ntable inet kube-proxy { chain c { } ; }\ntable ip kube-proxy2 { chain c { } ; }\n"
	n.run(others, "nft", "-f", "-")
	before := n.run("", "nft", "list", "ruleset")
	n.run(`table ip kube-proxy {
	map service-ips { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 10.96.0.1 . tcp . 443 : goto service-a }; }
	chain service-a { meta l4proto tcp dnat to 10.0.0.1:6443; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; ip daddr . meta l4proto . th dport vmap @service-ips; }
}
table ip6 kube-proxy { chain nat-output { type nat hook output priority -100; } ; }
`, "nft", "-f", "-")
	const want = "nftables, table ip kube-proxy\nnftables, table ip6 kube-proxy"
	if got := n.find(); got != want {
		t.Errorf("found:\n%s", got)
	}
	if got := n.remove(); got != want {
		t.Errorf("removed:\n%s", got)
	}
	if after := n.run("", "nft", "list", "ruleset"); after != before {
		t.Errorf("after:\n%s\nbefore:\n%s", after, before)
	}
	if got := n.find() + n.remove(); got != "" {
		t.Errorf("still there: %s", got)
	}
}

func TestIsKubeProxyChainAndSet(t *testing.T) {
	for name, want := range map[string]bool{
		"nat KUBE-SVC-ABC": true, "nat KUBE-FIREWALL": true, "filter KUBE-FIREWALL": false, "filter KUBE-FW-X": true,
		"nat KUBE-KUBELET-CANARY": false, "mangle KUBE-IPTABLES-HINT": false, "filter KUBE-POD-FW-ABC": false,
		"nat KUBE-MARK-DROP": false, "nat SVC": false, "nat kube-services": false, "nat KUBE-": false,
	} {
		table, chain, _ := strings.Cut(name, " ")
		if got := isKubeProxyChain(table, chain); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	for name, want := range map[string]bool{
		"KUBE-CLUSTER-IP": true, "KUBE-6-CLUSTER-IP": true, "KUBE-6-LOAD-BALANCER-SOURCE-CID": true,
		"KUBE-6-NODE-PORT-LOCAL-SCTP-HAS": true, "KUBE-6-LOAD-BALANCER-SOURCE-CIDR": false, "KUBE-LOAD-BALANCER-SOURCE-CID": false, "KUBE-DST-ABC": false, "KUBE-SRC-ABC": false, "mine": false,
	} {
		if got := isKubeProxySet(name); got != want {
			t.Errorf("ipset %s: %v", name, got)
		}
	}
}

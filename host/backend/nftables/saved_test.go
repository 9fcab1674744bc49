package nftables

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// nftPrograms returns the nft of this machine, and those in the directories that SLUICE_NFT_ROOTS names, each with its libraries.
func nftPrograms(t *testing.T) map[string][]string {
	testenv.RequireProgram(t, "nft", "nftables")
	out := map[string][]string{"of this machine": {"nft"}}
	for _, root := range filepath.SplitList(os.Getenv("SLUICE_NFT_ROOTS")) {
		loader, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu*/ld-linux-*.so.*")) // one of any architecture
		if err != nil || len(loader) != 1 {
			t.Fatalf("dynamic loaders in %s: %v, %v, want one", root, loader, err)
		}
		out[filepath.Base(root)] = []string{loader[0], "--library-path", filepath.Dir(loader[0]), filepath.Join(root, "usr/sbin/nft")}
	}
	return out
}

// savedPlan has every kind of set and rule in both families.
func savedPlan(t *testing.T) *plan.Plan {
	p := parse(t, shopPlan())
	ranged := func(line, ranges string) string {
		return strings.Replace(frontend(line, "1 2*3"), "    forward", "    source-ranges "+ranges+"\n    forward", 1)
	}
	more := parse(t, service(
		frontend("10.96.0.11:80/TCP ClusterIP masquerade=always balance=source-hash", "1 2"),
		frontend("10.96.0.12:80/UDP ClusterIP masquerade=never outcomes=counted", "1"),
		frontend("10.96.0.13:80/UDP ClusterIP masquerade=never", "drop"),
		ranged("203.0.113.3:80/TCP LoadBalancer masquerade=never", "10.0.0.0/9 198.51.100.9/32"),
		ranged("[2001:db8:2::2]:80/TCP LoadBalancer masquerade=never", "2001:db8::/32 fd00:10:244::/61"),
		frontend("*4:30081/UDP NodePort masquerade=always", "reject"),
		frontend("*6:30080/TCP NodePort masquerade=from-node", "1 2"), outsidePool("*6:30080/TCP", "1"),
		frontend("[fd00:10:96::b]:80/TCP ClusterIP masquerade=never balance=source-hash", "1 2"),
		frontend("[fd00:10:96::c]:53/UDP ClusterIP masquerade=never", "reject")))
	for k, f := range more.Frontends {
		f.Owner.Service.Name = "more"
		p.Frontends[k] = f
	}
	p.Global.LocalhostAddrs = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	return p
}

// TestSavedRulesetsLoadAgain: a firewall that was saved with nft list ruleset loads again, and sluice has nothing to change in
// it.
func TestSavedRulesetsLoadAgain(t *testing.T) {
	for name, nft := range nftPrograms(t) {
		for _, mode := range []string{"nftables", "ipvs"} {
			t.Run(name+", mode "+mode, func(t *testing.T) {
				d := newTestEnv(t, 2)
				run := func(stdin string, args ...string) string {
					t.Helper()
					out, err := d.lab.Node.Run(stdin, append(nft, args...)...)
					if err != nil {
						t.Fatalf("nft %s: %v\n%s", strings.Join(args, " "), err, out)
					}
					return out
				}
				t.Log(strings.TrimSpace(run("", "--version")))
				var balancing Balancing
				if mode == "ipvs" {
					balancing = d.handOff()
				}
				p := savedPlan(t)
				maps.DeleteFunc(p.Frontends, func(k plan.Key, f *plan.Frontend) bool {
					return balancing != nil && (k.IsNodePort() || f.Outside != nil) // pools with marks, which nft cannot load
				})
				apply := func() int {
					t.Helper()
					b := d.openWith(Options{Balancing: balancing, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
					defer b.Close()
					r, err := b.Apply(context.Background(), p, nil)
					if err != nil {
						t.Fatal(err)
					}
					return r.Messages
				}
				apply()
				if mode == "nftables" {
					d.ask(d.client, "tcp", "10.96.0.10:80")
					d.ask(d.client, "tcp", "[fd00:10:96::a]:80")
				}
				saved := run("", "list", "ruleset")
				run("", "flush", "ruleset")
				run(saved, "-f", "-")
				if n := apply(); n > 0 {
					t.Errorf("sluice has sent %d messages to repair what was loaded", n)
				}
				if mode == "nftables" {
					first := d.ask(d.client, "tcp", "10.96.0.10:80").Server
					for range 5 {
						if got := d.ask(d.client, "tcp", "10.96.0.10:80").Server; got != first {
							t.Errorf("the client went from %s to %s", first, got)
						}
					}
					d.ask(d.client, "tcp", "203.0.113.3:80")
					d.ask(d.client, "tcp", "[2001:db8:2::2]:80")
					d.ask(d.client, "tcp", "[fd00:10:96::a]:80")
				}
			})
		}
	}
}

// kubeProxyTable is of the kind that kube-proxy writes.
const kubeProxyTable = `add table ip kube-proxy { comment "rules for kube-proxy"; }
add chain ip kube-proxy services
add chain ip kube-proxy endpoint-1 { comment "10.244.0.1"; }
add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -100; }
add set ip kube-proxy cluster-ips { type ipv4_addr; }
add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }
add rule ip kube-proxy endpoint-1 meta l4proto tcp dnat to 10.244.0.1:9000
add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
add rule ip kube-proxy nat-prerouting jump services
add element ip kube-proxy cluster-ips { 10.111.0.1 }
add element ip kube-proxy service-ips { 10.111.0.1 . tcp . 80 : goto endpoint-1 }
`

// TestKubeProxysNftWorksBesideOurTables runs what kube-proxy runs, with each nft: it lists chains, sets and maps of all tables of
// a family, in JSON, checks and applies transactions, and removes its table when it has been rolled back.
func TestKubeProxysNftWorksBesideOurTables(t *testing.T) {
	for name, nft := range nftPrograms(t) {
		for _, mode := range []string{"nftables", "ipvs"} {
			t.Run(name+", mode "+mode, func(t *testing.T) {
				d := newTestEnv(t, 0)
				var balancing Balancing
				if mode == "ipvs" {
					balancing = d.handOff()
				}
				b, p := d.openWith(Options{Balancing: balancing}), savedPlan(t)
				defer b.Close()
				if _, err := b.Apply(context.Background(), p, nil); err != nil {
					t.Fatal(err)
				}
				for _, c := range []struct{ stdin, args string }{
					{kubeProxyTable, "--check -f -"}, {kubeProxyTable, "-f -"},
					{"", "--json list tables ip"}, {"", "--json list chains ip"}, {"", "--json list sets ip"}, {"", "--json list maps ip"},
					{"", "--json list counters ip"}, {"", "--json list set ip kube-proxy cluster-ips"}, {"", "--json list map ip kube-proxy service-ips"},
					{"", "--json list table ip kube-proxy"}, {"", "--json list chains ip6"}, {"", "--json list sets ip6"}, {"", "--json list maps ip6"},
					{"", "--json list ruleset"}, {"", "--json list table ip sluice"}, {"", "--json list table ip6 sluice"}, {"", "list ruleset"},
					{"delete element ip kube-proxy service-ips { 10.111.0.1 . tcp . 80 }\nflush chain ip kube-proxy services\n", "-f -"},
					{"add table ip kube-proxy\ndelete table ip kube-proxy\n", "-f -"},
				} {
					out, err := d.lab.Node.Run(c.stdin, append(nft, strings.Fields(c.args)...)...)
					if err != nil {
						t.Errorf("nft %s: %v\n%.1000s", c.args, err, out)
					}
					// nft 1.0.6 warns, on stderr, that it has no JSON for changes of maps, which kube-proxy never lists.
					text := strings.ReplaceAll(out, "warning: stmt ops map have no json callback\n", "")
					if strings.Contains(c.args, "--json") && !json.Valid([]byte(text)) {
						t.Errorf("nft %s: no JSON: %.1000s", c.args, out)
					}
				}
				if got := d.tables(); got != ourTables {
					t.Errorf("there are %s", got)
				}
				if r, err := b.Apply(context.Background(), p, nil); err != nil || r.Messages > 0 {
					t.Errorf("sluice's tables were changed: %+v, %v", r, err)
				}
			})
		}
	}
}

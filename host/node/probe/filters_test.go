package probe

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestPacketFilterIsWhatEstablishedConnectionsMustNotPassBy, by rules of nft and of iptables-nft.
func TestPacketFilterIsWhatEstablishedConnectionsMustNotPassBy(t *testing.T) {
	testenv.RequireProgram(t, "nft", "nftables")
	lab, err := testnet.New(netip.MustParseAddr("192.168.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	run := func(stdin string, args ...string) {
		t.Helper()
		if out, err := lab.Node.Run(stdin, args...); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	check := func(name, want string) {
		t.Helper()
		var got string
		if err := lab.Node.Do(func() (err error) { got, err = PacketFilter(); return err }); err != nil {
			t.Fatal(err)
		}
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	chain := func(hook, rules string) string {
		return "chain c { type filter hook " + hook + " priority 0; " + rules + " }"
	}
	for _, test := range []struct{ name, table, want string }{
		{"nothing", "", ""},
		{"another hook", chain("input", "drop;") + " chain f { type filter hook output priority 0; policy drop; }", ""},
		{"accepts", "set s { type ipv4_addr; } " + chain("forward", "ip saddr @s tcp dport 80 ct state new counter accept; log; jump d; return;") + " chain d { goto e; } chain e { accept; }", ""},
		{"no rule", chain("forward", "policy accept;"), ""},
		{"nat", "chain c { type nat hook prerouting priority -100; ip daddr 192.0.2.1 dnat to 192.0.2.2; }", ""},
		{"by policy", chain("forward", "policy drop;"), "the chain ip other c (hook forward) filters packets"},
		{"by a rule", chain("forward", "ct state invalid drop;"), "ip other c (hook forward)"},
		{"rejects", chain("forward", "tcp dport 80 reject;"), "hook forward"},
		{"after routing", chain("postrouting", "counter drop;"), "hook postrouting"},
		{"marks", chain("prerouting", "meta mark set 1;"), "hook prerouting"},
		{"marks connections", chain("prerouting", "ct mark set 1;"), "hook prerouting"},
		{"writes", chain("forward", "ip dscp set af11;"), "hook forward"},
		{"far away", chain("forward", "jump d;") + " chain d { goto e; } chain e { tcp dport 80 drop; }", "hook forward"},
		{"by a map", "map m { type inet_service : verdict; } " + chain("forward", "tcp dport vmap @m;"), "hook forward"},
	} {
		// Chains are declared before those that lead to them.
		run(strings.NewReplacer("{ ", "{\n", "; ", ";\n", "}", "\n}\n").Replace("table ip other { chain d { } chain e { } "+test.table+" }"), "nft", "-f", "-")
		check(test.name, test.want)
		run("delete table ip other", "nft", "-f", "-")
	}
	run("table ip sluice { chain c { type filter hook forward priority 0; drop; }\n}", "nft", "-f", "-")
	check("sluice's own", "")

	testenv.RequireProgram(t, "iptables-nft", "iptables")
	run("", "iptables-nft", "-A", "FORWARD", "-s", "10.244.0.0/16", "-m", "comment", "--comment", "flanneld forward", "-j", "ACCEPT")
	if out, err := lab.Node.Run("", "iptables-nft", "-t", "mangle", "-A", "POSTROUTING", "-p", "tcp", "--tcp-flags", "SYN,RST", "SYN", "-j", "TCPMSS", "--clamp-mss-to-pmtu"); err != nil {
		t.Logf("not tried on this kernel: the target TCPMSS: %s", out)
	}
	check("Flannel's", "")
	run("", "iptables-nft", "-N", "POLICY")
	run("", "iptables-nft", "-A", "FORWARD", "-j", "POLICY")
	check("an empty chain", "")
	run("", "iptables-nft", "-A", "POLICY", "-j", "REJECT")
	check("a network policy", "the chain ip filter FORWARD (hook forward) filters packets")
}

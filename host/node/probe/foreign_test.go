package probe

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// TestForeignChainsAreThoseThatPacketsToServicesPass has a chain for each way to drop, and near misses.
func TestForeignChainsAreThoseThatPacketsToServicesPass(t *testing.T) {
	testenv.RequireProgram(t, "nft", "nftables")
	lab, err := testnet.New(netip.MustParseAddr("192.168.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	const ruleset = `
table ip sluice { chain prerouting { type nat hook prerouting priority -101; policy accept; }
}
table ip sluice-reject { chain input { type filter hook input priority 101; drop; }
}
table arp other { chain in { type filter hook input priority 0; policy drop; }
}
table inet zone { chain not_a_hook { drop; }
	chain by_policy { type filter hook input priority 10; policy drop; tcp dport 22 accept; }
	chain by_drop { type filter hook forward priority -10; ct state established accept; counter log drop; }
	chain by_reject { type filter hook forward priority 1; counter reject; }
	chain some { type filter hook forward priority 2; tcp dport 22 drop; }
	chain then_accepts { type filter hook forward priority 3; drop; accept; }
	chain jumps { type filter hook forward priority 4; jump not_a_hook; }
	chain marks { type filter hook output priority 5; meta mark set 1; }
}
table ip6 hosts { chain early { type nat hook prerouting priority -110; tcp dport 80 dnat to [fd00::1]:80; }
}
`
	if out, err := lab.Node.Run(ruleset, "nft", "-f", "-"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var got []BaseChain
	if err := lab.Node.Do(func() (err error) { got, err = ForeignChains(); return err }); err != nil {
		t.Fatal(err)
	}
	want := []BaseChain{
		{"inet zone", "by_drop", "filter", "forward", -10, true, 2},
		{"inet zone", "by_policy", "filter", "input", 10, true, 1},
		{"inet zone", "by_reject", "filter", "forward", 1, true, 1},
		{"inet zone", "jumps", "filter", "forward", 4, false, 1},
		{"inet zone", "marks", "filter", "output", 5, false, 1},
		{"inet zone", "some", "filter", "forward", 2, false, 1},
		{"inet zone", "then_accepts", "filter", "forward", 3, false, 2},
		{"ip6 hosts", "early", "nat", "prerouting", -110, false, 1},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestForeignChainsOfIPTables: the last rule of a chain of iptables-nft is a target or a verdict.
func TestForeignChainsOfIPTables(t *testing.T) {
	testenv.RequireProgram(t, "iptables-nft", "iptables")
	lab, err := testnet.New(netip.MustParseAddr("192.168.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	for _, args := range [][]string{
		{"-P", "FORWARD", "ACCEPT"}, {"-A", "FORWARD", "-j", "REJECT"},
		{"-A", "INPUT", "-p", "tcp", "--dport", "22", "-j", "DROP"}, {"-A", "OUTPUT", "-j", "DROP"},
	} {
		if out, err := lab.Node.Run("", append([]string{"iptables-nft"}, args...)...); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	drops := map[string]bool{}
	err = lab.Node.Do(func() error {
		all, err := ForeignChains()
		for _, c := range all {
			drops[c.Name] = c.Drop
		}
		return err
	})
	if want := map[string]bool{"FORWARD": true, "INPUT": false, "OUTPUT": true}; err != nil || !cmp.Equal(drops, want) {
		t.Errorf("%v, %v, want %v", drops, err, want)
	}
}

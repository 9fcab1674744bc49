package e2e

import (
	"os"
	"strings"
	"testing"
)

// TestTrafficHintGivesWayToFilters: a policy's hint has effect, if the kernel has flowtables, until another program filters
// forwarded packets. The status says why it has none, and connections go on.
func TestTrafficHintGivesWayToFilters(t *testing.T) {
	if os.Getenv("SLUICE_MODE") == "ipvs" {
		t.Skip("mode ipvs has no flowtable")
	}
	n := newNode(t)
	n.run("--config", n.configured(quiet+"policies: [{name: long, trafficHint: LongLived}]\ndefaultPolicy: long\n"))
	n.until("known whether the kernel has flowtables", func() bool {
		return strings.Contains(n.log.String(), "trafficHint go by a flowtable") || strings.Contains(n.log.String(), "trafficHint are not offloaded")
	})
	offloads := strings.Contains(n.log.String(), "trafficHint go by a flowtable")
	if listing := n.command("", "nft", "list", "ruleset"); strings.Contains(listing, "flow add") != offloads {
		t.Errorf("offloads: %t, and the kernel has\n%s", offloads, listing)
	}
	n.expect("with a hint", "p1 p2")
	n.command("table inet other {\nchain f {\ntype filter hook forward priority 0\ntcp dport 1 drop\n}\n}\n", "nft", "-f", "-")
	const why = "the chain inet other f (hook forward) filters packets"
	n.logs(why)
	if out, err := n.sluice("status", "--socket", n.socket()); err != nil || !strings.Contains(out, why) {
		t.Errorf("status: %v\n%s", err, out)
	}
	if listing := n.command("", "nft", "list", "ruleset"); strings.Contains(listing, "flow add") {
		t.Errorf("beside a filter the kernel has\n%s", listing)
	}
	n.expect("beside a filter", "p1 p2")
}

package nftables

import (
	"context"
	"encoding/binary"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// rulesFirst counts transactions that write rules, and reports those that also delete elements.
type rulesFirst struct {
	nfnl.Transport
	testing.TB
	withRules int
}

func (r *rulesFirst) Send(b []byte) error {
	kinds := map[uint16]bool{}
	for at := 0; at+unix.NLMSG_HDRLEN <= len(b); at += nfnl.Align(int(binary.NativeEndian.Uint32(b[at:]))) {
		kinds[binary.NativeEndian.Uint16(b[at+4:])] = true
	}
	const nft = unix.NFNL_SUBSYS_NFTABLES << 8
	if kinds[nft|unix.NFT_MSG_NEWRULE] {
		r.withRules++
		if kinds[nft|unix.NFT_MSG_DELSETELEM] {
			r.Error("one transaction writes rules and deletes elements, which packets still in the old rules need")
		}
	}
	return r.Transport.Send(b)
}

// poolsChain lists the chain that ends with the rule, and its counter, that drops packets whose frontend is in no set.
func (d *testEnv) poolsChain() string {
	d.Helper()
	out, err := d.nft("", "list", "chain", "ip", "sluice", "pools")
	if err != nil || !strings.Contains(out, "counter packets") {
		d.Fatalf("%s: %v", out, err)
	}
	return out
}

// TestFirstPoolOfASizeClassLosesNoPacket moves a frontend to size classes that its table has no rules for yet, in many
// new tables. Each packet of the flood is evaluated as the first of a connection: a filter drops all of them before
// conntrack confirms an entry.
func TestFirstPoolOfASizeClassLosesNoPacket(t *testing.T) {
	d := newTestEnv(t, 4)
	if out, err := d.nft("table ip block { chain forward { type filter hook forward priority 0; meta l4proto udp drop; }; }", "-f", "-"); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	var plans []*plan.Plan
	for _, pool := range []string{"1", "1 2", "1 2 3", "1*3 2*3", "1*8 2*3", "1*20 2", "1*64 2", "reject"} {
		plans = append(plans, parse(t, service(frontend("10.96.0.10:80/UDP ClusterIP masquerade=never", pool))))
	}
	var sent atomic.Int64
	var done atomic.Bool
	var flood sync.WaitGroup
	for _, h := range []*testnet.Host{d.client, d.pods[3]} {
		c, err := h.Dial(context.Background(), "udp", netip.MustParseAddrPort("10.96.0.10:80"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		flood.Go(func() {
			for !done.Load() {
				if _, err := c.Write([]byte{'?'}); err == nil { // else the refusal of an earlier one
					sent.Add(1)
				}
			}
		})
	}
	defer flood.Wait()
	defer done.Store(true)
	tables := 20
	if testing.Short() {
		tables = 8
	}
	for range tables {
		if _, err := Cleanup(context.Background(), d.lab.Node.Fd()); err != nil {
			t.Fatal(err)
		}
		b := d.open()
		first := &rulesFirst{Transport: b.conn.Transport, TB: t}
		b.conn.Transport = first
		if _, err := b.Apply(context.Background(), plans[0], nil); err != nil {
			t.Fatal(err)
		}
		rcuBarrier() // a packet that came before its frontend existed may be dropped
		before := d.poolsChain()
		for i, next := range plans[1:] {
			for before := sent.Load(); sent.Load() < before+200; { // the flood is running
				time.Sleep(50 * time.Microsecond) // pace of looks
			}
			if _, err := b.Apply(context.Background(), next, plan.Diff(plans[i], next)); err != nil {
				t.Fatal(err)
			}
		}
		if first.withRules < len(plans)-1 {
			t.Fatalf("only %d transactions with rules, for %d plans", first.withRules, len(plans))
		}
		if after := d.poolsChain(); after != before {
			t.Errorf("packets found their frontend in no set: %s", after)
		}
		b.Close()
		if t.Failed() {
			break
		}
	}
	t.Logf("%d packets", sent.Load())
}

// TestNewRulesDelayNoOtherFrontend changes a frontend together with one that needs rules which the table does not have. Only a
// frontend that moves to new rules waits for a grace period.
func TestNewRulesDelayNoOtherFrontend(t *testing.T) {
	d := newTestEnv(t, 0)
	table := d.b.tables[0]
	at, nodePort := "10.96.0.10:80/TCP ClusterIP", "*4:30080/TCP NodePort"
	p := parse(t, service(frontend(at, "1 2")))
	d.report(p, nil)
	for _, step := range []struct {
		what  string
		next  *plan.Plan
		rules bool // new ones are needed
		waits int
	}{
		{"another endpoint, and a NodePort", parse(t, service(frontend(at, "1 3"), frontend(nodePort, "1"))), true, 0},
		{"the NodePort moves to a new size class", parse(t, service(frontend(at, "1 3"), frontend(nodePort, "1 2 3"))), true, 1},
		{"and back", parse(t, service(frontend(at, "1 2"), frontend(nodePort, "1"))), false, 0},
	} {
		rules := len(table.chains)
		before := maps.Clone(table.chains)
		r := d.report(step.next, plan.Diff(p, step.next))
		if wrote := !maps.Equal(before, table.chains); wrote != step.rules {
			t.Fatalf("%s: rules written: %v; %d chains before, %d now", step.what, wrote, rules, len(table.chains))
		}
		if table.stats.waits != step.waits || r.Transactions != 1+step.waits {
			t.Errorf("%s: %d waits for grace periods, %+v", step.what, table.stats.waits, r)
		}
		p = step.next
		d.expectPlan(p)
	}
}

// Package backend_test checks what is written about the backends against what they declare.
package backend_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// row is something that a plan may want.
type row struct {
	wanted string
	change func(f *plan.Frontend)
	// held says in words what came of it, of a frontend that is held.
	held func(f *plan.Frontend) string
}

func rows() []row {
	var out []row
	for b, name := range []string{
		plan.Random: "random, by weight", plan.RoundRobin: "round robin, by weight",
		plan.SourceHash: "by the client's address", plan.LeastConnections: "least connections, by weight",
	} {
		out = append(out, row{"balance: " + name, func(f *plan.Frontend) { f.Balance = plan.Balance(b) },
			func(f *plan.Frontend) string { return f.Balance.String() }})
	}
	weights := func(name string, of ...uint16) {
		out = append(out, row{name, func(f *plan.Frontend) {
			f.Pool.Members = nil
			for i, w := range of {
				m := plan.Member{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80), Weight: w}
				if w == 0 {
					m.Phase = plan.Draining
				}
				f.Pool.Members = append(f.Pool.Members, m)
			}
		}, func(f *plan.Frontend) string {
			if n := len(f.Pool.Members); n > 4 {
				return fmt.Sprintf("%d members, sum %d", n, f.Pool.Total())
			}
			var is []string
			for _, m := range f.Pool.Members {
				is = append(is, fmt.Sprint(m.Weight))
			}
			return strings.Join(is, " : ")
		}})
	}
	weights("weights 200 : 100", 200, 100)
	weights("weights 999 : 1", 999, 1)
	weights("weights 1000 : 1", 1000, 1)
	weights("weights 65535 : 65534 : 1", 65535, 65534, 1)
	weights("weights 1 : 0", 1, 0)
	many := make([]uint16, 1500)
	for i := range many {
		many[i] = 1
	}
	weights("1500 members of weight 1", many...)
	many = append([]uint16(nil), many...)
	many[0] = 2
	weights("1500 members, one of weight 2", many...)
	for _, p := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		out = append(out, row{"protocol " + p.String(), func(f *plan.Frontend) { f.Key.Protocol = p },
			func(f *plan.Frontend) string { return f.Key.Protocol.String() }})
	}
	for _, d := range []time.Duration{time.Second, 24 * time.Hour} {
		out = append(out, row{"affinity time-out " + d.String(), func(f *plan.Frontend) { f.Affinity = d },
			func(f *plan.Frontend) string { return f.Affinity.String() }})
	}
	return out
}

func frontend() *plan.Frontend {
	return &plan.Frontend{
		Key: plan.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: model.TCP},
		Pool: plan.Pool{Verdict: plan.Forward, Members: []plan.Member{
			{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 1}, {Addr: netip.MustParseAddrPort("10.0.0.2:80"), Weight: 1},
		}},
	}
}

// cell is what a backend makes of a wish. What is lost is marked, as it is a degradation.
func (r row) cell(c plan.Caps) string {
	f := frontend()
	r.change(f)
	got, lost := plan.NormalizeFrontend(f, c)
	text := "no frontend"
	if got != nil {
		text = r.held(got)
		if text == r.held(f) {
			text = "held"
		}
	}
	if len(lost) > 0 {
		text = "**" + text + "**"
	}
	return text
}

func TestTheTableOfDegradationsIsWhatTheBackendsDeclare(t *testing.T) {
	backends := []plan.Caps{nftables.Caps(), ipvs.Caps()}
	var want strings.Builder
	want.WriteString("| a plan wants |")
	for _, c := range backends {
		fmt.Fprintf(&want, " %s |", c.Name)
	}
	want.WriteString("\n|---|" + strings.Repeat("---|", len(backends)) + "\n")
	for _, r := range rows() {
		fmt.Fprintf(&want, "| %s |", r.wanted)
		for _, c := range backends {
			fmt.Fprintf(&want, " %s |", r.cell(c))
		}
		want.WriteString("\n")
	}
	want.WriteString("\nBold is a degradation.\n")
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(b), "<!-- table -->\n")
	got, _, ends := strings.Cut(rest, "<!-- end -->")
	if !found || !ends || got != want.String() {
		t.Errorf("README.md has\n%s\nthe backends declare\n%s", got, want.String())
	}
}

// TestEveryPartOfCapsIsInTheTable fails when there is a way to balance, or a protocol, that the table does not try.
func TestEveryPartOfCapsIsInTheTable(t *testing.T) {
	tried := map[string]bool{}
	for _, r := range rows() {
		f := frontend()
		r.change(f)
		tried[f.Balance.String()], tried[f.Key.Protocol.String()] = true, true
	}
	for _, c := range []plan.Caps{nftables.Caps(), ipvs.Caps()} {
		for _, b := range c.Balances {
			if !tried[b.String()] {
				t.Errorf("%s balances %s", c.Name, b)
			}
		}
		for _, p := range c.Protocols {
			if !tried[p.String()] {
				t.Errorf("%s forwards %s", c.Name, p)
			}
		}
	}
}

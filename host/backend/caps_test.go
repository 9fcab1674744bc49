// Package backend_test compares README.md with the capabilities that the backends declare.
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
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

func backends() []plan.Caps { return []plan.Caps{nftables.Caps(), ipvs.Caps()} }

// row is a property that a planned frontend may have.
type row struct {
	name string
	set  func(f *plan.Frontend)
	// value formats the property of a frontend.
	value func(f *plan.Frontend) string
}

func rows() []row {
	var out []row
	for b, name := range []string{
		plan.Random: "random, weighted", plan.RoundRobin: "round robin, weighted",
		plan.SourceHash: "source hash", plan.LeastConnections: "least connections, weighted",
	} {
		out = append(out, row{"balance: " + name, func(f *plan.Frontend) { f.Balance = plan.Balance(b) },
			func(f *plan.Frontend) string { return f.Balance.String() }})
	}
	ones := make([]uint16, 1500)
	for i := range ones {
		ones[i] = 1
	}
	oneTwo := append([]uint16{2}, ones[1:]...)
	hashed := weightsRow("weights 999 : 1, source hash", 999, 1)
	setWeights := hashed.set
	hashed.set = func(f *plan.Frontend) { setWeights(f); f.Balance = plan.SourceHash }
	out = append(out,
		weightsRow("weights 200 : 100", 200, 100),
		weightsRow("weights 999 : 1", 999, 1),
		weightsRow("weights 1000 : 1", 1000, 1),
		hashed,
		weightsRow("weights 65535 : 65534 : 1", 65535, 65534, 1),
		weightsRow("weights 1 : 0", 1, 0),
		weightsRow("1500 endpoints of weight 1", ones...),
		weightsRow("1500 endpoints, one of weight 2", oneTwo...))
	for _, d := range []time.Duration{time.Second, 125 * time.Second, 301 * time.Second, 24 * time.Hour} {
		out = append(out, row{"affinity timeout " + d.String(), func(f *plan.Frontend) { f.Affinity = d },
			func(f *plan.Frontend) string { return f.Affinity.String() }})
	}
	return append(out, row{"outcomes of connections", func(f *plan.Frontend) { f.Outcomes = true }, func(f *plan.Frontend) string {
		if f.Outcomes {
			return "counted"
		}
		return "not counted"
	}}, row{"established connections offloaded (LongLived)", func(f *plan.Frontend) { f.LongLived = true }, func(f *plan.Frontend) string {
		if f.LongLived {
			return "offloaded"
		}
		return "not offloaded"
	}})
}

func weightsRow(name string, weights ...uint16) row {
	return row{name, func(f *plan.Frontend) {
		f.Pool.Endpoints = nil
		for i, w := range weights {
			m := plan.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80), Weight: w}
			if w == 0 {
				m.Phase = plan.Draining
			}
			f.Pool.Endpoints = append(f.Pool.Endpoints, m)
		}
	}, func(f *plan.Frontend) string {
		if n := len(f.Pool.Endpoints); n > 4 {
			return fmt.Sprintf("%d endpoints, sum %d", n, f.Pool.Total())
		}
		var weights []string
		for _, m := range f.Pool.Endpoints {
			weights = append(weights, fmt.Sprint(m.Weight))
		}
		return strings.Join(weights, " : ")
	}}
}

func newFrontend() *plan.Frontend {
	return &plan.Frontend{
		Key: plan.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: model.TCP},
		Pool: plan.Pool{Verdict: plan.Forward, Endpoints: []plan.Endpoint{
			{Addr: netip.MustParseAddrPort("10.0.0.1:80"), Weight: 1}, {Addr: netip.MustParseAddrPort("10.0.0.2:80"), Weight: 1},
		}},
	}
}

// cell returns what a backend programs for the row: "exact", or another value, in bold if it is a degradation.
func (r row) cell(c plan.Caps) string {
	f := newFrontend()
	r.set(f)
	fit := plan.NewFitter(&c)
	got := fit.Fit(f)
	text := r.value(c.Strip(got))
	if text == r.value(f) {
		text = "exact"
	}
	if got.Degraded != nil {
		text = "**" + text + "**"
	}
	return text
}

func TestREADMETableMatchesDeclaredCapabilities(t *testing.T) {
	var want strings.Builder
	want.WriteString("| planned |")
	for _, c := range backends() {
		fmt.Fprintf(&want, " %s |", c.Name)
	}
	want.WriteString("\n|---|" + strings.Repeat("---|", len(backends())) + "\n")
	for _, r := range rows() {
		fmt.Fprintf(&want, "| %s |", r.name)
		for _, c := range backends() {
			fmt.Fprintf(&want, " %s |", r.cell(c))
		}
		want.WriteString("\n")
	}
	want.WriteString("\nA degradation is in bold.\n")
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, begins := strings.Cut(string(b), "<!-- table -->\n")
	got, _, ends := strings.Cut(rest, "<!-- end -->")
	if !begins || !ends || got != want.String() {
		t.Errorf("README.md contains\n%s\nthe backends declare\n%s", got, want.String())
	}
}

func TestREADMETableCoversAllBalances(t *testing.T) {
	covered := map[string]bool{}
	for _, r := range rows() {
		f := newFrontend()
		r.set(f)
		covered[f.Balance.String()] = true
	}
	for _, c := range backends() {
		for _, b := range c.Balances {
			if !covered[b.String()] {
				t.Errorf("%s declares balance %s, which no row has", c.Name, b)
			}
		}
	}
}

package nftables

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

func TestProbePlanIsValid(t *testing.T) {
	p := probePlan([]model.Family{model.IPv4, model.IPv6})
	if err := plan.Validate(p); err != nil {
		t.Error(err)
	}
	if p.Keys()[0].Family() == p.Keys()[len(p.Keys())-1].Family() {
		t.Error("one family only")
	}
}

// missingFeatures returns what this kernel's version lacks.
func missingFeatures(t *testing.T) map[string]bool {
	t.Helper()
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(uts.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	before := func(a, b int) bool { return major < a || major == a && minor < b }
	return map[string]bool{
		"element counts of sets": before(6, 16),
	}
}

func TestProbeFindsAllFeaturesAndLeavesNothing(t *testing.T) {
	d := newTestEnv(t, 0)
	d.mustApply(cluster(3, 2), nil)
	var features []Feature
	generation := generationOf(t, d)
	before, err := d.nft("", "list", "ruleset")
	if err != nil {
		t.Fatal(before, err)
	}
	err = d.lab.Node.Do(func() (err error) {
		var own bool
		features, own, err = Probe(context.Background())
		if !own {
			t.Error("not in a namespace of its own")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	lacking := missingFeatures(t)
	_, err = d.nft("table ip other {\nflowtable f { hook ingress priority 0; }\n}\ndelete table ip other\n", "-c", "-f", "-")
	lacking[featureFlowtables] = err != nil
	for _, f := range features {
		if (f.Err != nil) != lacking[f.Name] {
			t.Errorf("%s (from Linux %s): %v", f.Name, f.Kernel, f.Err)
		}
		if f.Err != nil && f.Required {
			t.Errorf("%s: sluice does not run here", f.Name)
		}
	}
	if len(features) != len(trials()) {
		t.Errorf("%d features of %d", len(features), len(trials()))
	}
	if after, err := d.nft("", "list", "ruleset"); err != nil || after != before {
		t.Errorf("%v: before\n%s\nafter\n%s", err, before, after)
	}
	if g := generationOf(t, d); g != generation {
		t.Errorf("generation %d, was %d", g, generation)
	}
}

// TestProbeTransactionsAreUndone probes in the network namespace of a table that is in use.
func TestProbeTransactionsAreUndone(t *testing.T) {
	d := newTestEnv(t, 0)
	d.mustApply(cluster(3, 2), nil)
	before, _ := d.nft("", "list", "ruleset")
	generation := generationOf(t, d)
	for _, trial := range trials() {
		if trial.needsCommit {
			continue
		}
		if err := trial.run(d.b.conn, false); err != nil && trial.Required {
			t.Errorf("%s: %v", trial.Name, err)
		}
	}
	if after, err := d.nft("", "list", "ruleset"); err != nil || after != before {
		t.Errorf("%v: before\n%s\nafter\n%s", err, before, after)
	}
	if g := generationOf(t, d); g != generation {
		t.Errorf("generation %d, was %d", g, generation)
	}
}

func TestProbeReportsMissingFeatures(t *testing.T) {
	d := newTestEnv(t, 0)
	for _, commit := range []bool{true, false} {
		bad := trial{family: model.IPv4, build: func(p *prober) {
			p.prerouting(p.rules.rule().frontendKey(byAddress).in(p.lookups[byAddress].frontends).drop()) // the set does not exist
		}}
		if err := bad.run(d.b.conn, commit); !errors.Is(err, unix.ENOENT) {
			t.Errorf("commit %v: %v", commit, err)
		}
		// Only a commit shows that masquerading is not possible in this chain.
		late := trial{family: model.IPv4, build: func(p *prober) { p.prerouting(p.rules.rule().masquerade()) }}
		if err := late.run(d.b.conn, commit); commit && err == nil {
			t.Error("masquerading before routing is possible")
		}
	}
	if out, _ := d.nft("", "list", "tables"); out != "" {
		t.Errorf("left: %s", out)
	}
}

func generationOf(t *testing.T, d *testEnv) uint32 {
	t.Helper()
	g, err := d.b.generation(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

package planner_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/state"
	"github.com/sluice-proxy/sluice/host/source/dir"
)

var update = flag.Bool("update", false, "write what the scripts print into them")

// TestScripts runs testdata/script: Kubernetes objects in, plan and explanation out. The sections of a script are read in their
// order:
//
//	NAME.yaml            objects; a section of the same name replaces them, and an empty one deletes them
//	settings             lines "node NAME", "pods CIDR" and "masqueradeAll"; by default node n1 and Pods in 10.244.0.0/16
//	wait DURATION        time passes
//	plan                 the plan
//	explain NAMESPACE/NAME   where a Service's connections go, and why
//
// With -update, the sections plan and explain are rewritten.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := script{dir: t.TempDir(), now: time.Unix(1000, 0), settings: planner.Settings{Node: "n1", MasqueradeMark: 0x4000, Policies: &policy.Set{},
				PodSources: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}}
			for i := range a.Files {
				f := &a.Files[i]
				got, err := s.section(f.Name, string(f.Data))
				switch {
				case err != nil:
					t.Fatalf("%s: %v", f.Name, err)
				case *update:
					f.Data = []byte(got)
				case got != string(f.Data):
					t.Errorf("%s: got\n%s\nwant\n%s", f.Name, got, f.Data)
				}
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// script is the state of a script.
type script struct {
	dir      string
	now      time.Time
	settings planner.Settings
	planner  *planner.Planner
	changed  bool // objects, since the last plan
}

// section runs a section, and returns what it is to be.
func (s *script) section(name, text string) (string, error) {
	verb, arg, _ := strings.Cut(name, " ")
	switch {
	case strings.HasSuffix(name, ".yaml") && text == "":
		s.changed = true
		return text, os.Remove(filepath.Join(s.dir, name))
	case strings.HasSuffix(name, ".yaml"):
		s.changed = true
		return text, os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600)
	case name == "settings":
		return text, s.set(text)
	case verb == "wait":
		d, err := time.ParseDuration(arg)
		s.now = s.now.Add(d)
		return text, err
	case name == "plan":
		p, err := s.plan()
		if err != nil {
			return "", err
		}
		return plan.Format(p.Current()), nil
	case verb == "explain":
		p, err := s.plan()
		if err != nil {
			return "", err
		}
		ns, svc, _ := strings.Cut(arg, "/")
		e, err := p.Explain(model.Name{Namespace: ns, Name: svc})
		if err != nil {
			return err.Error() + "\n", nil
		}
		return explained(state.NewExplanation(e, time.UnixMilli)), nil
	}
	return "", fmt.Errorf("not a section of a script")
}

func (s *script) set(text string) error {
	for line := range strings.Lines(text) {
		switch verb, arg, _ := strings.Cut(strings.TrimSpace(line), " "); verb {
		case "node":
			s.settings.Node = arg
		case "pods":
			r, err := netip.ParsePrefix(arg)
			if err != nil {
				return err
			}
			s.settings.PodSources = []netip.Prefix{r}
		case "masqueradeAll":
			s.settings.MasqueradeAll = true
		default:
			return fmt.Errorf("not a setting: %s", line)
		}
	}
	return nil
}

// plan plans the objects at the present time.
func (s *script) plan() (*planner.Planner, error) {
	if s.planner == nil {
		s.planner = planner.New(s.settings, nil)
	}
	if s.changed {
		cluster, problems, err := dir.Load(s.dir)
		if err != nil {
			return nil, err
		}
		for _, p := range problems {
			return nil, p
		}
		s.planner.Replace(cluster)
		s.changed = false
	}
	s.planner.PlanNow(s.now)
	return s.planner, nil
}

// explained is an explanation in a few lines.
func explained(x *api.Explanation) string {
	var b strings.Builder
	for _, f := range x.Frontends {
		fmt.Fprintf(&b, "frontend %s\n", f)
	}
	failing, degraded := x.Problems()
	for _, p := range append(failing, degraded...) {
		fmt.Fprintf(&b, "problem  %s\n", p)
	}
	for _, p := range x.Pools {
		fmt.Fprintf(&b, "%s pool of %s %d/%s, %s", p.Pool, p.Port, p.Number, p.Protocol, p.Family)
		if p.HintsIgnored != "" {
			fmt.Fprintf(&b, "; hints ignored: %s", p.HintsIgnored)
		}
		b.WriteByte('\n')
		for i := 0; p.Route != nil && i < len(p.Route.Backends); i++ {
			fmt.Fprintf(&b, "  %s %s: %s\n", p.Route.Kind, p.Route.Name, p.Route.Backends[i].Text())
		}
		for _, e := range p.Endpoints {
			fmt.Fprintf(&b, "  %-17s %3.0f %%  %s\n", e.Address, 100*e.Share, e.Why)
		}
	}
	return b.String()
}

package dir

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// FuzzManifest checks the guarantees of the model for any file: no panic, values in range, the same
// twice, and nothing lost when the file is torn afterwards.
func FuzzManifest(f *testing.F) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range archives {
		a, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, m := range a.Files {
			f.Add(m.Data, strings.HasSuffix(m.Name, ".json"))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, isJSON bool) {
		name := "a.yaml"
		if isJSON {
			name = "a.json"
		}
		root := t.TempDir()
		path := filepath.Join(root, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		one := &directory{root: root}
		changes, problems := scanTwice(t, one)
		for _, p := range problems {
			if p.Err == nil || p.File != name {
				t.Errorf("a problem without a cause or a file: %+v", p)
			}
		}
		for _, c := range changes {
			check(t, c)
		}
		again, _ := scanTwice(t, &directory{root: root})
		if !reflect.DeepEqual(changes, again) {
			t.Errorf("twice the same file:\n%v\n%v", changes, again)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if lost, _ := scanTwice(t, one); len(lost) > 0 {
			t.Errorf("a truncated file removed %v", lost)
		}
	})
}

func check(t *testing.T, c model.Change) {
	switch {
	case c.Service != nil:
		seen := map[model.Family]bool{}
		for _, a := range c.Service.ClusterIPs {
			if f := model.FamilyOf(a); seen[f] || !a.IsValid() || a.Is4In6() || a.Zone() != "" {
				t.Errorf("%s: cluster IPs %v", c.Name, c.Service.ClusterIPs)
			} else {
				seen[f] = true
			}
		}
		if len(seen) == 0 {
			t.Errorf("%s has no cluster IP", c.Name)
		}
		for _, p := range c.Service.Ports {
			if p.Port == 0 || p.Protocol != model.TCP && p.Protocol != model.UDP && p.Protocol != model.SCTP {
				t.Errorf("%s: port %+v", c.Name, p)
			}
		}
		for _, r := range c.Service.SourceRanges {
			if r.Bits() <= 0 || r != r.Masked() {
				t.Errorf("%s: source range %s", c.Name, r)
			}
		}
		if c.Service.Affinity < 0 || c.Service.Name != c.Name {
			t.Errorf("%s: %+v", c.Name, c.Service)
		}
	case c.Slice != nil:
		for _, e := range c.Slice.Endpoints {
			if model.FamilyOf(e.Addr) != c.Slice.Family || e.Addr.IsLoopback() || e.Addr.Is4In6() {
				t.Errorf("%s: endpoint %+v in %s", c.Name, e, c.Slice.Family)
			}
		}
		if c.Slice.Service.Name == "" || c.Slice.Name != c.Name {
			t.Errorf("%s: %+v", c.Name, c.Slice)
		}
	case c.Node != nil:
		if c.Node.Name != c.Name.Name || c.Node.MilliCPU < 0 {
			t.Errorf("%s: %+v", c.Name, c.Node)
		}
	case c.CIDR != nil:
		for _, r := range c.CIDR.CIDRs {
			if r.Bits() <= 0 || r != r.Masked() || len(c.CIDR.CIDRs) > 2 || c.CIDR.Name != c.Name.Name {
				t.Errorf("%s: %+v", c.Name, c.CIDR)
			}
		}
	default:
		t.Errorf("a first change without a value: %+v", c)
	}
}

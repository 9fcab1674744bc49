package dir

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

var update = flag.Bool("update", false, "rewrite the expected parts of testdata")

// TestLoadOfOneFile: a file is read as if it were alone in a folder; its neighbours are not.
func TestLoadOfOneFile(t *testing.T) {
	root := t.TempDir()
	writeDump(t, filepath.Join(root, "dump.json"), 3)
	writeDump(t, filepath.Join(root, "dump.yaml"), 3)
	write(t, filepath.Join(root, "other.yaml"), "{")
	json, problems, err := Load(filepath.Join(root, "dump.json"))
	if err != nil || len(problems) > 0 || len(json.Services) != 3 || len(json.Slices) != 3 {
		t.Fatalf("%v, %v, %+v", err, problems, json)
	}
	yaml, _, err := Load(filepath.Join(root, "dump.yaml"))
	if d := cmp.Diff(dump(json, nil), dump(yaml, problems)); d != "" || err != nil {
		t.Errorf("%v, JSON and YAML differ:\n%s", err, d)
	}
	if _, problems, err := Load(filepath.Join(root, "other.yaml")); err != nil || len(problems) != 1 || problems[0].File != "other.yaml" {
		t.Errorf("a file that is not well-formed: %v, %v", err, problems)
	}
	if _, _, err := Load(filepath.Join(root, "absent.json")); err == nil {
		t.Error("a file that does not exist has no error")
	}
}

// TestLoad reads each archive's files as a folder; its part "want" is what comes of them.
func TestLoad(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no testdata: %v", err)
	}
	for _, path := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			root := t.TempDir()
			var want string
			for _, f := range a.Files {
				if f.Name == "want" {
					want = string(f.Data)
					continue
				}
				write(t, filepath.Join(root, f.Name), string(f.Data))
			}
			snap, problems, err := Load(root)
			if err != nil {
				t.Fatal(err)
			}
			got := dump(snap, problems)
			if *update {
				a.Files = slices.DeleteFunc(a.Files, func(f txtar.File) bool { return f.Name == "want" })
				a.Files = append(a.Files, txtar.File{Name: "want", Data: []byte(got)})
				if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		})
	}
}

func TestLoadOfMissingDirectoryNamesIt(t *testing.T) {
	if _, _, err := Load(filepath.Join(t.TempDir(), "nowhere")); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("got %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// dump writes a snapshot and problems as text, one line each.
func dump(snap *model.Snapshot, problems []source.Problem) string {
	var b bytes.Buffer
	for _, s := range snap.Services {
		fmt.Fprintf(&b, "service %s%s\n", s.Name, fields(
			"policy", s.Policy, "ips", s.ClusterIPs, "external", s.ExternalIPs, "lb", s.LoadBalancerIPs,
			"ranges", s.SourceRanges, "internalLocal", s.InternalLocal, "externalLocal", s.ExternalLocal,
			"health", s.HealthCheckNodePort, "affinity", s.Affinity, "labels", s.Labels, "ports", s.Ports))
	}
	for _, group := range snap.Slices {
		for _, s := range group {
			fmt.Fprintf(&b, "slice %s of %s %s ports=%v\n", s.Name, s.Service, s.Family, s.Ports)
			for _, e := range s.Endpoints {
				fmt.Fprintf(&b, "slice %s: %s%s\n", s.Name, e.Addr, fields("node", e.Node, "zone", e.Zone, "ready", e.Ready,
					"serving", e.Serving, "terminating", e.Terminating, "zones", e.ForZones(), "nodes", e.ForNodes(), "pod", e.Pod))
			}
		}
	}
	for _, n := range snap.Nodes {
		fmt.Fprintf(&b, "node %s%s\n", n.Name, fields("zone", n.Zone, "addresses", n.Addresses, "pods", n.PodCIDRs,
			"milliCPU", n.MilliCPU, "leaving", n.Leaving))
	}
	for _, c := range snap.CIDRs {
		fmt.Fprintf(&b, "cidr %s %v\n", c.Name, c.CIDRs)
	}
	lines := strings.SplitAfter(b.String(), "\n")
	slices.Sort(lines)
	out := strings.Join(lines, "")
	for _, p := range problems {
		kind := "error"
		if p.Warning {
			kind = "warning"
		}
		out += kind + " " + p.Error() + "\n"
	}
	return out
}

// fields writes what is not zero.
func fields(pairs ...any) string {
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		if s := fmt.Sprint(pairs[i+1]); s != "" && s != "0" && s != "0s" && s != "[]" && s != "false" && s != "map[]" {
			fmt.Fprintf(&b, " %s=%s", pairs[i], s)
		}
	}
	return b.String()
}

// TestLabelsOfNamespacesAreRead: a namespace has no namespace.
func TestLabelsOfNamespacesAreRead(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {env: prod}}\n---\n"+
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: bank}\n")
	snap, problems, err := Load(root)
	if err != nil || len(problems) > 0 || len(snap.Namespaces) != 2 || snap.Namespaces["shop"].Labels["env"] != "prod" || !snap.NamespaceLabels.Has("env") {
		t.Errorf("%v, %v, %+v", err, problems, snap.Namespaces)
	}
}

// TestLoadOfEndpointsIsRead: an object with an invalid value keeps the others.
func TestLoadOfEndpointsIsRead(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), `
apiVersion: sluice.dev/v1alpha1
kind: EndpointLoad
metadata: {name: web, namespace: shop}
reporting: 2
endpoints:
- {address: 10.244.0.1, values: {cpu_utilization: "0.5", eps: "many"}}
- {address: fd00::1, values: {utilization/queue: "3"}}
`)
	snap, problems, err := Load(root)
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0].Error(), `a.yaml:1: EndpointLoad shop/web: endpoints[0].values[eps]: "many" is not a decimal number`) {
		t.Errorf("%v, %v", err, problems)
	}
	load := snap.Loads[model.Name{Namespace: "shop", Name: "web"}]
	if load == nil || fmt.Sprint(load.Values) != "map[10.244.0.1:map[cpu_utilization:0.5] fd00::1:map[utilization/queue:3]]" || !snap.LoadRead.Has("eps") {
		t.Errorf("%+v", load)
	}
}

// Package host_test checks what holds for all of the module's packages.
package host_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sluice-proxy/sluice/"

// pkg is what `go list` says of a package: direct imports, those of its tests left out.
type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Standard   bool
}

func packages(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Deps,Standard", module+"...")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %s", exit.Stderr)
		}
		t.Fatal(err)
	}
	all := map[string]pkg{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
	}
}

// TestThePureCoreImportsOnlyItself keeps I/O out of the core: the standard library and the core, nothing else.
func TestThePureCoreImportsOnlyItself(t *testing.T) {
	all := packages(t)
	core := []string{"host/model", "host/plan", "sdk/abi", "host/service", "host/policy", "host/planner"}
	for i, name := range core {
		p, ok := all[module+name]
		if !ok {
			t.Fatalf("no package %s: mend this list", name)
		}
		for _, dep := range p.Deps {
			own, isOwn := strings.CutPrefix(dep, module)
			switch {
			case isOwn && !slices.Contains(core[:i], own):
				t.Errorf("%s depends on %s, which comes after it or is no part of the core", name, own)
			case !isOwn && !all[dep].Standard:
				t.Errorf("%s depends on %s: the core uses the standard library only", name, dep)
			}
		}
		for _, banned := range []string{"net/http", "os", "os/exec", "log/slog"} {
			if slices.Contains(p.Imports, banned) {
				t.Errorf("%s imports %s: the core does no I/O", name, banned)
			}
		}
	}
}

// TestBackendsDoNotDependOnThePlanner keeps policies, Service rules and the plugin ABI out of what programs a plan.
func TestBackendsDoNotDependOnThePlanner(t *testing.T) {
	all := packages(t)
	for _, name := range []string{"host/backend/nftables", "host/backend/ipvs", "host/backend/fake", "host/conntrack"} {
		for _, banned := range []string{"host/planner", "host/policy", "host/service", "sdk/abi"} {
			if slices.Contains(all[module+name].Deps, module+banned) {
				t.Errorf("%s depends on %s: a backend needs the plan only", name, banned)
			}
		}
	}
}

// TestLibrariesStayBehindOnePackage keeps each big library in its room.
func TestLibrariesStayBehindOnePackage(t *testing.T) {
	rooms := map[string][]string{
		"k8s.io/":                        {"host/source", "host/source/dir", "host/source/kube", "host/lab/testcluster", "host/lab/loadgen", "host/lab/benchcompare", "host/lab/scaletest"},
		"k8s.io/client-go":               {"host/source/kube", "host/lab/testcluster", "host/lab/testcluster/binaries", "host/lab/benchcompare", "host/lab/scaletest"},
		"github.com/tetratelabs/wazero":  {"host/wasm"},
		"github.com/google/nftables":     {"host/backend/nftables/rules", "host/backend/ipvs", "host/kubeproxy"},
		"github.com/moby/ipvs":           {"host/backend/ipvs"},
		"github.com/spf13/cobra":         {"cmd/sluice"},
		"github.com/prometheus/":         {"host/metrics"},
		"github.com/opencontainers/":     {"deploy/image"},
		"oras.land/":                     {"deploy/image"},
		"github.com/vishvananda/netlink": {"host/conntrack", "host/backend/ipvs", "host/kubeproxy", "host/lab/testnet", "host/lab/benchcompare", "examples/demo"},
	}
	for path, p := range packages(t) {
		own, ok := strings.CutPrefix(path, module)
		if !ok {
			continue
		}
		for _, dep := range p.Imports {
			for library, allowed := range rooms {
				if strings.HasPrefix(dep, library) && !slices.Contains(allowed, own) {
					t.Errorf("%s imports %s: only %v may", own, dep, allowed)
				}
			}
		}
	}
}

// TestEdgesDoNotImportEachOther keeps the edges apart: they meet in host/agent and cmd.
func TestEdgesDoNotImportEachOther(t *testing.T) {
	edges := []string{"host/source", "host/wasm", "host/backend/nftables", "host/backend/ipvs", "host/backend/fake", "host/conntrack", "host/config", "host/metrics", "host/health", "host/probe", "host/kubeproxy"}
	const shared = "host/backend/nftables/" // what the backends for nftables and IPVS have in common
	room := func(path string) string {
		if strings.HasPrefix(path, shared) {
			return shared
		}
		for _, e := range edges {
			if path == e || strings.HasPrefix(path, e+"/") {
				return e
			}
		}
		return ""
	}
	for path, p := range packages(t) {
		own, _ := strings.CutPrefix(path, module)
		from := room(own)
		if from == "" {
			continue
		}
		for _, dep := range p.Imports {
			other, isOwn := strings.CutPrefix(dep, module)
			to := room(other)
			if !isOwn || to == "" || to == from || to == shared && strings.HasPrefix(from, "host/backend/") {
				continue
			}
			t.Errorf("%s imports %s: edges meet in host/agent and cmd only", own, other)
		}
	}
}

// TestTheSDKUsesTheStandardLibraryOnly keeps plugin authors free of our dependencies.
func TestTheSDKUsesTheStandardLibraryOnly(t *testing.T) {
	all := packages(t)
	for path, p := range all {
		own, _ := strings.CutPrefix(path, module)
		if own != "sdk" && !strings.HasPrefix(own, "sdk/") {
			continue
		}
		for _, dep := range p.Deps {
			if !all[dep].Standard && !strings.HasPrefix(dep, module+"sdk") {
				t.Errorf("%s depends on %s", own, dep)
			}
		}
	}
}

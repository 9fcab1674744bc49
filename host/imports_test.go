// Package host_test checks rules that concern all packages and documents of the module.
package host_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/sluice-proxy/sluice/"

// pkg is a package as `go list` prints it. Imports are direct and without those of its tests.
type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Standard   bool
}

// listPackages lists the module's packages and all of their dependencies, once.
var listPackages = sync.OnceValues(func() (map[string]pkg, error) {
	out, err := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Deps,Standard", module+"...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	all := map[string]pkg{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		all[p.ImportPath] = p
	}
})

func packages(t *testing.T) map[string]pkg {
	t.Helper()
	all, err := listPackages()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestCoreImportsOnlyItself checks that the core depends on the standard library and on itself only, in this order.
func TestCoreImportsOnlyItself(t *testing.T) {
	all := packages(t)
	core := []string{"host/util/spelling", "host/util/ipaddr", "host/core/model", "host/core/plan", "sdk/abi", "host/core/outcomes", "host/core/eligibility", "host/core/policy", "host/core/planner/tally", "host/core/planner/cost", "host/core/planner/claims", "host/core/planner/queue", "host/core/planner", "sdk/scenario", "host/whatif/verdict", "host/whatif/recording", "host/whatif/simulation", "host/whatif/replay"}
	for i, name := range core {
		p, ok := all[module+name]
		if !ok {
			t.Fatalf("no package %s: update this list", name)
		}
		for _, dep := range p.Deps {
			own, isOwn := strings.CutPrefix(dep, module)
			switch {
			case isOwn && !slices.Contains(core[:i], own):
				t.Errorf("%s depends on %s, which is above it or not part of the core", name, own)
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

// TestRoomsImportOneWay checks that a folder of host imports those only that the picture of host/README.md shows below or beside
// it.
func TestRoomsImportOneWay(t *testing.T) {
	rooms := map[string][]string{
		"util":       nil,
		"api":        nil,
		"core":       {"util"},
		"backend":    {"core", "util"},
		"source":     {"api", "core", "util"},
		"plugin":     {"core", "util"},
		"whatif":     {"core", "util"},
		"engine":     {"core", "backend"},
		"node":       {"engine", "backend", "source", "plugin", "whatif", "api", "core", "util"},
		"controller": {"node", "source", "plugin", "api", "core", "util"},
		"lab":        {"api", "controller", "node", "engine", "backend", "source", "plugin", "whatif", "core", "util"},
	}
	room := func(path string) (string, bool) {
		path, ok := strings.CutPrefix(path, module+"host/")
		name, _, _ := strings.Cut(path, "/")
		return name, ok
	}
	for path, p := range packages(t) {
		own, ok := room(path)
		if !ok {
			continue
		}
		allowed, known := rooms[own]
		if !known {
			t.Errorf("%s is in no room", path)
		}
		for _, dep := range p.Imports {
			if path == module+"host/backend/conformance" && dep == module+"host/lab/testgen" {
				continue // the kit for backends generates what it plans
			}
			if other, ok := room(dep); ok && other != own && !slices.Contains(allowed, other) {
				t.Errorf("%s imports %s", path, dep)
			}
		}
	}
}

// TestBackendsDoNotDependOnThePlanner checks that policies, Service rules and the plugin ABI are unknown to backends.
func TestBackendsDoNotDependOnThePlanner(t *testing.T) {
	all := packages(t)
	for _, name := range []string{"host/backend/nftables", "host/backend/ipvs", "host/backend/fake", "host/backend/conntrack"} {
		for _, banned := range []string{"host/core/planner", "host/core/policy", "host/core/eligibility", "sdk/abi"} {
			if slices.Contains(all[module+name].Deps, module+banned) {
				t.Errorf("%s depends on %s: a backend needs the plan only", name, banned)
			}
		}
	}
}

// TestStateAPIIsTypesOnly checks that the JSON of the state API needs the standard library only.
func TestStateAPIIsTypesOnly(t *testing.T) {
	all := packages(t)
	p, ok := all[module+"host/node/agent/api"]
	if !ok {
		t.Fatal("no package host/node/agent/api")
	}
	for _, dep := range p.Deps {
		if !all[dep].Standard {
			t.Errorf("host/node/agent/api depends on %s: its clients would link it", dep)
		}
	}
}

// TestKubectlPluginIsSmall checks that of this module the kubectl plugin links what reads and prints an agent's state, and
// nothing of what decides or programs.
func TestKubectlPluginIsSmall(t *testing.T) {
	all := packages(t)
	allowed := []string{"cmd/internal/bundle", "cmd/internal/flagrange", "cmd/internal/printer", "host/node/agent/api", "host/node/agent/stateclient", "host/util/printable", "host/util/spelling"}
	for _, dep := range all[module+"cmd/kubectl-sluice"].Deps {
		if own, isOwn := strings.CutPrefix(dep, module); isOwn && !slices.Contains(allowed, own) {
			t.Errorf("cmd/kubectl-sluice depends on %s", own)
		}
	}
}

// TestLibrariesAreConfined checks that each large library is used by a few packages only.
func TestLibrariesAreConfined(t *testing.T) {
	importers := map[string][]string{
		"k8s.io/":                        {"host/api/v1alpha1", "host/api/gatewayapi", "host/controller", "host/source", "host/source/dir", "host/source/kube", "host/lab/testcluster", "host/lab/testcluster/kubelet", "host/lab/realcluster", "host/lab/loadgen", "host/lab/bench/peer", "host/lab/bench/fleet", "host/lab/realcluster/balancer", "host/lab/realcluster/e2e", "cmd/kubectl-sluice"},
		"k8s.io/client-go":               {"host/source/kube", "host/controller", "host/lab/testcluster", "host/lab/testcluster/binaries", "host/lab/realcluster", "host/lab/bench/peer", "host/lab/bench/fleet", "host/lab/realcluster/balancer", "cmd/kubectl-sluice"},
		"github.com/tetratelabs/wazero":  {"host/plugin/wasm"},
		"github.com/google/nftables":     {"host/backend/nftables"},
		"github.com/moby/ipvs":           {"host/backend/ipvs"},
		"github.com/spf13/cobra":         {"cmd/sluice", "cmd/kubectl-sluice"},
		"github.com/prometheus/":         {"host/node/metrics"},
		"github.com/opencontainers/":     {"deploy/image", "deploy/image/oci", "deploy/release", "host/plugin/registry", "host/lab/ociregistry", "host/lab/realcluster/programs"},
		"oras.land/":                     {"deploy/image/oci", "deploy/release", "host/plugin/registry", "host/lab/ociregistry"},
		"gonum.org/":                     {"examples/demo"},
		"github.com/vishvananda/netlink": {"host/backend/conntrack", "host/backend/ipvs", "host/node/kubeproxy", "host/lab/testnet", "host/lab/bench/peer", "examples/demo"},
	}
	for path, p := range packages(t) {
		own, ok := strings.CutPrefix(path, module)
		if !ok {
			continue
		}
		for _, dep := range p.Imports {
			for library, allowed := range importers {
				if strings.HasPrefix(dep, library) && !slices.Contains(allowed, own) {
					t.Errorf("%s imports %s: only %v may", own, dep, allowed)
				}
			}
		}
	}
}

// TestEdgesDoNotImportEachOther checks that only host/node/agent and cmd combine edges.
func TestEdgesDoNotImportEachOther(t *testing.T) {
	edges := []string{"host/source", "host/plugin/wasm", "host/backend/nftables", "host/backend/ipvs", "host/backend/fake", "host/backend/conntrack", "host/node/config", "host/node/metrics", "host/node/health", "host/node/probe", "host/node/kubeproxy", "host/plugin/registry", "host/node/localhostproxy"}
	edgeOf := func(path string) string {
		for _, e := range edges {
			if path == e || strings.HasPrefix(path, e+"/") {
				return e
			}
		}
		return ""
	}
	for path, p := range packages(t) {
		own, _ := strings.CutPrefix(path, module)
		from := edgeOf(own)
		if from == "" {
			continue
		}
		for _, dep := range p.Imports {
			other, isOwn := strings.CutPrefix(dep, module)
			to := edgeOf(other)
			if !isOwn || to == "" || to == from || to == "host/backend/nftables" && from == "host/backend/ipvs" {
				continue // its tables serve mode ipvs too
			}
			t.Errorf("%s imports %s: edges meet in host/node/agent and cmd only", own, other)
		}
	}
}

// TestSDKUsesTheStandardLibraryOnly checks that plugins do not inherit dependencies.
func TestSDKUsesTheStandardLibraryOnly(t *testing.T) {
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

// TestProductDoesNotImportLab checks that nothing that ships depends on test beds or benchmarks.
func TestProductDoesNotImportLab(t *testing.T) {
	for path, p := range packages(t) {
		own, isOwn := strings.CutPrefix(path, module)
		ships := own == "sdk" || slices.ContainsFunc([]string{"cmd/", "deploy/", "plugins/", "sdk/"}, func(dir string) bool { return strings.HasPrefix(own, dir) })
		if !isOwn || !ships {
			continue
		}
		for _, dep := range p.Deps {
			if strings.HasPrefix(dep, module+"host/lab") || dep == module+"host/backend/conformance" {
				t.Errorf("%s depends on %s, which is for tests only", own, strings.TrimPrefix(dep, module))
			}
		}
	}
}

// TestNothingLinksToPrivateFunctions checks that a new version of Go finds nothing of its own private parts in use.
func TestNothingLinksToPrivateFunctions(t *testing.T) {
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "\n//go:"+"linkname ") {
			t.Errorf("%s links to a private function", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestUnsafeIsForSystemCallsOnly checks that a new version of Go or of wazero finds nothing of its private structures in use:
// they cannot be reached without one of the two packages.
func TestUnsafeIsForSystemCallsOnly(t *testing.T) {
	allowed := map[string]string{
		"host/plugin/confine":      "arguments of Landlock's system calls",
		"host/plugin/wasm/lane":    "words in shared memory, arguments of futex(2)",
		"host/plugin/wasm/mapping": "addresses for mmap(2)",
		"host/util/nfnl":           "the program of a filter of netlink messages",
		"sdk":                      "the memory that a plugin shares with its host",
	}
	for path, p := range packages(t) {
		own, isOwn := strings.CutPrefix(path, module)
		if !isOwn || strings.HasPrefix(own, "host/lab") {
			continue
		}
		if slices.Contains(p.Imports, "unsafe") && allowed[own] == "" {
			t.Errorf("%s imports unsafe", own)
		}
		wazero := slices.ContainsFunc(p.Imports, func(dep string) bool { return strings.HasPrefix(dep, "github.com/tetratelabs/wazero") })
		if wazero && (slices.Contains(p.Imports, "unsafe") || slices.Contains(p.Imports, "reflect")) {
			t.Errorf("%s imports wazero, and unsafe or reflect", own)
		}
	}
}

var clockUse = regexp.MustCompile(`\b(time\.(Now|Since|Until|Sleep|After|AfterFunc|Tick|NewTimer|NewTicker)|unix\.ClockGettime)\(|\bSYS_(CLOCK_GETTIME|NANOSLEEP)\b`)

// TestOnlyTheEngineHasAClock checks that the other product packages get the time from their caller, so that tests can use
// virtual time.
func TestOnlyTheEngineHasAClock(t *testing.T) {
	allowed := map[string]string{
		"node/agent":        "watches files and runs periodic jobs",
		"controller":        "renews a Lease, and paces what it writes",
		"engine":            "owns time",
		"plugin/confine":    "lists the system calls of Go's runtime, and has a timer made before they are refused",
		"plugin/wasm/lane":  "waits for the process of a plugin and measures its CPU time; no decision depends on it",
		"plugin/wasm/turns": "interrupts processes that compile; no decision depends on it",
		"backend/ipvs":      "kernel_link.go waits for the work queue that makes an IPv6 address local",
		"backend/nftables":  "replace.go waits for packets in flight where membarrier(2) is not available",
	}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "lab" || path == filepath.Join("backend", "conformance") || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		for dir := filepath.Dir(path); dir != "."; dir = filepath.Dir(dir) {
			if allowed[filepath.ToSlash(dir)] != "" {
				return nil
			}
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, line := range strings.Split(string(text), "\n") {
			code, _, _ := strings.Cut(line, "//")
			if use := clockUse.FindString(code); use != "" {
				t.Errorf("host/%s:%d: %s: only the engine and the agent have a clock", path, i+1, use)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestOnlyTheAgentAssembles keeps imports one way: cmd → host/node/agent → backends. host/lab is not part of the product.
func TestOnlyTheAgentAssembles(t *testing.T) {
	isIn := func(path string, dirs ...string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") })
	}
	for path, p := range packages(t) {
		own, isOwn := strings.CutPrefix(path, module)
		if !isOwn || isIn(own, "host/lab") {
			continue
		}
		for _, dep := range p.Imports {
			other, _ := strings.CutPrefix(dep, module)
			switch {
			case isIn(other, "host/node/agent") && !isIn(own, "host/node/agent", "cmd"):
				t.Errorf("%s imports %s: only commands may", own, other)
			case isIn(other, "host/backend/nftables", "host/backend/ipvs") && !isIn(own, "host/node/agent", "host/backend"):
				t.Errorf("%s imports %s: only host/node/agent may open a backend", own, other)
			}
		}
	}
}

// TestBundledPluginsDoWithoutLargePackages checks what makes a module of a bundled plugin large, see RATIONALE.md.
func TestBundledPluginsDoWithoutLargePackages(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", module+"plugins/...")
	list.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if !slices.Contains(deps, module+"sdk") {
		t.Fatal("the plugins do not import the SDK")
	}
	for _, large := range []string{"encoding/binary", "encoding/json", "fmt", "net/netip", "os", "reflect", "time"} {
		if slices.Contains(deps, large) {
			t.Errorf("a plugin imports %s, directly or not", large)
		}
	}
}

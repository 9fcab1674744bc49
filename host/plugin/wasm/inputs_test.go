package wasm

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/testdata/inputs"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// TestEveryInputArrivesInEveryLanguage: the shares are a hash of all inputs, in Go and in C in the sandbox, and in Go natively.
// make test-sdk adds the other languages.
func TestEveryInputArrivesInEveryLanguage(t *testing.T) {
	h := newHost(t, Options{CacheDir: testenv.PluginCache(t)})
	guests := map[string]*Plugin{
		"Go": load(t, h, goGuest(t, "testdata/inputs/guest"), ""),
		"C":  load(t, h, cGuest(t, "testdata/inputs/c/inputs.c"), ""),
	}
	if os.Getenv("SLUICE_TEST_SDK") != "" {
		for lang, c := range map[string]struct {
			command func(t testing.TB, file, out string) *exec.Cmd
			file    string
		}{"Rust": {testenv.Rust, "testdata/inputs/rust/inputs.rs"}, "AssemblyScript": {testenv.AssemblyScript, "testdata/inputs/as/inputs.ts"}} {
			out := filepath.Join(t.TempDir(), "inputs.wasm")
			if msg, err := c.command(t, c.file, out).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", lang, err, msg)
			}
			if err := testenv.Embed(out, "testdata/inputs"); err != nil {
				t.Fatal(err)
			}
			module, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			guests[lang] = load(t, h, module, "")
		}
	}
	native, err := sdk.NewNativePlugin(inputs.New, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range guests {
		if p.Needs("") != abi.AllNeeds || !slices.Equal(p.Keys(""), inputs.Keys()) {
			t.Errorf("%s: needs %b, keys %q", name, p.Needs(""), p.Keys(""))
		}
	}
	// Keys of another plugin of the chain come first, so that columns are not those of the request.
	keys := slices.Concat([]string{"label:of-another", "service-label:of-another"}, inputs.Keys())
	slices.Reverse(keys[2:])
	different := map[uint32]bool{}
	for _, s := range Samples(keys...) {
		var want, got abi.Response
		want.Reset(len(s.Request.Endpoints))
		if err := native.Decide(s.Request, &want); err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		for name, p := range guests {
			got.Reset(len(s.Request.Endpoints))
			if err := p.Decide(s.Request, &got); err != nil {
				t.Fatalf("%s, in %s: %v", s.Name, name, err)
			}
			if diff := diffResponses(s.Request, &want, &got); diff != "" {
				t.Errorf("%s: natively and in %s: %s", s.Name, name, diff)
			}
		}
		for _, r := range want.Results {
			different[r.Value] = true
		}
	}
	if len(different) < 500 {
		t.Errorf("%d different shares", len(different))
	}
}

// Each input changes an answer: a sample without it has other shares.
func TestSamplesHaveEveryInput(t *testing.T) {
	native, err := sdk.NewNativePlugin(inputs.New, nil)
	if err != nil {
		t.Fatal(err)
	}
	shares := func(req *abi.Request) (s []uint32) {
		var resp abi.Response
		resp.Reset(len(req.Endpoints))
		if err := native.Decide(req, &resp); err != nil {
			t.Fatal(err)
		}
		for _, r := range resp.Results {
			s = append(s, r.Value)
		}
		return s
	}
	for name, without := range map[string]func(*abi.Request){
		"node index":       func(r *abi.Request) { r.NodeCount = 0 },
		"Nodes of zones":   func(r *abi.Request) { r.Zones[0].Nodes = 0 },
		"connections":      func(r *abi.Request) { r.Endpoints[3].Connections = abi.ConnectionsUnknown },
		"connections age":  func(r *abi.Request) { r.ConnectionsAgeMS = abi.NoAge },
		"outcomes":         func(r *abi.Request) { r.Endpoints[1].Outcomes = abi.Outcomes{} },
		"outcomes window":  func(r *abi.Request) { r.OutcomesWindowMS = 0 },
		"names of Pods":    func(r *abi.Request) { r.Endpoints[0].Pod = "" },
		"values":           func(r *abi.Request) { r.Endpoints[0].Values = nil },
		"Service values":   func(r *abi.Request) { r.ServiceValues = nil },
		"endpoint states":  func(r *abi.Request) { r.EndpointStates = nil },
		"held":             func(r *abi.Request) { r.Endpoints[0].Conditions &^= abi.Held },
		"not eligible":     func(r *abi.Request) { r.Endpoints[0].Conditions |= abi.Eligible },
		"capacity":         func(r *abi.Request) { r.Endpoints[2].Capacity /= 2 },
		"share":            func(r *abi.Request) { r.Endpoints[2].Share /= 2 },
		"groups":           func(r *abi.Request) { r.Groups = make([]uint32, len(r.Groups)) },
		"serving in zones": func(r *abi.Request) { r.Zones[0].Serving = 99 },
	} {
		changed := false
		for _, s := range Samples(inputs.Keys()...) {
			if len(s.Request.Endpoints) < 4 || len(s.Request.Zones) == 0 {
				continue
			}
			before := shares(s.Request)
			without(s.Request)
			changed = changed || !slices.Equal(before, shares(s.Request))
		}
		if !changed {
			t.Errorf("%s: no sample has it", name)
		}
	}
}

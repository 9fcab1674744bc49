package wasm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

// impureWAT reads a file of testdata/impure: code that is called for each request.
func impureWAT(t testing.TB, file string) string {
	t.Helper()
	return hosts.Complete(mustRead(t, file) + "\n;; always\n")
}

// impureModules calls test with each module of testdata/impure, when its impurity is found ("load", "decide" or "pure"),
// and the expected error.
func impureModules(t *testing.T, test func(t *testing.T, module []byte, when string, want *regexp.Regexp)) {
	files, err := filepath.Glob("testdata/impure/*.wat")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d impure modules: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".wat"), func(t *testing.T) {
			text := impureWAT(t, file)
			m := regexp.MustCompile(`(?m)^ *;; (load|decide|pure)(?:: (.*))?$`).FindStringSubmatch(text)
			if m == nil {
				t.Fatal("no line with the expected result")
			}
			test(t, wat(t, text), m[1], regexp.MustCompile(m[2]))
		})
	}
}

func TestSelfTestFindsImpurePlugins(t *testing.T) {
	h := newHost(t, Options{})
	impureModules(t, func(t *testing.T, module []byte, when string, want *regexp.Regexp) {
		p, err := h.Load(context.Background(), "impure", module, nil)
		switch {
		case err == nil && when == "load":
			t.Error("loaded")
		case err == nil:
			p.Close()
		case when != "load" || !want.MatchString(err.Error()):
			t.Errorf("%s: %v", when, err)
		case !strings.HasPrefix(err.Error(), `self-test: sample request "`) || !strings.Contains(err.Error(), "the state of the response"):
			t.Errorf("the error does not help: %v", err)
		case len(err.Error()) > 600 || strings.Contains(err.Error(), "\n"):
			t.Errorf("a long error: %v", err)
		}
	})
}

func TestSelfTestOrders(t *testing.T) {
	const n = 14
	before := map[[2]int]bool{}
	for _, p := range passes() {
		asked := map[int]bool{}
		previous := -1
		for _, i := range p.order(n) {
			asked[i] = true
			before[[2]int{previous, i}] = true
			previous = i
		}
		if len(asked) != n {
			t.Errorf("%s: %d of %d samples", p.name, len(asked), n)
		}
	}
	for i := range n {
		if !before[[2]int{i, i}] {
			t.Errorf("sample %d is never asked twice in a row", i)
		}
		different := 0
		for j := range n {
			if before[[2]int{j, i}] {
				different++
			}
		}
		if different < 3 {
			t.Errorf("sample %d follows %d samples only", i, different)
		}
	}
}

func TestSelfTestIsReported(t *testing.T) {
	p := load(t, newHost(t, Options{CacheDir: testenv.PluginCache(t)}), goGuest(t, "../../../plugins/locality"), "")
	s := p.Report().SelfTest
	n := len(Samples())
	if s.Samples != n || s.Orders != 6 || s.Calls != 7*n || s.Instances != 3 || s.Fuel <= 0 {
		t.Errorf("%+v of %d samples", s, n)
	}
	t.Logf("%+v, fuel to start %d", s, p.Report().InitFuel)
}

// Bundled and example plugins give equal answers whatever they were asked before.
func TestBundledPluginsArePure(t *testing.T) {
	h := newHost(t, Options{CacheDir: testenv.PluginCache(t)})
	for name, module := range map[string][]byte{
		"locality":          goGuest(t, "../../../plugins/locality"),
		"lifecycle":         goGuest(t, "../../../plugins/lifecycle"),
		"plugin-hello":      goGuest(t, "../../../examples/plugin-hello"),
		"plugin-zone-first": goGuest(t, "../../../examples/plugin-zone-first"),
		"plugin-c":          cGuest(t, "../../../examples/plugin-c/zone_first.c"),
	} {
		t.Run(name, func(t *testing.T) {
			p, q := load(t, h, module, ""), load(t, h, module, "")
			for seed := range uint64(300) {
				req := randomRequest(seed)
				var other, want, got abi.Response
				if seed%3 == 0 { // another history
					if err := q.Decide(randomRequest(seed+1000), &other); err != nil {
						t.Fatal(err)
					}
				}
				if err := p.Decide(req, &want); err != nil {
					t.Fatal(err)
				}
				if err := q.Decide(req, &got); err != nil {
					t.Fatal(err)
				}
				if diff := diffResponses(req, &want, &got); diff != "" {
					t.Fatalf("seed %d: %s", seed, diff)
				}
			}
		})
	}
}

// randomRequest returns a request of one of a few Services.
func randomRequest(seed uint64) *abi.Request {
	r := rand.New(rand.NewPCG(seed, 7))
	req := SampleRequest(r.IntN(40))
	req.Now += int64(seed) * 1000
	req.Namespace, req.Service = fmt.Sprintf("ns-%d", r.IntN(5)), fmt.Sprintf("service-%d", r.IntN(20))
	req.PortNumber, req.Generation = uint16(1+r.IntN(1000)), seed
	req.State = make([]byte, 8*r.IntN(3))
	for i := range req.State {
		req.State[i] = byte(r.Uint32())
	}
	for i := range req.Endpoints {
		e := &req.Endpoints[i]
		e.Capacity, e.Share, e.PriorWeight = uint32(r.IntN(abi.One)), uint32(r.IntN(2*abi.One)), int32(r.IntN(200)-1)
		if r.IntN(4) == 0 {
			e.Conditions = abi.Serving | abi.Terminating | abi.Eligible
			e.TerminatingSince = req.Now - int64(r.IntN(60_000))
		}
	}
	return req
}

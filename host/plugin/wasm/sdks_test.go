package wasm

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/imports/wasi_snapshot_preview1"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// sdkGuest is an instance of an example of an SDK, called without a host between: the test compares the bytes that it writes.
type sdkGuest struct {
	lang      string
	module    api.Module
	req, resp uint64
	size      int
	compile   time.Duration   // the fastest of three
	spent     []time.Duration // by decide
	logged    string          // its last line
}

const sdkRoom = 1 << 20

func newSDKGuest(t *testing.T, lang, file string) *sdkGuest {
	t.Helper()
	code, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	g := &sdkGuest{lang: lang, size: len(code)}
	var r wazero.Runtime
	var compiled wazero.CompiledModule
	for range 3 {
		r = wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigCompiler())
		t.Cleanup(func() { _ = r.Close(ctx) })
		begin := time.Now()
		if compiled, err = r.CompileModule(ctx, code); err != nil {
			t.Fatalf("%s: %v", lang, err)
		}
		if took := time.Since(begin); g.compile == 0 || took < g.compile {
			g.compile = took
		}
	}
	wasi_snapshot_preview1.MustInstantiate(ctx, r)
	log := func(_ context.Context, m api.Module, _, at, length uint32) {
		text, _ := m.Memory().Read(at, length)
		g.logged = string(text)
	}
	if _, err := r.NewHostModuleBuilder("sluice").NewFunctionBuilder().WithFunc(log).Export("log").Instantiate(ctx); err != nil {
		t.Fatal(err)
	}
	if g.module, err = r.InstantiateModule(ctx, compiled, wazero.NewModuleConfig().WithStartFunctions("_initialize")); err != nil {
		t.Fatalf("%s: %v", lang, err)
	}
	g.req, g.resp = g.call(t, "sluice_alloc", sdkRoom), g.call(t, "sluice_alloc", sdkRoom)
	return g
}

func (g *sdkGuest) call(t *testing.T, name string, args ...uint64) uint64 {
	t.Helper()
	out, err := g.module.ExportedFunction(name).Call(context.Background(), args...)
	if err != nil {
		t.Fatalf("%s: %s: %v", g.lang, name, err)
	}
	return out[0]
}

func (g *sdkGuest) configure(t *testing.T, settings string) int32 {
	t.Helper()
	g.module.Memory().Write(uint32(g.req), []byte(settings))
	return int32(g.call(t, "sluice_configure", g.req, uint64(len(settings))))
}

func (g *sdkGuest) decide(t *testing.T, req []byte) []byte {
	t.Helper()
	begin := time.Now()
	n := g.ask(t, req, sdkRoom)
	g.spent = append(g.spent, time.Since(begin))
	if n < 0 {
		t.Fatalf("%s: code %d", g.lang, n)
	}
	out, _ := g.module.Memory().Read(uint32(g.resp), uint32(n))
	return bytes.Clone(out)
}

// ask returns the length of the response, or an error code.
func (g *sdkGuest) ask(t *testing.T, req []byte, room int) int64 {
	t.Helper()
	g.module.Memory().Write(uint32(g.req), req)
	return int64(g.call(t, "sluice_decide", g.req, uint64(len(req)), g.resp, uint64(room)))
}

// refuses checks that what a host must not send, and does not fit, gets the error code of the ABI.
func (g *sdkGuest) refuses(t *testing.T, raw []byte) {
	t.Helper()
	with := func(at int, b byte) []byte {
		out := bytes.Clone(raw)
		out[at] = b
		return out
	}
	for _, c := range []struct {
		what string
		req  []byte
		room int
		want int64
	}{
		{"nothing", nil, sdkRoom, abi.CodeBadRequest},
		{"half a header", raw[:abi.ReqSize/2], sdkRoom, abi.CodeBadRequest},
		{"less than its total", raw[:len(raw)-1], sdkRoom, abi.CodeBadRequest},
		{"another magic", with(abi.ReqMagic, 'X'), sdkRoom, abi.CodeBadRequest},
		{"another major version", with(abi.ReqMajor, 1), sdkRoom, abi.CodeBadRequest},
		{"an unknown settings handle", with(abi.ReqSettings, 0x77), sdkRoom, abi.CodeNotConfigured},
		{"no room for the header", raw, abi.RespSize - 1, abi.CodeNoRoom},
		{"no room for reasons", raw, int(g.ask(t, raw, sdkRoom)) - 1, abi.CodeNoRoom},
	} {
		if got := g.ask(t, c.req, c.room); got != c.want {
			t.Errorf("%s: %s: %d, want %d", g.lang, c.what, got, c.want)
		}
	}
}

// sdkServices is a number of Service ports whose endpoints come, go and change as time passes.
type sdkServices struct {
	random *rand.Rand
	now    int64
	ports  []abi.Request
}

func newSDKServices() *sdkServices {
	return &sdkServices{random: rand.New(rand.NewPCG(16, 5)), now: 1_700_000_000_000, ports: make([]abi.Request, 8)}
}

// next returns the next request, one of the Service ports in turn.
func (s *sdkServices) next(i int) *abi.Request {
	zones := []string{"a", "b", "eu-west-1c", ""}
	tiers := []string{"gold", "silver", "é😀", "golden", ""}
	req := &s.ports[i%len(s.ports)]
	req.Keys = []string{abi.KeyPodLabel + "tier"}
	s.now += 1000 * int64(s.random.IntN(4))
	req.Namespace, req.Service, req.Port, req.Node = "shop", fmt.Sprint("cart-", i%len(s.ports)), "http", "node-1"
	req.PortNumber, req.Protocol, req.Family, req.Now, req.Generation = 80, 6, 4, s.now, uint64(i)
	req.Zone = zones[(i/200+i)%len(zones)]
	var endpoints []abi.Endpoint
	known := map[netip.AddrPort]abi.Endpoint{}
	for _, e := range req.Endpoints {
		known[e.Addr] = e
	}
	for j, most := byte(0), byte(1+s.random.IntN(90)); j < most; j++ {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i % 8), j}), 8080+uint16(j%2))
		e, ok := known[at]
		switch {
		case ok && s.random.IntN(12) == 0: // goes
			continue
		case !ok && s.random.IntN(3) > 0: // comes later
			continue
		case !ok:
			e = abi.Endpoint{Addr: at, Node: "node-2", Zone: zones[s.random.IntN(len(zones))], PriorWeight: abi.NoWeight, ReadySince: s.now}
		}
		e.Connections, e.Capacity, e.Share = uint32(s.random.IntN(30)), uint32(1+s.random.IntN(2*abi.One)), uint32(1+s.random.IntN(3*abi.One))
		e.Values = []abi.Value{{}}
		if tier := s.random.IntN(len(tiers) + 1); tier < len(tiers) {
			e.Values[0] = abi.Value{Text: tiers[tier], Present: true}
		}
		e.Conditions = abi.Ready | abi.Serving | abi.Chosen | abi.Eligible
		if s.random.IntN(8) == 0 {
			e.Conditions, e.Capacity = abi.Serving, 0
		} else if s.random.IntN(50) == 0 {
			e.Capacity, e.Share = math.MaxUint32, math.MaxUint32
		}
		endpoints = append(endpoints, e)
	}
	req.Endpoints = endpoints
	req.Zones = nil
	for _, z := range zones[:3] {
		req.Zones = append(req.Zones, abi.Zone{Name: z, Total: uint32(len(endpoints))})
	}
	return req
}

// carry makes the decision in b what the next request about the Service port carries.
func carry(req *abi.Request, b []byte) {
	le := binary.LittleEndian
	for i := range req.Endpoints {
		req.Endpoints[i].PriorWeight = int32(min(le.Uint32(b[abi.RespSize+i*abi.ResultSize:]), abi.MaxTotal))
	}
	at, n := le.Uint32(b[abi.RespStateOffset:]), le.Uint32(b[abi.RespStateOffset+4:])
	req.State = bytes.Clone(b[at:][:n])
}

// The same policies in all languages of the SDKs give the same bytes for the same requests, also over time with the state that
// they carry.
func TestSDKsDecideTheSame(t *testing.T) {
	if os.Getenv("SLUICE_TEST_SDK") == "" {
		t.Skip("make test-sdk runs it")
	}
	for _, policy := range []struct {
		name          string
		good, refused []string
		needs         uint32
		role          abi.Role
		keys          []string
	}{
		{
			"zone-weight",
			[]string{`{}`, `{"factor": 7}`, ` { "busyConnections":10 , "factor" : 100 } `},
			[]string{`{"factor": 0}`, `{"factor": 101}`, `{"factor": "3"}`, `{"factor": 01}`, `{"facter": 2}`, `[]`, `{"factor": 2`, `{"factor": 2} x`, `{"factor": 2,}`},
			abi.NeedConnections, abi.RoleLocality, nil,
		},
		{
			"slow-start",
			[]string{`{}`, `{"steps":9,"stepDuration":"20s"}`, `{"stepDuration": "1s"}`, `{"stepDuration" : "1m30s", "steps" : 3}`, `{"stepDuration": "1m1500ms"}`, `{"stepDuration":"1s1s1s1s"}`},
			[]string{`{"steps": 1}`, `{"steps": 10}`, `{"stepDuration": "601s"}`, `{"stepDuration": "999ms"}`, `{"stepDuration": 10}`, `{"stepDuration": "10"}`, `{"stepDuration": ""}`, `{"stepDuration": "1d"}`,
				`{"stepDuration": "s"}`, `{"stepDuration": "000001s"}`, `{"stepDuration": "1s1s1s1s1s"}`, `{"stepDuration": "1s`, `{"stepDuration": "1m`, `{"stepDuration": "1`, `{"stepDuration": "-1s"}`,
				`{"stepDuration": "1.5s"}`, `{"stepDuration": "1s "}`, `{"stepDuration": "1 s"}`, `{"stepDuration": "99999h99999h99999h99999h"}`, `{"steps": "2s"}`, `{"stepDuration": "1sm"}`, `{"stepDuration": "1ss"}`, `{"step": 2}`, `{"steps"}`, `{,}`, `3`},
			0, abi.RoleReduce, nil,
		},
		{
			"tiers",
			[]string{`{}`, `{"factor": 0.25, "only": true}`, `{"tiers": ["silver", "\u00e9\ud83d\ude00"], "note": "a \"q\" \u003c\/\n"}`,
				` { "factor":100 ,"tiers" : [ "gold" , "silver" ] ,"only":false} `, `{"factor": 1.000001}`, `{"factor":99.5,"note":"` + strings.Repeat("n", 100) + `"}`},
			[]string{`{"factor": 0}`, `{"factor": 0.009999}`, `{"factor": 100.000001}`, `{"factor": 1.}`, `{"factor": .5}`, `{"factor": 01}`, `{"factor": -1}`, `{"factor": "2"}`, `{"factor": true}`,
				`{"factor": 12345678901}`, `{"factor"  2}`, `{"only": 1}`, `{"only": "true"}`, `{"only": truex}`, `{"only": tru`, `{"note": ""}`, `{"note": 3}`, `{"note": "` + strings.Repeat("n", 101) + `"}`,
				`{"note": "\x"}`, `{"note": "\u12"}`, `{"note": "\u12"`, `{"note": "\`, `{"note": "a`, `{"tiers": []}`, `{"tiers": ["a","b","c","d","e"]}`, `{"tiers": ["a" "b"]}`, `{"tiers": ["a",]}`, `{"tiers": [1]}`,
				`{"tiers": "gold"}`, `{"tiers": [""]}`, `{"tiers": ["a"}`, `{"tiers": ["a"`, `{"tiers": [`, `{"tiers": ["` + strings.Repeat("t", 64) + `"]}`, `{"tiers": [["a"]]}`, `{"tier": []}`},
			0, abi.RoleLocality, []string{abi.KeyPodLabel + "tier"},
		},
	} {
		t.Run(policy.name, func(t *testing.T) {
			guests := sdkGuests(t, policy.name)
			handles := []uint32{abi.NoSettings}
			for _, g := range guests {
				for _, s := range policy.refused {
					if got := g.configure(t, s); got >= 0 {
						t.Errorf("%s takes %s", g.lang, s)
					}
				}
				for i, s := range policy.good {
					if got := g.configure(t, s); got != int32(i) {
						t.Fatalf("%s: %s: %d", g.lang, s, got)
					}
				}
			}
			for i := range policy.good {
				handles = append(handles, uint32(i))
			}
			const requests = 1000
			var encoder abi.Encoder // its ids of strings are those of the instances
			different := map[string]bool{}
			for _, handle := range handles {
				services := newSDKServices()
				for i := range requests {
					req := services.next(i)
					raw := encoder.AppendRequest(nil, req, abi.View{Role: policy.role, Settings: handle, Needs: policy.needs, Keys: policy.keys})
					want := guests[0].decide(t, raw)
					for _, g := range guests[1:] {
						if got := g.decide(t, raw); !bytes.Equal(got, want) {
							t.Fatalf("settings %d, request %d with %d endpoints: %s answers\n%x, %s\n%x", int32(handle), i, len(req.Endpoints), g.lang, got, guests[0].lang, want)
						}
					}
					different[string(want)] = true
					carry(req, want)
				}
			}
			for _, g := range guests {
				g.refuses(t, encoder.AppendRequest(nil, newSDKServices().next(0), abi.View{Role: policy.role, Settings: 0, Needs: policy.needs, Keys: policy.keys}))
			}
			if len(different) < requests {
				t.Errorf("%d different decisions only", len(different))
			}
			t.Logf("%d requests, %d different decisions", requests*len(handles), len(different))
			for _, g := range guests {
				slices.Sort(g.spent)
				t.Logf("| `%s`, %s | %.1f kB | %.1f ms | %.1f µs |", policy.name, g.lang, float64(g.size)/1000, float64(g.compile.Microseconds())/1000,
					float64(g.spent[len(g.spent)/2].Nanoseconds())/1000)
			}
		})
	}
}

// sdkGuests returns an instance of a policy in each language, first that in Go.
func sdkGuests(t *testing.T, policy string) (guests []*sdkGuest) {
	t.Helper()
	for _, g := range testenv.SDKGuests(t, policy) {
		guests = append(guests, newSDKGuest(t, g.Language, g.File))
		if size := guests[len(guests)-1].size; size > 24_000 && (g.Language == "C" || g.Language == "Rust") {
			t.Errorf("%s: %d bytes, want at most 24 kB", g.Language, size)
		}
	}
	return guests
}

// TestSDKForRustIsACrate: the plugin of "plugin new" passes its tests and loads with the SDK as a crate. Cargo's compiler may
// lack the target, so the module is built by Debian's.
func TestSDKForRustIsACrate(t *testing.T) {
	if os.Getenv("SLUICE_TEST_SDK") == "" {
		t.Skip("make test-sdk runs it")
	}
	dir := t.TempDir()
	run := func(words ...string) {
		t.Helper()
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "RUSTFLAGS=-D warnings", "CARGO_NET_OFFLINE=true")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", words, err, out)
		}
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sdk, err := filepath.Abs("../../../sdk/rust")
	if err != nil {
		t.Fatal(err)
	}
	template := "../scaffold/templates/rust/src/"
	write("lib.rs", strings.Replace(mustRead(t, template+"lib.rs.tmpl"), "mod sluice;\n", "", 1))
	write("tests.rs", strings.ReplaceAll(mustRead(t, template+"tests.rs.tmpl"), "use super::sluice::", "use sluice::"))
	const rustc = "/usr/bin/rustc"
	wasm32 := []string{"--edition", "2021", "--target", "wasm32-unknown-unknown", "-C", "opt-level=s", "-C", "panic=abort", "-D", "warnings"}
	run(append([]string{rustc, "--crate-name", "sluice", "--crate-type", "rlib", "-o", "libsluice.rlib", sdk + "/lib.rs"}, wasm32...)...)
	run(append([]string{rustc, "--crate-type", "cdylib", "--extern", "sluice=libsluice.rlib", "-o", "near.wasm", "lib.rs"}, wasm32...)...)
	m := manifest.Manifest{Version: manifest.Version, Title: "a crate", Release: "0.1.0", Licence: "Apache-2.0", Role: "locality"}
	module, err := manifest.Embed([]byte(mustRead(t, filepath.Join(dir, "near.wasm"))), &m)
	if err != nil {
		t.Fatal(err)
	}
	load(t, newHost(t, Options{}), module, `{"factor": 5}`)
	if _, err := exec.LookPath("cargo"); err != nil {
		t.Skip("without cargo: ", err)
	}
	dependency := "sluice-sdk = { path = " + strconv.Quote(sdk)
	write("Cargo.toml", "[package]\nname = \"near\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[lib]\npath = \"lib.rs\"\n[dependencies]\n"+dependency+" }\n"+
		"[dev-dependencies]\n"+dependency+", features = [\"testing\"] }\n[workspace]\n")
	run("cargo", "test", "--quiet", "--target-dir", filepath.Join(dir, "target"))
}

// TestSDKForRust runs the native tests of sdk/rust, with a request that has all inputs.
func TestSDKForRust(t *testing.T) {
	if os.Getenv("SLUICE_TEST_SDK") == "" {
		t.Skip("make test-sdk runs it")
	}
	keys := []string{abi.KeyPodLabel + "tier", abi.KeyPodCPU, abi.KeyServiceLabel + "team"}
	req := watched(SampleRequest(7, keys...))
	req.State = []byte("state")
	req.EndpointStates = bytes.Repeat([]byte{1, 2, 3, 4}, 7*abi.MaxEndpointState/4)
	var encoder abi.Encoder
	needs := uint32(abi.NeedConnections | abi.NeedOutcomes | abi.NeedNodes | abi.NeedPodNames | abi.NeedEndpointState)
	raw := encoder.AppendRequest(nil, req, abi.View{Role: abi.RoleShare, Settings: abi.NoSettings, Needs: needs, Keys: keys})
	dir := t.TempDir()
	file, program := filepath.Join(dir, "request.bin"), filepath.Join(dir, "tests")
	if err := os.WriteFile(file, raw, 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("/usr/bin/rustc", "--edition", "2021", "--test", "-O", "-D", "warnings", "-o", program, "../../../sdk/rust/tests.rs")
	build.Env = append(os.Environ(), "SLUICE_REQUEST="+file)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("rustc: %v\n%s", err, out)
	}
	out, err := exec.Command(program).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

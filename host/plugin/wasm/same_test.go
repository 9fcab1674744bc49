package wasm

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/plugins/canary/canary"
	"github.com/sluice-proxy/sluice/plugins/capacity/capacity"
	"github.com/sluice-proxy/sluice/plugins/least-loaded/leastloaded"
	"github.com/sluice-proxy/sluice/plugins/lifecycle/lifecycle"
	"github.com/sluice-proxy/sluice/plugins/locality/locality"
	"github.com/sluice-proxy/sluice/plugins/maglev/maglev"
	"github.com/sluice-proxy/sluice/plugins/outlier/outlier"
	"github.com/sluice-proxy/sluice/plugins/rebalance/rebalance"
	"github.com/sluice-proxy/sluice/plugins/subset/subset"
	"github.com/sluice-proxy/sluice/plugins/utilization/utilization"
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// plain runs a guest with wazero alone: unmetered, and without the call path of this package.
type plain struct {
	mod  api.Module
	enc  abi.Encoder
	dec  abi.Decoder
	view abi.View
}

func newPlain(t testing.TB, module []byte) *plain {
	t.Helper()
	ctx := context.Background()
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter()) // a second engine, which compiles nothing
	t.Cleanup(func() { rt.Close(ctx) })
	for name, funcs := range hostFuncs() {
		b := rt.NewHostModuleBuilder(name)
		for f, h := range funcs {
			params, results := parseSig(h.sig)
			b.NewFunctionBuilder().WithGoModuleFunction(api.GoModuleFunc(func(_ context.Context, m api.Module, stack []uint64) {
				switch f {
				case "clock_time_get":
					m.Memory().WriteUint64Le(uint32(stack[2]), fixedTime)
				case "args_sizes_get", "environ_sizes_get":
					m.Memory().WriteUint32Le(uint32(stack[0]), 0)
					m.Memory().WriteUint32Le(uint32(stack[1]), 0)
				case "fd_prestat_get", "fd_fdstat_get", "fd_fdstat_set_flags":
					stack[0] = errnoBadf
					return
				}
				if len(results) > 0 {
					stack[0] = 0
				}
			}), params, results).Export(f)
		}
		if _, err := b.Instantiate(ctx); err != nil {
			t.Fatal(err)
		}
	}
	mod, err := rt.InstantiateWithConfig(ctx, module, wazero.NewModuleConfig().WithStartFunctions())
	if err != nil {
		t.Fatal(err)
	}
	said, err := manifest.Read(module)
	if err != nil {
		t.Fatal(err)
	}
	p := &plain{mod: mod, view: abi.View{Role: said.ABIRole(), Settings: abi.NoSettings}}
	p.refuel()
	if f := mod.ExportedFunction("_initialize"); f != nil {
		if _, err := f.Call(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// refuel sets the fuel of a metered module; other modules have no such global.
func (p *plain) refuel() {
	if g, ok := p.mod.ExportedGlobal(meter.FuelExport).(api.MutableGlobal); ok {
		g.Set(1 << 60)
	}
}

func parseSig(sig string) (params, results []api.ValueType) {
	side := &params
	for i := 0; i < len(sig)-2; i++ {
		switch sig[i : i+3] {
		case "i32":
			*side = append(*side, api.ValueTypeI32)
		case "i64":
			*side = append(*side, api.ValueTypeI64)
		case "-> ":
			side = &results
		}
	}
	return params, results
}

func (p *plain) alloc(t testing.TB, n int) uint64 {
	t.Helper()
	p.refuel()
	res, err := p.mod.ExportedFunction("sluice_alloc").Call(context.Background(), uint64(n))
	if err != nil {
		t.Fatal(err)
	}
	return res[0]
}

// configure passes settings. Later requests have their handle, and values of the keys.
func (p *plain) configure(t testing.TB, settings string, keys []string) {
	t.Helper()
	at := p.alloc(t, len(settings))
	p.mod.Memory().Write(uint32(at), []byte(settings))
	res, err := p.mod.ExportedFunction("sluice_configure").Call(context.Background(), at, uint64(len(settings)))
	if err != nil || int32(res[0]) < 0 {
		t.Fatalf("settings %s: %v, %v", settings, res, err)
	}
	p.view.Settings, p.view.Keys = uint32(res[0]), keys
}

// askNeeds asks what the plugin needs with the settings that it has got.
func (p *plain) askNeeds(t testing.TB) {
	t.Helper()
	f := p.mod.ExportedFunction("sluice_needs")
	if f == nil {
		return
	}
	p.refuel()
	res, err := f.Call(context.Background(), uint64(p.view.Settings))
	if err != nil {
		t.Fatal(err)
	}
	p.view.Needs = uint32(res[0])
}

// prepare writes req to the guest's memory and returns the arguments of sluice_decide.
func (p *plain) prepare(t testing.TB, req *abi.Request) (f api.Function, args, stack []uint64) {
	t.Helper()
	wire := p.enc.AppendRequest(nil, req, p.view)
	room := abi.MaxResponse(len(req.Endpoints))
	in, out := p.alloc(t, len(wire)), p.alloc(t, room)
	p.mod.Memory().Write(uint32(in), wire)
	args = []uint64{in, uint64(len(wire)), out, uint64(room)}
	return p.mod.ExportedFunction("sluice_decide"), args, make([]uint64, 4)
}

func (p *plain) decide(t testing.TB, req *abi.Request, resp *abi.Response) {
	t.Helper()
	f, args, _ := p.prepare(t, req)
	res, err := f.Call(context.Background(), args...)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(res[0])
	if n < 0 {
		t.Fatalf("it gave %d", n)
	}
	b, _ := p.mod.Memory().Read(uint32(args[2]), uint32(n))
	if err := p.dec.DecodeResponse(b, len(req.Endpoints), resp); err != nil {
		t.Fatal(err)
	}
}

// allRequests returns Samples and the requests that follow from their responses, with prior weights, state and later times.
func allRequests(keys ...string) []Sample {
	all := Samples(keys...)
	for _, s := range Samples(keys...) {
		later := s.Request
		later.Now += 15_000
		later.Generation++
		for i := range later.Endpoints {
			later.Endpoints[i].PriorWeight = int32(i % 5)
			later.Endpoints[i].Capacity = uint32(i*7%11) * abi.One / 10
			later.Endpoints[i].Share = uint32(binary.BigEndian.Uint16([]byte{byte(i), byte(i * 7)}))
		}
		all = append(all, Sample{s.Name + ", later", later})
	}
	return all
}

func TestGuestsDecideTheSameMeteredUnmeteredAndNatively(t *testing.T) {
	for _, g := range []struct {
		name     string
		module   []byte
		native   func() sdk.Plugin
		settings string
	}{
		{"locality", goGuest(t, "../../../plugins/locality"), locality.New, ""},
		{"locality, demand from settings", goGuest(t, "../../../plugins/locality"), locality.New, `{"demandByZone": {"zone-a": 3, "zone-b": 1, "zone-x": 2}}`},
		{"lifecycle", goGuest(t, "../../../plugins/lifecycle"), lifecycle.New, ""},
		{"lifecycle, warm", goGuest(t, "../../../plugins/lifecycle"), lifecycle.New, `{"warm": {"duration": "2m", "aggression": 1.7}}`},
		{"locality by priority", goGuest(t, "../../../plugins/locality"), locality.New, `{"mode": "priority", "by": "label:track", "groups": [{"values": ["stable"]}, {"values": ["canary", ""]}]}`},
		{"canary", goGuest(t, "../../../plugins/canary"), canary.New, `{"by": "label:track", "groups": [{"value": "canary", "percent": 5}]}`},
		{"capacity", goGuest(t, "../../../plugins/capacity"), capacity.New, `{"from": "annotation:example.com/capacity"}`},
		{"least-loaded", goGuest(t, "../../../plugins/least-loaded"), leastloaded.New, `{"smoothingPercent": 50, "maxChangePercent": 100, "tolerancePercent": 0}`},
		{"rebalance", goGuest(t, "../../../plugins/rebalance"), rebalance.New, `{"duration": "24h", "delay": "0s", "minConnections": 1, "tolerancePercent": 1}`},
		{"outlier", goGuest(t, "../../../plugins/outlier"), outlier.New, `{"maxEjectionPercent": 30, "panicPercent": 30}`},
		{"maglev", goGuest(t, "../../../plugins/maglev"), maglev.New, ""},
		{"subset", goGuest(t, "../../../plugins/subset"), subset.New, `{"endpoints": 2}`},
		{"utilization", goGuest(t, "../../../plugins/utilization"), utilization.New, `{"smoothingPercent": 50, "maxChangePercent": 100, "tolerancePercent": 0, "hold": "0s"}`},
		{"C", cGuest(t, "../../../examples/plugin-c/zone_first.c"), nil, ""},
		{"WAT", goodWAT(t), nil, ""},
	} {
		t.Run(g.name, func(t *testing.T) {
			h := newHost(t, Options{CacheDir: testenv.PluginCache(t)}) // one for all would exceed its limit of memory
			plain, metered := newPlain(t, g.module), map[string]*Plugin{"in this process": load(t, h, g.module, g.settings)}
			if childrenWork {
				metered["in a process"] = load(t, newHost(t, Options{CacheDir: testenv.PluginCache(t), Process: childCommand("plugin")}), g.module, g.settings)
			}
			var native *sdk.NativePlugin
			var keys []string
			if g.native != nil {
				var err error
				if native, err = sdk.NewNativePlugin(g.native, []byte(g.settings)); err != nil {
					t.Fatal(err)
				}
				keys = native.Keys()
			}
			if g.settings != "" {
				plain.configure(t, g.settings, keys)
			}
			plain.askNeeds(t)
			for _, s := range allRequests(keys...) {
				n := len(s.Request.Endpoints)
				var want, got abi.Response
				want.Reset(n)
				got.Reset(n)
				s.Request.Settings.Text = g.settings
				plain.decide(t, s.Request, &want)
				for where, p := range metered {
					got.Reset(n)
					s.Request.Settings.Text = g.settings
					if err := p.Decide(s.Request, &got); err != nil {
						t.Fatalf("%s, %s: %v", s.Name, where, err)
					}
					if diff := diffResponses(s.Request, &want, &got); diff != "" {
						t.Errorf("%s: plain, and metered %s: %s", s.Name, where, diff)
					}
				}
				if native == nil {
					continue
				}
				got.Reset(n)
				if err := native.Decide(s.Request, &got); err != nil {
					t.Fatalf("%s: %v", s.Name, err)
				}
				if diff := diffResponses(s.Request, &want, &got); diff != "" {
					t.Errorf("%s: in the sandbox and natively: %s", s.Name, diff)
				}
			}
		})
	}
}

// Guests that are compared in benchmarks must decide the same.
func TestGoAndCGuestsDecideTheSame(t *testing.T) {
	h := newHost(t, Options{CacheDir: testenv.PluginCache(t)})
	inC := load(t, h, cGuest(t, "../../../examples/plugin-c/zone_first.c"), "")
	inGo := load(t, h, goGuest(t, "../../lab/bench/guest"), "")
	for _, s := range allRequests() {
		var want, got abi.Response
		want.Reset(len(s.Request.Endpoints))
		got.Reset(len(s.Request.Endpoints))
		if err := inC.Decide(s.Request, &want); err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		if err := inGo.Decide(s.Request, &got); err != nil {
			t.Fatalf("%s: %v", s.Name, err)
		}
		if diff := diffResponses(s.Request, &want, &got); diff != "" {
			t.Errorf("%s: in C and in Go: %s", s.Name, diff)
		}
	}
}

func TestFuelIsTheSameOnEveryMachine(t *testing.T) {
	h := newHost(t, Options{CacheDir: testenv.PluginCache(t)})
	module := goGuest(t, "../../../plugins/locality")
	var fuel [2][]uint64
	for i := range fuel {
		p := load(t, h, module, "")
		for _, s := range allRequests() {
			var resp abi.Response
			resp.Reset(len(s.Request.Endpoints))
			if err := p.Decide(s.Request, &resp); err != nil {
				t.Fatal(err)
			}
			fuel[i] = append(fuel[i], p.Stats().LastFuel)
		}
	}
	for i := range fuel[0] {
		if fuel[0][i] != fuel[1][i] || fuel[0][i] == 0 {
			t.Errorf("%s: %d and %d", allRequests()[i].Name, fuel[0][i], fuel[1][i])
		}
	}
}

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

// plain is a host of its own on the sandbox of sluice: it encodes, calls and decodes itself, so that each step can be broken. Its
// hooks may be nil.
type plain struct {
	request func(*abi.Request)                       // before it is encoded
	view    func(*plainPlugin, *abi.View)            // before the request is encoded
	wire    func([]byte)                             // the request's bytes
	call    func(*wasm.Call)                         // before sluice_decide
	decode  func([]byte) (ok bool)                   // of the response's bytes; false: refuse them
	combine func(*abi.Request, *abi.Answer)          // before the chain is combined
	answer  func(*hosts.Command, *hosts.Answer)      // before it is returned
	hangs   func(*hosts.Command, *hosts.Answer) bool // the command never ends

	keepsFailed, newIDs, unconfigured, acceptsAll, takesGroups bool
	missing                                                    []string

	host    *wasm.Host
	plugins map[string]*plainPlugin
}

// plainPlugin is a plugin with its instance.
type plainPlugin struct {
	plugin              *wasm.Plugin
	settings            string
	in                  *wasm.Instance // nil: none yet, or its call has failed
	encoder             abi.Encoder
	request, response   uint32
	weights             []uint16 // in force
	requestN, responseN int
}

func newPlain(h *plain) (*plain, error) {
	var err error
	h.plugins = map[string]*plainPlugin{}
	h.host, err = wasm.New(context.Background(), wasm.Options{Limits: wasm.OfflineLimits()})
	return h, err
}

// Close implements hosts.Host.
func (h *plain) Close() error { return h.host.Close(context.Background()) }

// Do implements hosts.Host.
func (h *plain) Do(ctx context.Context, c *hosts.Command) (*hosts.Answer, error) {
	a := &hosts.Answer{}
	var err error
	switch c.Op {
	case hosts.OpHello:
		a.Host, a.Missing, a.Enforces = "a plain host", h.missing, true
	case hosts.OpLoad:
		err = h.load(ctx, c)
	case hosts.OpDecide:
		a.Response, err = h.decide(h.plugins[c.Plugin], c)
	case hosts.OpEnforce:
		p := h.plugins[c.Plugin]
		q := *c.Request
		q.Begin()
		var r *hosts.Response
		if r, err = h.decide(p, &hosts.Command{Request: &q}); err == nil {
			p.weights = h.weights(p, &q, r)
		}
		a.Weights = p.weights
	case hosts.OpUnload:
		if p := h.plugins[c.Plugin]; p != nil {
			p.drop()
			err = p.plugin.Close()
			delete(h.plugins, c.Plugin)
		}
	}
	if err != nil {
		a.Error = err.Error()
	}
	if h.answer != nil {
		h.answer(c, a)
	}
	if h.hangs != nil && h.hangs(c, a) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return a, nil
}

// weights combines the answer of a plugin as the ABI says.
func (h *plain) weights(p *plainPlugin, q *abi.Request, r *hosts.Response) []uint16 {
	answer := abi.Answer{Groups: r.Groups}
	for _, x := range r.Results {
		answer.Values, answer.Group = append(answer.Values, x.Value), append(answer.Group, x.Group)
	}
	if h.combine != nil {
		h.combine(q, &answer)
	}
	q.Apply(p.plugin.Role(), answer)
	out := make([]uint16, len(q.Endpoints))
	abi.Weights(out, q.Parts(nil))
	return out
}

func (h *plain) load(ctx context.Context, c *hosts.Command) error {
	module, err := os.ReadFile(c.Module)
	if err != nil {
		return err
	}
	p := &plainPlugin{settings: text(c.Settings, "")}
	if p.plugin, err = h.host.Open(ctx, c.Plugin, module, wasm.LoadOptions{}); err != nil {
		return err
	}
	h.plugins[c.Plugin] = p
	q := wasm.SampleRequest(4)
	if _, err := h.decide(p, &hosts.Command{Request: q}); err != nil { // a self-test of one request
		delete(h.plugins, c.Plugin)
		return errors.Join(err, p.plugin.Close())
	}
	return nil
}

func (p *plainPlugin) drop() {
	if p.in != nil {
		p.in.Close()
		p.in = nil
	}
}

// alloc makes a buffer n bytes long.
func (p *plainPlugin) alloc(address *uint32, size *int, n int) (err error) {
	if n > *size {
		*size = n
		*address, err = p.in.Alloc(n)
	}
	return err
}

func (h *plain) decide(p *plainPlugin, c *hosts.Command) (r *hosts.Response, err error) {
	if p == nil {
		return nil, errors.New("no such plugin")
	}
	if p.in == nil {
		if p.in, err = p.plugin.NewInstance(); err != nil {
			return nil, err
		}
		p.encoder, p.requestN, p.responseN = abi.Encoder{}, 0, 0
	}
	defer func() {
		if err != nil && !h.keepsFailed {
			p.drop()
		}
	}()
	view := abi.View{Role: p.plugin.Role(), Settings: abi.NoSettings}
	if !h.unconfigured {
		if view, err = p.in.Configure(text(c.Settings, p.settings)); err != nil {
			return nil, err
		}
	}
	if h.view != nil {
		h.view(p, &view)
	}
	if h.newIDs {
		p.encoder = abi.Encoder{}
	}
	q := *c.Request
	if h.request != nil {
		h.request(&q)
	}
	wire := p.encoder.AppendRequest(nil, &q, view)
	if h.wire != nil {
		h.wire(wire)
	}
	n := len(q.Endpoints)
	if err := errors.Join(p.alloc(&p.response, &p.responseN, abi.MaxResponse(n)), p.alloc(&p.request, &p.requestN, len(wire))); err != nil {
		return nil, err
	}
	if err := p.in.Write(p.request, wire); err != nil {
		return nil, err
	}
	call := wasm.Call{Request: p.request, RequestLen: uint32(len(wire)), Response: p.response, ResponseCap: uint32(abi.MaxResponse(n)), Endpoints: n}
	if h.call != nil {
		h.call(&call)
	}
	length, _, err := p.in.Decide(call)
	if err != nil {
		return nil, err
	}
	response, err := p.in.Read(call.Response, length)
	if err != nil {
		return nil, err
	}
	return h.read(response, &q, p.plugin.Role())
}

// read decodes a response as the ABI says.
func (h *plain) read(b []byte, q *abi.Request, role abi.Role) (*hosts.Response, error) {
	if h.decode != nil && !h.decode(b) {
		return nil, errors.New("refused")
	}
	var d abi.Decoder
	var resp abi.Response
	resp.Reset(len(q.Endpoints))
	if err := d.DecodeResponse(b, len(q.Endpoints), &resp); err != nil && !h.acceptsAll {
		return nil, err
	}
	chosen, left := false, false
	for i, e := range q.Endpoints {
		other := e.Capacity
		if role.WritesCapacity() {
			other = e.Share
		}
		chosen = chosen || e.Conditions&abi.Chosen != 0
		left = left || e.Conditions&abi.Eligible != 0 && other > 0 && resp.Results[i].Value > 0
	}
	if chosen && !left && !h.acceptsAll {
		return nil, errors.New("nothing is left")
	}
	if len(resp.Groups) > 0 && role != abi.RoleShare && !h.takesGroups {
		return nil, errors.New("groups are not for this role")
	}
	return hosts.ResponseOf(&resp), nil
}

// brokenHost is a host with one defect.
type brokenHost struct {
	name, id string
	host     *plain
	want     string // regular expression: what is found
}

func broken() []brokenHost {
	le := binary.LittleEndian
	request := func(f func(*abi.Request)) *plain { return &plain{request: f} }
	wire := func(f func([]byte)) *plain { return &plain{wire: f} }
	view := func(f func(*plainPlugin, *abi.View)) *plain { return &plain{view: f} }
	combine := func(f func(*abi.Request, *abi.Answer)) *plain { return &plain{combine: f} }
	call := func(f func(*wasm.Call)) *plain { return &plain{call: f} }
	answer := func(f func(*hosts.Command, *hosts.Answer)) *plain { return &plain{answer: f} }
	response := func(f func(*hosts.Response)) *plain {
		return answer(func(_ *hosts.Command, a *hosts.Answer) {
			if a.Response != nil {
				f(a.Response)
			}
		})
	}
	onLoad := func(has string) *plain {
		return answer(func(c *hosts.Command, a *hosts.Answer) {
			if module, _ := os.ReadFile(c.Module); c.Op == hosts.OpLoad && bytes.Contains(module, []byte(has)) == (has != "sluice_configure") {
				a.Error = "unexpected exports"
			}
		})
	}
	var calls byte
	failed, hung := false, false
	return []brokenHost{
		{"wants sluice_configure", hosts.Loads, onLoad("sluice_configure"), "good.wat: load: unexpected exports"},
		{"returns the results in reverse", hosts.Loads, response(func(r *hosts.Response) { slices.Reverse(r.Results) }), `results\[0\] is`},
		{"knows its own minor version only", hosts.LaterMinor, onLoad("sluice_new_in_minor_9"), "unexpected exports"},
		{"decides before it configures", hosts.Calls, &plain{unconfigured: true}, "called before sluice_needs and sluice_keys"},
		{"has little room for the response", hosts.Calls, call(func(c *wasm.Call) { c.ResponseCap -= 4096 }), "the buffer of the response is shorter"},
		{"has one buffer for both", hosts.Calls, call(func(c *wasm.Call) { c.Response = c.Request }), "not within one of sluice_alloc|overlap"},
		{"has a buffer of its own", hosts.Calls, call(func(c *wasm.Call) { c.Response = 8 * 50_000 }), "not within one of sluice_alloc"},
		{"passes an unaligned buffer", hosts.Calls, call(func(c *wasm.Call) { c.Response, c.ResponseCap = c.Response+4, c.ResponseCap-4 }), "not aligned"},
		{"cuts the request off", hosts.Calls, call(func(c *wasm.Call) { c.RequestLen -= 8 }), "the request is shorter than its total"},
		{"sends a handle of its own", hosts.Calls, view(func(_ *plainPlugin, v *abi.View) { v.Settings = 77 }), "an unknown settings handle"},
		{"has random numbers", hosts.Imports, response(func(r *hosts.Response) {
			if calls++; len(r.State) > 0 {
				r.State[0] ^= calls
			}
		}), "random_get returns"},
		{"has a clock", hosts.Imports, response(func(r *hosts.Response) {
			if calls++; len(r.State) > 16 {
				r.State[16] ^= calls
			}
		}), "the clock of one instance"},
		{"has no WASI", hosts.Imports, onLoad("wasi_snapshot_preview1"), "load: unexpected exports"},
		{"mixes up settings", hosts.Settings, view(func(_ *plainPlugin, v *abi.View) { v.Settings = min(v.Settings, 1) }), "with these settings"},
		{"sends another version", hosts.Wire, wire(func(b []byte) { le.PutUint16(b[abi.ReqMajor:], 1) }), `version is 1\.1`},
		{"sends a row of another zone", hosts.Wire, wire(func(b []byte) { le.PutUint16(b[abi.ReqZoneIndex:], 5) }), "zone_index is 5"},
		{"forgets the policy", hosts.Fields, request(func(q *abi.Request) { q.ExternalPolicyLocal = false }), "policy.external is false, want true"},
		{"sorts endpoints in another order", hosts.Fields, request(func(q *abi.Request) { q.Endpoints = slices.Clone(q.Endpoints); slices.Reverse(q.Endpoints) }), `endpoints\[0\].address`},
		{"tells everything", hosts.Unasked, view(func(_ *plainPlugin, v *abi.View) { v.Needs = abi.AllNeeds }), "node_index is"},
		{"tells nothing", hosts.Needs, view(func(_ *plainPlugin, v *abi.View) { v.Needs = 0 }), "connections_age_ms is"},
		{"has keys in its own order", hosts.Keys, view(func(_ *plainPlugin, v *abi.View) { v.Keys = slices.Sorted(slices.Values(v.Keys)) }), "_?values"},
		{"cuts the state off", hosts.State, request(func(q *abi.Request) { q.State = q.State[:min(len(q.State), 1000)] }), "state is"},
		{"has new ids in each request", hosts.Strings, &plain{newIDs: true}, "than in an earlier request"},
		{"has one result for all", hosts.ManyEndpoints, response(func(r *hosts.Response) {
			for i := range r.Results {
				r.Results[i] = r.Results[0]
			}
		}), "the guest has read another endpoint"},
		{"copies 64 KiB of a request", hosts.ManyEndpoints, wire(func(b []byte) { clear(b[min(len(b), 64<<10):]) }), "5000 endpoints"},
		{"forgets to ask again", hosts.Reads, response(func(r *hosts.Response) { r.RequeueMS = 0 }), "requeueMS is 0, want 7000"},
		{"loses reasons", hosts.Reads, response(func(r *hosts.Response) {
			for i := range r.Results {
				r.Results[i].Reason = ""
			}
		}), "results"},
		{"refuses a large part to shed", hosts.Clamps, &plain{decode: func(b []byte) bool { return len(b) < 80 || le.Uint16(b[78:]) <= abi.MaxShedPermille }}, "out of range.*refused"},
		{"has shares of 16 bits", hosts.Reads, response(func(r *hosts.Response) {
			for i := range r.Results {
				r.Results[i].Value = min(r.Results[i].Value, 65535)
			}
		}), "the largest within range"},
		{"takes groups from any role", hosts.Ends, &plain{takesGroups: true}, "groups-by-another-role.wat: the call has not failed"},
		{"takes capacity for any endpoint", hosts.Combines, combine(func(q *abi.Request, _ *abi.Answer) {
			q.Endpoints[2].Conditions |= abi.Eligible
		}), `reduce.wat, .*: the weights \[1 2 2\] are in force, want \[1 2 0\]`},
		{"knows no groups", hosts.Combines, combine(func(_ *abi.Request, a *abi.Answer) { a.Groups, a.Group = nil, nil }), `groups.wat, .*: the weights \[1 3 1\]`},
		{"gives groups parts by their endpoints", hosts.Combines, combine(func(q *abi.Request, a *abi.Answer) {
			for i := range a.Groups {
				a.Groups[i] *= uint32(1 + i) // two endpoints in the second
			}
		}), `groups.wat`},
		{"knows one length of headers", hosts.ByStride, &plain{decode: func(b []byte) bool {
			return len(b) < abi.RespSize || le.Uint32(b[abi.RespHeaderLength:]) == abi.RespSize
		}}, "a later minor version.*refused"},
		{"accepts anything", hosts.Refuses, &plain{acceptsAll: true}, "it is accepted, though"},
		{"loads anything", hosts.RefusesLoad, answer(func(c *hosts.Command, a *hosts.Answer) {
			if c.Op == hosts.OpLoad {
				a.Error = ""
			}
		}), "it loads"},
		{"loads a module of version 2.0 that lists inputs of 2.1", hosts.RefusesLoad, answer(func(_ *hosts.Command, a *hosts.Answer) {
			if strings.Contains(a.Error, "lists what a later version has added") {
				a.Error = ""
			}
		}), "counters-later-than-its-version.wat: it loads"},
		{"has no self-test", hosts.RefusesLoad, &plain{}, "counts-its-calls.wat: it loads"},
		{"answers for a plugin that has failed", hosts.Ends, answer(func(c *hosts.Command, a *hosts.Answer) {
			if c.Op == hosts.OpDecide && a.Error != "" {
				a.Error, a.Response = "", &hosts.Response{Results: make([]hosts.Result, len(c.Request.Endpoints))}
			}
		}), "the call has not failed"},
		{"does not end an endless loop", hosts.Ends, &plain{hangs: func(_ *hosts.Command, a *hosts.Answer) bool {
			first := !hung && strings.Contains(a.Error, "out of fuel")
			hung = hung || first
			return first
		}}, "no answer within 2s"},
		{"ends with the plugin", hosts.GoesOn, answer(func(c *hosts.Command, a *hosts.Answer) {
			if failed = failed || c.Op == hosts.OpDecide && c.Plugin == "evil" && a.Error != ""; failed {
				a.Error, a.Response = "down", nil
			}
		}), "down"},
		{"calls an instance again that has failed", hosts.Discards, &plain{keepsFailed: true}, "this instance has trapped before"},
		{"falls back to the default rules", hosts.LastGood, answer(func(c *hosts.Command, a *hosts.Answer) {
			if c.Op == hosts.OpEnforce && a.Error != "" {
				a.Weights = []uint16{1, 1, 1}
			}
		}), `decision 2, .*: the weights \[1 1 1\] are in force`},
		{"hides failures", hosts.LastGood, answer(func(c *hosts.Command, a *hosts.Answer) {
			if c.Op == hosts.OpEnforce {
				a.Error = ""
			}
		}), "decision 2, .*: the call has not failed"},
		{"claims not to have connections", hosts.Missing, &plain{missing: []string{"connections"}}, "needs-connections.wat: it loads"},
	}
}

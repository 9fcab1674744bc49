package abiconformance

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck"
)

// probe checks a requirement. It returns skipped if it cannot.
type probe struct {
	id  string
	run func(context.Context, *check) error
}

func probes() []probe {
	of := func(f func(*check) error) func(context.Context, *check) error {
		return func(_ context.Context, c *check) error { return f(c) }
	}
	return []probe{
		{tck.Allocates, of((*check).allocates)},
		{tck.Settings, of((*check).takesSettings)},
		{tck.AnySettings, of((*check).anySettings)},
		{tck.UnknownField, of((*check).unknownField)},
		{tck.UnknownHandle, of((*check).unknownHandle)},
		{tck.Inputs, of((*check).inputs)},
		{tck.Answers, of((*check).answers)},
		{tck.ByStride, of(func(c *check) error {
			return c.variants([]variant{{"8 bytes appended to header and records", tck.Variant{Minor: 1, Widen: 8}}, {"64 bytes appended to header and records", tck.Variant{Minor: 7, Widen: 64}}})
		})},
		{tck.ByOffset, of(func(c *check) error {
			return c.variants([]variant{{"sections and the string table in reverse order", tck.Variant{Reverse: true}}, {"offsets of empty sections outside of the request", tck.Variant{Empty: true}}})
		})},
		{tck.AnyIDs, of(func(c *check) error {
			return c.variants([]variant{
				{"ids from 2147418112 upwards", tck.Variant{ID: func(id uint32) uint32 { return 0x7FFF0000 + id }}},
				{"ids from 4294900000 downwards", tck.Variant{ID: func(id uint32) uint32 { return 4_294_900_000 - id*3 }}},
			})
		})},
		{tck.UnknownBits, of(func(c *check) error {
			return c.variants([]variant{{"undefined bits of conditions and policy set", tck.Variant{Minor: 1, Bits: true}}})
		})},
		{tck.AnyText, of(func(c *check) error { return c.askAll(textRequests) })},
		{tck.AnyState, of((*check).anyState)},
		{tck.Deterministic, func(ctx context.Context, c *check) error {
			_, err := c.plugin.Check(ctx, c.settings)
			return err
		}},
		{tck.Over, of((*check).overTime)},
		{tck.SmallBuffer, of((*check).smallBuffer)},
		{tck.WrongRequest, of((*check).wrongRequest)},
		{tck.Memory, of((*check).memory)},
		// What the answers to all requests have shown.
		{tck.Nothing, of(func(c *check) error { return c.observed(c.seen.nothing) })},
		{tck.Range, of(func(c *check) error { return c.observed(c.seen.values) })},
		{tck.Bounds, of(func(c *check) error { return c.observed(c.seen.bounds) })},
		{tck.Fuel, of(func(c *check) error { return c.observed(c.seen.costly) })},
		{tck.Role, of(func(c *check) error { return c.observed(c.seen.role) })},
		{tck.Requeue, of(func(c *check) error { return c.observed(c.seen.requeue) })},
		{tck.ErrorsAreNamed, of(func(c *check) error {
			if !c.seen.coded {
				return tck.Skipped("no probe got a negative code")
			}
			return c.observed(c.seen.codes)
		})},
	}
}

// observed returns the failure that other probes have found.
func (c *check) observed(failure string) error {
	switch {
	case failure != "":
		return errors.New(failure)
	case !c.seen.done:
		return tck.Skipped("no request has an answer (" + tck.Answers + ")")
	}
	return nil
}

// once records the first failure of a kind.
func once(to *string, format string, args ...any) {
	if *to == "" {
		*to = fmt.Sprintf(format, args...)
	}
}

// code records a negative code.
func (c *check) code(g *guest, err error, when string) {
	if !errors.Is(err, wasm.ErrCode) {
		return
	}
	c.seen.coded = true
	if g.in.LoggedError() == "" {
		once(&c.seen.codes, "%s: %v, and no line at level error", when, err)
	}
}

// outcome adds to what all answers have in common.
func (c *check) outcome(g *guest, name string, req *abi.Request, a *answer, err error) {
	c.code(g, err, "request "+name)
	if errors.Is(err, errBounds) {
		once(&c.seen.bounds, "request %s: %v", name, err)
	}
	if err != nil {
		return
	}
	c.seen.done = true
	le := binary.LittleEndian
	had, left, role := false, false, c.plugin.Role()
	offset, stride := int(le.Uint32(a.wire[abi.RespResultsOffset:])), int(le.Uint32(a.wire[abi.RespResultsStride:]))
	for i := range req.Endpoints {
		e := &req.Endpoints[i]
		if e.Conditions&abi.Eligible != 0 && e.Capacity > 0 && e.Share > 0 {
			had = true
			left = left || a.Results[i].Value > 0 // the other number is as it was
		}
		r := a.wire[offset+i*stride:]
		if n := le.Uint16(r[abi.ResultGroup:]); n > 0 && len(a.Groups) == 0 {
			once(&c.seen.values, "request %s: endpoint %s has group %d: without groups it is ignored", name, e.Addr, n)
		}
		if n := le.Uint16(r[abi.ResultShed:]); n > abi.MaxShedPermille {
			once(&c.seen.values, "request %s: endpoint %s has shed_permille %d: hosts take it as %d", name, e.Addr, n, abi.MaxShedPermille)
		}
		if f := le.Uint16(r[abi.ResultFlags:]); f&^abi.FlagKeepDraining != 0 {
			once(&c.seen.values, "request %s: endpoint %s has flags %#x: bits other than 0 are ignored", name, e.Addr, f)
		}
	}
	if had && !left && role != abi.RoleReset {
		once(&c.seen.nothing, "request %s: no eligible endpoint is left with capacity and a share", name)
	}
	if len(a.Groups) > 0 && role != abi.RoleShare {
		once(&c.seen.role, "request %s: the answer has %d groups, the role is %s", name, len(a.Groups), role)
	}
	if ms := a.RequeueAfter.Milliseconds(); ms > 0 && ms < 1000 {
		once(&c.seen.requeue, "request %s: requeue_ms is %d", name, ms)
	}
	if budget := g.in.DecideFuel(len(req.Endpoints)); a.fuel > budget/2 {
		once(&c.seen.costly, "request %s: %d of %d", name, a.fuel, budget)
	}
}

func (c *check) allocates() error {
	g, err := c.open()
	if err != nil {
		return err
	}
	type buffer struct {
		at   uint32
		size int
	}
	var all []buffer
	for i, size := range []int{1, 7, 8, 4096, 65_536, 3, 300_000, 1 << 20, 16} {
		at, err := g.in.Alloc(size)
		if err != nil {
			return err
		}
		for _, b := range all {
			if at < b.at+uint32(b.size) && b.at < at+uint32(size) {
				return fmt.Errorf("sluice_alloc(%d) returned %d, within the buffer of %d bytes at %d that it has returned before", size, at, b.size, b.at)
			}
		}
		if err := g.in.Write(at, bytes.Repeat([]byte{byte(i + 1)}, size)); err != nil {
			return err
		}
		all = append(all, buffer{at, size})
	}
	for _, s := range wasm.Samples(g.view.Keys...)[:6] {
		if _, err := g.ask(s.Request); err != nil && !errors.Is(err, wasm.ErrCode) {
			return tck.Skipped("a request has no answer (" + tck.Answers + ")")
		}
	}
	for i, b := range all {
		is, err := g.in.Read(b.at, b.size)
		if err != nil {
			return err
		}
		for k, got := range is {
			if got != byte(i+1) {
				return fmt.Errorf("byte %d of the buffer of %d bytes at %d has changed by later calls", k, b.size, b.at)
			}
		}
	}
	return nil
}

func (c *check) takesSettings() error {
	g, err := c.open()
	if err != nil {
		return err
	}
	if c.settings == "" {
		if c.handles {
			return tck.Skipped("no settings were given: use --settings")
		}
		return nil
	}
	used := map[uint32]bool{g.view.Settings: true}
	for i := range 8 {
		text := strings.Repeat(" ", i+1) + c.settings
		view, err := g.in.Configure(text)
		if err != nil {
			return fmt.Errorf("the settings with %d spaces before them: %w", i+1, err)
		}
		if c.handles && used[view.Settings] {
			return fmt.Errorf("the handle %d is returned for two texts", view.Settings)
		}
		used[view.Settings] = true
	}
	return nil
}

// refused reports whether an error is a refusal of settings, not a trap.
func refused(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "settings refused: ")
}

func (c *check) anySettings() error {
	if !c.handles {
		return tck.Skipped("the module does not export sluice_configure")
	}
	for _, text := range []string{`{}`, `null`, `[]`, `""`, `0`, `true`, `{"":""}`, `{"a":{"a":[{"a":null}]}}`, `[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]`, `{"a":1,"a":2}`,
		`{"\u0000\ud800":-1e308}`, `  {  }  `, "{\"a\":\"\xff\"}", `{"a":"` + strings.Repeat("x", 8192) + `"}`} {
		g, err := c.open()
		if err != nil {
			if g, err = c.openWithout(); err != nil {
				return err
			}
		}
		_, err = g.in.Configure(text)
		if err != nil && !refused(err) && !strings.Contains(err.Error(), abi.CodeText(abi.CodeNotConfigured)) {
			return fmt.Errorf("settings %.60q: %w", text, err)
		}
		if refused(err) {
			c.seen.coded = true
			if g.in.LoggedError() == "" {
				once(&c.seen.codes, "settings %.60q: %v, and no line at level error", text, err)
			}
		}
		g.in.Close()
	}
	return nil
}

// openWithout returns an instance without settings.
func (c *check) openWithout() (*guest, error) {
	in, err := c.plugin.NewInstance()
	if err != nil {
		return nil, err
	}
	g := &guest{in: in, view: abi.View{Role: c.plugin.Role(), Settings: abi.NoSettings}}
	c.guests = append(c.guests, g)
	return g, nil
}

func (c *check) unknownField() error {
	if !c.handles {
		return tck.Skipped("the module does not export sluice_configure")
	}
	const field = `"no-such-field-8f3a": 1`
	text := `{` + field + `}`
	if at := strings.LastIndex(c.settings, "}"); at >= 0 {
		before := strings.TrimSpace(c.settings[:at])
		if text = before + ", " + field + "}"; before == "{" {
			text = "{" + field + "}"
		}
	}
	g, err := c.openWithout()
	if err != nil {
		return err
	}
	if _, err = g.in.Configure(text); err == nil {
		return fmt.Errorf("settings %.200q are accepted", text)
	}
	if !refused(err) {
		return err
	}
	return nil
}

func (c *check) unknownHandle() error {
	if !c.handles {
		return tck.Skipped("the module does not export sluice_configure")
	}
	g, err := c.open()
	if err != nil {
		return err
	}
	g.view.Settings = 0x3FFFFFF0
	_, err = g.ask(wasm.SampleRequest(3, g.view.Keys...))
	c.code(g, err, "a request with an unknown settings handle")
	switch {
	case err == nil:
		return fmt.Errorf("a request with the settings handle %d, which was never returned, has an answer", g.view.Settings)
	case !errors.Is(err, wasm.ErrCode):
		return err
	}
	return nil
}

func (c *check) inputs() error {
	var views [2]abi.View
	for i := range views {
		g, err := c.open()
		if err != nil {
			return err
		}
		views[i] = g.view
	}
	if a, b := views[0], views[1]; a.Needs != b.Needs || !slices.Equal(a.Keys, b.Keys) {
		return fmt.Errorf("two instances ask for different inputs: needs %#x and %#x, keys %q and %q", a.Needs, b.Needs, a.Keys, b.Keys)
	}
	return nil
}

func (c *check) answers() error { return c.askAll(requests) }

// askAll asks each request in an instance with the ones before.
func (c *check) askAll(of func(keys []string) []wasm.Sample) error {
	g, err := c.open()
	if err != nil {
		return err
	}
	for _, s := range of(g.view.Keys) {
		a, err := g.ask(s.Request)
		c.outcome(g, s.Name, s.Request, a, err)
		if err != nil {
			return fmt.Errorf("request %q: %w", s.Name, err)
		}
	}
	return nil
}

// variant is a variant of requests with its name.
type variant struct {
	name string
	tck.Variant
}

// small are the requests that variants and states are tried with.
func small(keys []string) (out []wasm.Sample) {
	for _, s := range requests(keys) {
		if len(s.Request.Endpoints) <= 100 {
			out = append(out, s)
		}
	}
	return out
}

func (c *check) variants(all []variant) error {
	for _, v := range all {
		first, err := c.open()
		if err != nil {
			return err
		}
		second, err := c.open()
		if err != nil {
			return err
		}
		for _, s := range small(first.view.Keys) {
			s.Request.State = []byte("odd")
			wire := first.encoder.AppendRequest(nil, s.Request, first.view)
			n := len(s.Request.Endpoints)
			want, err := first.askWire(wire, n)
			if err != nil {
				return tck.Skipped(fmt.Sprintf("request %q has no answer (%s, %s)", s.Name, tck.Answers, tck.AnyState))
			}
			got, err := second.askWire(tck.Rewrite(wire, v.Variant), n)
			if err != nil {
				return fmt.Errorf("request %q, %s: %w", s.Name, v.name, err)
			}
			if diff := wasm.Diff(s.Request, &want.Response, &got.Response); diff != "" {
				return fmt.Errorf("request %q, unchanged and with %s: %s", s.Name, v.name, diff)
			}
		}
	}
	return nil
}

func (c *check) anyState() error {
	g, err := c.open()
	if err != nil {
		return err
	}
	keys := g.view.Keys
	req := later(0, keys)
	own, err := g.ask(req)
	if err != nil {
		return tck.Skipped("a request has no answer (" + tck.Answers + ")")
	}
	states := [][]byte{{}, {0}, {0xFF}, bytes.Repeat([]byte{0}, abi.MaxStateLen), bytes.Repeat([]byte{0xFF}, abi.MaxStateLen), []byte("{}"), []byte(`{"version":99}`)}
	noise := make([]byte, abi.MaxStateLen)
	x := uint32(1)
	for i := range noise {
		x = x*1664525 + 1013904223
		noise[i] = byte(x >> 24)
	}
	for _, n := range []int{2, 3, 4, 7, 8, 15, 16, 17, 31, 100, 1023, 1024} {
		states = append(states, noise[:n])
	}
	for n := range min(len(own.State), 128) { // its own, cut off, and with a byte changed
		changed := bytes.Clone(own.State)
		changed[n] ^= 0xFF
		states = append(states, own.State[:n], changed)
	}
	for _, state := range states {
		req := later(1, keys)
		req.State = state
		for i := range len(req.Endpoints) * abi.MaxEndpointState { // and as many for each endpoint
			req.EndpointStates = append(req.EndpointStates, noise[(i*7+len(state))%len(noise)])
		}
		a, err := g.ask(req)
		c.outcome(g, "with another state", req, a, err)
		if err != nil {
			return fmt.Errorf("a state of %d bytes, %.40q: %w", len(state), state, err)
		}
	}
	return nil
}

func (c *check) overTime() error {
	g, err := c.open()
	if err != nil {
		return err
	}
	var state []byte
	var states abi.EndpointStates
	prior := map[netip.AddrPort]int32{}
	for n := range sequenceLength {
		req := later(n, g.view.Keys)
		req.State, req.EndpointStates = state, states.For(req)
		for i := range req.Endpoints {
			if w, ok := prior[req.Endpoints[i].Addr]; ok {
				req.Endpoints[i].PriorWeight = w
			}
		}
		a, err := g.ask(req)
		c.outcome(g, fmt.Sprintf("%d of a sequence", n+1), req, a, err)
		if err != nil {
			return fmt.Errorf("request %d, with a state of %d bytes: %w", n+1, len(state), err)
		}
		if n%16 == 15 { // the state is all that lasts
			other, err := c.open()
			if err != nil {
				return err
			}
			b, err := other.ask(req)
			if err != nil {
				return fmt.Errorf("request %d, in a new instance: %w", n+1, err)
			}
			if diff := wasm.Diff(req, &a.Response, &b.Response); diff != "" {
				return fmt.Errorf("request %d, in an instance that has answered those before and in a new one: %s", n+1, diff)
			}
			other.in.Close()
		}
		state, states = a.State, abi.StatesOf(req, &a.Response)
		clear(prior)
		for i := range req.Endpoints {
			prior[req.Endpoints[i].Addr] = int32(min(a.Results[i].Value, abi.MaxTotal))
		}
	}
	return nil
}

func (c *check) smallBuffer() error {
	g, err := c.open()
	if err != nil {
		return err
	}
	req := wasm.SampleRequest(10, g.view.Keys...)
	whole, err := g.ask(req)
	if err != nil {
		return tck.Skipped("a request has no answer (" + tck.Answers + ")")
	}
	for _, room := range []int{0, 8, abi.RespSize - 8, abi.RespSize, len(whole.wire) - 8, len(whole.wire) - 1} {
		g, err := c.open()
		if err != nil {
			return err
		}
		_, err = g.askRoom(g.encoder.AppendRequest(nil, req, g.view), len(req.Endpoints), room)
		c.code(g, err, "a small buffer")
		if err != nil && !errors.Is(err, wasm.ErrCode) {
			return fmt.Errorf("a buffer of %d bytes for a response of %d: %w", room, len(whole.wire), err)
		}
	}
	return nil
}

func (c *check) wrongRequest() error {
	le := binary.LittleEndian
	for _, wrong := range []struct {
		name   string
		change func(b []byte) []byte
	}{
		{"another magic", func(b []byte) []byte { b[0]++; return b }},
		{"another major version", func(b []byte) []byte { le.PutUint16(b[abi.ReqMajor:], abi.Major+1); return b }},
		{"a total of 8 more bytes than there are", func(b []byte) []byte { le.PutUint32(b[abi.ReqTotal:], uint32(len(b)+8)); return b }},
		{"no bytes", func(b []byte) []byte { return b[:0] }},
	} {
		g, err := c.open()
		if err != nil {
			return err
		}
		wire := wrong.change(g.encoder.AppendRequest(nil, wasm.SampleRequest(3, g.view.Keys...), g.view))
		_, err = g.askWire(wire, 3)
		c.code(g, err, "a request with "+wrong.name)
		switch {
		case err == nil:
			return fmt.Errorf("a request with %s has an answer", wrong.name)
		case !errors.Is(err, wasm.ErrCode):
			return fmt.Errorf("a request with %s: %w", wrong.name, err)
		}
	}
	return nil
}

// How many calls warm an instance up, and how many follow, twice.
const (
	warm   = 150
	steady = 250
)

func (c *check) memory() error {
	g, err := c.open()
	if err != nil {
		return err
	}
	all := small(g.view.Keys)
	var sizes []uint32
	for _, calls := range []int{warm, steady, steady} {
		for n := range calls {
			if _, err := g.ask(all[n%len(all)].Request); err != nil {
				return tck.Skipped("a request has no answer (" + tck.Answers + ")")
			}
		}
		sizes = append(sizes, g.in.MemorySize())
	}
	if sizes[0] < sizes[1] && sizes[1] < sizes[2] {
		return fmt.Errorf("%d KiB after %d calls, %d and %d KiB after %d and %d more with the same requests", sizes[0]>>10, warm, sizes[1]>>10, sizes[2]>>10, steady, 2*steady)
	}
	return nil
}

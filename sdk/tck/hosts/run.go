package hosts

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck"
)

// Options of Run.
type Options struct {
	Timeout time.Duration // of a command; 0: 10 s
	Only    []string      // IDs of requirements; nil: all
	// Assemble returns the module of a text; nil: wat2wasm of wabt. Some modules are not valid, which a host has to find out.
	Assemble func(ctx context.Context, text string) ([]byte, error)
}

// Run proves a host, which start starts: again after a command that it has not answered. The error is about what Run itself needs: wat2wasm
// of wabt, a folder for modules, a host that starts.
func Run(ctx context.Context, start func(context.Context) (Host, error), options Options) (name string, report *tck.Report, err error) {
	if options.Timeout == 0 {
		options.Timeout = 10 * time.Second
	}
	if options.Assemble == nil {
		options.Assemble = Assemble
	}
	dir, err := os.MkdirTemp("", "sluice-tck-")
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(dir)
	r := &run{ctx: ctx, start: start, options: options, dir: dir, found: map[string]error{}}
	defer r.stop()
	hello, err := r.do(&Command{Op: OpHello})
	if err != nil {
		return "", nil, fmt.Errorf("hello: %w", err)
	}
	r.missing = hello.Missing
	for _, probe := range []struct {
		ids []string
		run func(*run)
	}{
		{[]string{Loads}, (*run).loads},
		{[]string{LaterMinor}, (*run).laterMinor},
		{[]string{Calls}, (*run).calls},
		{[]string{Imports}, (*run).imports},
		{[]string{Settings}, (*run).settings},
		{[]string{Wire, Fields, Unasked, Needs, Keys, State}, (*run).requests},
		{[]string{Strings}, (*run).strings},
		{[]string{ManyEndpoints}, (*run).manyEndpoints},
		{[]string{Reads, Clamps, ByStride, Refuses}, (*run).responses},
		{[]string{RefusesLoad, Ends, GoesOn, Missing}, (*run).hostile},
		{[]string{Discards}, (*run).discards},
	} {
		if !r.wanted(probe.ids...) {
			continue
		}
		for _, id := range probe.ids {
			r.found[id] = untried
		}
		probe.run(r)
		if r.fatal != nil {
			return "", nil, r.fatal
		}
	}
	for id := range r.found {
		if !r.wanted(id) {
			delete(r.found, id)
		}
	}
	return hello.Host, tck.NewReport(Requirements(), r.found, "not asked for"), ctx.Err()
}

// run is a run in progress.
type run struct {
	ctx     context.Context
	start   func(context.Context) (Host, error)
	host    Host
	options Options
	dir     string
	missing []string
	modules map[string]string // files, by text
	found   map[string]error
	fatal   error
}

func (r *run) wanted(ids ...string) bool {
	return r.options.Only == nil || slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(r.options.Only, id) })
}

// untried is the verdict of a requirement of which nothing was tried: others that come before it have failed.
const untried = tck.Skipped("not tried, because of other failures")

// fail notes the first failure of a requirement. It reports whether there is one.
func (r *run) fail(id, what string, err error) bool {
	if err == nil {
		return false
	}
	if r.found[id] == nil || errors.As(r.found[id], new(tck.Skipped)) {
		r.found[id] = fmt.Errorf("%s: %w", what, err)
	}
	return true
}

// conclude notes a failure, or else that the requirement has passed as far as it was tried.
func (r *run) conclude(id, what string, err error) (failed bool) {
	if err == nil && r.found[id] == untried {
		r.found[id] = nil
	}
	return r.fail(id, what, err)
}

func (r *run) stop() {
	if r.host != nil {
		_ = r.host.Close()
		r.host = nil
	}
}

// refusal is the error with which a host answers a command.
type refusal string

// Error implements error.
func (e refusal) Error() string { return string(e) }

func isRefusal(err error) bool { return errors.As(err, new(refusal)) }

// do executes a command. A host that does not answer in time is stopped; the next command starts it again. A refusal is a host's answer.
func (r *run) do(c *Command) (*Answer, error) {
	if err := r.ctx.Err(); err != nil {
		return nil, err
	}
	if r.host == nil {
		var err error
		if r.host, err = r.start(r.ctx); err != nil {
			r.fatal = fmt.Errorf("start the host: %w", err)
			return nil, r.fatal
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.options.Timeout)
	defer cancel()
	a, err := r.host.Do(ctx, c)
	switch {
	case err != nil:
		if ctx.Err() != nil {
			err = fmt.Errorf("no answer within %v", r.options.Timeout)
		}
		r.stop()
		return nil, fmt.Errorf("%s: %w", c.Op, err)
	case a.Error != "":
		return nil, refusal(a.Error)
	}
	return a, nil
}

// Assemble assembles a module with wat2wasm.
func Assemble(ctx context.Context, text string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "wat2wasm", "--no-check", "-", "--output=-")
	var out, log bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text), &out, &log
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("wat2wasm (Debian's package wabt): %w\n%s", err, log.Bytes())
	}
	return out.Bytes(), nil
}

// module returns the file of a module.
func (r *run) module(text string) string {
	if file := r.modules[text]; file != "" {
		return file
	}
	file := filepath.Join(r.dir, fmt.Sprintf("%03d.wasm", len(r.modules)))
	module, err := r.options.Assemble(r.ctx, text)
	if err == nil {
		err = os.WriteFile(file, module, 0o600)
	}
	if err != nil && r.fatal == nil {
		r.fatal = err
	}
	if r.modules == nil {
		r.modules = map[string]string{}
	}
	r.modules[text] = file
	return file
}

// load loads a module as the plugin with a name.
func (r *run) load(plugin, text string, settings *string) error {
	file := r.module(text)
	if r.fatal != nil {
		return r.fatal
	}
	_, err := r.do(&Command{Op: OpLoad, Plugin: plugin, Module: file, Settings: settings})
	return err
}

func (r *run) unload(plugin string) {
	if r.host != nil {
		_, _ = r.do(&Command{Op: OpUnload, Plugin: plugin})
	}
}

// decide returns the answer of a plugin to a request.
func (r *run) decide(plugin string, q *abi.Request, settings *string) (*Response, error) {
	a, err := r.do(&Command{Op: OpDecide, Plugin: plugin, Request: withoutNulls(q), Settings: settings})
	switch {
	case err != nil:
		return nil, err
	case a.Response == nil:
		return nil, errors.New("the host has answered without a response")
	case len(a.Response.Results) != len(q.Endpoints):
		return nil, fmt.Errorf("%d results for %d endpoints", len(a.Response.Results), len(q.Endpoints))
	}
	return a.Response, nil
}

// call loads a module, decides once, and unloads it.
func (r *run) call(text string, settings *string, q *abi.Request) (*Response, error) {
	if err := r.load("guest", text, settings); err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	defer r.unload("guest")
	return r.decide("guest", q, settings)
}

// The number of the port for which reference and hostile guests do what they are for.
const port = 666

// ordinary returns a request with n endpoints whose weights are 1 to 9.
func ordinary(n int) *abi.Request {
	q := &abi.Request{Now: 1_700_000_000_000, Namespace: "shop", Service: "cart", Port: "http", PortNumber: 80, Protocol: 6, Family: 4, Node: "node-1",
		NodeIndex: abi.NoIndex, Zone: "zone-a", Zones: []abi.Zone{{Name: "zone-a", Ready: uint32(n), Serving: uint32(n), Total: uint32(n)}},
		ConnectionsAgeMS: abi.NoAge, Generation: 1}
	for i := range n {
		q.Endpoints = append(q.Endpoints, abi.Endpoint{
			Addr:       netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8080),
			Conditions: abi.Ready | abi.Serving | abi.Chosen | abi.Eligible, Node: fmt.Sprint("node-", i%7), Zone: "zone-a", Weight: uint32(1 + i%9),
			PriorWeight: abi.NoWeight, ReadySince: 1_699_999_000_000 + int64(i), Connections: abi.ConnectionsUnknown})
	}
	return q
}

// special is ordinary for the port of reference guests.
func special(n int) *abi.Request {
	q := ordinary(n)
	q.PortNumber = port
	return q
}

// keeps returns an error unless a response keeps the weights of a request, and does nothing else.
func keeps(q *abi.Request, got *Response) error {
	want := Response{State: []byte{}, Results: []Result{}}
	for _, e := range q.Endpoints {
		want.Results = append(want.Results, Result{Weight: uint16(e.Weight), ResetAfterMS: abi.NeverReset})
	}
	return sameResponse(got, &want)
}

// sameResponse returns an error that names the first difference of two responses.
func sameResponse(got, want *Response) error {
	switch {
	case got.RequeueMS != want.RequeueMS:
		return fmt.Errorf("requeueMS is %d, want %d", got.RequeueMS, want.RequeueMS)
	case got.Balance != want.Balance:
		return fmt.Errorf("balance is %d, want %d", got.Balance, want.Balance)
	case !bytes.Equal(got.State, want.State):
		return fmt.Errorf("the state is %.100q, want %.100q", got.State, want.State)
	}
	for i := range want.Results {
		if i >= len(got.Results) || got.Results[i] != want.Results[i] {
			return fmt.Errorf("results[%d] is %+v, want %+v", i, got.Results[min(i, len(got.Results)-1)], want.Results[i])
		}
	}
	return nil
}

func (r *run) loads() {
	q := ordinary(7)
	got, err := r.call(Guest("good"), nil, q)
	if err == nil {
		err = keeps(q, got)
	}
	r.conclude(Loads, "guests/good.wat", err)
}

func (r *run) laterMinor() {
	q := ordinary(7)
	got, err := r.call(Guest("later-minor"), nil, q)
	if err == nil {
		err = keeps(q, got)
	}
	r.conclude(LaterMinor, "guests/later-minor.wat", err)
}

// calls decides in another order of sizes and settings than a guest could expect.
func (r *run) calls() {
	if r.fail(Calls, "guests/calls.wat: load", r.load("guest", Guest("calls"), nil)) {
		return
	}
	defer r.unload("guest")
	one, two := `{"a":1}`, `{"a":2}`
	for i, c := range []struct {
		n        int
		settings *string
	}{{3, nil}, {0, nil}, {1000, &one}, {3, &two}, {3, &one}, {1001, nil}, {4, &two}} {
		q := ordinary(c.n)
		q.Generation = uint64(i + 1)
		got, err := r.decide("guest", q, c.settings)
		if err == nil {
			err = keeps(q, got)
		}
		if r.conclude(Calls, fmt.Sprintf("guests/calls.wat: request %d, with %d endpoints", i+1, c.n), err) {
			return
		}
	}
}

// imports compares the random numbers and the time of several decisions and instances.
func (r *run) imports() {
	var first []byte
	for range 2 {
		if r.fail(Imports, "guests/wasi.wat: load", r.load("guest", Guest("wasi"), nil)) {
			return
		}
		for i := range 2 {
			q := special(3)
			q.Generation = uint64(i + 1)
			got, err := r.decide("guest", q, nil)
			switch {
			case err != nil:
			case len(got.State) != 24:
				err = fmt.Errorf("a state of %d bytes, the guest has returned 24", len(got.State))
			case first == nil:
				first = got.State
			case !bytes.Equal(first[:16], got.State[:16]):
				err = fmt.Errorf("random_get returns %x and %x in two instances or decisions", first[:16], got.State[:16])
			case !bytes.Equal(first, got.State):
				err = errors.New("the clock of one instance or decision is not that of another")
			}
			if r.conclude(Imports, "guests/wasi.wat", err) {
				return
			}
		}
		r.unload("guest")
	}
}

// tell returns the settings of guests/echo.wat.
func tell(needs uint32, keys []string, answer []byte) *string {
	text := strings.Join(keys, "\n")
	b := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, needs), uint32(len(text)))
	s := `{"a": "` + hex.EncodeToString(append(append(b, text...), answer...)) + `"}`
	return &s
}

// EchoRoom returns how many bytes of a request with n endpoints guests/echo.wat returns.
func EchoRoom(n int) int { return abi.MaxStateLen + 128*min(n, 16) }

// echoed returns the request that guests/echo.wat has returned.
func echoed(got *Response) ([]byte, error) {
	wire := slices.Clone(got.State)
	for i, x := range got.Results {
		b, err := hex.DecodeString(x.Reason)
		if err != nil {
			return nil, fmt.Errorf("the reason of endpoint %d is %.100q: want hexadecimal digits", i, x.Reason)
		}
		wire = append(wire, b...)
	}
	return wire, nil
}

func (r *run) settings() {
	if r.fail(Settings, "guests/echo.wat: load", r.load("guest", Guest("echo"), tell(0, nil, nil))) {
		return
	}
	defer r.unload("guest")
	var texts [3]*string
	for i := range texts { // each answers another weight
		wire := binary.LittleEndian.AppendUint32([]byte("SLRP"), 64)
		for _, v := range []uint32{48, 48, 1, 16, 0, 0, 0, 0, 0, 0, uint32(100 + i), 0, abi.NeverReset, abi.NoReasonIndex} {
			wire = binary.LittleEndian.AppendUint32(wire, v)
		}
		texts[i] = tell(0, nil, wire)
	}
	for n, i := range []int{0, 1, 0, 2, 2, 1} {
		q := special(1)
		q.Generation = uint64(n + 1)
		got, err := r.decide("guest", q, texts[i])
		if err == nil && got.Results[0].Weight != uint16(100+i) {
			err = fmt.Errorf("weight %d, the plugin answers %d with these settings", got.Results[0].Weight, 100+i)
		}
		if r.conclude(Settings, fmt.Sprintf("guests/echo.wat: decision %d, settings %d", n+1, i), err) {
			return
		}
	}
}

// requests compares what guests read with the golden requests.
func (r *run) requests() {
	all := RequestVectors()
	for i := range all {
		v := &all[i]
		after := i + 1
		for after < len(all) && all[after].After == v.Name {
			after++
		}
		if v.After != "" {
			continue
		}
		if lacking := r.lacking(v.Needs, v.Keys); len(lacking) > 0 {
			for _, id := range []string{Needs, Keys} {
				if requirementOf(v) == id && (r.found[id] == nil || r.found[id] == untried) {
					r.found[id] = tck.Skipped("the host has no " + strings.Join(lacking, ", "))
				}
			}
			continue
		}
		what := func(v *RequestVector) string { return "request " + fmt.Sprintf("%q", v.Name) }
		if r.fail(requirementOf(v), what(v)+": load", r.load("guest", Guest("echo"), settingsOf(v))) {
			continue
		}
		for k := i; k < after; k++ {
			r.request(&all[k], what(&all[k]))
		}
		r.unload("guest")
	}
}

// settingsOf returns the settings with which guests/echo.wat asks for the inputs of a golden request.
func settingsOf(v *RequestVector) *string {
	if v.Handle == abi.NoSettings {
		return nil
	}
	return tell(v.Needs, v.Keys, nil)
}

// request sends a golden request to the loaded echo, and compares.
func (r *run) request(v *RequestVector, what string) {
	id := requirementOf(v)
	got, err := r.decide("guest", v.Request, nil)
	if r.fail(id, what, err) {
		return
	}
	wire, err := echoed(got)
	if r.fail(id, what, err) {
		return
	}
	m, err := ReadMessage(wire)
	if r.conclude(Wire, what, err) {
		return
	}
	if m.Settings != v.Handle {
		r.fail(Settings, what, fmt.Errorf("settings is %d, want %d", m.Settings, v.Handle))
	}
	shown := Shown(v.Request, v.Needs, v.Keys)
	if diff := Difference(&m.Request, shown); diff != "" {
		err = errors.New(diff)
	}
	r.conclude(id, what, err)
}

// requirementOf returns the requirement that a golden request is for.
func requirementOf(v *RequestVector) string {
	switch {
	case v.Needs != 0:
		return Needs
	case len(v.Keys) > 0:
		return Keys
	case len(v.Request.State) > 0:
		return State
	case v.Request.OutcomesWindowMS != 0:
		return Unasked
	}
	return Fields
}

// lacking returns the inputs that are asked for and that the host does not have.
func (r *run) lacking(needs uint32, keys []string) (out []string) {
	for _, in := range inputs {
		asked := in.need&needs != 0 || in.kind != "" && slices.ContainsFunc(keys, func(k string) bool { return strings.HasPrefix(k, in.kind) })
		if asked && slices.Contains(r.missing, in.name) {
			out = append(out, in.name)
		}
	}
	return out
}

// strings sends requests whose names come and go.
func (r *run) strings() {
	if r.fail(Strings, "guests/strings.wat: load", r.load("guest", Guest("strings"), nil)) {
		return
	}
	defer r.unload("guest")
	for n := range 20 {
		q := special(5)
		q.Generation, q.Namespace, q.Service = uint64(n+1), fmt.Sprint("namespace-", n%3), fmt.Sprint("service-", n%4)
		for i := range q.Endpoints {
			q.Endpoints[i].Node = fmt.Sprint("node-", (n*7+i)%11)
		}
		q.Zone = fmt.Sprint("zone-", n%5)
		got, err := r.decide("guest", q, nil)
		if err == nil {
			err = keeps(q, got)
		}
		if r.conclude(Strings, fmt.Sprintf("guests/strings.wat: request %d", n+1), err) {
			return
		}
	}
}

// manyEndpoints compares digests of endpoints: guests/echo.wat says of what.
func (r *run) manyEndpoints() {
	if r.fail(ManyEndpoints, "guests/echo.wat: load", r.load("guest", Guest("echo"), nil)) {
		return
	}
	defer r.unload("guest")
	for n, size := range []int{60, 5000, 61, 1000} { // too long for the echo
		q := special(size)
		q.Generation = uint64(n + 1)
		got, err := r.decide("guest", q, nil)
		for i := 0; err == nil && i < size; i++ {
			if want := digestOf(&q.Endpoints[i]); got.Results[i].Weight != want {
				err = fmt.Errorf("results[%d].weight is %d, want %d: the guest has read another endpoint, or the result is that of another one", i, got.Results[i].Weight, want)
			}
		}
		if r.conclude(ManyEndpoints, fmt.Sprintf("guests/echo.wat: %d endpoints", size), err) {
			return
		}
	}
}

func digestOf(e *abi.Endpoint) uint16 {
	le := binary.LittleEndian
	addr := e.Addr.Addr().As16()
	b := le.AppendUint16(addr[:], e.Addr.Port())
	b = le.AppendUint32(le.AppendUint32(le.AppendUint32(b, e.Conditions), e.Weight), uint32(e.PriorWeight))
	b = le.AppendUint64(le.AppendUint64(b, uint64(e.ReadySince)), uint64(e.TerminatingSince))
	h := fnv.New32a()
	h.Write(append(append(b, e.Node...), e.Zone...))
	return uint16(1 + h.Sum32()&0x7fff)
}

// responses makes guests/echo.wat answer the golden responses.
func (r *run) responses() {
	for _, v := range ResponseVectors() {
		id, what := responseRequirement(&v), fmt.Sprintf("response %q", v.Name)
		q := special(len(v.Conditions))
		for i, c := range v.Conditions {
			q.Endpoints[i].Conditions = c
			if c&abi.Chosen == 0 {
				q.Endpoints[i].Weight = 0
			}
		}
		if len(v.Wire) == 0 || v.Refused != "" && r.found[Reads] != nil { // no bytes are an echo; who refuses good responses proves nothing
			continue
		}
		got, err := r.call(Guest("echo"), tell(0, nil, v.Wire), q)
		switch {
		case v.Refused == "":
			if err == nil {
				err = sameResponse(got, v.Want)
			}
		case err == nil:
			err = fmt.Errorf("it is accepted, though %s", v.Text)
		case isRefusal(errors.Unwrap(err)): // at load: it has called with the port of reference guests
		case isRefusal(err):
			err = nil
		}
		r.conclude(id, what, err)
	}
}

// responseRequirement returns the requirement that a golden response is for.
func responseRequirement(v *ResponseVector) string {
	switch {
	case v.Refused != "":
		return Refuses
	case v.Name == "out of range" || strings.HasPrefix(v.Name, "weight for one"):
		return Clamps
	case v.Name == "a later minor version" || strings.HasPrefix(v.Name, "sections") || strings.HasPrefix(v.Name, "empty sections"):
		return ByStride
	}
	return Reads
}

// hostile loads and calls each hostile module, beside a plugin that must not notice.
func (r *run) hostile() {
	good := func() error {
		if r.host == nil { // it has been stopped
			if err := r.load("good", Guest("good"), nil); err != nil {
				return err
			}
		}
		q := ordinary(7)
		got, err := r.decide("good", q, nil)
		if err == nil {
			err = keeps(q, got)
		}
		return err
	}
	if r.fail(GoesOn, "guests/good.wat", r.load("good", Guest("good"), nil)) {
		return
	}
	defer r.unload("good")
	if len(r.missing) == 0 {
		r.found[Missing] = tck.Skipped("the host has every input")
	}
	for _, m := range Hostile() {
		what := "hostile/" + m.Name + ".wat"
		var settings *string
		if m.Settings != "" {
			settings = &m.Settings
		}
		refuses := RefusesLoad
		if m.Missing != "" {
			if refuses = Missing; !slices.Contains(r.missing, m.Missing) {
				continue
			}
		}
		err := r.load("evil", m.Text, settings)
		switch {
		case r.fatal != nil:
			return
		case err != nil && !isRefusal(err):
			r.fail(refuses, what+": load", err)
		case err != nil && m.Stage == AtCall:
			r.fail(Ends, what, fmt.Errorf("it does not load, though it misbehaves in decisions for port %d only: %w", port, err))
		case err == nil && m.Stage == AtLoad:
			r.fail(refuses, what, errors.New("it loads"))
		case err == nil:
			r.misbehaves(&m, what)
		default:
			r.conclude(refuses, what, nil)
		}
		r.conclude(GoesOn, "guests/good.wat beside "+what, good())
		r.unload("evil")
	}
}

// misbehaves calls a hostile module that has loaded.
func (r *run) misbehaves(m *HostileModule, what string) {
	q, evil := ordinary(7), special(3)
	before, err := r.decide("evil", q, nil)
	if err == nil {
		err = keeps(q, before)
	}
	if r.fail(Ends, what+": an ordinary request", err) {
		return
	}
	if _, err = r.decide("evil", evil, nil); err == nil {
		r.fail(Ends, what, errors.New("the call has not failed"))
		return
	}
	if isRefusal(err) {
		err = nil
	}
	if r.conclude(Ends, what, err) {
		return
	}
	q.Generation++
	after, err := r.decide("evil", q, nil)
	if err == nil {
		err = keeps(q, after)
	}
	r.conclude(GoesOn, what+": an ordinary request after the call that has failed", err)
}

// discards asks an instance that has failed whether it is called again.
func (r *run) discards() {
	const what = "guests/remembers.wat"
	if r.fail(Discards, what+": load", r.load("guest", Guest("remembers"), nil)) {
		return
	}
	defer r.unload("guest")
	q := special(3)
	if _, err := r.decide("guest", q, nil); !isRefusal(err) {
		r.fail(Discards, what, fmt.Errorf("the call has not failed: %w", errors.Join(err, errors.New("it traps"))))
		return
	}
	q.Generation = 2
	got, err := r.decide("guest", q, nil)
	if err == nil {
		err = keeps(q, got)
	}
	r.conclude(Discards, what, err)
}

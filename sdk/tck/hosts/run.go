package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// Run proves a host, which start starts: again after a command that it has not answered. The error is about what Run itself
// needs: wat2wasm of wabt, a folder for modules, a host that starts.
func Run(ctx context.Context, start func(context.Context) (Host, error), options Options) (name string, report *tck.Report, err error) {
	if options.Timeout == 0 {
		options.Timeout = 10 * time.Second
	}
	if options.Assemble == nil {
		options.Assemble = Assemble
	}
	for _, id := range options.Only {
		if !slices.ContainsFunc(Requirements(), func(q tck.Requirement) bool { return q.ID == id }) {
			return "", nil, fmt.Errorf("there is no requirement %q", id)
		}
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
	r.missing, r.enforces = hello.Missing, hello.Enforces
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
		{[]string{LastGood}, (*run).lastGood},
		{[]string{Combines}, (*run).combines},
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
	found   map[string]error
	fatal   error
	modules map[string]string // files, by text
	// What the host has said of itself.
	missing  []string
	enforces bool
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

// do executes a command. A host that does not answer in time is stopped; the next command starts it again. A refusal is a host's
// answer.
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
	case a.Error != "" && c.Op != OpEnforce:
		return nil, refusal(a.Error)
	}
	return a, nil
}

// Assemble assembles a module with wat2wasm, and describes it.
func Assemble(ctx context.Context, text string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "wat2wasm", "--no-check", "-", "--output=-")
	var out, log bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text), &out, &log
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("wat2wasm (Debian's package wabt): %w\n%s", err, log.Bytes())
	}
	return Describe(text, out.Bytes()), nil
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
	a, err := r.do(&Command{Op: OpDecide, Plugin: plugin, Request: WithoutNulls(q), Settings: settings})
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

// ordinary returns a request with n endpoints whose shares are 1 to 9.
func ordinary(n int) *abi.Request {
	q := &abi.Request{Now: 1_700_000_000_000, Namespace: "shop", Service: "cart", Port: "http", PortNumber: 80, Protocol: 6, Family: 4, Node: "node-1",
		NodeIndex: abi.NoIndex, Zone: "zone-a", Zones: []abi.Zone{{Name: "zone-a", Ready: uint32(n), Serving: uint32(n), Total: uint32(n)}},
		ConnectionsAgeMS: abi.NoAge, Generation: 1}
	for i := range n {
		q.Endpoints = append(q.Endpoints, abi.Endpoint{
			Addr:       netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8080),
			Conditions: abi.Ready | abi.Serving | abi.Chosen | abi.Eligible, Node: fmt.Sprint("node-", i%7), Zone: "zone-a",
			Capacity: abi.One, Share: uint32(1 + i%9),
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

// keeps returns an error unless a response keeps the shares of a request, and does nothing else.
func keeps(q *abi.Request, got *Response) error {
	want := Response{Groups: []uint32{}, State: []byte{}, Results: []Result{}}
	for _, e := range q.Endpoints {
		want.Results = append(want.Results, Result{Value: e.Share, ResetAfterMS: abi.NeverReset})
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
	case !slices.Equal(got.Groups, want.Groups):
		return fmt.Errorf("the groups are %d, want %d", got.Groups, want.Groups)
	case !bytes.Equal(got.State, want.State):
		return fmt.Errorf("the state is %.100q, want %.100q", got.State, want.State)
	case got.Counters != want.Counters:
		return fmt.Errorf("the counters are %d, want %d", got.Counters, want.Counters)
	case !bytes.Equal(got.EndpointStates, want.EndpointStates):
		return fmt.Errorf("the states of endpoints are %.100x, want %.100x", got.EndpointStates, want.EndpointStates)
	}
	for i := range want.Results {
		if i >= len(got.Results) || got.Results[i] != want.Results[i] {
			return fmt.Errorf("results[%d] is %+v, want %+v", i, got.Results[min(i, len(got.Results)-1)], want.Results[i])
		}
	}
	return nil
}

package wasm

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Instance is an instance of a plugin's module that is called with requests as bytes, within the limits of a decision: for
// conformance checks. Requests to Services go through Plugin.Decide. It is not safe for concurrent use.
type Instance struct {
	p *Plugin // a scratch
	g *guest

	loggedError string
}

// NewInstance returns a new instance, which is initialized. Calls of p go on meanwhile.
func (p *Plugin) NewInstance() (*Instance, error) {
	q := p.scratch()
	g, err := q.newGuest(instanceKey{})
	if err != nil {
		return nil, err
	}
	return &Instance{p: q, g: g}, nil
}

// Close releases the instance.
func (i *Instance) Close() { i.p.discard() }

// Configure passes settings, a JSON text or "" for none, and returns what a request needs of them.
func (i *Instance) Configure(settings string) (abi.View, error) {
	h, err := i.g.handleOf(settings)
	i.loggedError = i.g.call.loggedError
	return abi.View{Role: i.p.report.Role, Settings: h.id, Needs: h.needs, Keys: h.keys}, err
}

// LoggedError returns the first line that the last call logged at level error.
func (i *Instance) LoggedError() string { return i.loggedError }

// do makes a call with the time of the self-test: a slow machine is not the module's fault.
func (i *Instance) do(c call) error {
	c.limit = i.p.limits.ConfigureTime
	err := i.g.do(c)
	if c.op != opRead && c.op != opWrite && c.op != opSize {
		i.loggedError = i.g.call.loggedError
	}
	return err
}

// Alloc calls sluice_alloc and checks the address.
func (i *Instance) Alloc(size int) (address uint32, err error) {
	err = i.do(call{op: opAlloc, room: size, fuel: i.p.limits.ConfigureFuel})
	return uint32(i.g.call.value), err
}

// Read returns a copy of n bytes of the guest's memory.
func (i *Instance) Read(address uint32, n int) ([]byte, error) {
	err := i.do(call{op: opRead, addresses: [4]uint32{address}, room: n})
	return bytes.Clone(i.g.call.out), err
}

// Write writes to the guest's memory.
func (i *Instance) Write(address uint32, b []byte) error {
	return i.do(call{op: opWrite, addresses: [4]uint32{address}, input: b})
}

// MemorySize returns the size of the guest's memory in bytes.
func (i *Instance) MemorySize() uint32 {
	_ = i.do(call{op: opSize})
	return uint32(i.g.call.value)
}

// ErrCode is the error of a guest that returns a negative code.
var ErrCode = errors.New("the guest returned a negative code")

// Call is a call of sluice_decide: the addresses and lengths that it gets, and the endpoints that its fuel is for.
type Call struct {
	Request, RequestLen   uint32
	Response, ResponseCap uint32
	Endpoints             int
}

// Decide calls sluice_decide and returns the length of the response. A negative code wraps ErrCode; after any other error the
// instance is not usable. fuel is what the call used.
func (i *Instance) Decide(c Call) (length int, fuel int64, err error) {
	err = i.do(call{op: opRaw, addresses: [4]uint32{c.Request, c.RequestLen, c.Response, c.ResponseCap}, fuel: i.DecideFuel(c.Endpoints)})
	fuel = i.g.call.used
	if err != nil {
		return 0, fuel, err
	}
	switch got := i.g.call.value; {
	case got < 0:
		return 0, fuel, fmt.Errorf("%w, %d: %s", ErrCode, got, withLogged(abi.CodeText(got), i.loggedError))
	case got > int64(c.ResponseCap):
		return 0, fuel, fmt.Errorf("sluice_decide: returned a length of %d bytes for a buffer of %d", got, c.ResponseCap)
	default:
		return int(got), fuel, nil
	}
}

// DecideFuel returns the fuel of a decision for a number of endpoints.
func (i *Instance) DecideFuel(endpoints int) int64 {
	return i.p.limits.DecideFuel + i.p.limits.EndpointFuel*int64(endpoints)
}

// Diff returns the first difference of two answers to a request, "" if they are equal.
func Diff(req *abi.Request, a, b *abi.Response) string { return diffResponses(req, a, b) }

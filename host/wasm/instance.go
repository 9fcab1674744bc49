package wasm

import (
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Instance is an instance of a plugin's module that is called with requests as bytes, within the limits of a decision: for conformance
// checks. Requests to Services go through Plugin.Decide. It is not safe for concurrent use.
type Instance struct {
	p *Plugin // a scratch
	g *guest
}

// NewInstance returns a new instance, which is initialized. Calls of p go on meanwhile.
func (p *Plugin) NewInstance() (*Instance, error) {
	q := p.scratch()
	g, err := q.newGuest(instanceKey{})
	if err != nil {
		return nil, err
	}
	return &Instance{q, g}, nil
}

// Close releases the instance.
func (i *Instance) Close() { i.p.discard() }

// Configure passes settings, a JSON text or "" for none, and returns what a request needs of them.
func (i *Instance) Configure(settings string) (abi.View, error) {
	h, err := i.g.handleOf(settings)
	return abi.View{Settings: h.id, Needs: h.needs, Keys: h.keys}, err
}

// LoggedError returns the first line that the last call logged at level error.
func (i *Instance) LoggedError() string { return i.g.loggedError }

// Alloc calls sluice_alloc and checks the address.
func (i *Instance) Alloc(size int) (address uint32, err error) {
	g := i.g
	g.begin(g.p.limits.ConfigureTime)
	defer g.timer.Stop()
	g.args[0] = uint64(size)
	if err := g.call(g.alloc, "sluice_alloc", g.p.limits.ConfigureFuel); err != nil {
		return 0, err
	}
	at := uint32(g.args[0])
	if _, ok := g.memory.Read(at, uint32(size)); !ok || at == 0 || at%8 != 0 {
		return 0, fmt.Errorf("sluice_alloc(%d) returned %d: not an 8-byte aligned address within its %d bytes of memory", size, at, g.memory.Size())
	}
	return at, nil
}

// Bytes returns n bytes of the guest's memory, which the caller may modify until the next call.
func (i *Instance) Bytes(address uint32, n int) []byte {
	b, _ := i.g.memory.Read(address, uint32(n))
	return b
}

// MemorySize returns the size of the guest's memory in bytes.
func (i *Instance) MemorySize() uint32 { return i.g.memory.Size() }

// ErrCode is the error of a guest that returns a negative code.
var ErrCode = errors.New("the guest returned a negative code")

// Call is a call of sluice_decide: the addresses and lengths that it gets, and the endpoints that its fuel is for.
type Call struct {
	Request, RequestLen   uint32
	Response, ResponseCap uint32
	Endpoints             int
}

// Decide calls sluice_decide and returns the length of the response. A negative code wraps ErrCode; after any other error the instance is
// not usable. fuel is what the call used.
func (i *Instance) Decide(c Call) (length int, fuel int64, err error) {
	g := i.g
	budget := i.DecideFuel(c.Endpoints)
	g.begin(g.p.limits.ConfigureTime) // as in the self-test: a slow machine is not the module's fault
	defer g.timer.Stop()
	g.linear.refused = false
	g.random.Seed(randomSeed())
	g.args = [4]uint64{uint64(c.Request), uint64(c.RequestLen), uint64(c.Response), uint64(c.ResponseCap)}
	if err := g.call(g.decide, "sluice_decide", budget); err != nil {
		return 0, g.fuelUsed, err
	}
	switch got := int64(g.args[0]); {
	case got < 0:
		return 0, g.fuelUsed, fmt.Errorf("%w, %d: %s", ErrCode, got, g.withLoggedError(abi.CodeText(got)))
	case got > int64(c.ResponseCap):
		return 0, g.fuelUsed, fmt.Errorf("sluice_decide: returned a length of %d bytes for a buffer of %d", got, c.ResponseCap)
	default:
		return int(got), g.fuelUsed, nil
	}
}

// DecideFuel returns the fuel of a decision for a number of endpoints.
func (i *Instance) DecideFuel(endpoints int) int64 {
	return i.p.limits.DecideFuel + i.p.limits.EndpointFuel*int64(endpoints)
}

// Diff returns the first difference of two answers to a request, "" if they are equal.
func Diff(req *abi.Request, a, b *abi.Response) string { return diffResponses(req, a, b) }

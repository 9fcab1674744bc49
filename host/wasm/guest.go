package wasm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/sluice-proxy/sluice/host/wasm/meter"
	"github.com/sluice-proxy/sluice/host/wasm/registers"
	"github.com/sluice-proxy/sluice/host/wasm/watchdog"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// guest is one instance of a plugin's module. After its first error it is closed and never called again.
type guest struct {
	p        *Plugin
	ctx      context.Context // of calls: has the guest for host functions
	key      instanceKey
	lastUse  uint64 // see pool.uses
	repeated uint64 // decisions
	maxFuel  int64  // of a decision that is repeated
	selfTest bool   // calls have the time of a configuration
	module   api.Module
	linear   *linearMemory // behind memory
	memory   api.Memory
	fuel     api.MutableGlobal
	stack    api.MutableGlobal
	floor    api.MutableGlobal // fuel below which the guest ends: 0, or MaxFloor once the call is late
	timer    *watchdog.Timer
	timeMS   int64  // CPU time that the current call may take
	calls    uint64 // that went well
	decide   api.Function
	alloc    api.Function
	encoder  abi.Encoder
	req      buffer
	reqUsed  int // bytes of req that are not zero
	resp     buffer
	text     buffer // of settings
	handles  map[string]handle
	ids      map[uint32]bool // of handles
	// handleBytes is the length of the texts of handles. reserved is the host memory that the handles take of the budget of all plugins.
	handleBytes   int
	reserved      int64
	configureFuel int64 // used by the last handleOf
	random        *rand.PCG
	args          [4]uint64
	fuelUsed      int64 // by the current call

	lines, bytes int    // logged by the current call
	loggedError  string // the first error that the current call logged
	partialLine  []byte // without newline yet, on standard output or error
	partialLevel uint32
}

// buffer is guest memory allocated by sluice_alloc.
type buffer struct{ ptr, size uint32 }

// randomSeed returns the seed of a guest's random numbers: the same in each instance, and again at the beginning of each decision.
func randomSeed() (uint64, uint64) { return 1, 2 }

// newGuest makes a new instance the current guest: instantiated and initialized.
func (p *Plugin) newGuest(key instanceKey) (*guest, error) {
	g := &guest{p: p, key: key, random: rand.NewPCG(randomSeed())}
	g.ctx = context.WithValue(p.ctx, guestKey{}, g)
	p.guest = g
	if err := g.start(); err != nil {
		p.discard()
		return nil, err
	}
	return g, nil
}

func (g *guest) start() (err error) {
	p := g.p
	if g.module, g.linear, err = p.instantiate(); err != nil {
		return err
	}
	p.instances++
	g.memory = g.module.Memory()
	var ok bool
	if g.fuel, ok = g.module.ExportedGlobal(meter.FuelExport).(api.MutableGlobal); !ok {
		return errors.New("instantiate: no fuel global") // impossible: the meter added it
	}
	if g.stack, ok = g.module.ExportedGlobal(meter.StackExport).(api.MutableGlobal); !ok {
		return errors.New("instantiate: no stack global") // likewise
	}
	if g.floor, ok = g.module.ExportedGlobal(meter.FloorExport).(api.MutableGlobal); !ok {
		return errors.New("instantiate: no floor global") // likewise
	}
	floor, err := globalAddress(g.floor)
	if err != nil {
		return fmt.Errorf("instantiate: %w", err)
	}
	if g.timer, err = p.host.watchdog.Add(floor, meter.MaxFloor); err != nil {
		return fmt.Errorf("instantiate: %w", err)
	}
	g.begin(p.limits.InitTime)
	err = g.initialize()
	g.timer.Stop()
	p.code.stored.forget()
	if err != nil {
		return err
	}
	g.bind()
	return nil
}

// initialize runs the start function and _initialize.
func (g *guest) initialize() error {
	p := g.p
	p.initFuel = p.report.Module.InstantiateFuel()
	budget := p.limits.InitFuel - p.initFuel
	if budget < 0 {
		return fmt.Errorf("instantiate: tables, data and globals cost %d fuel, the budget is %d", p.initFuel, p.limits.InitFuel)
	}
	for _, name := range []string{meter.StartExport, "_initialize"} {
		f := g.module.ExportedFunction(name)
		if f == nil {
			continue
		}
		what := name
		if name == meter.StartExport {
			what = "start function"
		}
		if err := g.call(f, what, budget); err != nil {
			return err
		}
		budget -= g.fuelUsed
		p.initFuel += g.fuelUsed
	}
	return nil
}

// callU32 calls an export of type () -> (i32).
func (g *guest) callU32(name string) (uint32, error) {
	g.begin(g.p.limits.ConfigureTime)
	defer g.timer.Stop()
	if err := g.call(g.module.ExportedFunction(name), name, g.p.limits.ConfigureFuel); err != nil {
		return 0, err
	}
	return uint32(g.args[0]), nil
}

// begin limits the CPU time of the calls from here to g.timer.Stop, all together.
func (g *guest) begin(limit time.Duration) {
	g.timeMS = limit.Milliseconds()
	g.floor.Set(0)
	g.timer.Start(limit)
}

// call calls f with the arguments in g.args, where it leaves the result, and with budget as its fuel.
func (g *guest) call(f api.Function, what string, budget int64) error {
	g.lines, g.bytes, g.loggedError = 0, 0, ""
	g.fuel.Set(uint64(budget))
	registers.Clear()
	err := f.CallWithStack(g.ctx, g.args[:])
	left := g.fuelLeft()
	g.fuelUsed = min(budget-left, budget) // a bulk operation is charged in full before it traps
	g.flush()
	if err == nil && left >= 0 {
		return nil
	}
	return g.callError(err, what, budget)
}

// Causes of a failed call that Stats counts.
var (
	errNoFuel = errors.New("out of fuel")
	errLate   = errors.New("deadline exceeded")
)

// IsLate reports whether a call of a plugin failed because it took too much CPU time. It may succeed later: a processor may be slow, and
// a virtual machine counts the time that others have on its host as its own.
func IsLate(err error) bool { return errors.Is(err, errLate) }

// callError returns why a call failed.
func (g *guest) callError(err error, what string, budget int64) error {
	var ex procExit
	switch {
	case g.fuelLeft() < 0:
		return fmt.Errorf("%s: %w: the budget is %d", what, errNoFuel, budget)
	case g.timer.Late():
		return fmt.Errorf("%s: %w: %d ms of CPU time", what, errLate, g.timeMS)
	case int64(g.stack.Get()) < 0:
		return fmt.Errorf("%s: call stack exhausted", what)
	case errors.As(err, &ex):
		return fmt.Errorf("%s: %s", what, g.withLoggedError(ex.Error()))
	}
	return fmt.Errorf("%s: %s", what, g.withLoggedError(firstLine(err).Error()))
}

// ensureBuffer makes b at least n bytes long and subtracts the fuel used from budget.
func (g *guest) ensureBuffer(b *buffer, n int, budget *int64) error {
	if b.size != 0 && n <= int(b.size) {
		return nil
	}
	// With room for growth: guests never free the previous buffer.
	size := uint64(max(n+n/2, 4096)+7) &^ 7
	if size > uint64(g.p.limits.MemoryPages)<<16 {
		return fmt.Errorf("sluice_alloc: %d bytes exceed the memory limit of the guest", size)
	}
	g.args[0] = size
	err := g.call(g.alloc, "sluice_alloc", *budget)
	*budget -= g.fuelUsed
	if err != nil {
		return err
	}
	at := uint32(g.args[0])
	if _, ok := g.memory.Read(at, uint32(size)); !ok || at == 0 || at%8 != 0 {
		return fmt.Errorf("sluice_alloc(%d) returned %d: not an 8-byte aligned address within its %d bytes of memory", size, at, g.memory.Size())
	}
	*b = buffer{at, uint32(size)}
	return nil
}

// view returns the content of b. It is invalid after the next call of the guest.
func (g *guest) view(b buffer) []byte {
	v, _ := g.memory.Read(b.ptr, b.size) // memory never shrinks
	return v
}

// callDecide calls sluice_decide.
func (g *guest) callDecide(dec *abi.Decoder, req *abi.Request, h handle, resp *abi.Response) (err error) {
	n := len(req.Endpoints)
	budget := g.p.limits.DecideFuel + g.p.limits.EndpointFuel*int64(n)
	if g.maxFuel > 0 {
		budget = min(budget, g.maxFuel)
	}
	whole := budget
	defer func() {
		g.fuelUsed = whole - budget
		// No guest should be able to make the host panic. If one does, only the guest ends.
		if r := recover(); r != nil {
			err = fmt.Errorf("panic in the host: %v", r)
		}
	}()
	limit := g.p.limits.DecideTime
	switch {
	case g.selfTest:
		limit = g.p.limits.ConfigureTime
	case g.key.second: // within what is left of the bound of one call
		limit /= 2
	}
	g.begin(limit)
	defer g.timer.Stop()
	g.linear.refused = false
	g.random.Seed(randomSeed())
	capacity := abi.MaxResponse(n) // not that of the buffer, which the largest request so far determines
	if err := g.ensureBuffer(&g.resp, capacity, &budget); err != nil {
		return err
	}
	var length int
	for {
		v := g.view(g.req)
		wire := g.encoder.AppendRequest(v[:0:len(v)], req, abi.View{Settings: h.id, Needs: h.needs, Keys: h.keys})
		if length = len(wire); length <= len(v) {
			break
		}
		clear(v)
		g.reqUsed = 0
		if err := g.ensureBuffer(&g.req, length, &budget); err != nil {
			return err
		}
	}
	if length < g.reqUsed { // the guest must not see the rest of an earlier request
		clear(g.view(g.req)[length:g.reqUsed])
	}
	g.reqUsed = length
	g.args = [4]uint64{uint64(g.req.ptr), uint64(length), uint64(g.resp.ptr), uint64(capacity)}
	err = g.call(g.decide, "sluice_decide", budget)
	budget -= g.fuelUsed
	if err != nil {
		return err
	}
	got := int64(g.args[0])
	switch {
	case got < 0:
		return fmt.Errorf("sluice_decide: %s", g.withLoggedError(abi.CodeText(got)))
	case got > int64(capacity):
		return fmt.Errorf("sluice_decide: returned a length of %d bytes for a buffer of %d", got, capacity)
	}
	answer := g.view(g.resp)[:got]
	if err := dec.DecodeResponse(answer, n, resp); err != nil {
		return fmt.Errorf("sluice_decide: %w", err)
	}
	clear(answer) // the next call must not see it
	return nil
}

func (g *guest) fuelLeft() int64 { return int64(g.fuel.Get()) }

// charge takes fuel for work of the host on behalf of the guest, before that work. It ends a guest that has no fuel left or is late.
func (g *guest) charge(n int64) {
	left := g.fuelLeft() - n
	g.fuel.Set(uint64(left))
	switch {
	case left < 0:
		panic(errNoFuel)
	case g.timer.Late():
		panic(errLate)
	}
}

func (g *guest) close() {
	if g.timer != nil {
		g.p.host.watchdog.Remove(g.timer)
		g.timer = nil
	}
	if g.module != nil {
		_ = g.module.Close(context.Background()) // only frees memory
		g.module = nil
	}
	if g.linear != nil {
		g.linear.Free()
		g.linear = nil
	}
	g.p.host.memory.release(g.reserved)
	g.reserved = 0
}

// withLoggedError appends the error that the guest logged, if any.
func (g *guest) withLoggedError(text string) string {
	if g.loggedError == "" {
		return text
	}
	return text + ": " + strconv.Quote(g.loggedError)
}

// firstLine returns the text of an error without wazero's stack trace. It may contain names from the module.
func firstLine(err error) error {
	text, _, more := strings.Cut(err.Error(), "\n")
	if more {
		text = strings.TrimSuffix(text, " (recovered by wazero)")
	}
	if short := meter.Printable(text, maxErrorText); short != err.Error() {
		return errors.New(short)
	}
	return err
}

// maxErrorText is the length in bytes at which the text of an error of wazero is cut.
const maxErrorText = 500

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

	"github.com/sluice-proxy/sluice/host/plugin/wasm/lane"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/registers"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// sandbox is an instance in this process.
type sandbox struct {
	l        *local
	ctx      context.Context // of calls: has the sandbox for host functions
	module   api.Module
	linear   *linearMemory // behind memory
	memory   api.Memory
	fuel     api.MutableGlobal
	stack    api.MutableGlobal
	watch    *lane.Stopwatch // nil: only fuel ends calls
	limit    time.Duration   // of the current call
	decide   api.Function
	alloc    api.Function
	req      buffer
	reqUsed  int // bytes of req that are not zero
	resp     buffer
	respUsed int    // bytes of resp with the last answer
	text     buffer // of settings
	calls    int
	random   *rand.PCG
	args     [4]uint64

	lines, bytes int    // logged by the current call of a function
	loggedError  string // the first error that it logged
	partialLine  []byte // without newline yet, on standard output or error
	partialLevel uint32
	logged       []line // by all functions of a call
	dropped      int
}

// buffer is guest memory allocated by sluice_alloc.
type buffer struct{ ptr, size uint32 }

// randomSeed returns the seed of a guest's random numbers: the same in each instance, and again at the beginning of each
// decision.
func randomSeed() (uint64, uint64) { return 1, 2 }

func (s *sandbox) instantiate(o instanceOptions) (err error) {
	s.random = rand.NewPCG(randomSeed())
	s.ctx = context.WithValue(s.l.ctx, sandboxKey{}, s)
	if s.module, s.linear, err = s.l.instantiate(o); err != nil {
		return err
	}
	s.memory = s.module.Memory()
	for name, global := range map[string]*api.MutableGlobal{meter.FuelExport: &s.fuel, meter.StackExport: &s.stack} {
		var ok bool
		if *global, ok = s.module.ExportedGlobal(name).(api.MutableGlobal); !ok {
			return fmt.Errorf("instantiate: no global %s", name) // impossible: the meter added it
		}
	}
	s.bind()
	return nil
}

// do implements instance.
func (s *sandbox) do(c *call) {
	s.logged, s.dropped, s.loggedError = s.logged[:0], 0, ""
	s.linear.refused = false
	if s.respUsed > 0 { // no call must see the answer of another
		clear(s.view(s.resp)[:s.respUsed])
		s.respUsed = 0
	}
	if s.calls++; s.calls%trimEvery == 0 {
		s.bind()
	}
	s.limit = c.limit
	if s.watch != nil {
		s.watch.Start(c.limit)
	}
	budget := c.fuel
	defer func() {
		s.checkTime(c)
		// No guest should be able to make the host panic. If one does, only the guest ends.
		if r := recover(); r != nil {
			c.err = fmt.Errorf("panic in the host: %v", r)
		}
		c.used = c.fuel - budget
		c.refused, c.size = s.linear.refused, s.linear.size
		c.lines, c.dropped, c.loggedError = s.logged, s.dropped, s.loggedError
	}()
	c.err = s.run(c, &budget)
}

func (s *sandbox) run(c *call, budget *int64) (err error) {
	switch c.op {
	case opStart:
		for _, name := range []string{meter.StartExport, "_initialize"} {
			what := name
			if name == meter.StartExport {
				what = "start function"
			}
			if f := s.module.ExportedFunction(name); f != nil {
				if err := s.call(f, what, budget); err != nil {
					return err
				}
			}
		}
	case opVersion:
		if err = s.call(s.module.ExportedFunction("sluice_abi_version"), "sluice_abi_version", budget); err != nil {
			return err
		}
		c.value = int64(uint32(s.args[0]))
	case opConfigure:
		s.random.Seed(randomSeed())
		err = s.configure(c, budget)
	case opDecide:
		s.random.Seed(randomSeed())
		err = s.decideRequest(c, budget)
	case opAlloc:
		var at uint32
		at, err = s.allocate(uint32(c.room), budget)
		c.value = int64(at)
	case opRead:
		c.out, err = s.at(c.addresses[0], uint32(c.room))
	case opWrite:
		var to []byte
		to, err = s.at(c.addresses[0], uint32(len(c.input)))
		copy(to, c.input)
	case opRaw:
		s.random.Seed(randomSeed())
		for i, a := range c.addresses {
			s.args[i] = uint64(a)
		}
		err = s.call(s.decide, "sluice_decide", budget)
		c.value = int64(s.args[0])
	case opSize:
		c.value = int64(s.memory.Size())
	default:
		return fmt.Errorf("unknown operation %d", c.op)
	}
	return err
}

func (s *sandbox) at(address, n uint32) ([]byte, error) {
	b, ok := s.memory.Read(address, n)
	if !ok {
		return nil, fmt.Errorf("%d bytes at address %d are outside the guest's memory", n, address)
	}
	return b, nil
}

// configure passes settings to sluice_configure and asks for the inputs that the plugin needs with them.
func (s *sandbox) configure(c *call, budget *int64) error {
	handle := c.handle
	if c.stage = stageSettings; !c.given {
		if err := s.ensureBuffer(&s.text, len(c.input), budget); err != nil {
			return err
		}
		copy(s.view(s.text), c.input)
		s.args[0], s.args[1] = uint64(s.text.ptr), uint64(len(c.input))
		if err := s.call(s.module.ExportedFunction("sluice_configure"), "sluice_configure", budget); err != nil {
			return err
		}
		clear(s.view(s.text)[:len(c.input)])
		handle = uint32(s.args[0])
		if c.value = int64(int32(handle)); c.value < 0 {
			return nil
		}
	}
	c.stage = stageNeeds
	if f := s.module.ExportedFunction("sluice_needs"); f != nil {
		s.args[0] = uint64(handle)
		if err := s.call(f, "sluice_needs", budget); err != nil {
			return err
		}
		if c.needs = uint32(s.args[0]); int32(c.needs) < 0 {
			return nil
		}
	}
	c.stage = stageKeys
	f := s.module.ExportedFunction("sluice_keys")
	if f == nil {
		c.stage = stageDone
		return nil
	}
	if err := s.ensureBuffer(&s.resp, abi.MaxKeysLen, budget); err != nil {
		return err
	}
	s.args[0], s.args[1], s.args[2] = uint64(handle), uint64(s.resp.ptr), uint64(abi.MaxKeysLen)
	if err := s.call(f, "sluice_keys", budget); err != nil {
		return err
	}
	n := int(int32(s.args[0]))
	if n < 0 || n > abi.MaxKeysLen {
		c.value = int64(n)
		return nil
	}
	c.stage = stageDone
	s.respUsed = n
	c.out = s.view(s.resp)[:n]
	return nil
}

// decideRequest passes a request to sluice_decide. c.room is the capacity of the response.
func (s *sandbox) decideRequest(c *call, budget *int64) error {
	if err := s.ensureBuffer(&s.resp, c.room, budget); err != nil {
		return err
	}
	n := len(c.input)
	if n > int(s.req.size) {
		clear(s.view(s.req)[:s.reqUsed])
		s.reqUsed = 0
		if err := s.ensureBuffer(&s.req, n, budget); err != nil {
			return err
		}
	}
	v := s.view(s.req)
	copy(v, c.input)
	if n < s.reqUsed { // the guest must not see the rest of an earlier request
		clear(v[n:s.reqUsed])
	}
	s.reqUsed = n
	s.args = [4]uint64{uint64(s.req.ptr), uint64(n), uint64(s.resp.ptr), uint64(c.room)}
	if err := s.call(s.decide, "sluice_decide", budget); err != nil {
		return err
	}
	if c.value = int64(s.args[0]); c.value < 0 || c.value > int64(c.room) {
		return nil
	}
	s.respUsed = int(c.value)
	c.out = s.view(s.resp)[:c.value]
	return nil
}

// call calls f with the arguments in s.args, where it leaves the result, and with budget as its fuel.
func (s *sandbox) call(f api.Function, what string, budget *int64) error {
	s.lines, s.bytes, s.loggedError = 0, 0, ""
	s.fuel.Set(uint64(*budget))
	registers.Clear()
	err := f.CallWithStack(s.ctx, s.args[:])
	left := s.fuelLeft()
	whole := *budget
	*budget = max(left, 0) // a bulk operation is charged in full before it traps
	s.flush()
	if err == nil && left >= 0 {
		return nil
	}
	return s.callError(err, what, whole)
}

// callError returns why a call failed.
func (s *sandbox) callError(err error, what string, budget int64) error {
	var ex procExit
	switch {
	case s.fuelLeft() < 0:
		return &callError{cause: errNoFuel, text: fmt.Sprintf("%s: %s: the budget is %d", what, errNoFuel, budget)}
	case s.late():
		return &callError{cause: errLate, text: fmt.Sprintf("%s: %s: %d ms of CPU time", what, errLate, s.limit.Milliseconds())}
	case int64(s.stack.Get()) < 0:
		return &callError{text: what + ": call stack exhausted"}
	case errors.As(err, &ex):
		return &callError{text: what + ": " + withLogged(ex.Error(), s.loggedError)}
	}
	return &callError{text: what + ": " + withLogged(firstLine(err).Error(), s.loggedError)}
}

// checkTime makes a call that was late fail, although it has ended.
func (s *sandbox) checkTime(c *call) {
	if s.late() && c.err == nil {
		c.err = &callError{cause: errLate, text: fmt.Sprintf("%s: %s: %d ms of CPU time", opName(c.op), errLate, c.limit.Milliseconds())}
	}
}

func (s *sandbox) late() bool { return s.watch != nil && s.watch.Late() }

// ensureBuffer makes b at least n bytes long and subtracts the fuel used from budget.
func (s *sandbox) ensureBuffer(b *buffer, n int, budget *int64) error {
	if b.size != 0 && n <= int(b.size) {
		return nil
	}
	// With room for growth: guests never free the previous buffer.
	size := uint64(max(n+n/2, 4096)+7) &^ 7
	if size > uint64(s.l.limits.MemoryPages)<<16 {
		return fmt.Errorf("sluice_alloc: %d bytes exceed the memory limit of the guest", size)
	}
	at, err := s.allocate(uint32(size), budget)
	if err != nil {
		return err
	}
	*b = buffer{at, uint32(size)}
	return nil
}

// allocate calls sluice_alloc and checks the address.
func (s *sandbox) allocate(size uint32, budget *int64) (uint32, error) {
	s.args[0] = uint64(size)
	if err := s.call(s.alloc, "sluice_alloc", budget); err != nil {
		return 0, err
	}
	at := uint32(s.args[0])
	if _, ok := s.memory.Read(at, size); !ok || at == 0 || at%8 != 0 {
		return 0, fmt.Errorf("sluice_alloc(%d) returned %d: not an 8-byte aligned address within its %d bytes of memory", size, at, s.memory.Size())
	}
	return at, nil
}

// view returns the content of b. It is invalid after the next call of the guest.
func (s *sandbox) view(b buffer) []byte {
	v, _ := s.memory.Read(b.ptr, b.size) // memory never shrinks
	return v
}

func (s *sandbox) fuelLeft() int64 { return int64(s.fuel.Get()) }

// charge takes fuel for work of the host on behalf of the guest, before that work. It ends a guest that has no fuel left or is
// late.
func (s *sandbox) charge(n int64) {
	left := s.fuelLeft() - n
	s.fuel.Set(uint64(left))
	switch {
	case left < 0:
		panic(errNoFuel)
	case s.late():
		panic(errLate)
	}
}

// alive implements instance.
func (s *sandbox) alive() bool { return true }

// close implements instance.
func (s *sandbox) close() {
	if s.module != nil {
		_ = s.module.Close(context.Background()) // only frees memory
		s.module = nil
	}
	if s.linear != nil {
		s.linear.Free()
		s.linear = nil
	}
}

// withLogged appends an error that the guest has logged, if any.
func withLogged(text, logged string) string {
	if logged == "" {
		return text
	}
	return text + ": " + strconv.Quote(logged)
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

package wasm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/lane"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// A message in a lane has 1 to messageCalls calls, its answer as many results; both are padded to 8 bytes. Sluice believes
// nothing of an answer: it copies it out of the memory, which the process may write at any time, and each number has a range.
//
//	call:   op, instance, handle, flags, room, length of input, 4 addresses: 32 bits each; fuel, limit in ns, memory to leave: 64 bits each; input
//	result: status, stage, needs, refused, dropped, number of lines, lengths of error, logged error, lines and output: 32 bits each;
//	        value, fuel, size: 64 bits each; error, logged error, lines (level, length: 32 bits each; text), output
const (
	messageCalls = 64
	callHead     = 64
	resultHead   = 64
)

// Operations of a process, beside those of an instance.
const (
	opOpen   op = 100 + iota // makes the instance
	opDrop                   // closes it
	opForget                 // see engine.forget
)

// Numbers in the header of a lane.
const (
	numberCalls  = iota // in the message
	numberAnswer        // length of the answer
	numberBudget        // bytes that the instances of the process may have together
	numberMemory        // bytes that they have
)

// Statuses of a result.
const (
	statusOK = iota
	statusFailed
	statusNoFuel
	statusLate
	statusMemory // value: the bytes that are missing
	statusSkipped
)

// Bounds of what a result may contain.
const (
	otherAnswer = 64 << 10 // bytes besides the output
	maxLogged   = 48 << 10 // bytes of lines, with their heads; more are dropped
	maxLines    = 1024     // more than Limits.LogLines of each function that opConfigure calls
	maxLineText = 4 * abi.MaxLogLen
	maxCodeSize = 1 << 40
)

var errMessage = errors.New("the process of the plugin has answered with a message that is not valid")

func align(n int) int { return (n + 7) &^ 7 }

// appendCall appends a call to a message.
func appendCall(b []byte, instance uint32, leave int64, c *call) []byte {
	le := binary.LittleEndian
	flags := uint32(0)
	if c.given {
		flags = 1
	}
	for _, v := range []uint32{uint32(c.op), instance, c.handle, flags, uint32(c.room), uint32(len(c.input)), c.addresses[0], c.addresses[1], c.addresses[2], c.addresses[3]} {
		b = le.AppendUint32(b, v)
	}
	for _, v := range []int64{c.fuel, int64(c.limit), leave} {
		b = le.AppendUint64(b, uint64(v))
	}
	b = append(b, c.input...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

// parseCall returns the first call of a message, whose input is part of it, and the rest. The process trusts sluice, so what is
// not valid ends it.
func parseCall(b []byte, c *call) (instance uint32, leave int64, rest []byte, err error) {
	le := binary.LittleEndian
	if len(b) < callHead {
		return 0, 0, nil, errors.New("message: too short")
	}
	length := int(le.Uint32(b[20:]))
	if length > len(b)-callHead {
		return 0, 0, nil, errors.New("message: too short")
	}
	*c = call{op: op(le.Uint32(b)), handle: le.Uint32(b[8:]), given: le.Uint32(b[12:]) != 0, room: int(le.Uint32(b[16:])),
		addresses: [4]uint32{le.Uint32(b[24:]), le.Uint32(b[28:]), le.Uint32(b[32:]), le.Uint32(b[36:])},
		fuel:      int64(le.Uint64(b[40:])), limit: time.Duration(le.Uint64(b[48:])), input: b[callHead:][:length]}
	return le.Uint32(b[4:]), int64(le.Uint64(b[56:])), b[min(len(b), callHead+align(length)):], nil
}

// appendResult appends the results of a call to an answer. An output that does not fit is an error.
func appendResult(b []byte, room int, c *call) []byte {
	le := binary.LittleEndian
	status, value, text := uint32(statusOK), c.value, ""
	lines := 0
	for i, l := range c.lines {
		if lines+8+len(l.text) > maxLogged {
			c.dropped += len(c.lines) - i
			c.lines = c.lines[:i]
			break
		}
		lines += 8 + len(l.text)
	}
	if c.err == nil && resultHead+len(c.loggedError)+lines+len(c.out)+8 > min(room, c.room+otherAnswer) {
		c.err = fmt.Errorf("an answer of %d bytes does not fit", len(c.out))
	}
	if c.skipped {
		status = statusSkipped
	}
	if c.err != nil {
		status, text, c.out = statusFailed, meter.Printable(c.err.Error(), 2*maxErrorText), nil
		var memory *MemoryError
		switch {
		case errors.As(c.err, &memory):
			status, value, text = statusMemory, memory.Bytes, memory.What
		case errors.Is(c.err, errNoFuel):
			status = statusNoFuel
		case errors.Is(c.err, errLate):
			status = statusLate
		}
	}
	refused := uint32(0)
	if c.refused {
		refused = 1
	}
	for _, v := range []uint32{status, uint32(c.stage), c.needs, refused, uint32(c.dropped), uint32(len(c.lines)), uint32(len(text)), uint32(len(c.loggedError)),
		uint32(lines), uint32(len(c.out))} {
		b = le.AppendUint32(b, v)
	}
	for _, v := range []int64{value, c.used, c.size} {
		b = le.AppendUint64(b, uint64(v))
	}
	b = append(append(b, text...), c.loggedError...)
	for _, l := range c.lines {
		b = le.AppendUint32(le.AppendUint32(b, l.level), uint32(len(l.text)))
		b = append(b, l.text...)
	}
	b = append(b, c.out...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

// parseResult sets the results of a call from the first result of an answer, and returns the rest. b is a copy, which belongs to
// the call. Any bytes are possible.
func parseResult(b []byte, c *call) (rest []byte, err error) {
	le := binary.LittleEndian
	if len(b) < resultHead {
		return nil, errMessage
	}
	var n [10]uint32
	for i := range n {
		n[i] = le.Uint32(b[4*i:])
	}
	status, lines := n[0], int(n[5])
	var big [3]int64
	for i := range big {
		big[i] = int64(le.Uint64(b[40+8*i:]))
	}
	body := b[resultHead:]
	take := func(length uint32) []byte {
		if err != nil || uint64(length) > uint64(len(body)) {
			err = errMessage
			return nil
		}
		part := body[:length:length]
		body = body[length:]
		return part
	}
	text, logged := take(n[6]), take(n[7])
	logs, out := take(n[8]), take(n[9])
	if err != nil || n[1] > stageDone || lines > maxLines || len(text) > 8*maxErrorText || len(logged) > maxLineText || big[1] < 0 || big[1] > max(c.fuel, 0) ||
		big[2] < 0 || big[2] > math.MaxUint32+1 {
		return nil, errMessage
	}
	c.lines = c.lines[:0]
	for range lines {
		if len(logs) < 8 {
			return nil, errMessage
		}
		level, length := le.Uint32(logs), le.Uint32(logs[4:])
		if logs = logs[8:]; length > maxLineText || uint64(length) > uint64(len(logs)) {
			return nil, errMessage
		}
		c.lines = append(c.lines, line{level, sanitize(logs[:length])})
		logs = logs[length:]
	}
	c.stage, c.needs, c.refused, c.dropped = int(n[1]), n[2], n[3] != 0, int(min(n[4], 1<<20))
	c.value, c.used, c.size, c.out, c.loggedError = big[0], big[1], big[2], out, sanitize(logged)
	switch what := meter.Printable(string(text), 2*maxErrorText); status {
	case statusOK:
		c.err = nil
	case statusSkipped:
		c.skipped = true
		return b[min(len(b), align(len(b)-len(body))):], nil
	case statusMemory:
		c.err = &MemoryError{What: what, Bytes: min(max(c.value, 0), 1<<40)}
	case statusNoFuel:
		c.err = &callError{cause: errNoFuel, text: what}
	case statusLate:
		c.err = &callError{cause: errLate, text: what}
	case statusFailed:
		c.err = &callError{text: what}
	default:
		return nil, errMessage
	}
	if c.err == nil && !validOutput(c) {
		return nil, errMessage
	}
	return b[min(len(b), align(len(b)-len(body))):], nil
}

// validOutput reports whether an output is one that the operation may have.
func validOutput(c *call) bool {
	n := int64(len(c.out))
	switch c.op {
	case opDecide:
		return n <= int64(c.room) && (c.value < 0 || c.value > int64(c.room) || c.value == n)
	case opRead:
		return n == int64(c.room)
	case opConfigure:
		return n <= abi.MaxKeysLen && c.value <= math.MaxInt32 && c.value >= math.MinInt32
	case opVersion:
		return n == 0
	case opAlloc, opSize:
		return n == 0 && c.value >= 0 && c.value <= math.MaxUint32
	}
	return n == 0
}

// fits reports whether a call and its answer fit into a lane.
func fits(c *call) error {
	const others = 1 << 20 // lines and errors
	if need := callHead + len(c.input) + 8; need > lane.Request {
		return fmt.Errorf("request: %d bytes, the limit is %d", need, lane.Request)
	}
	if c.room > lane.Answer-others {
		return fmt.Errorf("answer: room for %d bytes, the limit is %d", c.room, lane.Answer-others)
	}
	return nil
}

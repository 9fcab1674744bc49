package wasm

import (
	"encoding/binary"
	"fmt"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Error numbers of WASI preview 1.
const (
	errnoSuccess = 0
	errnoBadf    = 8
	errnoInval   = 28
)

const (
	fixedTime  = 1_000_000_000 // ns: one second after the epoch; Go's runtime does not accept 0
	maxVectors = 64            // of one fd_write
	maxPolls   = 64            // subscriptions of one poll_oneoff
)

// procExit is the panic value by which proc_exit ends the guest.
type procExit struct{ code uint32 }

func (e procExit) Error() string { return fmt.Sprintf("called proc_exit(%d)", e.code) }

func returnErrno(errno uint64) func(*sandbox, []uint64) {
	return func(_ *sandbox, stack []uint64) { stack[0] = errno }
}

// wasiNoSizes returns a count of 0 and a size of 0 bytes.
func wasiNoSizes(s *sandbox, stack []uint64) {
	s.put32(uint32(stack[0]), 0)
	s.put32(uint32(stack[1]), 0)
	stack[0] = errnoSuccess
}

func wasiClockRes(s *sandbox, stack []uint64) {
	s.put64(uint32(stack[1]), 1)
	stack[0] = errnoSuccess
}

func wasiClock(s *sandbox, stack []uint64) {
	s.put64(uint32(stack[2]), fixedTime)
	stack[0] = errnoSuccess
}

// wasiFdstat reports 0, 1 and 2 as character devices without rights; other descriptors do not exist.
func wasiFdstat(s *sandbox, stack []uint64) {
	if uint32(stack[0]) > 2 {
		stack[0] = errnoBadf
		return
	}
	b := s.read(uint32(stack[1]), 24)
	clear(b)
	b[0] = 2
	stack[0] = errnoSuccess
}

// wasiWrite sends standard output and standard error to the log.
func wasiWrite(s *sandbox, stack []uint64) {
	fd, at, n := uint32(stack[0]), uint32(stack[1]), uint32(stack[2])
	level := uint32(abi.LogInfo)
	switch {
	case fd == 2:
		level = abi.LogError
	case fd != 1:
		stack[0] = errnoBadf
		return
	}
	if n > maxVectors {
		stack[0] = errnoInval
		return
	}
	var total uint64
	for i := range n {
		v := s.read(at+8*i, 8)
		size := le32(v[4:])
		total += uint64(size)
		used := min(size, abi.MaxLogLen)
		s.charge(fuelItem + int64(used)*fuelByte)
		s.writeStream(level, s.read(le32(v), used))
	}
	s.put32(uint32(stack[3]), uint32(total))
	stack[0] = errnoSuccess
}

// wasiPoll reports at once that all events have happened. No time passes, so a guest that sleeps runs out of fuel.
func wasiPoll(s *sandbox, stack []uint64) {
	in, out, n := uint32(stack[0]), uint32(stack[1]), uint32(stack[2])
	if n == 0 || n > maxPolls {
		stack[0] = errnoInval
		return
	}
	s.charge(int64(n) * fuelItem)
	for i := range n {
		sub := s.read(in+48*i, 48)
		var event [32]byte
		copy(event[:8], sub[:8]) // userdata
		event[10] = sub[8]       // type
		copy(s.read(out+32*i, 32), event[:])
	}
	s.put32(uint32(stack[3]), n)
	stack[0] = errnoSuccess
}

func wasiExit(_ *sandbox, stack []uint64) { panic(procExit{uint32(stack[0])}) }

// wasiRandom returns the same pseudo-random numbers in every instance.
func wasiRandom(s *sandbox, stack []uint64) {
	at, n := uint32(stack[0]), uint32(stack[1])
	s.charge(int64(n) * fuelByte)
	b := s.read(at, n)
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, s.random.Uint64())
		b = b[8:]
	}
	for v := s.random.Uint64(); len(b) > 0; b, v = b[1:], v>>8 {
		b[0] = byte(v)
	}
	stack[0] = errnoSuccess
}

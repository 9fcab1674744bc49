package wasm

import "github.com/sluice-proxy/sluice/host/plugin/wasm/meter"

// trimEvery is after how many calls an instance gets new call stacks, so that a deep recursion does not leave its stack for ever.
const trimEvery = 256

// Bytes that the engine allocates in an instance for an element of a table, and for one of a segment: the reference and what it
// refers to.
const (
	tableElementBytes   = 8
	segmentElementBytes = 48
)

// overheadBytes is the host memory of an instance besides its linear memory, without call stacks, which the meter bounds: tables
// that have grown as far as they can. Nothing else that a guest does allocates there.
func overheadBytes(info *meter.Info) int64 {
	return int64(info.TableMax)*tableElementBytes + int64(info.Elements)*segmentElementBytes
}

// hostBytes implements instance.
func (s *sandbox) hostBytes() int64 { return s.linear.size + overheadBytes(s.l.info) }

// bind looks up the functions that are called often. Each has a call stack of its own.
func (s *sandbox) bind() {
	s.decide, s.alloc = s.module.ExportedFunction("sluice_decide"), s.module.ExportedFunction("sluice_alloc")
}

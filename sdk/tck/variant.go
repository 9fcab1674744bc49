package tck

import (
	"encoding/binary"
	"slices"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Variant says how Rewrite changes the form of a request without changing what it says: whatever ABI.md leaves to the host. A
// guest must answer each variant like the original.
type Variant struct {
	Minor   uint16                 // added to the minor version
	Widen   int                    // bytes that a later minor version appends to the header and to each record; a multiple of 8
	Reverse bool                   // sections and the string table in reverse order, with gaps
	Empty   bool                   // empty sections have offsets outside of the request
	Bits    bool                   // bits of conditions and policy that are not defined are 1
	ID      func(id uint32) uint32 // renumbers strings; nil: as they are
}

// filler is what gaps and appended fields contain.
const filler = 0xA5

// section is a section of a request.
type section struct {
	data         []byte
	offset       int // of its offset in the header
	count        int
	size, stride int // of records; 0: bytes
}

// Rewrite returns a variant of a request of this version, as abi.Encoder returns it.
func Rewrite(wire []byte, v Variant) []byte {
	le := binary.LittleEndian
	at := func(field int) int { return int(le.Uint32(wire[field:])) }
	id := v.ID
	if id == nil {
		id = func(id uint32) uint32 { return id }
	}
	renumber := func(b []byte, fields ...int) {
		for _, f := range fields {
			if n := le.Uint32(b[f:]); n != abi.NoString && n != abi.AbsentString {
				le.PutUint32(b[f:], id(n))
			}
		}
	}
	widened := abi.ReqSize + v.Widen
	out := append(slices.Clone(wire[:abi.ReqSize]), slices.Repeat([]byte{filler}, v.Widen)...)
	le.PutUint16(out[abi.ReqMinor:], le.Uint16(out[abi.ReqMinor:])+v.Minor)
	le.PutUint32(out[abi.ReqHeaderLength:], uint32(widened))
	renumber(out, abi.ReqNamespace, abi.ReqService, abi.ReqPortName, abi.ReqNode, abi.ReqZone)
	if v.Bits {
		out[abi.ReqPolicy] |= 0xFC
	}

	records := func(offset, size int, change func(record []byte)) section {
		s := section{offset: offset, count: at(offset + 4), size: at(offset + 8), stride: at(offset+8) + v.Widen}
		if s.size == 0 {
			s.size, s.stride = size, size+v.Widen
		}
		for i := range s.count {
			r := slices.Clone(wire[at(offset)+i*s.size:][:s.size])
			change(r)
			s.data = append(append(s.data, r...), slices.Repeat([]byte{filler}, v.Widen)...)
		}
		return s
	}
	bytesOf := func(offset, n int) section {
		return section{offset: offset, data: slices.Clone(wire[at(offset)*min(n, 1):][:n])}
	}
	endpoints := records(abi.ReqEndpointsOffset, abi.EndpointSize, func(r []byte) {
		renumber(r, abi.EndpointNode, abi.EndpointZone, abi.EndpointPod)
		if v.Bits {
			le.PutUint32(r[abi.EndpointConditions:], le.Uint32(r[abi.EndpointConditions:])|0xFFFFFE00)
		}
	})
	zones := records(abi.ReqZonesOffset, abi.ZoneSize, func(r []byte) { renumber(r, abi.ZoneName) })
	outcomes := records(abi.ReqOutcomesOffset, abi.OutcomesSize, func([]byte) {})
	values := records(abi.ReqValuesOffset, 0, func(r []byte) {
		for k := range at(abi.ReqPodKeys) {
			renumber(r, k*abi.ValueSize)
		}
	})
	groups := records(abi.ReqGroupsOffset, abi.GroupSize, func([]byte) {})
	states := records(abi.ReqStatesOffset, abi.MaxEndpointState, func([]byte) {})
	services := bytesOf(abi.ReqServiceValuesOffset, at(abi.ReqServiceValuesCount)*abi.ValueSize)
	for k := range at(abi.ReqServiceValuesCount) {
		renumber(services.data, k*abi.ValueSize)
	}
	state := bytesOf(abi.ReqStateOffset, at(abi.ReqStateLength))
	table := records(abi.ReqStringsOffset, abi.StringSize, func(r []byte) { renumber(r, abi.StringID) })
	if v.Reverse {
		table.data = reverseRecords(table.data, table.stride)
	}

	sections := []*section{&endpoints, &zones, &outcomes, &values, &services, &groups, &states, &state, &table}
	if v.Reverse {
		slices.Reverse(sections)
	}
	for _, s := range sections {
		if v.Reverse {
			out = append(out, slices.Repeat([]byte{filler}, 16)...)
		}
		offset := uint32(len(out))
		if len(s.data) == 0 && v.Empty {
			offset = 0xFFFFFFF8
		}
		le.PutUint32(out[s.offset:], offset)
		if s.stride > 0 {
			le.PutUint32(out[s.offset+8:], uint32(s.stride))
		}
		out = append(out, s.data...)
		for len(out)%8 != 0 {
			out = append(out, 0)
		}
	}
	strings := int(le.Uint32(out[abi.ReqStringsOffset:]))
	for i := range table.count { // the texts go after everything else
		r := out[strings+i*table.stride:]
		from, n := int(le.Uint32(r[abi.StringOffset:])), int(le.Uint32(r[abi.StringLength:]))
		le.PutUint32(r[abi.StringOffset:], uint32(len(out)))
		out = append(out, wire[from:from+n]...)
	}
	for len(out)%8 != 0 {
		out = append(out, 0)
	}
	le.PutUint32(out[abi.ReqTotal:], uint32(len(out)))
	return out
}

func reverseRecords(b []byte, stride int) []byte {
	out := make([]byte, 0, len(b))
	for at := len(b) - stride; at >= 0; at -= stride {
		out = append(out, b[at:at+stride]...)
	}
	return out
}

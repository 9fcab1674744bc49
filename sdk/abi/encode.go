package abi

import (
	"encoding/binary"
	"slices"
)

// Encoder encodes requests for one guest instance and owns the string ids of that instance: a new instance needs a new or
// Reset Encoder. The zero value is ready to use. An Encoder is used by one goroutine at a time.
type Encoder struct {
	interner interner
}

// Reset clears all string ids, for a new guest instance.
func (e *Encoder) Reset() { *e = Encoder{} }

// Full reports whether the instance has seen so many strings that it should be replaced, with a Reset Encoder. Encoding
// keeps working.
func (e *Encoder) Full() bool {
	return len(e.interner.known) >= maxStrings || e.interner.bytes >= maxStringBytes
}

// AppendRequest appends the wire form of req to dst. The length of dst must be a multiple of 8, in a buffer aligned to 8
// bytes. To encode into a guest's memory, pass its buffer with length 0 and clipped capacity: a result longer than that
// capacity was reallocated elsewhere, and the guest needs a larger buffer.
//
// The string table contains each string that the request uses, so a guest needs no cache. Encoding is deterministic: the
// same sequence of requests has the same bytes.
func (e *Encoder) AppendRequest(dst []byte, req *Request) []byte {
	t := &e.interner
	t.beginRequest()
	start := len(dst)
	endpoints := ReqSize
	zones := endpoints + len(req.Endpoints)*EndpointSize
	state := zones + len(req.Zones)*ZoneSize
	table := align(state + len(req.State))
	dst = slices.Grow(dst, table)[:start+table]
	b := dst[start:]

	for i := range req.Zones {
		if id := putZone((*[ZoneSize]byte)(b[zones+i*ZoneSize:]), &req.Zones[i], t); id != NoString && i < NoZone {
			t.zones[id] = uint16(i)
		}
	}
	for i := range req.Endpoints {
		putEndpoint((*[EndpointSize]byte)(b[endpoints+i*EndpointSize:]), &req.Endpoints[i], t)
	}
	clear(b[state+copy(b[state:], req.State):])

	h := (*[ReqSize]byte)(b)
	le := binary.LittleEndian
	le.PutUint32(h[ReqMagic:], RequestMagic)
	le.PutUint16(h[ReqMajor:], Major)
	le.PutUint16(h[ReqMinor:], Minor)
	le.PutUint32(h[ReqHeaderLength:], ReqSize)
	le.PutUint64(h[ReqNow:], uint64(req.Now))
	le.PutUint64(h[ReqGeneration:], req.Generation)
	le.PutUint32(h[ReqNamespace:], t.id(req.Namespace))
	le.PutUint32(h[ReqService:], t.id(req.Service))
	le.PutUint32(h[ReqPortName:], t.id(req.Port))
	le.PutUint32(h[ReqNode:], t.id(req.Node))
	zone := t.id(req.Zone)
	le.PutUint32(h[ReqZone:], zone)
	le.PutUint16(h[ReqPort:], req.PortNumber)
	h[ReqProtocol], h[ReqFamily], h[ReqPool], h[ReqPolicy] = req.Protocol, req.Family, req.Pool, policyBits(req)
	le.PutUint16(h[ReqZoneIndex:], t.zone(zone))
	clear(h[ReqZoneIndex+2 : ReqSessionAffinity])
	le.PutUint64(h[ReqSessionAffinity:], uint64(req.SessionAffinityMS))
	putArea(h[ReqEndpointsOffset:], endpoints, len(req.Endpoints), EndpointSize)
	putArea(h[ReqZonesOffset:], zones, len(req.Zones), ZoneSize)
	le.PutUint32(h[ReqStateOffset:], uint32(state))
	le.PutUint32(h[ReqStateLength:], uint32(len(req.State)))
	clear(h[ReqStateLength+4:])

	for i := range req.Zones {
		if id := le.Uint32(b[zones+i*ZoneSize+ZoneName:]); id != NoString {
			t.zones[id] = NoZone
		}
	}
	putArea(h[ReqStringsOffset:], table, len(t.used), StringSize)
	dst = appendStrings(dst, start, t)
	le.PutUint32(dst[start+ReqTotal:], uint32(len(dst)-start))
	return dst
}

func putEndpoint(r *[EndpointSize]byte, e *Endpoint, t *interner) {
	le := binary.LittleEndian
	addr := e.Addr.Addr().As16()
	zone, node, metadata := t.id(e.Zone), t.id(e.Node), uint32(NoString)
	if e.Metadata != "" {
		metadata = t.id(e.Metadata)
	}
	// In words of eight bytes, the address too: loading a word that was just stored in halves stalls the CPU.
	le.PutUint64(r[EndpointAddr:], le.Uint64(addr[:8]))
	le.PutUint64(r[EndpointAddr+8:], le.Uint64(addr[8:]))
	le.PutUint64(r[EndpointPort:], uint64(e.Addr.Port())|uint64(t.zone(zone))<<16|uint64(e.Conditions)<<32)
	le.PutUint64(r[EndpointNode:], uint64(node)|uint64(zone)<<32)
	le.PutUint64(r[EndpointWeight:], uint64(e.Weight)|uint64(uint32(e.PriorWeight))<<32)
	le.PutUint64(r[EndpointReadySince:], uint64(e.ReadySince))
	le.PutUint64(r[EndpointTerminatingSince:], uint64(e.TerminatingSince))
	le.PutUint64(r[EndpointConnections:], uint64(e.Connections)|uint64(metadata)<<32)
}

func putZone(r *[ZoneSize]byte, z *Zone, t *interner) (id uint32) {
	le := binary.LittleEndian
	id = t.id(z.Name)
	le.PutUint32(r[ZoneName:], id)
	le.PutUint32(r[ZoneNodes:], z.Nodes)
	le.PutUint64(r[ZoneReady:], uint64(z.Ready)) // and the 4 zero bytes after it
	le.PutUint64(r[ZoneMilliCPU:], z.MilliCPU)
	return id
}

// appendStrings appends the records of the strings in use, followed by their texts.
func appendStrings(dst []byte, start int, t *interner) []byte {
	table := len(dst)
	text := table + len(t.used)*StringSize
	end := start + align(text+t.size-start)
	dst = slices.Grow(dst, end-table)[:end]
	records := dst[table:text]
	le := binary.LittleEndian
	for i, id := range t.used {
		k := &t.known[id]
		n := len(k.text)
		r := (*[StringSize]byte)(records[i*StringSize:])
		le.PutUint64(r[StringID:], uint64(id)|uint64(text-start)<<32)
		le.PutUint64(r[StringLength:], uint64(n)) // and the 4 zero bytes after it
		if n <= 16 && text+16 <= end {
			short := (*[16]byte)(dst[text:]) // excess bytes are zero or overwritten by the next text
			le.PutUint64(short[:8], k.lo)
			le.PutUint64(short[8:], k.hi)
		} else {
			copy(dst[text:], k.text)
		}
		text += n
	}
	clear(dst[text:])
	return dst
}

func putArea(b []byte, offset, count, stride int) {
	binary.LittleEndian.PutUint32(b, uint32(offset))
	binary.LittleEndian.PutUint32(b[4:], uint32(count))
	binary.LittleEndian.PutUint32(b[8:], uint32(stride))
}

func policyBits(req *Request) (bits uint8) {
	if req.InternalPolicyLocal {
		bits |= PolicyInternalLocal
	}
	if req.ExternalPolicyLocal {
		bits |= PolicyExternalLocal
	}
	return bits
}

func align(n int) int { return (n + 7) &^ 7 }

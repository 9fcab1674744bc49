//go:build !wasip1

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

// View is what one plugin sees of a request.
type View struct {
	Role     Role     // of the module
	Settings uint32   // handle that sluice_configure returned, or NoSettings
	Needs    uint32   // inputs that the plugin does not need are left out
	Keys     []string // that the plugin has declared for these settings, at most MaxKeys
}

// columns are the indices of the values of a plugin's keys in Endpoint.Values and Request.ServiceValues, or -1.
type columns struct {
	pod, service   [MaxKeys]int16
	pods, services int
}

// columnsOf finds a plugin's keys among those of the request, which are the keys of all plugins of the chain.
func columnsOf(keys, declared []string) (c columns) {
	for _, k := range declared[:min(len(declared), MaxKeys)] {
		ofEndpoint, at, found := IsEndpointKey(k), int16(0), int16(-1)
		for _, other := range keys {
			if other == k {
				found = at
				break
			}
			if IsEndpointKey(other) == ofEndpoint {
				at++
			}
		}
		if ofEndpoint {
			c.pod[c.pods] = found
			c.pods++
		} else {
			c.service[c.services] = found
			c.services++
		}
	}
	return c
}

// AppendRequest appends the wire form of what a plugin sees of req to dst. The length of dst must be a multiple of 8, in a buffer
// aligned to 8 bytes. To encode into a guest's memory, pass its buffer with length 0 and clipped capacity: a result longer than
// that capacity was reallocated elsewhere, and the guest needs a larger buffer.
//
// The string table contains each string that the request uses, so a guest needs no cache. Encoding is deterministic: the
// same sequence of requests has the same bytes.
func (e *Encoder) AppendRequest(dst []byte, req *Request, v View) []byte {
	t := &e.interner
	t.beginRequest()
	start := len(dst)
	endpoints := ReqSize
	zones := endpoints + len(req.Endpoints)*EndpointSize
	state := zones + len(req.Zones)*ZoneSize
	var outcomes, values, services, groups, states area
	var c columns
	if v.Needs&NeedOutcomes != 0 && req.OutcomesWindowMS != 0 {
		outcomes = area{state, len(req.Endpoints), OutcomesSize}
		state += outcomes.size()
	}
	if len(v.Keys) > 0 {
		c = columnsOf(req.Keys, v.Keys)
		if c.pods > 0 {
			values = area{state, len(req.Endpoints), ValuesStride(c.pods)}
			state += values.size()
		}
		services = area{state, c.services, ValueSize}
		state = align(state + services.size())
	}
	if len(req.Groups) > 0 {
		groups = area{state, len(req.Groups), GroupSize}
		state += groups.size()
	}
	if n := len(req.Endpoints); v.Needs&NeedEndpointState != 0 && n > 0 && len(req.EndpointStates) == n*MaxEndpointState {
		states = area{state, n, MaxEndpointState}
		state += states.size()
	}
	table := align(state + len(req.State))
	dst = slices.Grow(dst, table)[:start+table]
	b := dst[start:]

	zoned, named := v.Needs&NeedNodes != 0, v.Needs&NeedPodNames != 0
	for i := range req.Zones {
		if id := putZone((*[ZoneSize]byte)(b[zones+i*ZoneSize:]), &req.Zones[i], zoned, t); id != NoString && i < NoZone {
			t.zones[id] = uint16(i)
		}
	}
	uncounted := uint32(ConnectionsUnknown)
	if v.Needs&NeedConnections != 0 {
		uncounted = 0
	}
	for i := range req.Endpoints {
		putEndpoint((*[EndpointSize]byte)(b[endpoints+i*EndpointSize:]), &req.Endpoints[i], uncounted, named, t)
	}
	if outcomes.count > 0 {
		for i := range req.Endpoints {
			putOutcomes((*[OutcomesSize]byte)(b[outcomes.offset+i*OutcomesSize:]), &req.Endpoints[i].Outcomes)
		}
	}
	for i := range values.count {
		putValues(b[values.offset+i*values.stride:][:values.stride], req.Endpoints[i].Values, c.pod[:c.pods], t)
	}
	if services.count > 0 {
		putValues(b[services.offset:][:align(services.size())], req.ServiceValues, c.service[:c.services], t)
	}
	for i, part := range req.Groups {
		binary.LittleEndian.PutUint64(b[groups.offset+i*GroupSize:], uint64(part)) // and the 4 zero bytes after it
	}
	copy(b[states.offset:][:states.size()], req.EndpointStates)
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
	le.PutUint32(h[ReqSettings:], v.Settings)
	le.PutUint64(h[ReqSessionAffinity:], uint64(req.SessionAffinityMS))
	area{endpoints, len(req.Endpoints), EndpointSize}.put(h[ReqEndpointsOffset:])
	area{zones, len(req.Zones), ZoneSize}.put(h[ReqZonesOffset:])
	le.PutUint32(h[ReqStateOffset:], uint32(state))
	le.PutUint32(h[ReqStateLength:], uint32(len(req.State)))
	index, count := uint32(NoIndex), uint32(0)
	if zoned {
		index, count = req.NodeIndex, req.NodeCount
	}
	le.PutUint32(h[ReqNodeIndex:], index)
	le.PutUint32(h[ReqNodeCount:], count)
	le.PutUint32(h[ReqConnectionsAge:], req.ConnectionsAgeMS|uncounted)
	window := uint32(0)
	if v.Needs&NeedOutcomes != 0 {
		window = req.OutcomesWindowMS
	}
	le.PutUint32(h[ReqOutcomesWindow:], window)
	outcomes.put(h[ReqOutcomesOffset:])
	values.put(h[ReqValuesOffset:])
	le.PutUint32(h[ReqPodKeys:], uint32(c.pods))
	le.PutUint32(h[ReqServiceValuesOffset:], uint32(services.offset))
	le.PutUint32(h[ReqServiceValuesCount:], uint32(services.count))
	groups.put(h[ReqGroupsOffset:])
	le.PutUint32(h[ReqRole:], uint32(v.Role))
	states.put(h[ReqStatesOffset:])
	le.PutUint32(h[ReqStatesStride+4:], 0)

	for i := range req.Zones {
		if id := le.Uint32(b[zones+i*ZoneSize+ZoneName:]); id != NoString {
			t.zones[id] = NoZone
		}
	}
	area{table, len(t.used), StringSize}.put(h[ReqStringsOffset:])
	dst = appendStrings(dst, start, t)
	le.PutUint32(dst[start+ReqTotal:], uint32(len(dst)-start))
	return dst
}

// putEndpoint writes an endpoint. uncounted is ConnectionsUnknown if the plugin does not need connections, else 0; named is
// whether it needs names of Pods.
func putEndpoint(r *[EndpointSize]byte, e *Endpoint, uncounted uint32, named bool, t *interner) {
	le := binary.LittleEndian
	addr := e.Addr.Addr().As16()
	zone, node, pod := t.id(e.Zone), t.id(e.Node), uint32(NoString)
	if named {
		pod = t.id(e.Pod)
	}
	// In words of eight bytes, the address too: loading a word that was just stored in halves stalls the CPU.
	le.PutUint64(r[EndpointAddr:], le.Uint64(addr[:8]))
	le.PutUint64(r[EndpointAddr+8:], le.Uint64(addr[8:]))
	le.PutUint64(r[EndpointPort:], uint64(e.Addr.Port())|uint64(t.zone(zone))<<16|uint64(e.Conditions)<<32)
	le.PutUint64(r[EndpointNode:], uint64(node)|uint64(zone)<<32)
	le.PutUint64(r[EndpointCapacity:], uint64(e.Capacity)|uint64(e.Share)<<32)
	le.PutUint64(r[EndpointReadySince:], uint64(e.ReadySince))
	le.PutUint64(r[EndpointTerminatingSince:], uint64(e.TerminatingSince))
	le.PutUint64(r[EndpointConnections:], uint64(e.Connections|uncounted)|uint64(pod)<<32)
	le.PutUint64(r[EndpointPriorWeight:], uint64(uint32(e.PriorWeight))|uint64(e.Group)<<32)
}

func putZone(r *[ZoneSize]byte, z *Zone, zoned bool, t *interner) (id uint32) {
	le := binary.LittleEndian
	id = t.id(z.Name)
	nodes, cpu := uint32(0), uint64(0)
	if zoned {
		nodes, cpu = z.Nodes, z.MilliCPU
	}
	le.PutUint64(r[ZoneName:], uint64(id)|uint64(nodes)<<32)
	le.PutUint64(r[ZoneReady:], uint64(z.Ready)|uint64(z.Serving)<<32)
	le.PutUint64(r[ZoneTotal:], uint64(z.Total)) // and the 4 zero bytes after it
	le.PutUint64(r[ZoneMilliCPU:], cpu)
	return id
}

func putOutcomes(r *[OutcomesSize]byte, o *Outcomes) {
	le := binary.LittleEndian
	le.PutUint32(r[OutcomesAttempts:], o.Attempts)
	le.PutUint32(r[OutcomesAnswered:], o.Answered)
	le.PutUint32(r[OutcomesRefused:], o.Refused)
	le.PutUint32(r[OutcomesUnanswered:], o.Unanswered)
	le.PutUint64(r[OutcomesTotalAttempts:], o.TotalAttempts)
	le.PutUint64(r[OutcomesTotalAnswered:], o.TotalAnswered)
	le.PutUint64(r[OutcomesTotalRefused:], o.TotalRefused)
	le.PutUint64(r[OutcomesTotalUnanswered:], o.TotalUnanswered)
	le.PutUint64(r[OutcomesSince:], uint64(o.Since))
}

// putValues writes the values of some columns, and zeros after them.
func putValues(r []byte, values []Value, columns []int16, t *interner) {
	for i, at := range columns {
		id := uint32(AbsentString)
		if at >= 0 && int(at) < len(values) && values[at].Present {
			id = t.id(values[at].Text)
		}
		binary.LittleEndian.PutUint32(r[i*ValueSize:], id)
	}
	clear(r[len(columns)*ValueSize:])
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

// area is a section of records.
type area struct{ offset, count, stride int }

func (a area) size() int { return a.count * a.stride }

func (a area) put(b []byte) {
	binary.LittleEndian.PutUint32(b, uint32(a.offset))
	binary.LittleEndian.PutUint32(b[4:], uint32(a.count))
	binary.LittleEndian.PutUint32(b[8:], uint32(a.stride))
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

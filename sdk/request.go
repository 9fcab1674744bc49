package sdk

import (
	"errors"
	"strconv"
	"unsafe"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// StringID identifies an interned string, such as the name of a zone: two strings are equal if and only if their IDs are. An
// ID is valid for the life of a plugin instance. A state must contain names, not IDs.
type StringID uint32

// NoString is the ID of the empty string, for example of an unknown zone.
const NoString StringID = abi.NoString

// absentString is the ID of a value that an object does not have.
const absentString StringID = abi.AbsentString

// Pool is one of the two sets of endpoints of a Service port; each is decided separately.
type Pool uint8

// The pools.
const (
	PoolCluster Pool = abi.PoolCluster // every endpoint
	PoolLocal   Pool = abi.PoolLocal   // endpoints on this node, for traffic policy Local
)

// Request describes a Service port and its endpoints. It is a view of memory that the next request
// overwrites.
type Request struct {
	base    unsafe.Pointer
	offset  uintptr // of the first endpoint
	stride  uintptr // from one to the next
	count   uint32  // of endpoints
	badText bool    // a text lies outside of the request

	// texts caches copies of texts by ID: IDs outlive a request.
	texts     map[StringID]string
	textBytes int
}

// maxTextBytes bounds the cache of texts.
const maxTextBytes = 2 << 20

// view makes r a view of the size bytes at p. It checks the header and the tables; later reads rely on these checks.
func (r *Request) view(p unsafe.Pointer, size uint64) error {
	if err := checkRequest(p, size); err != nil {
		return err
	}
	r.base, r.count, r.badText = p, u32(p, abi.ReqEndpointsCount), false
	r.offset, r.stride = uintptr(u32(p, abi.ReqEndpointsOffset)), uintptr(u32(p, abi.ReqEndpointsStride))
	return nil
}

// checkRequest validates a request of size bytes, which is at least the length of a header.
func checkRequest(p unsafe.Pointer, size uint64) error {
	if m := u32(p, abi.ReqMagic); m != abi.RequestMagic {
		return errors.New("request: magic is 0x" + strconv.FormatUint(uint64(m), 16) + ", not 0x" + strconv.FormatUint(abi.RequestMagic, 16))
	}
	if m := u16(p, abi.ReqMajor); m != abi.Major {
		return errors.New("request: ABI version is " + number(m) + "." + number(u16(p, abi.ReqMinor)) + ", not " + number(abi.Major))
	}
	if n := u32(p, abi.ReqTotal); uint64(n) != size {
		return errors.New("request: total length is " + number(n) + ", but it has " + number(size) + " bytes")
	}
	header := u32(p, abi.ReqHeaderLength)
	if header < abi.LeastRequest || uint64(header) > size {
		return errors.New("request: header length is " + number(header) + ", not " + number(abi.LeastRequest) + " to " + number(size))
	}
	if header >= abi.ReqSize {
		if err := checkTable(p, "states", header, abi.ReqStatesOffset, abi.MaxEndpointState); err != nil {
			return err
		}
		if n, endpoints := u32(p, abi.ReqStatesCount), u32(p, abi.ReqEndpointsCount); n != 0 && n != endpoints {
			return errors.New("request: states: " + number(n) + " records for " + number(endpoints) + " endpoints")
		}
	}
	for _, t := range [...]struct {
		name  string
		at    uintptr
		least uint32
	}{
		{"endpoints", abi.ReqEndpointsOffset, abi.EndpointSize},
		{"zones", abi.ReqZonesOffset, abi.ZoneSize},
		{"strings", abi.ReqStringsOffset, abi.StringSize},
		{"outcomes", abi.ReqOutcomesOffset, abi.OutcomesSize},
		{"values", abi.ReqValuesOffset, abi.ValueSize},
		{"groups", abi.ReqGroupsOffset, abi.GroupSize},
	} {
		if err := checkTable(p, t.name, header, t.at, t.least); err != nil {
			return err
		}
	}
	endpoints := u32(p, abi.ReqEndpointsCount)
	if n := u32(p, abi.ReqOutcomesCount); n != 0 && n != endpoints {
		return errors.New("request: outcomes: " + number(n) + " records for " + number(endpoints) + " endpoints")
	}
	if n := u32(p, abi.ReqValuesCount); n != 0 {
		if n != endpoints {
			return errors.New("request: values: " + number(n) + " records for " + number(endpoints) + " endpoints")
		}
		if keys, stride := u32(p, abi.ReqPodKeys), u32(p, abi.ReqValuesStride); keys > stride/abi.ValueSize {
			return errors.New("request: values: " + number(keys) + " values of " + number(abi.ValueSize) + " bytes are more than the stride of " + number(stride))
		}
	}
	if at, n := u32(p, abi.ReqServiceValuesOffset), u32(p, abi.ReqServiceValuesCount); n > 0 &&
		(at < header || at%8 != 0 || uint64(at)+abi.ValueSize*uint64(n) > size) {
		return errors.New("request: Service values: " + number(n) + " values at offset " + number(at) + " are not within " + number(header) + " to " + number(size))
	}
	at, n := u32(p, abi.ReqStateOffset), u32(p, abi.ReqStateLength)
	if n > 0 && (at < header || uint64(at)+uint64(n) > size) {
		return errors.New("request: state: " + number(n) + " bytes at offset " + number(at) + " are not within " + number(header) + " to " + number(size))
	}
	return nil
}

// checkTable checks that a table lies after the header and within the request. Its offset, count and stride are at
// offset at of the header.
func checkTable(p unsafe.Pointer, name string, header uint32, at uintptr, least uint32) error {
	offset, count, stride, total := u32(p, at), u32(p, at+4), u32(p, at+8), u32(p, abi.ReqTotal)
	if count == 0 {
		return nil
	}
	if stride < least || stride%8 != 0 {
		return errors.New("request: " + name + ": stride is " + number(stride) + ", not a multiple of 8 from " + number(least))
	}
	if offset < header || offset%8 != 0 || uint64(count) > (uint64(total)-min(uint64(offset), uint64(total)))/uint64(stride) {
		return errors.New("request: " + name + ": " + number(count) + " records of " + number(stride) + " bytes at offset " + number(offset) + " are not within " + number(header) + " to " + number(total))
	}
	return nil
}

// record returns record i, of what it is about, of the table whose offset, count and stride are at an offset of the header.
func (r *Request) record(table uintptr, what string, i int) unsafe.Pointer {
	if n := u32(r.base, table+4); uint(i) >= uint(n) {
		panic(outOfRange{what, i, int(n)})
	}
	return unsafe.Add(r.base, uintptr(u32(r.base, table))+uintptr(i)*uintptr(u32(r.base, table+8)))
}

// outOfRange is what a method panics with: index i of what there are n.
type outOfRange struct {
	what string
	i, n int
}

// Error implements error.
func (e outOfRange) Error() string {
	return "sdk: index out of range: " + e.what + " " + strconv.Itoa(e.i) + " of " + strconv.Itoa(e.n)
}

// Now returns the time of the request, rounded down to a second. It is the only clock of a plugin. Nobody can set it: the
// difference between two times is the time that has passed. It differs from the wall clock if that has been set since sluice was
// started; a restart corrects it.
func (r *Request) Now() Time { return Time(u64(r.base, abi.ReqNow)) }

// Generation returns a number that increases with each change of the input for this Service port and pool.
func (r *Request) Generation() uint64 { return u64(r.base, abi.ReqGeneration) }

// Namespace returns the namespace of the Service.
func (r *Request) Namespace() StringID { return StringID(u32(r.base, abi.ReqNamespace)) }

// Service returns the name of the Service.
func (r *Request) Service() StringID { return StringID(u32(r.base, abi.ReqService)) }

// Port returns the name of the Service port, NoString if it has none.
func (r *Request) Port() StringID { return StringID(u32(r.base, abi.ReqPortName)) }

// PortNumber returns the number of the Service port.
func (r *Request) PortNumber() uint16 { return u16(r.base, abi.ReqPort) }

// Protocol returns the IANA protocol number: 6 TCP, 17 UDP, 132 SCTP.
func (r *Request) Protocol() uint8 { return r.u8(abi.ReqProtocol) }

// Family returns the IP family of all endpoints: 4 or 6.
func (r *Request) Family() uint8 { return r.u8(abi.ReqFamily) }

// Pool returns which set of endpoints of the Service port this request is about.
func (r *Request) Pool() Pool { return Pool(r.u8(abi.ReqPool)) }

// InternalPolicyLocal reports whether the Service has internalTrafficPolicy: Local.
func (r *Request) InternalPolicyLocal() bool {
	return r.u8(abi.ReqPolicy)&abi.PolicyInternalLocal != 0
}

// ExternalPolicyLocal reports whether the Service has externalTrafficPolicy: Local.
func (r *Request) ExternalPolicyLocal() bool {
	return r.u8(abi.ReqPolicy)&abi.PolicyExternalLocal != 0
}

// SessionAffinityTimeout returns the timeout of ClientIP session affinity, 0 if the Service has none.
func (r *Request) SessionAffinityTimeout() Duration {
	return Duration(u64(r.base, abi.ReqSessionAffinity)) * Millisecond
}

// Node returns the name of this node.
func (r *Request) Node() StringID { return StringID(u32(r.base, abi.ReqNode)) }

// NodeZone returns the zone of this node, NoString if it is unknown.
func (r *Request) NodeZone() StringID { return StringID(u32(r.base, abi.ReqZone)) }

// NodeZoneIndex returns the index of this node's zone for Zone, or -1.
func (r *Request) NodeZoneIndex() int { return zoneIndex(u16(r.base, abi.ReqZoneIndex)) }

func zoneIndex(i uint16) int {
	if i == abi.NoZone {
		return -1
	}
	return int(i)
}

// NodeIndex returns the position of this node among the names of the Nodes that are ready, sorted, and their number. A node that
// is not ready has the position that it would have. known is false if they are unknown or without NeedNodes.
func (r *Request) NodeIndex() (index, count int, known bool) {
	i, n := u32(r.base, abi.ReqNodeIndex), u32(r.base, abi.ReqNodeCount)
	if i == abi.NoIndex || n == 0 {
		return 0, 0, false
	}
	return int(i), int(n), true
}

// State returns what this plugin last set for this Service port and pool, nil at first. It is valid until Decide
// returns.
func (r *Request) State() []byte {
	n := u32(r.base, abi.ReqStateLength)
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Add(r.base, u32(r.base, abi.ReqStateOffset))), n)
}

// EndpointState returns the MaxEndpointState bytes that this plugin last set for endpoint i, nil if it has set none, and without
// NeedEndpointState. It is valid until Decide returns. It panics if i is out of range.
func (r *Request) EndpointState(i int) []byte {
	if u32(r.base, abi.ReqHeaderLength) < abi.ReqSize { // a host of version 2.0
		return nil
	}
	p := r.row(abi.ReqStatesOffset, i)
	if p == nil {
		return nil
	}
	return unsafe.Slice((*byte)(p), abi.MaxEndpointState)
}

// NumEndpoints returns the number of endpoints.
func (r *Request) NumEndpoints() int { return int(r.count) }

// Endpoint returns endpoint i of NumEndpoints, eligible or not, in order of address. It panics if i is out of range.
func (r *Request) Endpoint(i int) Endpoint {
	if uint(i) >= uint(r.count) {
		panic(outOfRange{"endpoint", i, int(r.count)})
	}
	return Endpoint{unsafe.Add(r.base, r.offset+uintptr(i)*r.stride)}
}

// NumGroups returns the number of groups of endpoints that share the connections, at least 1.
func (r *Request) NumGroups() int { return max(1, int(u32(r.base, abi.ReqGroupsCount))) }

// GroupPart returns what group i of NumGroups gets of the connections, relative to the other groups; One without groups. It
// panics if i is out of range.
func (r *Request) GroupPart(i int) int {
	switch n := r.NumGroups(); {
	case uint(i) >= uint(n):
		panic(outOfRange{"group", i, n})
	case u32(r.base, abi.ReqGroupsCount) == 0:
		return One
	}
	return int(u32(r.record(abi.ReqGroupsOffset, "group", i), abi.GroupPart))
}

// NumZones returns the number of zones in the request: this node's, those of endpoints and, with NeedNodes, those of Nodes.
func (r *Request) NumZones() int { return int(u32(r.base, abi.ReqZonesCount)) }

// Zone returns zone i of NumZones, in order of name. It panics if i is out of range.
func (r *Request) Zone(i int) Zone {
	p := r.record(abi.ReqZonesOffset, "zone", i)
	return Zone{
		Name:     StringID(u32(p, abi.ZoneName)),
		Nodes:    u32(p, abi.ZoneNodes),
		Ready:    u32(p, abi.ZoneReady),
		Serving:  u32(p, abi.ZoneServing),
		Total:    u32(p, abi.ZoneTotal),
		MilliCPU: u64(p, abi.ZoneMilliCPU),
	}
}

// Zone is a zone of the cluster. Its endpoints are those of this Service port.
type Zone struct {
	Name     StringID // its name
	Nodes    uint32   // number of Nodes; 0 without NeedNodes
	Ready    uint32   // number of ready endpoints
	Serving  uint32   // number of serving endpoints, ready or not
	Total    uint32   // number of endpoints
	MilliCPU uint64   // allocatable CPU of its Nodes, in thousandths of a core; 0 without NeedNodes
}

func (r *Request) u8(at uintptr) uint8 { return *(*uint8)(unsafe.Add(r.base, at)) }

// Text returns the string that an ID of this request stands for, "" for NoString. The caller may keep it.
func (r *Request) Text(id StringID) string {
	if id == NoString || id == absentString {
		return ""
	}
	if s, ok := r.texts[id]; ok {
		return s
	}
	// A plugin that asks for one new text usually asks for all: read the whole table in one pass.
	if r.texts == nil || r.textBytes > maxTextBytes {
		r.texts, r.textBytes = map[StringID]string{}, 0
	}
	for i := range int(u32(r.base, abi.ReqStringsCount)) {
		p := r.record(abi.ReqStringsOffset, "string", i)
		of := StringID(u32(p, abi.StringID))
		if _, ok := r.texts[of]; ok {
			continue
		}
		at, n := u32(p, abi.StringOffset), u32(p, abi.StringLength)
		if uint64(at)+uint64(n) > uint64(u32(r.base, abi.ReqTotal)) {
			r.badText = true
			continue
		}
		s := string(unsafe.Slice((*byte)(unsafe.Add(r.base, at)), n))
		r.texts[of] = s
		r.textBytes += len(s) + 64
	}
	return r.texts[id]
}

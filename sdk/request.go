package sdk

import (
	"fmt"
	"time"
	"unsafe"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Time is a moment in Unix milliseconds; 0 is no moment.
type Time int64

// Sub gives the time from u to t.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t-u) * time.Millisecond }

// StringID stands for a string, such as the name of a zone: two strings are the same exactly when their IDs are. An ID keeps
// its meaning for the life of a plugin's instance, but not longer: keep names in a state, not IDs.
type StringID uint32

// NoString is the ID of the empty string, as of a zone that is not known.
const NoString StringID = abi.NoString

// Pool says which list of a Service port is being decided.
type Pool uint8

// The pools.
const (
	PoolCluster Pool = abi.PoolCluster // every eligible endpoint
	PoolLocal   Pool = abi.PoolLocal   // those on this node, for traffic policy Local
)

// Request is one question: what should the endpoints of this Service port get? It is a view of memory that the next
// request overwrites.
type Request struct {
	base    unsafe.Pointer
	offset  uintptr // of the first endpoint
	stride  uintptr // from one to the next
	count   uint32  // of endpoints
	badText bool    // a text lies outside of the request

	// texts holds copies of texts by ID, since IDs last.
	texts     map[StringID]string
	textBytes int
}

// maxTextBytes bounds what a Request remembers of texts.
const maxTextBytes = 2 << 20

// view makes r a view of the size bytes at p, whose header and tables are checked first: what lies where is read from
// the header afterwards, without another check.
func (r *Request) view(p unsafe.Pointer, size uint64) error {
	if err := checkRequest(p, size); err != nil {
		return err
	}
	r.base, r.count, r.badText = p, u32(p, abi.ReqEndpointsCount), false
	r.offset, r.stride = uintptr(u32(p, abi.ReqEndpointsOffset)), uintptr(u32(p, abi.ReqEndpointsStride))
	return nil
}

// checkRequest looks at a request of size bytes, a header's length at least.
func checkRequest(p unsafe.Pointer, size uint64) error {
	if m := u32(p, abi.ReqMagic); m != abi.RequestMagic {
		return fmt.Errorf("request: magic is %#x, not %#x", m, uint32(abi.RequestMagic))
	}
	if m := u16(p, abi.ReqMajor); m != abi.Major {
		return fmt.Errorf("request: ABI version is %d.%d, not %d", m, u16(p, abi.ReqMinor), abi.Major)
	}
	if n := u32(p, abi.ReqTotal); uint64(n) != size {
		return fmt.Errorf("request: total length is %d, but it has %d bytes", n, size)
	}
	header := u32(p, abi.ReqHeaderLength)
	if header < abi.ReqSize || uint64(header) > size {
		return fmt.Errorf("request: header length is %d, not %d to %d", header, abi.ReqSize, size)
	}
	for _, t := range [...]struct {
		name  string
		at    uintptr
		least uint32
	}{
		{"endpoints", abi.ReqEndpointsOffset, abi.EndpointSize},
		{"zones", abi.ReqZonesOffset, abi.ZoneSize},
		{"strings", abi.ReqStringsOffset, abi.StringSize},
	} {
		if err := checkTable(p, t.name, header, t.at, t.least); err != nil {
			return err
		}
	}
	at, n := u32(p, abi.ReqStateOffset), u32(p, abi.ReqStateLength)
	if n > 0 && (at < header || uint64(at)+uint64(n) > size) {
		return fmt.Errorf("request: state: %d bytes at offset %d are not within %d to %d", n, at, header, size)
	}
	return nil
}

// checkTable checks that the records, whose offset, count and stride are at a place in the header, lie behind it.
func checkTable(p unsafe.Pointer, name string, header uint32, at uintptr, least uint32) error {
	offset, count, stride, total := u32(p, at), u32(p, at+4), u32(p, at+8), u32(p, abi.ReqTotal)
	if count == 0 {
		return nil
	}
	if stride < least || stride%8 != 0 {
		return fmt.Errorf("request: %s: stride is %d, not a multiple of 8 from %d", name, stride, least)
	}
	if offset < header || offset%8 != 0 || uint64(count) > (uint64(total)-min(uint64(offset), uint64(total)))/uint64(stride) {
		return fmt.Errorf("request: %s: %d records of %d bytes at offset %d are not within %d to %d",
			name, count, stride, offset, header, total)
	}
	return nil
}

// record gives a record of the table whose offset, count and stride are at a place in the header.
func (r *Request) record(table uintptr, i int) unsafe.Pointer {
	if uint(i) >= uint(u32(r.base, table+4)) {
		panic(outOfRange)
	}
	return unsafe.Add(r.base, uintptr(u32(r.base, table))+uintptr(i)*uintptr(u32(r.base, table+8)))
}

const outOfRange = "sdk: index out of range"

// Now is the time of the request, a multiple of a second: the only clock that a plugin has.
func (r *Request) Now() Time { return Time(u64(r.base, abi.ReqNow)) }

// Generation rises each time the input of this Service port and pool changes.
func (r *Request) Generation() uint64 { return u64(r.base, abi.ReqGeneration) }

// Namespace, Service and Port name what is decided; the name of a lone port may be None.
func (r *Request) Namespace() StringID { return StringID(u32(r.base, abi.ReqNamespace)) }

// Service is the Service's name.
func (r *Request) Service() StringID { return StringID(u32(r.base, abi.ReqService)) }

// Port is the Service port's name, or None.
func (r *Request) Port() StringID { return StringID(u32(r.base, abi.ReqPortName)) }

// PortNumber is the Service port's number.
func (r *Request) PortNumber() uint16 { return u16(r.base, abi.ReqPort) }

// Protocol is an IANA number: 6 TCP, 17 UDP, 132 SCTP.
func (r *Request) Protocol() uint8 { return r.u8(abi.ReqProtocol) }

// Family of all endpoints: 4 or 6.
func (r *Request) Family() uint8 { return r.u8(abi.ReqFamily) }

// Pool says which list of the Service port is being decided.
func (r *Request) Pool() Pool { return Pool(r.u8(abi.ReqPool)) }

// InternalPolicyLocal tells internalTrafficPolicy: Local.
func (r *Request) InternalPolicyLocal() bool {
	return r.u8(abi.ReqPolicy)&abi.PolicyInternalLocal != 0
}

// ExternalPolicyLocal tells externalTrafficPolicy: Local.
func (r *Request) ExternalPolicyLocal() bool {
	return r.u8(abi.ReqPolicy)&abi.PolicyExternalLocal != 0
}

// SessionAffinityTimeout is the session affinity's time-out; 0 without one.
func (r *Request) SessionAffinityTimeout() time.Duration {
	return time.Duration(u64(r.base, abi.ReqSessionAffinity)) * time.Millisecond
}

// Node is the name of this node.
func (r *Request) Node() StringID { return StringID(u32(r.base, abi.ReqNode)) }

// NodeZone is this node's zone, or None when it is not known.
func (r *Request) NodeZone() StringID { return StringID(u32(r.base, abi.ReqZone)) }

// NodeZoneIndex is the index of this node's zone for Zone, or -1.
func (r *Request) NodeZoneIndex() int { return zoneIndex(u16(r.base, abi.ReqZoneIndex)) }

func zoneIndex(i uint16) int {
	if i == abi.NoZone {
		return -1
	}
	return int(i)
}

// State is what this plugin set last for this Service port and pool, empty at first. Copy what is kept.
func (r *Request) State() []byte {
	n := u32(r.base, abi.ReqStateLength)
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Add(r.base, u32(r.base, abi.ReqStateOffset))), n)
}

// NumEndpoints is the number of endpoints.
func (r *Request) NumEndpoints() int { return int(r.count) }

// Endpoint gives an endpoint by its index, 0 to Len()-1. They are sorted by address.
func (r *Request) Endpoint(i int) Endpoint {
	if uint(i) >= uint(r.count) {
		panic(outOfRange)
	}
	return Endpoint{unsafe.Add(r.base, r.offset+uintptr(i)*r.stride)}
}

// NumZones is the number of zones that a Node or an endpoint names.
func (r *Request) NumZones() int { return int(u32(r.base, abi.ReqZonesCount)) }

// Zone gives a zone by its index, 0 to Zones()-1. They are sorted by name.
func (r *Request) Zone(i int) Zone {
	p := r.record(abi.ReqZonesOffset, i)
	return Zone{
		Name:     StringID(u32(p, abi.ZoneName)),
		Nodes:    u32(p, abi.ZoneNodes),
		Ready:    u32(p, abi.ZoneReady),
		MilliCPU: u64(p, abi.ZoneMilliCPU),
	}
}

// Zone is a row of the zone table.
type Zone struct {
	Name     StringID // its name
	Nodes    uint32   // in the cluster
	Ready    uint32   // ready endpoints of this Service port
	MilliCPU uint64   // allocatable CPU of its Nodes, in thousandths of a core
}

func (r *Request) u8(at uintptr) uint8 { return *(*uint8)(unsafe.Add(r.base, at)) }

// Text gives the text of an ID of this request, "" for None. The text may be kept.
func (r *Request) Text(id StringID) string {
	if id == NoString {
		return ""
	}
	if s, ok := r.texts[id]; ok {
		return s
	}
	// Whoever asks for one new text often asks for all, so all of this request are read in one pass.
	if r.texts == nil || r.textBytes > maxTextBytes {
		r.texts, r.textBytes = map[StringID]string{}, 0
	}
	for i := range int(u32(r.base, abi.ReqStringsCount)) {
		p := r.record(abi.ReqStringsOffset, i)
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

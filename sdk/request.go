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

// ID stands for a string, such as the name of a zone: two strings are the same exactly when their IDs are. An ID keeps
// its meaning for the life of a plugin's instance, but not longer: keep names in a state, not IDs.
type ID uint32

// None is the ID of the empty string, as of a zone that is not known.
const None ID = abi.NoString

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
	head      unsafe.Pointer
	size      uint32
	endpoints table
	zones     table
	strings   table
	state     []byte
	bad       bool // a text lies outside of the request

	// texts holds copies of texts by ID, since IDs last.
	texts map[ID]string
	bytes int
}

// table is a list of records in a request.
type table struct {
	first  unsafe.Pointer
	count  uint32
	stride uint32
}

func (t *table) at(i int) unsafe.Pointer {
	if uint(i) >= uint(t.count) {
		panic("sdk: index out of range")
	}
	return unsafe.Add(t.first, uintptr(i)*uintptr(t.stride))
}

// maxTextBytes bounds what a Request remembers of texts.
const maxTextBytes = 2 << 20

// view makes r a view of b, whose header and tables are checked first.
func (r *Request) view(b []byte) error {
	if len(b) < abi.ReqSize {
		return fmt.Errorf("request: %d bytes are less than a header of %d", len(b), abi.ReqSize)
	}
	p := unsafe.Pointer(unsafe.SliceData(b))
	if m := u32(p, abi.ReqMagic); m != abi.RequestMagic {
		return fmt.Errorf("request: magic is %#x, not %#x", m, uint32(abi.RequestMagic))
	}
	if m := u16(p, abi.ReqMajor); m != abi.Major {
		return fmt.Errorf("request: ABI version is %d.%d, not %d", m, u16(p, abi.ReqMinor), abi.Major)
	}
	if n := u32(p, abi.ReqTotal); uint64(n) != uint64(len(b)) {
		return fmt.Errorf("request: total length is %d, but it has %d bytes", n, len(b))
	}
	header := u32(p, abi.ReqHeaderLength)
	if header < abi.ReqSize || uint64(header) > uint64(len(b)) {
		return fmt.Errorf("request: header length is %d, not %d to %d", header, abi.ReqSize, len(b))
	}
	r.head, r.size, r.bad = p, uint32(len(b)), false
	var err error
	if r.endpoints, err = r.table("endpoints", header, abi.ReqEndpointsOffset, abi.EndpointSize); err != nil {
		return err
	}
	if r.zones, err = r.table("zones", header, abi.ReqZonesOffset, abi.ZoneSize); err != nil {
		return err
	}
	if r.strings, err = r.table("strings", header, abi.ReqStringsOffset, abi.StringSize); err != nil {
		return err
	}
	at, n := u32(p, abi.ReqStateOffset), u32(p, abi.ReqStateLength)
	if n == 0 {
		at = header
	}
	if at < header || uint64(at)+uint64(n) > uint64(len(b)) {
		return fmt.Errorf("request: state: %d bytes at offset %d are not within %d to %d", n, at, header, len(b))
	}
	r.state = b[at : at+n : at+n]
	return nil
}

// table reads an offset, a count and a stride from the header, and checks that the records lie behind the header.
func (r *Request) table(name string, header uint32, at uintptr, least uint32) (table, error) {
	offset, count, stride := u32(r.head, at), u32(r.head, at+4), u32(r.head, at+8)
	if count == 0 {
		return table{}, nil
	}
	if stride < least || stride%8 != 0 {
		return table{}, fmt.Errorf("request: %s: stride is %d, not a multiple of 8 from %d", name, stride, least)
	}
	if offset < header || offset%8 != 0 || uint64(count) > (uint64(r.size)-min(uint64(offset), uint64(r.size)))/uint64(stride) {
		return table{}, fmt.Errorf("request: %s: %d records of %d bytes at offset %d are not within %d to %d",
			name, count, stride, offset, header, r.size)
	}
	return table{first: unsafe.Add(r.head, offset), count: count, stride: stride}, nil
}

// Now is the time of the request, a multiple of a second: the only clock that a plugin has.
func (r *Request) Now() Time { return Time(u64(r.head, abi.ReqNow)) }

// Generation rises each time the input of this Service port and pool changes.
func (r *Request) Generation() uint64 { return u64(r.head, abi.ReqGeneration) }

// Namespace, Service and Port name what is decided; the name of a lone port may be None.
func (r *Request) Namespace() ID { return ID(u32(r.head, abi.ReqNamespace)) }

// Service is the Service's name.
func (r *Request) Service() ID { return ID(u32(r.head, abi.ReqService)) }

// Port is the Service port's name, or None.
func (r *Request) Port() ID { return ID(u32(r.head, abi.ReqPortName)) }

// PortNumber is the Service port's number.
func (r *Request) PortNumber() uint16 { return u16(r.head, abi.ReqPort) }

// Protocol is an IANA number: 6 TCP, 17 UDP, 132 SCTP.
func (r *Request) Protocol() uint8 { return r.byte(abi.ReqProtocol) }

// Family of all endpoints: 4 or 6.
func (r *Request) Family() uint8 { return r.byte(abi.ReqFamily) }

// Pool says which list of the Service port is being decided.
func (r *Request) Pool() Pool { return Pool(r.byte(abi.ReqPool)) }

// InternalLocal tells internalTrafficPolicy: Local.
func (r *Request) InternalLocal() bool { return r.byte(abi.ReqPolicy)&abi.PolicyInternalLocal != 0 }

// ExternalLocal tells externalTrafficPolicy: Local.
func (r *Request) ExternalLocal() bool { return r.byte(abi.ReqPolicy)&abi.PolicyExternalLocal != 0 }

// Affinity is the session affinity's time-out; 0 without one.
func (r *Request) Affinity() time.Duration {
	return time.Duration(u64(r.head, abi.ReqAffinity)) * time.Millisecond
}

// Node is the name of this node.
func (r *Request) Node() ID { return ID(u32(r.head, abi.ReqNode)) }

// Zone is this node's zone, or None when it is not known.
func (r *Request) Zone() ID { return ID(u32(r.head, abi.ReqZone)) }

// ZoneIndex is the index of this node's zone for ZoneAt, or -1.
func (r *Request) ZoneIndex() int { return zoneIndex(u16(r.head, abi.ReqZoneIndex)) }

func zoneIndex(i uint16) int {
	if i == abi.NoZone {
		return -1
	}
	return int(i)
}

// State is what this plugin set last for this Service port and pool, empty at first. Copy what is kept.
func (r *Request) State() []byte { return r.state }

// Len is the number of endpoints.
func (r *Request) Len() int { return int(r.endpoints.count) }

// Endpoint gives an endpoint by its index, 0 to Len()-1. They are sorted by address.
func (r *Request) Endpoint(i int) Endpoint { return Endpoint{r.endpoints.at(i)} }

// Zones is the number of zones that a Node or an endpoint names.
func (r *Request) Zones() int { return int(r.zones.count) }

// ZoneAt gives a zone by its index, 0 to Zones()-1. They are sorted by name.
func (r *Request) ZoneAt(i int) Zone {
	p := r.zones.at(i)
	return Zone{
		ID:       ID(u32(p, abi.ZoneName)),
		Nodes:    u32(p, abi.ZoneNodes),
		Ready:    u32(p, abi.ZoneReady),
		MilliCPU: u64(p, abi.ZoneMilliCPU),
	}
}

// Zone is a row of the zone table.
type Zone struct {
	ID       ID     // its name
	Nodes    uint32 // in the cluster
	Ready    uint32 // ready endpoints of this Service port
	MilliCPU uint64 // allocatable CPU of its Nodes, in thousandths of a core
}

func (r *Request) byte(at uintptr) uint8 { return *(*uint8)(unsafe.Add(r.head, at)) }

// String gives the text of an ID of this request, "" for None. The text may be kept.
func (r *Request) String(id ID) string {
	if id == None {
		return ""
	}
	if s, ok := r.texts[id]; ok {
		return s
	}
	// Whoever asks for one new text often asks for all, so all of this request are read in one pass.
	if r.texts == nil || r.bytes > maxTextBytes {
		r.texts, r.bytes = map[ID]string{}, 0
	}
	for i := range int(r.strings.count) {
		p := r.strings.at(i)
		of := ID(u32(p, abi.StringID))
		if _, ok := r.texts[of]; ok {
			continue
		}
		at, n := u32(p, abi.StringOffset), u32(p, abi.StringLength)
		if uint64(at)+uint64(n) > uint64(r.size) {
			r.bad = true
			continue
		}
		s := string(unsafe.Slice((*byte)(unsafe.Add(r.head, at)), n))
		r.texts[of] = s
		r.bytes += len(s) + 64
	}
	return r.texts[id]
}

package hosts

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Message is what a guest reads in a request.
type Message struct {
	Minor    uint16
	Role     abi.Role
	Settings uint32
	Request  abi.Request // without keys and settings; an input that was left out has its value for "unknown"
}

// ReadMessage reads a request as ABI.md says. The error names what a host must not write: it checks more than a guest does.
func ReadMessage(wire []byte) (m *Message, err error) {
	r := &reader{wire: wire, texts: map[uint32]string{}}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case *wireError:
			m, err = nil, e
		default:
			panic(e)
		}
	}()
	return r.message(), nil
}

// wireError is the error of a request.
type wireError struct{ text string }

// Error implements error.
func (e *wireError) Error() string { return "request: " + e.text }

// reader reads a request. It panics with a wireError.
type reader struct {
	wire  []byte
	texts map[uint32]string
	zones map[string]int
}

func (r *reader) check(ok bool, format string, args ...any) {
	if !ok {
		panic(&wireError{fmt.Sprintf(format, args...)})
	}
}

func (r *reader) u16(at int) uint16 { return binary.LittleEndian.Uint16(r.wire[at:]) }
func (r *reader) u32(at int) uint32 { return binary.LittleEndian.Uint32(r.wire[at:]) }
func (r *reader) u64(at int) uint64 { return binary.LittleEndian.Uint64(r.wire[at:]) }

// section is a section of a request whose bounds have been checked.
type section struct{ at, count, stride int }

// section reads the position of a section. Records have at least size bytes.
func (r *reader) section(name string, field, size int) section {
	return r.bounds(name, r.u32(field), r.u32(field+4), r.u32(field+8), size, true)
}

func (r *reader) bounds(name string, offset, count, stride uint32, size int, records bool) section {
	if count == 0 {
		return section{}
	}
	header := r.u32(abi.ReqHeaderLength)
	r.check(!records || int64(stride) >= int64(size) && stride%8 == 0, "%s.stride is %d: want a multiple of 8 of at least %d", name, stride, size)
	r.check(offset%8 == 0, "%s: offset %d is not a multiple of 8", name, offset)
	r.check(offset >= header && uint64(offset)+uint64(count)*uint64(stride) <= uint64(len(r.wire)),
		"%s: %d × %d bytes at offset %d are not within %d to %d", name, count, stride, offset, header, len(r.wire))
	return section{int(offset), int(count), int(stride)}
}

func (r *reader) message() *Message {
	r.check(len(r.wire) >= abi.ReqSize, "%d bytes, the header has %d", len(r.wire), abi.ReqSize)
	r.check(r.u32(abi.ReqMagic) == abi.RequestMagic, "magic is %#x: want %#x", r.u32(abi.ReqMagic), uint32(abi.RequestMagic))
	r.check(r.u16(abi.ReqMajor) == abi.Major, "version is %d.%d: want %d.%d or a later minor version",
		r.u16(abi.ReqMajor), r.u16(abi.ReqMinor), abi.Major, abi.Minor)
	r.check(int(r.u32(abi.ReqTotal)) == len(r.wire), "total is %d, the request has %d bytes", r.u32(abi.ReqTotal), len(r.wire))
	header := r.u32(abi.ReqHeaderLength)
	r.check(header >= abi.ReqSize && header%8 == 0 && int(header) <= len(r.wire), "header_length is %d: want a multiple of 8 of at least %d", header, abi.ReqSize)
	r.strings()
	m := &Message{Minor: r.u16(abi.ReqMinor), Settings: r.u32(abi.ReqSettings)}
	q := &m.Request
	q.Now, q.Generation = int64(r.u64(abi.ReqNow)), r.u64(abi.ReqGeneration)
	r.check(q.Now%1000 == 0, "now_ms is %d: want a multiple of 1000", q.Now)
	q.Namespace, q.Service = r.text("namespace_id", abi.ReqNamespace), r.text("service_id", abi.ReqService)
	q.Port, q.Node, q.Zone = r.text("port_name_id", abi.ReqPortName), r.text("node_id", abi.ReqNode), r.text("zone_id", abi.ReqZone)
	q.PortNumber, q.Protocol, q.Family, q.Pool = r.u16(abi.ReqPort), r.wire[abi.ReqProtocol], r.wire[abi.ReqFamily], r.wire[abi.ReqPool]
	r.check(q.Family == 4 || q.Family == 6, "family is %d: want 4 or 6", q.Family)
	policy := r.wire[abi.ReqPolicy]
	q.InternalPolicyLocal, q.ExternalPolicyLocal = policy&abi.PolicyInternalLocal != 0, policy&abi.PolicyExternalLocal != 0
	q.SessionAffinityMS = int64(r.u64(abi.ReqSessionAffinity))
	q.NodeIndex, q.NodeCount = r.u32(abi.ReqNodeIndex), r.u32(abi.ReqNodeCount)
	q.ConnectionsAgeMS, q.OutcomesWindowMS = r.u32(abi.ReqConnectionsAge), r.u32(abi.ReqOutcomesWindow)
	r.readZones(q)
	r.zoneIndex("zone_index", r.u16(abi.ReqZoneIndex), q.Zone)
	groups := r.section("groups", abi.ReqGroupsOffset, abi.GroupSize)
	r.check(groups.count <= abi.MaxGroups, "groups.count is %d, the limit is %d", groups.count, abi.MaxGroups)
	for i := range groups.count {
		q.Groups = append(q.Groups, r.u32(groups.at+i*groups.stride+abi.GroupPart))
		r.check(r.u32(groups.at+i*groups.stride+4) == 0, "groups[%d]: zero is not 0", i)
	}
	m.Role = abi.Role(min(r.u32(abi.ReqRole), math.MaxUint8))
	r.check(m.Role.Valid(), "role is %d", r.u32(abi.ReqRole))
	r.readEndpoints(q)
	services := r.bounds("service_values", r.u32(abi.ReqServiceValuesOffset), r.u32(abi.ReqServiceValuesCount), abi.ValueSize, 0, false)
	for k := range services.count {
		q.ServiceValues = append(q.ServiceValues, r.value(services.at+k*abi.ValueSize))
	}
	state := r.bounds("state", r.u32(abi.ReqStateOffset), r.u32(abi.ReqStateLength), 1, 0, false)
	r.check(state.count <= abi.MaxStateLen, "state_length is %d, the limit is %d", state.count, abi.MaxStateLen)
	q.State = slices.Clone(r.wire[state.at:][:state.count])
	return m
}

// strings reads the string table.
func (r *reader) strings() {
	table := r.section("strings", abi.ReqStringsOffset, abi.StringSize)
	ids := map[string]uint32{}
	for i := range table.count {
		at := table.at + i*table.stride
		id, offset, n := r.u32(at+abi.StringID), r.u32(at+abi.StringOffset), r.u32(at+abi.StringLength)
		r.check(id != abi.NoString && id != abi.AbsentString, "strings[%d]: the id %#x is reserved", i, id)
		r.check(n > 0, "strings[%d]: the empty string is NO_STRING, and not in the table", i)
		r.check(uint64(offset)+uint64(n) <= uint64(len(r.wire)), "strings[%d]: %d bytes at offset %d are beyond the end", i, n, offset)
		text := string(r.wire[offset : offset+n])
		_, again := r.texts[id]
		r.check(!again, "strings[%d]: the id %d is in the table twice", i, id)
		other, again := ids[text]
		r.check(!again, "strings[%d]: %q has the ids %d and %d", i, text, other, id)
		r.check(r.u32(at+12) == 0, "strings[%d]: the bytes from 12 on are not 0", i)
		r.texts[id], ids[text] = text, id
	}
}

// text reads a string id.
func (r *reader) text(field string, at int) string {
	id := r.u32(at)
	if id == abi.NoString {
		return ""
	}
	text, ok := r.texts[id]
	r.check(ok, "%s: the string table does not have the id %#x", field, id)
	return text
}

// value reads the value of a key.
func (r *reader) value(at int) abi.Value {
	if r.u32(at) == abi.AbsentString {
		return abi.Value{}
	}
	return abi.Value{Text: r.text("a value", at), Present: true}
}

func (r *reader) readZones(q *abi.Request) {
	zones := r.section("zones", abi.ReqZonesOffset, abi.ZoneSize)
	r.zones = map[string]int{}
	for i := range zones.count {
		at := zones.at + i*zones.stride
		z := abi.Zone{Name: r.text(fmt.Sprintf("zones[%d].zone_id", i), at+abi.ZoneName), Nodes: r.u32(at + abi.ZoneNodes), Ready: r.u32(at + abi.ZoneReady),
			Serving: r.u32(at + abi.ZoneServing), Total: r.u32(at + abi.ZoneTotal), MilliCPU: r.u64(at + abi.ZoneMilliCPU)}
		r.check(r.u32(at+20) == 0, "zones[%d]: the bytes from 20 on are not 0", i)
		q.Zones = append(q.Zones, z)
		r.zones[z.Name] = i
	}
}

// zoneIndex checks an index of the zone table.
func (r *reader) zoneIndex(field string, index uint16, zone string) {
	want, ok := r.zones[zone]
	if !ok || zone == "" {
		want = abi.NoZone
	}
	r.check(int(index) == want, "%s is %d: want %d, the row of zone %q", field, index, want, zone)
}

func (r *reader) readEndpoints(q *abi.Request) {
	endpoints := r.section("endpoints", abi.ReqEndpointsOffset, abi.EndpointSize)
	outcomes := r.section("outcomes", abi.ReqOutcomesOffset, abi.OutcomesSize)
	states := r.section("endpoint_states", abi.ReqStatesOffset, abi.MaxEndpointState)
	keys := int(r.u32(abi.ReqPodKeys))
	r.check(keys <= abi.MaxKeys, "pod_keys is %d, the limit is %d", keys, abi.MaxKeys)
	values := r.section("values", abi.ReqValuesOffset, keys*abi.ValueSize)
	for name, s := range map[string]section{"outcomes": outcomes, "values": values, "endpoint_states": states} {
		r.check(s.count == 0 || s.count == endpoints.count, "%s.count is %d: want 0 or %d, that of the endpoints", name, s.count, endpoints.count)
	}
	for i := range endpoints.count {
		at := endpoints.at + i*endpoints.stride
		field := func(name string) string { return fmt.Sprintf("endpoints[%d].%s", i, name) }
		addr := netip.AddrFrom16([16]byte(r.wire[at+abi.EndpointAddr:]))
		r.check(addr.Is4In6() == (q.Family == 4), "%s is %s, the family is %d", field("address"), addr, q.Family)
		e := abi.Endpoint{
			Addr: netip.AddrPortFrom(addr.Unmap(), r.u16(at+abi.EndpointPort)), Conditions: r.u32(at + abi.EndpointConditions),
			Node: r.text(field("node_id"), at+abi.EndpointNode), Zone: r.text(field("zone_id"), at+abi.EndpointZone), Pod: r.text(field("pod_id"), at+abi.EndpointPod),
			Capacity: r.u32(at + abi.EndpointCapacity), Share: r.u32(at + abi.EndpointShare), Group: r.u16(at + abi.EndpointGroup),
			PriorWeight: int32(r.u32(at + abi.EndpointPriorWeight)),
			ReadySince:  int64(r.u64(at + abi.EndpointReadySince)), TerminatingSince: int64(r.u64(at + abi.EndpointTerminatingSince)),
			Connections: r.u32(at + abi.EndpointConnections),
		}
		r.check(r.u16(at+abi.EndpointGroup+2) == 0, "%s is not 0", field("zero"))
		r.check(int(e.Group) < max(1, len(q.Groups)), "%s is %d, there are %d groups", field("group"), e.Group, len(q.Groups))
		r.zoneIndex(field("zone_index"), r.u16(at+abi.EndpointZoneIndex), e.Zone)
		if outcomes.count > 0 {
			at := outcomes.at + i*outcomes.stride
			e.Outcomes = abi.Outcomes{
				Attempts: r.u32(at + abi.OutcomesAttempts), Answered: r.u32(at + abi.OutcomesAnswered), Refused: r.u32(at + abi.OutcomesRefused),
				Unanswered: r.u32(at + abi.OutcomesUnanswered), TotalAttempts: r.u64(at + abi.OutcomesTotalAttempts), TotalAnswered: r.u64(at + abi.OutcomesTotalAnswered),
				TotalRefused: r.u64(at + abi.OutcomesTotalRefused), TotalUnanswered: r.u64(at + abi.OutcomesTotalUnanswered), Since: int64(r.u64(at + abi.OutcomesSince)),
			}
		}
		if states.count > 0 {
			q.EndpointStates = append(q.EndpointStates, r.wire[states.at+i*states.stride:][:abi.MaxEndpointState]...)
		}
		for k := range keys {
			v := abi.Value{} // without the section, no object has any
			if values.count > 0 {
				v = r.value(values.at + i*values.stride + k*abi.ValueSize)
			}
			e.Values = append(e.Values, v)
		}
		q.Endpoints = append(q.Endpoints, e)
	}
}

// Shown returns what a guest with these needs and keys reads of a request: what it does not ask for has the value for "unknown".
func Shown(q *abi.Request, needs uint32, keys []string) *abi.Request {
	out := *q
	if needs&abi.NeedEndpointState == 0 || bytes.Count(out.EndpointStates, []byte{0}) == len(out.EndpointStates) {
		out.EndpointStates = nil
	}
	out.Keys, out.Zones, out.Endpoints, out.ServiceValues = nil, slices.Clone(q.Zones), slices.Clone(q.Endpoints), nil
	if needs&abi.NeedConnections == 0 {
		out.ConnectionsAgeMS = abi.NoAge
	}
	if needs&abi.NeedOutcomes == 0 {
		out.OutcomesWindowMS = 0
	}
	if needs&abi.NeedNodes == 0 {
		out.NodeIndex, out.NodeCount = abi.NoIndex, 0
		for i := range out.Zones {
			out.Zones[i].Nodes, out.Zones[i].MilliCPU = 0, 0
		}
	}
	for i := range out.Endpoints {
		e := &out.Endpoints[i]
		if needs&abi.NeedConnections == 0 {
			e.Connections = abi.ConnectionsUnknown
		}
		if needs&abi.NeedPodNames == 0 {
			e.Pod = ""
		}
		if out.OutcomesWindowMS == 0 {
			e.Outcomes = abi.Outcomes{}
		}
		e.Values = nil
	}
	pods, services := columns(q.Keys)
	for _, k := range keys {
		if !abi.IsEndpointKey(k) {
			out.ServiceValues = append(out.ServiceValues, valueAt(q.ServiceValues, slices.Index(services, k)))
			continue
		}
		for i := range out.Endpoints {
			out.Endpoints[i].Values = append(out.Endpoints[i].Values, valueAt(q.Endpoints[i].Values, slices.Index(pods, k)))
		}
	}
	return &out
}

// columns divides keys into those of Pods and those of Services.
func columns(keys []string) (pods, services []string) {
	for _, k := range keys {
		if abi.IsEndpointKey(k) {
			pods = append(pods, k)
		} else {
			services = append(services, k)
		}
	}
	return pods, services
}

func valueAt(values []abi.Value, i int) abi.Value {
	if i < 0 || i >= len(values) {
		return abi.Value{}
	}
	return values[i]
}

// WithoutNulls returns a request whose absent lists are empty ones: in JSON, null is no list.
func WithoutNulls(q *abi.Request) *abi.Request {
	out := *q
	out.Keys, out.Zones, out.Endpoints = append([]string{}, q.Keys...), append([]abi.Zone{}, q.Zones...), append([]abi.Endpoint{}, q.Endpoints...)
	out.Groups = append([]uint32{}, q.Groups...)
	out.ServiceValues, out.State = append([]abi.Value{}, q.ServiceValues...), append([]byte{}, q.State...)
	for i := range out.Endpoints {
		out.Endpoints[i].Values = append([]abi.Value{}, q.Endpoints[i].Values...)
	}
	return &out
}

// Difference returns the first field in which two requests differ, "" if they are equal.
func Difference(got, want *abi.Request) string {
	a, b := lines(got), lines(want)
	for i := range max(len(a), len(b)) {
		switch {
		case i >= len(a):
			return "there is no " + b[i]
		case i >= len(b):
			return "there is " + a[i]
		case a[i] != b[i]:
			field, value, _ := strings.Cut(b[i], "=")
			name, other, _ := strings.Cut(a[i], "=")
			if field != name {
				return fmt.Sprintf("there is %s, want %s", a[i], b[i])
			}
			return fmt.Sprintf("%s is %s, want %s", field, other, value)
		}
	}
	return ""
}

// lines has a line for each field of a request.
func lines(q *abi.Request) (out []string) {
	add := func(field string, value any) { out = append(out, fmt.Sprintf("%s=%#v", field, value)) }
	add("now_ms", q.Now)
	add("generation", q.Generation)
	add("namespace", q.Namespace)
	add("service", q.Service)
	add("port_name", q.Port)
	add("port", q.PortNumber)
	add("protocol", q.Protocol)
	add("family", q.Family)
	add("pool", q.Pool)
	add("policy.internal", q.InternalPolicyLocal)
	add("policy.external", q.ExternalPolicyLocal)
	add("affinity_ms", q.SessionAffinityMS)
	add("node", q.Node)
	add("node_index", q.NodeIndex)
	add("node_count", q.NodeCount)
	add("zone", q.Zone)
	add("connections_age_ms", q.ConnectionsAgeMS)
	add("outcomes_window_ms", q.OutcomesWindowMS)
	for i, part := range q.Groups {
		add(fmt.Sprintf("groups[%d]", i), part)
	}
	for i, z := range q.Zones {
		add(fmt.Sprintf("zones[%d]", i), z)
	}
	for i, e := range q.Endpoints {
		field := func(name string) string { return fmt.Sprintf("endpoints[%d].%s", i, name) }
		add(field("address"), e.Addr.String())
		add(field("conditions"), e.Conditions)
		add(field("node"), e.Node)
		add(field("zone"), e.Zone)
		add(field("pod"), e.Pod)
		add(field("capacity"), e.Capacity)
		add(field("share"), e.Share)
		add(field("group"), e.Group)
		add(field("prior_weight"), e.PriorWeight)
		add(field("ready_since_ms"), e.ReadySince)
		add(field("terminating_since_ms"), e.TerminatingSince)
		add(field("connections"), e.Connections)
		add(field("outcomes"), e.Outcomes)
		for k, v := range e.Values {
			add(field(fmt.Sprintf("values[%d]", k)), v)
		}
	}
	for k, v := range q.ServiceValues {
		add(fmt.Sprintf("service_values[%d]", k), v)
	}
	add("state", fmt.Sprintf("%x", q.State))
	if bytes.Count(q.EndpointStates, []byte{0}) < len(q.EndpointStates) { // without the section, all are 0
		add("endpoint_states", fmt.Sprintf("%x", q.EndpointStates))
	}
	return out
}

package sdk

import (
	"unsafe"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Outcomes counts connections that this node has sent to an endpoint, and what became of them. Another node may see others.
type Outcomes struct {
	Attempts   uint64 // new connections
	Answered   uint64 // accepted by the endpoint
	Refused    uint64 // refused by the endpoint or its host
	Unanswered uint64 // neither, for more than a second
}

// OutcomesWindow returns the length of the window of Outcomes, 0 if they are not counted or without NeedOutcomes.
func (r *Request) OutcomesWindow() Duration {
	return Duration(u32(r.base, abi.ReqOutcomesWindow)) * Millisecond
}

// Outcomes returns the outcomes of endpoint i in the last OutcomesWindow, zero without NeedOutcomes. It panics if i is out of
// range.
func (r *Request) Outcomes(i int) Outcomes {
	p := r.row(abi.ReqOutcomesOffset, i)
	if p == nil {
		return Outcomes{}
	}
	return Outcomes{
		uint64(u32(p, abi.OutcomesAttempts)), uint64(u32(p, abi.OutcomesAnswered)),
		uint64(u32(p, abi.OutcomesRefused)), uint64(u32(p, abi.OutcomesUnanswered)),
	}
}

// TotalOutcomes returns the outcomes of endpoint i since this node began to count them, zero without NeedOutcomes. It panics if i
// is out of range.
func (r *Request) TotalOutcomes(i int) (o Outcomes, since Time) {
	p := r.row(abi.ReqOutcomesOffset, i)
	if p == nil {
		return Outcomes{}, 0
	}
	return Outcomes{
		u64(p, abi.OutcomesTotalAttempts), u64(p, abi.OutcomesTotalAnswered),
		u64(p, abi.OutcomesTotalRefused), u64(p, abi.OutcomesTotalUnanswered),
	}, Time(u64(p, abi.OutcomesSince))
}

// ConnectionsAge returns how long ago Endpoint.Connections were counted; counted is false if they are not or without
// NeedConnections.
func (r *Request) ConnectionsAge() (age Duration, counted bool) {
	ms := u32(r.base, abi.ReqConnectionsAge)
	if ms == abi.NoAge {
		return 0, false
	}
	return Duration(ms) * Millisecond, true
}

// PodValue returns the value of a key for the Pod of endpoint i, or its Node, or of load that it reports. key counts the keys of
// Pods, Nodes and load among those that the plugin declares, see Keyer. present is false if the object does not have it or is
// unknown. PodValue panics if i or key is out of range.
func (r *Request) PodValue(i, key int) (text StringID, present bool) {
	if n := u32(r.base, abi.ReqPodKeys); uint(key) >= uint(n) {
		panic(outOfRange{"key of Pods", key, int(n)})
	}
	p := r.row(abi.ReqValuesOffset, i)
	if p == nil {
		return NoString, false
	}
	return value(p, key)
}

// ServiceValue returns the value of a key for the Service or its namespace. key counts the keys of these among those that the
// plugin declares, see Keyer. present is false if the object does not have it. ServiceValue panics if key is out of range.
func (r *Request) ServiceValue(key int) (text StringID, present bool) {
	if n := u32(r.base, abi.ReqServiceValuesCount); uint(key) >= uint(n) {
		panic(outOfRange{"key of Services", key, int(n)})
	}
	return value(unsafe.Add(r.base, u32(r.base, abi.ReqServiceValuesOffset)), key)
}

func value(p unsafe.Pointer, key int) (text StringID, present bool) {
	id := StringID(u32(p, uintptr(key)*abi.ValueSize))
	if id == absentString {
		return NoString, false
	}
	return id, true
}

// row returns the record of endpoint i in a table with a record for each endpoint, nil if the table is empty.
func (r *Request) row(table uintptr, i int) unsafe.Pointer {
	if uint(i) >= uint(r.count) {
		panic(outOfRange{"endpoint", i, int(r.count)})
	}
	if u32(r.base, table+4) == 0 {
		return nil
	}
	return r.record(table, "endpoint", i)
}

package sdk

import (
	"errors"
	"math"
	"strconv"
	"unicode/utf8"
	"unsafe"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Balance is the algorithm that picks an endpoint for a new connection.
type Balance uint8

// The algorithms. A data plane that does not implement one reports that and uses BalanceRandom.
const (
	BalanceDefault          Balance = abi.BalanceDefault
	BalanceRandom           Balance = abi.BalanceRandom
	BalanceRoundRobin       Balance = abi.BalanceRoundRobin
	BalanceSourceHash       Balance = abi.BalanceSourceHash
	BalanceLeastConnections Balance = abi.BalanceLeastConnections
)

// MaxGroups is the largest number of groups.
const MaxGroups = abi.MaxGroups

// MaxEndpointState is the size of the state of an endpoint, in bytes.
const MaxEndpointState = abi.MaxEndpointState

// MaxStateLen is the largest state for a Service port and pool, in bytes.
const MaxStateLen = abi.MaxStateLen

// Response is what a plugin decides. Initially every endpoint keeps its capacity and share, no connection is reset or shed, no
// requeue is requested and the state is empty. Methods that take the index of an endpoint panic if it is out of range.
type Response struct {
	buf         unsafe.Pointer
	count       uint32
	role        Role
	set         uint8 // what results have been set to
	hasTail     bool  // any of the following fields is set
	requeue     uint32
	balance     Balance
	state       []byte
	reasons     []string
	reasonBytes int // of all reasons
	groups      []uint32
	states      []byte // of endpoints; empty: none is set
	counters    [abi.MaxCounters]uint32
	err         error
}

// reset restores the initial state of everything but the results.
func (r *Response) reset() {
	r.hasTail, r.requeue, r.balance, r.state, r.reasons, r.reasonBytes, r.groups, r.err = false, 0, 0, r.state[:0], r.reasons[:0], 0, r.groups[:0], nil
	r.states, r.counters = r.states[:0], [abi.MaxCounters]uint32{}
}

// result returns the record of endpoint i.
func (r *Response) result(i int) unsafe.Pointer {
	if uint(i) >= uint(r.count) {
		panic(outOfRange{"endpoint", i, int(r.count)})
	}
	return unsafe.Add(r.buf, abi.RespSize+i*abi.ResultSize)
}

// SetCapacity sets the capacity of endpoint i: how much of an ordinary endpoint there is, in millionths (One), 0 for no new
// connections. It is for plugins with RoleExclude and RoleReduce.
func (r *Response) SetCapacity(i, capacity int) {
	r.set |= setCapacity
	putU32(r.result(i), abi.ResultValue, uint32(min(max(capacity, 0), math.MaxUint32)))
}

// SetShare sets what each unit of the capacity of endpoint i gets of the new connections of its group, relative to the other
// endpoints: the host multiplies it by the capacity, and scales groups to their parts. 0 is for no new connections. It is for
// plugins with RoleShare, RoleLocality, RolePick and RoleAdjust.
func (r *Response) SetShare(i, share int) {
	r.set |= setShare
	putU32(r.result(i), abi.ResultValue, uint32(min(max(share, 0), math.MaxUint32)))
}

// Value returns the capacity or share that has been set for endpoint i, or that of the request.
func (r *Response) Value(i int) int { return int(u32(r.result(i), abi.ResultValue)) }

// SetGroups divides the endpoints into groups and sets the part of the new connections that each group gets, relative to the
// others, whatever the endpoints that it has. It is for plugins with RoleShare. Every endpoint is in group 0 until SetGroup. More
// than MaxGroups make the decision fail, and so does an endpoint in a group that there is not.
func (r *Response) SetGroups(parts ...uint32) {
	r.set |= setGroups
	if len(parts) > MaxGroups {
		r.hasTail, r.err = true, errors.New("response: "+number(len(parts))+" groups, more than "+number(MaxGroups))
		return
	}
	r.hasTail, r.groups = true, append(r.groups[:0], parts...)
}

// SetGroup puts endpoint i into a group of SetGroups.
func (r *Response) SetGroup(i, group int) { putU16(r.result(i), abi.ResultGroup, uint16(group)) }

// Bits of Response.set. Whether the plugin's role permits them is checked once, after the decision.
const (
	setCapacity = 1 << iota
	setShare
	setGroups
)

// misuse returns an error if the plugin has called a method that is not for its role.
func (r *Response) misuse() error {
	permitted := uint8(setShare)
	switch {
	case r.role.WritesCapacity():
		permitted = setCapacity
	case r.role == RoleReset:
		permitted = 0
	case r.role == RoleShare:
		permitted |= setGroups
	}
	var method string
	switch wrong := r.set &^ permitted; {
	case wrong == 0:
		return nil
	case wrong&setCapacity != 0:
		method = "SetCapacity"
	case wrong&setShare != 0:
		method = "SetShare"
	default:
		method = "SetGroups"
	}
	return errors.New("response: " + method + " is not for a plugin of role " + number(uint8(r.role)))
}

// KeepDraining keeps endpoint i as a draining endpoint: with weight 0 it gets no new connections, and established ones
// continue.
func (r *Response) KeepDraining(i int) {
	p := r.result(i)
	putU32(p, abi.ResultFlags, u32(p, abi.ResultFlags)|abi.FlagKeepDraining)
}

// SetResetAfter resets the connections to endpoint i that are still established d after Request.Now. Their clients then
// reconnect to other endpoints.
func (r *Response) SetResetAfter(i int, d Duration) {
	putU32(r.result(i), abi.ResultResetAfter, ceilMilliseconds(d))
}

// SetShed resets a part of the connections to endpoint i that are established, in thousandths, spread evenly over the next
// minute: permille is clamped to 0 (none) to 1000. The host may reset fewer. Their clients then reconnect, also to other
// endpoints.
func (r *Response) SetShed(i, permille int) {
	p := r.result(i)
	putU32(p, abi.ResultFlags, u32(p, abi.ResultFlags)&0xFFFF|uint32(min(max(permille, 0), abi.MaxShedPermille))<<16)
}

// SetReason sets a short human-readable reason for endpoint i, which sluice explain shows. It should not change while
// the weight does not (no countdowns). Equal texts are sent once. Unprintable characters become "?", texts are truncated
// to 256 bytes, and a response carries at most 256 different texts of 4096 bytes in total; the rest are dropped.
func (r *Response) SetReason(i int, text string) { r.SetReasonID(i, r.AddReason(text)) }

// ReasonID identifies a reason of a Response.
type ReasonID uint32

// AddReason adds a reason for SetReasonID, which is cheaper than SetReason when many endpoints have the same reason.
func (r *Response) AddReason(text string) ReasonID {
	for j, s := range r.reasons {
		if s == text {
			return ReasonID(j)
		}
	}
	n := min(len(text), abi.MaxReasonLen)
	if len(r.reasons) == abi.MaxReasonCount || r.reasonBytes+n > abi.MaxReasonsLen {
		return abi.NoReasonIndex
	}
	r.hasTail = true
	r.reasons = append(r.reasons, text)
	r.reasonBytes += n
	return ReasonID(len(r.reasons) - 1)
}

// SetReasonID sets the reason of endpoint i to one that AddReason returned for this response.
func (r *Response) SetReasonID(i int, reason ReasonID) {
	putU16(r.result(i), abi.ResultReason, uint16(reason))
}

// RequeueAfter makes the host call Decide again after d, even if nothing changes. The shortest of several calls wins; d ≤ 0
// counts as one millisecond.
func (r *Response) RequeueAfter(d Duration) {
	ms := max(1, min(ceilMilliseconds(d), math.MaxUint32-1))
	if r.requeue == 0 || ms < r.requeue {
		r.hasTail, r.requeue = true, ms
	}
}

// SetState stores a copy of state for the next request about the same Service port and pool. A state of more than 1024
// bytes makes the decision fail.
func (r *Response) SetState(state []byte) {
	r.hasTail = true
	if len(state) > abi.MaxStateLen {
		r.err = errors.New("response: state is " + number(len(state)) + " bytes, more than " + number(abi.MaxStateLen))
		return
	}
	r.state = append(r.state[:0], state...)
}

// SetEndpointState stores a copy of the state of endpoint i for the next request that has the endpoint, about the same Service
// port and pool. A shorter one is filled with zeros; endpoints for which a decision sets none have none afterwards. It is for
// plugins with NeedEndpointState. A state of more than 32 bytes makes the decision fail.
func (r *Response) SetEndpointState(i int, state []byte) {
	_ = r.result(i) // i is in range
	r.hasTail = true
	if len(state) > abi.MaxEndpointState {
		r.err = errors.New("response: the state of an endpoint is " + number(len(state)) + " bytes, more than " + number(abi.MaxEndpointState))
		return
	}
	if n := int(r.count) * abi.MaxEndpointState; len(r.states) != n {
		if cap(r.states) < n {
			r.states = make([]byte, n)
		}
		r.states = r.states[:n]
		clear(r.states)
	}
	to := r.states[i*abi.MaxEndpointState:][:abi.MaxEndpointState]
	clear(to[copy(to, state):])
}

// Count adds n to a counter of the plugin, by its number in the manifest: the metric sluice_plugin_counter_total. It is for what
// the decision begins, such as an ejection: decisions that have no effect are not counted. Negative numbers, and counters that
// the manifest does not have, are ignored.
func (r *Response) Count(counter, n int) {
	if uint(counter) < abi.MaxCounters && n > 0 {
		r.hasTail = true
		r.counters[counter] = uint32(min(uint64(r.counters[counter])+uint64(n), math.MaxUint32))
	}
}

// SetBalance sets the algorithm that picks endpoints for new connections.
func (r *Response) SetBalance(b Balance) { r.hasTail, r.balance = true, b }

// writeTail writes states of endpoints, reasons, state and groups at offset table and returns their end, or an error and its
// code.
func (r *Response) writeTail(table, room uint64) (end uint64, code int64, err error) {
	if r.err != nil {
		return 0, abi.CodeFailed, r.err
	}
	if r.balance > BalanceLeastConnections {
		return 0, abi.CodeFailed, errors.New("response: balance " + number(r.balance) + " is unknown")
	}
	reasons := uint64(len(r.states)) // offsets from table, like the following
	text := reasons + uint64(len(r.reasons))*abi.ReasonSize
	state := (text + uint64(r.reasonBytes) + 7) &^ 7
	groups := state + uint64(len(r.state)+7)&^7
	last := groups + uint64(len(r.groups))*abi.GroupSize
	if end = table + last; end > room {
		return 0, abi.CodeNoRoom, errors.New("response: it needs " + number(end) + " bytes, the buffer has " + number(room))
	}
	b := unsafe.Slice((*byte)(unsafe.Add(r.buf, table)), last)
	p := unsafe.Pointer(unsafe.SliceData(b))
	copy(b, r.states)
	for i, s := range r.reasons {
		n := writePrintable(b[text:], s)
		putU64(p, uintptr(reasons)+uintptr(i)*abi.ReasonSize, table+text|uint64(n)<<32)
		text += uint64(n)
	}
	clear(b[text:state])
	clear(b[state+uint64(copy(b[state:], r.state)) : groups])
	for i, part := range r.groups {
		putU64(p, uintptr(groups)+uintptr(i)*abi.GroupSize, uint64(part))
	}
	return end, 0, nil
}

// writePrintable writes s to b in at most MaxReasonLen bytes, with "?" for each unprintable character, and returns the number of
// bytes written, which is at most len(s).
func writePrintable(b []byte, s string) (n int) {
	n = len(s) - len(s)%8
	for at := 0; at < n; at += 8 {
		if !isPrintableASCII(s[at : at+8]) {
			n = at
		}
	}
	for n < len(s) && s[n] >= ' ' && s[n] <= '~' {
		n++
	}
	if n == len(s) { // nearly all are
		return copy(b, s[:min(n, abi.MaxReasonLen)])
	}
	n = 0
	for _, c := range s {
		if c == utf8.RuneError || !strconv.IsPrint(c) {
			c = '?'
		}
		if n+utf8.RuneLen(c) > abi.MaxReasonLen {
			break
		}
		n += utf8.EncodeRune(b[n:], c)
	}
	return n
}

// isPrintableASCII reports whether all of eight bytes are from space to ~.
func isPrintableASCII(s string) bool {
	const each, high = 0x0101010101010101, 0x8080808080808080
	x := u64(unsafe.Pointer(unsafe.StringData(s)), 0)
	// With no high bit set, x − 0x20 borrows into it below space, and x + 1 carries into it above ~.
	return (x|(x-0x20*each)|(x+each))&high == 0
}

// ceilMilliseconds rounds up and clamps to values below abi.NeverReset.
func ceilMilliseconds(d Duration) uint32 {
	ms := d / Millisecond
	if d%Millisecond > 0 {
		ms++
	}
	return uint32(min(max(ms, 0), math.MaxUint32-1))
}

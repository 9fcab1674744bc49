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

// MaxWeight is the largest weight.
const MaxWeight = abi.MaxWeight

// MaxStateLen is the largest state for a Service port and pool, in bytes.
const MaxStateLen = abi.MaxStateLen

// Response is what a plugin decides. Initially every endpoint keeps its weight, no connection is reset or shed, no requeue is
// requested and the state is empty. Methods that take the index of an endpoint panic if it is out of range.
type Response struct {
	buf         unsafe.Pointer
	count       uint32
	hasTail     bool // any of the following fields is set
	requeue     uint32
	balance     Balance
	state       []byte
	reasons     []string
	reasonBytes int // of all reasons
	err         error
}

// reset restores the initial state of everything but the results.
func (r *Response) reset() {
	r.hasTail, r.requeue, r.balance, r.state, r.reasons, r.reasonBytes, r.err = false, 0, 0, r.state[:0], r.reasons[:0], 0, nil
}

// result returns the record of endpoint i.
func (r *Response) result(i int) unsafe.Pointer {
	if uint(i) >= uint(r.count) {
		panic(outOfRange)
	}
	return unsafe.Add(r.buf, abi.RespSize+i*abi.ResultSize)
}

// SetWeight sets the weight of endpoint i: its share of new connections is weight ÷ the sum of all weights. The weight is
// clamped to 0 (no new connections) to MaxWeight. Keep sums small: a data plane may represent sums up to 1000 only, and
// changing many weights costs more than changing few.
func (r *Response) SetWeight(i, weight int) {
	putU32(r.result(i), abi.ResultWeight, uint32(min(max(weight, 0), MaxWeight)))
}

// Weight returns the weight that SetWeight set for endpoint i, or its weight in the request.
func (r *Response) Weight(i int) int { return int(u32(r.result(i), abi.ResultWeight)) }

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

// SetShed resets a part of the connections to endpoint i that are established, in thousandths, spread evenly over the next minute:
// permille is clamped to 0 (none) to 1000. The host may reset fewer. Their clients then reconnect, also to other endpoints.
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
	putU32(r.result(i), abi.ResultReason, uint32(reason))
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

// SetBalance sets the algorithm that picks endpoints for new connections.
func (r *Response) SetBalance(b Balance) { r.hasTail, r.balance = true, b }

// writeTail writes reasons and state at offset table and returns their end, or an error and its code.
func (r *Response) writeTail(table, room uint64) (end uint64, code int64, err error) {
	if r.err != nil {
		return 0, abi.CodeFailed, r.err
	}
	if r.balance > BalanceLeastConnections {
		return 0, abi.CodeFailed, errors.New("response: balance " + number(r.balance) + " is unknown")
	}
	text := uint64(len(r.reasons)) * abi.ReasonSize // offsets from table, like the following
	state := (text + uint64(r.reasonBytes) + 7) &^ 7
	last := state + uint64(len(r.state)+7)&^7
	if end = table + last; end > room {
		return 0, abi.CodeNoRoom, errors.New("response: it needs " + number(end) + " bytes, the buffer has " + number(room))
	}
	b := unsafe.Slice((*byte)(unsafe.Add(r.buf, table)), last)
	p := unsafe.Pointer(unsafe.SliceData(b))
	for i, s := range r.reasons {
		n := writePrintable(b[text:], s)
		putU64(p, uintptr(i)*abi.ReasonSize, table+text|uint64(n)<<32)
		text += uint64(n)
	}
	clear(b[text:state])
	clear(b[state+uint64(copy(b[state:], r.state)):])
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

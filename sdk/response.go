package sdk

import (
	"fmt"
	"math"
	"time"
	"unicode"
	"unicode/utf8"
	"unsafe"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Balance is how a new connection picks among endpoints.
type Balance uint8

// The ways to balance. What a data plane cannot do, it says, and does Random.
const (
	BalanceDefault          Balance = abi.BalanceDefault
	BalanceRandom           Balance = abi.BalanceRandom
	BalanceRoundRobin       Balance = abi.BalanceRoundRobin
	BalanceSourceHash       Balance = abi.BalanceSourceHash
	BalanceLeastConnections Balance = abi.BalanceLeastConnections
)

// MaxWeight is the largest weight.
const MaxWeight = abi.MaxWeight

// MaxStateLen is how many bytes of state a plugin may keep for a Service port and pool.
const MaxStateLen = abi.MaxStateLen

// Response is the answer being written. At first every endpoint keeps the weight that it came with, nothing is reset,
// the host asks again only on a change, and the state is empty. Methods that take an index panic when it is not one of
// an endpoint, like a slice.
type Response struct {
	buf         unsafe.Pointer
	count       uint32
	hasTail     bool // one of the following is set
	requeue     uint32
	balance     Balance
	state       []byte
	reasons     []string
	reasonBytes int // of all reasons
	err         error
}

// reset makes everything but the answers as it is at first.
func (r *Response) reset() {
	r.hasTail, r.requeue, r.balance, r.state, r.reasons, r.reasonBytes, r.err = false, 0, 0, r.state[:0], r.reasons[:0], 0, nil
}

// result gives the record of endpoint i.
func (r *Response) result(i int) unsafe.Pointer {
	if uint(i) >= uint(r.count) {
		panic(outOfRange)
	}
	return unsafe.Add(r.buf, abi.RespSize+i*abi.ResultSize)
}

// SetWeight gives endpoint i a share of new connections of weight ÷ the sum of all weights; 0: none. Less than 0 counts
// as 0, more than MaxWeight as MaxWeight. Small sums are best: a data plane may hold a sum of no more than 1000, and a
// change of many weights costs more than a change of few.
func (r *Response) SetWeight(i, weight int) {
	putU32(r.result(i), abi.ResultWeight, uint32(min(max(weight, 0), MaxWeight)))
}

// Weight gives what SetWeight set for endpoint i, or the weight that it came with.
func (r *Response) Weight(i int) int { return int(u32(r.result(i), abi.ResultWeight)) }

// KeepDraining asks to keep endpoint i as a draining member: no new connections at weight 0, established ones go on.
func (r *Response) KeepDraining(i int) {
	putU32(r.result(i), abi.ResultFlags, abi.FlagKeepDraining)
}

// SetResetAfter has the connections to endpoint i that are still established reset this long from Request.Now, so that
// clients connect elsewhere.
func (r *Response) SetResetAfter(i int, d time.Duration) {
	putU32(r.result(i), abi.ResultResetAfter, ceilMilliseconds(d))
}

// SetReason says why endpoint i gets what it gets, in a few words for people: they see it in sluice explain. Nothing in
// it should change while the answer does not, such as a time that counts down. A text that many endpoints share is
// sent once. What cannot be printed becomes "?", and texts are cut at 256 bytes; an answer has room for 256 different
// ones of 4096 bytes in all, and those beyond are left out.
func (r *Response) SetReason(i int, text string) { r.SetReasonID(i, r.AddReason(text)) }

// ReasonID stands for a text in the answer being written.
type ReasonID uint32

// AddReason takes in a text, for SetReasonID: the cheap way to give many endpoints the same reason.
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

// SetReasonID is SetReason with a text that Reason took in for this answer.
func (r *Response) SetReasonID(i int, reason ReasonID) {
	putU32(r.result(i), abi.ResultReason, uint32(reason))
}

// RequeueAfter asks the host to ask again after d. Of several calls the shortest holds; d of 0 or less is the next
// millisecond, never "not at all".
func (r *Response) RequeueAfter(d time.Duration) {
	ms := max(1, min(ceilMilliseconds(d), math.MaxUint32-1))
	if r.requeue == 0 || ms < r.requeue {
		r.hasTail, r.requeue = true, ms
	}
}

// SetState keeps a copy of state for the next request about the same Service port and pool. More than 1024 bytes make
// the decision an error.
func (r *Response) SetState(state []byte) {
	r.hasTail = true
	if len(state) > abi.MaxStateLen {
		r.err = fmt.Errorf("response: state is %d bytes, more than %d", len(state), abi.MaxStateLen)
		return
	}
	r.state = append(r.state[:0], state...)
}

// SetBalance chooses how new connections pick among endpoints.
func (r *Response) SetBalance(b Balance) { r.hasTail, r.balance = true, b }

// writeTail writes reasons and state from an offset on, and gives where they end; or the code to return, and why.
func (r *Response) writeTail(table, room uint64) (end uint64, code int64, err error) {
	if r.err != nil {
		return 0, abi.CodeFailed, r.err
	}
	if r.balance > BalanceLeastConnections {
		return 0, abi.CodeFailed, fmt.Errorf("response: no balance has the number %d", r.balance)
	}
	text := uint64(len(r.reasons)) * abi.ReasonSize // from the table on, as the following
	state := (text + uint64(r.reasonBytes) + 7) &^ 7
	last := state + uint64(len(r.state)+7)&^7
	if end = table + last; end > room {
		return 0, abi.CodeNoRoom, fmt.Errorf("response: it needs %d bytes, the buffer has %d", end, room)
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

// writePrintable writes s to b in at most MaxReasonLen bytes, "?" for what is not printable UTF-8, and gives how many it wrote:
// never more than s has.
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
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			c = '?'
		}
		if n+utf8.RuneLen(c) > abi.MaxReasonLen {
			break
		}
		n += utf8.EncodeRune(b[n:], c)
	}
	return n
}

// isPrintableASCII tells of eight bytes at once whether all are from space to ~.
func isPrintableASCII(s string) bool {
	const each, high = 0x0101010101010101, 0x8080808080808080
	x := u64(unsafe.Pointer(unsafe.StringData(s)), 0)
	// With no high bit set, x − 0x20 borrows into it below space, and x + 1 carries into it above ~.
	return (x|(x-0x20*each)|(x+each))&high == 0
}

// ceilMilliseconds rounds up, and keeps clear of the number that means never.
func ceilMilliseconds(d time.Duration) uint32 {
	ms := d / time.Millisecond
	if d%time.Millisecond > 0 {
		ms++
	}
	return uint32(min(max(ms, 0), math.MaxUint32-1))
}

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

// MaxState is how many bytes of state a plugin may keep for a Service port and pool.
const MaxState = abi.MaxState

// Response is the answer being written. At first every endpoint keeps the weight that it came with, nothing is reset,
// the host asks again only on a change, and the state is empty. Methods that take an index panic when it is not one of
// an endpoint, like a slice.
type Response struct {
	buf     []byte
	answers table
	requeue uint32
	balance Balance
	state   []byte
	reasons []string
	bytes   int // of all reasons
	err     error
}

// begin prepares an answer to req in b.
func (r *Response) begin(b []byte, req *Request) error {
	n := req.Len()
	need := abi.RespSize + n*abi.AnswerSize
	if len(b) < need {
		return fmt.Errorf("response: %d endpoints need %d bytes, the buffer has %d", n, need, len(b))
	}
	r.buf = b
	r.requeue, r.balance, r.state, r.reasons, r.bytes, r.err = 0, 0, r.state[:0], r.reasons[:0], 0, nil
	r.answers = table{}
	if n == 0 {
		return nil
	}
	first := unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), abi.RespSize)
	r.answers = table{first: first, count: uint32(n), stride: abi.AnswerSize}
	for i := range uintptr(n) {
		from := i * uintptr(req.endpoints.stride)
		to := i * abi.AnswerSize
		putU64(first, to+abi.AnswerWeight, uint64(u32(req.endpoints.first, from+abi.EndpointWeight))) // and no flags
		putU64(first, to+abi.AnswerResetAfter, abi.NeverReset|abi.NoReasonIndex<<32)
	}
	return nil
}

// SetWeight gives endpoint i a share of new connections of weight ÷ the sum of all weights; 0: none. Less than 0 counts
// as 0, more than MaxWeight as MaxWeight. Small sums are best: a data plane may hold a sum of no more than 1000, and a
// change of many weights costs more than a change of few.
func (r *Response) SetWeight(i, weight int) {
	putU32(r.answers.at(i), abi.AnswerWeight, uint32(min(max(weight, 0), MaxWeight)))
}

// Weight gives what SetWeight set for endpoint i, or the weight that it came with.
func (r *Response) Weight(i int) int { return int(u32(r.answers.at(i), abi.AnswerWeight)) }

// KeepDraining asks to keep endpoint i as a draining member: no new connections at weight 0, established ones go on.
func (r *Response) KeepDraining(i int) {
	putU32(r.answers.at(i), abi.AnswerFlags, abi.FlagKeepDraining)
}

// SetResetAfter has the connections to endpoint i that are still established reset this long from Request.Now, so that
// clients connect elsewhere.
func (r *Response) SetResetAfter(i int, d time.Duration) {
	putU32(r.answers.at(i), abi.AnswerResetAfter, milliseconds(d))
}

// SetReason says why endpoint i gets what it gets, in a few words for people: they see it in sluice explain. Nothing in
// it should change while the answer does not, such as a time that counts down. A text that many endpoints share is
// sent once. What cannot be printed becomes "?", and texts are cut at 256 bytes; an answer has room for 256 different
// ones of 4096 bytes in all, and those beyond are left out.
func (r *Response) SetReason(i int, text string) { r.SetReasonAs(i, r.Reason(text)) }

// Reason stands for a text in the answer being written.
type Reason uint32

// Reason takes in a text, for SetReasonAs: the cheap way to give many endpoints the same reason.
func (r *Response) Reason(text string) Reason {
	for j, s := range r.reasons {
		if s == text {
			return Reason(j)
		}
	}
	n := min(len(text), abi.MaxReason)
	if len(r.reasons) == abi.MaxReasonCount || r.bytes+n > abi.MaxReasons {
		return abi.NoReasonIndex
	}
	r.reasons = append(r.reasons, text)
	r.bytes += n
	return Reason(len(r.reasons) - 1)
}

// SetReasonAs is SetReason with a text that Reason took in for this answer.
func (r *Response) SetReasonAs(i int, reason Reason) {
	putU32(r.answers.at(i), abi.AnswerReason, uint32(reason))
}

// Requeue asks the host to ask again after d. Of several calls the shortest holds; d of 0 or less is the next
// millisecond, never "not at all".
func (r *Response) Requeue(d time.Duration) {
	ms := max(1, min(milliseconds(d), math.MaxUint32-1))
	if r.requeue == 0 || ms < r.requeue {
		r.requeue = ms
	}
}

// SetState keeps a copy of state for the next request about the same Service port and pool. More than 1024 bytes make
// the decision an error.
func (r *Response) SetState(state []byte) {
	if len(state) > abi.MaxState {
		r.err = fmt.Errorf("response: state is %d bytes, more than %d", len(state), abi.MaxState)
		return
	}
	r.state = append(r.state[:0], state...)
}

// SetBalance chooses how new connections pick among endpoints.
func (r *Response) SetBalance(b Balance) { r.balance = b }

// finish writes what comes before and after the answers, and gives the response's length.
func (r *Response) finish() (int64, error) {
	if r.err != nil {
		return abi.CodeFailed, r.err
	}
	if r.balance > BalanceLeastConnections {
		return abi.CodeFailed, fmt.Errorf("response: no balance has the number %d", r.balance)
	}
	table := abi.RespSize + int(r.answers.count)*abi.AnswerSize
	text := table + len(r.reasons)*abi.ReasonSize
	state := (text + r.bytes + 7) &^ 7
	total := (state + len(r.state) + 7) &^ 7
	if total > len(r.buf) {
		return abi.CodeNoRoom, fmt.Errorf("response: it needs %d bytes, the buffer has %d", total, len(r.buf))
	}
	p := unsafe.Pointer(unsafe.SliceData(r.buf))
	put := func(at uintptr, v int) { putU32(p, at, uint32(v)) }
	for i, s := range r.reasons {
		n := printable(r.buf[text:], s)
		put(uintptr(table+i*abi.ReasonSize+abi.ReasonOffset), text)
		put(uintptr(table+i*abi.ReasonSize+abi.ReasonLength), n)
		text += n
	}
	clear(r.buf[text:state])
	clear(r.buf[state+copy(r.buf[state:], r.state) : total])
	put(abi.RespMagic, abi.ResponseMagic)
	put(abi.RespTotal, total)
	put(abi.RespHeaderLength, abi.RespSize)
	put(abi.RespAnswersOffset, abi.RespSize)
	put(abi.RespAnswersCount, int(r.answers.count))
	put(abi.RespAnswersStride, abi.AnswerSize)
	put(abi.RespRequeue, int(r.requeue))
	put(abi.RespBalance, int(r.balance))
	put(abi.RespStateOffset, state)
	put(abi.RespStateLength, len(r.state))
	put(abi.RespReasonsOffset, table)
	put(abi.RespReasonsCount, len(r.reasons))
	return int64(total), nil
}

// printable writes s to b in at most MaxReason bytes, "?" for what is not printable UTF-8, and gives how many it wrote:
// never more than s has.
func printable(b []byte, s string) (n int) {
	for n < len(s) && s[n] >= ' ' && s[n] <= '~' {
		n++
	}
	if n == len(s) { // nearly all are
		return copy(b, s[:min(n, abi.MaxReason)])
	}
	n = 0
	for _, c := range s {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			c = '?'
		}
		if n+utf8.RuneLen(c) > abi.MaxReason {
			break
		}
		n += utf8.EncodeRune(b[n:], c)
	}
	return n
}

// milliseconds rounds up, and keeps clear of the number that means never.
func milliseconds(d time.Duration) uint32 {
	ms := d / time.Millisecond
	if d%time.Millisecond > 0 {
		ms++
	}
	return uint32(min(max(ms, 0), math.MaxUint32-1))
}

//go:build !wasip1

package abi

import (
	"encoding/binary"
	"fmt"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxCachedReasons bounds a Decoder's cache of reasons.
const maxCachedReasons = 4096

// Decoder decodes responses. It validates everything, and caches reasons so that a known reason allocates nothing. The
// zero value is ready to use. A Decoder is used by one goroutine at a time.
type Decoder struct {
	reasonCache map[string]string
	reasons     []string // of the current response
}

// DecodeResponse decodes b, the bytes that a guest reports to have written, into resp, with results for want endpoints. An
// error names the field, and resp is undefined. resp does not alias b.
func (d *Decoder) DecodeResponse(b []byte, want int, resp *Response) error {
	if len(b) < LeastResponse {
		return fmt.Errorf("response: %d bytes, shorter than the header of %d", len(b), LeastResponse)
	}
	h := (*[LeastResponse]byte)(b)
	le := binary.LittleEndian
	if m := le.Uint32(h[RespMagic:]); m != ResponseMagic {
		return fmt.Errorf("response: magic is %#x, not %#x", m, uint32(ResponseMagic))
	}
	if n := le.Uint32(h[RespTotal:]); int64(n) != int64(len(b)) {
		return fmt.Errorf("response: total length is %d, but %d bytes were returned", n, len(b))
	}
	header := le.Uint32(h[RespHeaderLength:])
	if header < LeastResponse || int64(header) > int64(len(b)) || header%8 != 0 {
		return fmt.Errorf("response: header length is %d, not a multiple of 8 from %d to %d", header, LeastResponse, len(b))
	}
	if n := le.Uint32(h[RespResultsCount:]); int64(n) != int64(want) {
		return fmt.Errorf("response: result count is %d, but there are %d endpoints", n, want)
	}
	stride := le.Uint32(h[RespResultsStride:])
	if stride < ResultSize || stride%8 != 0 {
		return fmt.Errorf("response: result stride is %d, not a multiple of 8 from %d", stride, ResultSize)
	}
	balance := le.Uint32(h[RespBalance:])
	if balance > BalanceLeastConnections {
		return fmt.Errorf("response: balance is %d, not %d to %d", balance, BalanceDefault, BalanceLeastConnections)
	}
	results, err := section(b, "results", header, le.Uint32(h[RespResultsOffset:]), uint64(want)*uint64(stride))
	if err != nil {
		return err
	}
	if n := le.Uint32(h[RespStateLength:]); n > MaxStateLen {
		return fmt.Errorf("response: state is %d bytes, more than %d", n, MaxStateLen)
	}
	state, err := section(b, "state", header, le.Uint32(h[RespStateOffset:]), uint64(le.Uint32(h[RespStateLength:])))
	if err != nil {
		return err
	}
	if err := d.readReasons(b, header, h); err != nil {
		return err
	}
	if err := readGroups(b, header, h, resp); err != nil {
		return err
	}
	if err := readStates(b, header, want, resp); err != nil {
		return err
	}
	resp.Counters = [MaxCounters]uint32{}
	for i := range resp.Counters {
		if at := RespCounter0 + 4*i; int(header) >= at+4 {
			resp.Counters[i] = le.Uint32(b[at:])
		}
	}
	resp.RequeueAfter = time.Duration(le.Uint32(h[RespRequeueAfter:])) * time.Millisecond
	resp.Balance = uint8(balance)
	resp.State = append(resp.State[:0], state...)
	if cap(resp.Results) < want {
		resp.Results = make([]Result, want)
	}
	resp.Results = resp.Results[:want]
	for i := range resp.Results {
		r := (*[ResultSize]byte)(results)
		a := &resp.Results[i]
		a.Value, a.Group = le.Uint32(r[ResultValue:]), le.Uint16(r[ResultGroup:])
		both := le.Uint32(r[ResultFlags:])
		a.Flags = both & FlagKeepDraining
		a.ShedPermille = uint16(min(both>>16, MaxShedPermille))
		a.ResetAfterMS = le.Uint32(r[ResultResetAfter:])
		reason := le.Uint16(r[ResultReason:])
		switch {
		case len(resp.Groups) > 0 && int(a.Group) >= len(resp.Groups):
			return fmt.Errorf("response: result %d: group is %d, but there are %d groups", i, a.Group, len(resp.Groups))
		case reason == NoReasonIndex:
			a.Reason = ""
		case int(reason) >= len(d.reasons):
			return fmt.Errorf("response: result %d: reason is %d, but there are %d reasons", i, reason, len(d.reasons))
		default:
			a.Reason = d.reasons[reason]
		}
		results = results[stride:]
	}
	return nil
}

// readGroups reads the groups of a response.
func readGroups(b []byte, header uint32, h *[LeastResponse]byte, resp *Response) error {
	le := binary.LittleEndian
	count := le.Uint32(h[RespGroupsCount:])
	if count > MaxGroups {
		return fmt.Errorf("response: group count is %d, more than %d", count, MaxGroups)
	}
	table, err := section(b, "groups", header, le.Uint32(h[RespGroupsOffset:]), uint64(count)*GroupSize)
	if err != nil {
		return err
	}
	resp.Groups = resp.Groups[:0]
	for i := range int(count) {
		resp.Groups = append(resp.Groups, le.Uint32(table[i*GroupSize+GroupPart:]))
	}
	return nil
}

// readStates reads the states of endpoints, which a header of version 2.0 does not have.
func readStates(b []byte, header uint32, want int, resp *Response) error {
	resp.EndpointStates = resp.EndpointStates[:0]
	if header < RespStatesCount+4 {
		return nil
	}
	le := binary.LittleEndian
	count := le.Uint32(b[RespStatesCount:])
	if count != 0 && int64(count) != int64(want) {
		return fmt.Errorf("response: there are %d states of endpoints, but %d endpoints", count, want)
	}
	states, err := section(b, "states of endpoints", header, le.Uint32(b[RespStatesOffset:]), uint64(count)*MaxEndpointState)
	resp.EndpointStates = append(resp.EndpointStates, states...)
	return err
}

// readReasons validates the reasons of a response.
func (d *Decoder) readReasons(b []byte, header uint32, h *[LeastResponse]byte) error {
	le := binary.LittleEndian
	d.reasons = d.reasons[:0]
	count := le.Uint32(h[RespReasonsCount:])
	if count > MaxReasonCount {
		return fmt.Errorf("response: reason count is %d, more than %d", count, MaxReasonCount)
	}
	table, err := section(b, "reasons", header, le.Uint32(h[RespReasonsOffset:]), uint64(count)*ReasonSize)
	if err != nil {
		return err
	}
	total := uint32(0)
	for i := range int(count) {
		r := (*[ReasonSize]byte)(table[i*ReasonSize:])
		n := le.Uint32(r[ReasonLength:])
		if n > MaxReasonLen {
			return fmt.Errorf("response: reason %d is %d bytes, more than %d", i, n, MaxReasonLen)
		}
		if total += n; total > MaxReasonsLen {
			return fmt.Errorf("response: reasons are more than %d bytes together", MaxReasonsLen)
		}
		text, err := section(b, "reason", header, le.Uint32(r[ReasonOffset:]), uint64(n))
		if err != nil {
			return fmt.Errorf("%w (reason %d)", err, i)
		}
		s, ok := d.reasonCache[string(text)]
		if !ok {
			if at := indexUnprintable(text); at >= 0 {
				return fmt.Errorf("response: reason %d is not printable UTF-8 at byte %d", i, at)
			}
			s = d.cacheReason(string(text))
		}
		d.reasons = append(d.reasons, s)
	}
	return nil
}

// cacheReason caches s. When the cache is full it is cleared, so a plugin whose reasons never repeat does not grow it.
func (d *Decoder) cacheReason(s string) string {
	if d.reasonCache == nil || len(d.reasonCache) >= maxCachedReasons {
		d.reasonCache = map[string]string{}
	}
	d.reasonCache[s] = s
	return s
}

// section returns the n bytes at offset, which must be after the header. An empty section may have any offset.
func section(b []byte, name string, header, offset uint32, n uint64) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	if offset < header || uint64(offset)+n > uint64(len(b)) {
		return nil, fmt.Errorf("response: %s: %d bytes at offset %d are not within %d to %d",
			name, n, offset, header, len(b))
	}
	return b[offset : uint64(offset)+n], nil
}

// indexUnprintable returns the index of the first byte that is not printable UTF-8, or -1.
func indexUnprintable(b []byte) int {
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size <= 1 || !unicode.IsPrint(r) {
			return i
		}
		i += size
	}
	return -1
}

package policy

import (
	"bytes"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// endpointStates is what a plugin has last returned for endpoints, compactly: zeros at the end of all states are not stored, nor
// states of zeros only. It is immutable. An endpoint that is not in the request of an answer has no state after it.
type endpointStates struct {
	addrs model.AddrList // sorted
	width int            // bytes of each, at most abi.MaxEndpointState
	data  []byte
}

// packEndpointStates packs the states of the endpoints of a request, abi.MaxEndpointState bytes of each; states may be empty.
func packEndpointStates(eps []abi.Endpoint, states []byte) (out endpointStates) {
	if len(states) != len(eps)*abi.MaxEndpointState {
		return out
	}
	var some []int
	for i := range eps {
		n := len(bytes.TrimRight(states[i*abi.MaxEndpointState:][:abi.MaxEndpointState], "\x00"))
		if n > 0 {
			some, out.width = append(some, i), max(out.width, n)
		}
	}
	out.addrs = model.PackAddrs(len(some), func(j int) netip.AddrPort { return eps[some[j]].Addr })
	out.data = make([]byte, 0, len(some)*out.width)
	for _, i := range some {
		out.data = append(out.data, states[i*abi.MaxEndpointState:][:out.width]...)
	}
	return out
}

// unpack writes the states of the endpoints of a request to dst, which it returns, abi.MaxEndpointState bytes of each; nothing if
// there are none.
func (s *endpointStates) unpack(dst []byte, eps []abi.Endpoint) []byte {
	n, j := s.addrs.Len(), 0
	if n == 0 {
		return dst[:0]
	}
	size := len(eps) * abi.MaxEndpointState
	dst = slices.Grow(dst[:0], size)[:size]
	clear(dst)
	for i := range eps {
		for j < n && s.addrs.At(j).Compare(eps[i].Addr) < 0 {
			j++
		}
		if j < n && s.addrs.At(j) == eps[i].Addr {
			copy(dst[i*abi.MaxEndpointState:], s.data[j*s.width:][:s.width])
		}
	}
	return dst
}

// savedEndpointState is the state of an endpoint in a checkpoint.
type savedEndpointState struct {
	Addr  netip.AddrPort `json:"addr"`
	State []byte         `json:"state"`
}

func (s *endpointStates) save() (out []savedEndpointState) {
	for j := range s.addrs.Len() {
		out = append(out, savedEndpointState{s.addrs.At(j), bytes.TrimRight(s.data[j*s.width:][:s.width], "\x00")})
	}
	return out
}

// restoreEndpointStates restores what save returned. A state that is too long counts as none.
func restoreEndpointStates(saved []savedEndpointState) endpointStates {
	saved = slices.SortedFunc(slices.Values(saved), func(a, b savedEndpointState) int { return a.Addr.Compare(b.Addr) })
	eps, states := make([]abi.Endpoint, len(saved)), make([]byte, len(saved)*abi.MaxEndpointState)
	for i, s := range saved {
		eps[i].Addr = s.Addr
		if s.Addr.IsValid() && len(s.State) <= abi.MaxEndpointState {
			copy(states[i*abi.MaxEndpointState:], s.State)
		}
	}
	return packEndpointStates(eps, states)
}

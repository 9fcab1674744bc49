//go:build !wasip1

package abi

import (
	"bytes"
	"net/netip"
)

// EndpointStates are the states of endpoints that a plugin has returned, by address: MaxEndpointState bytes each, not all of
// them 0.
type EndpointStates map[netip.AddrPort][]byte

// StatesOf returns the states in the response to a request.
func StatesOf(req *Request, resp *Response) EndpointStates {
	out := EndpointStates{}
	for i := range len(resp.EndpointStates) / MaxEndpointState {
		b := resp.EndpointStates[i*MaxEndpointState:][:MaxEndpointState]
		if len(bytes.Trim(b, "\x00")) > 0 {
			out[req.Endpoints[i].Addr] = bytes.Clone(b)
		}
	}
	return out
}

// For returns Request.EndpointStates of a request.
func (s EndpointStates) For(req *Request) []byte {
	if len(s) == 0 {
		return nil
	}
	out := make([]byte, len(req.Endpoints)*MaxEndpointState)
	for i := range req.Endpoints {
		copy(out[i*MaxEndpointState:][:MaxEndpointState], s[req.Endpoints[i].Addr])
	}
	return out
}

// Package hosts is the part of the conformance kit that proves hosts of the plugin ABI: golden requests and responses, reference
// guests, hostile guests, and a runner that drives a host through a small protocol. ../README.md has the formats.
package hosts

import (
	"context"
	"slices"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Host is a host that is driven with commands, one at a time.
type Host interface {
	// Do executes a command. An error means that there is no answer: the host is not usable any more.
	Do(context.Context, *Command) (*Answer, error)
	Close() error
}

// Command asks a host for something.
type Command struct {
	Op     string `json:"op"`
	Plugin string `json:"plugin,omitempty"` // name of a loaded plugin
	Module string `json:"module,omitempty"` // OpLoad: path of a file
	// Settings are a JSON text; nil: none. OpLoad: those of the plugin. OpDecide: those of this request, if not those of the
	// plugin.
	Settings *string      `json:"settings,omitempty"`
	Request  *abi.Request `json:"request,omitempty"` // OpDecide, OpEnforce
}

// Operations.
const (
	OpHello   = "hello"
	OpLoad    = "load"
	OpDecide  = "decide"
	OpEnforce = "enforce" // optional
	OpUnload  = "unload"
)

// Answer is the answer to a command.
type Answer struct {
	Error    string    `json:"error,omitempty"`    // of a module that is refused, or a call that failed
	Host     string    `json:"host,omitempty"`     // OpHello: name and version
	Missing  []string  `json:"missing,omitempty"`  // OpHello: inputs that the host cannot give, by the names in README.md
	Enforces bool      `json:"enforces,omitempty"` // OpHello: the host has OpEnforce
	Response *Response `json:"response,omitempty"` // OpDecide
	Weights  []uint16  `json:"weights,omitempty"`  // OpEnforce: those in force, by endpoint, also if the call has failed
}

// Response is a decoded response.
type Response struct {
	RequeueMS uint32   `json:"requeueMS"`
	Balance   uint8    `json:"balance"`
	Groups    []uint32 `json:"groups"` // their parts
	State     []byte   `json:"state"`
	// EndpointStates are 32 bytes for each endpoint; absent: none.
	EndpointStates []byte    `json:"endpointStates,omitempty"`
	Counters       [4]uint32 `json:"counters"`
	Results        []Result  `json:"results"`
}

// Result is the result for an endpoint.
type Result struct {
	Value        uint32 `json:"value"` // capacity or share, by the role
	Group        uint16 `json:"group"` // 0 without groups
	KeepDraining bool   `json:"keepDraining"`
	ShedPermille uint16 `json:"shedPermille"`
	ResetAfterMS uint32 `json:"resetAfterMS"`
	Reason       string `json:"reason"`
}

// ResponseOf returns the response that a host in Go has decoded.
func ResponseOf(r *abi.Response) *Response {
	out := &Response{RequeueMS: uint32(r.RequeueAfter.Milliseconds()), Balance: r.Balance, Groups: append([]uint32{}, r.Groups...),
		State: append([]byte{}, r.State...), EndpointStates: slices.Clone(r.EndpointStates), Counters: r.Counters, Results: []Result{}}
	for _, x := range r.Results {
		if len(r.Groups) == 0 {
			x.Group = 0
		}
		out.Results = append(out.Results, Result{x.Value, x.Group, x.Flags&abi.FlagKeepDraining != 0, x.ShedPermille, x.ResetAfterMS, x.Reason})
	}
	return out
}

// inputs are the names of optional inputs, with what asks for them: a bit of sluice_needs, or a kind of key.
var inputs = []struct {
	name string
	need uint32
	kind string
}{
	{"connections", abi.NeedConnections, ""},
	{"outcomes", abi.NeedOutcomes, ""},
	{"nodes", abi.NeedNodes, ""},
	{"podNames", abi.NeedPodNames, ""},
	{"endpointState", abi.NeedEndpointState, ""},
	{"podLabels", 0, abi.KeyPodLabel},
	{"podAnnotations", 0, abi.KeyPodAnnotation},
	{"podCPU", 0, abi.KeyPodCPU},
	{"nodeLabels", 0, abi.KeyNodeLabel},
	{"serviceLabels", 0, abi.KeyServiceLabel},
	{"serviceAnnotations", 0, abi.KeyServiceAnnotation},
	{"namespaceLabels", 0, abi.KeyNamespaceLabel},
	{"endpointLoad", 0, abi.KeyLoad},
}

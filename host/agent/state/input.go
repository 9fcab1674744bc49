package state

import (
	"time"

	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Limits of an Input. Values are what somebody wrote into an object.
const (
	maxInputEndpoints = 200 // beyond: Omitted
	maxInputText      = 128 // bytes of a value; settings have four times as many
)

// Unknown is the duration of an Input that asks for numbers which nothing has counted.
const Unknown = "unknown"

// Input is what a plugin saw when it gave its last answer. Fields that it did not ask for are absent.
type Input struct {
	Plugin   string    `json:"plugin"`
	At       time.Time `json:"at"` // of the answer
	Changed  bool      `json:"changed,omitempty"`
	Settings string    `json:"settings,omitempty"`
	// NodeIndex is the position of this node among NodeCount that are ready.
	NodeIndex *uint32      `json:"nodeIndex,omitempty"`
	NodeCount *uint32      `json:"nodeCount,omitempty"`
	Zones     []InputZone  `json:"zones,omitempty"`
	Service   []InputValue `json:"service,omitempty"` // declared labels and annotations
	// ConnectionsAge is how old the numbers of connections were, OutcomesWindow for how long before the answer outcomes were counted:
	// durations, or Unknown.
	ConnectionsAge string          `json:"connectionsAge,omitempty"`
	OutcomesWindow string          `json:"outcomesWindow,omitempty"`
	Endpoints      []InputEndpoint `json:"endpoints"`
	Omitted        int             `json:"omitted,omitempty"` // endpoints
}

// InputZone is a zone as a plugin saw it. Nodes and MilliCPU are absent if it did not ask for them.
type InputZone struct {
	Name     string  `json:"name"`
	Ready    uint32  `json:"ready"`
	Serving  uint32  `json:"serving"`
	Total    uint32  `json:"total"`
	Nodes    *uint32 `json:"nodes,omitempty"`
	MilliCPU *uint64 `json:"milliCPU,omitempty"`
}

// InputValue is the value of a declared key; nil if the object does not have it.
type InputValue struct {
	Key   string  `json:"key"`
	Value *string `json:"value"`
}

// InputEndpoint is an endpoint as a plugin saw it.
type InputEndpoint struct {
	Address          string         `json:"address"`
	Conditions       []string       `json:"conditions"`
	Weight           uint32         `json:"weight"` // from the plugin before, or the default rules
	ReadySince       *time.Time     `json:"readySince,omitempty"`
	TerminatingSince *time.Time     `json:"terminatingSince,omitempty"`
	Pod              string         `json:"pod,omitempty"`
	Connections      *uint32        `json:"connections,omitempty"`
	Outcomes         *InputOutcomes `json:"outcomes,omitempty"`
	Values           []InputValue   `json:"values,omitempty"`
}

// InputOutcomes are the outcomes of connections from this node, in the window and since the node counts them.
type InputOutcomes struct {
	InputCounts
	Total InputCounts `json:"total"`
	Since time.Time   `json:"since"`
}

// InputCounts are numbers of connections.
type InputCounts struct {
	Attempts   uint64 `json:"attempts"`
	Answered   uint64 `json:"answered"`
	Refused    uint64 `json:"refused"`
	Unanswered uint64 `json:"unanswered"`
}

// conditionNames are the names of condition bits, in their order.
var conditionNames = [...]string{"ready", "serving", "terminating", "local", "chosen", "hintedZone", "hintedNode", "eligible", "held"}

// newInputs converts what the plugins of a chain saw.
func newInputs(seen []policy.Seen, wallTime func(int64) time.Time) (out []Input) {
	for i := range seen {
		out = append(out, newInput(&seen[i], wallTime))
	}
	return out
}

func newInput(s *policy.Seen, wallTime func(int64) time.Time) Input {
	r := &s.Request
	in := Input{
		Plugin: s.Plugin, At: wallTime(s.At).UTC(), Changed: s.Changed, Settings: shorten(s.Settings, 4*maxInputText), Endpoints: []InputEndpoint{},
		Service: inputValues(s.Keys, r.Keys, r.ServiceValues, false),
	}
	nodes := s.Needs&abi.NeedNodes != 0
	if nodes && r.NodeCount > 0 {
		in.NodeIndex, in.NodeCount = &r.NodeIndex, &r.NodeCount
	}
	for i := range r.Zones {
		z := &r.Zones[i]
		row := InputZone{Name: z.Name, Ready: z.Ready, Serving: z.Serving, Total: z.Total}
		if nodes {
			row.Nodes, row.MilliCPU = &z.Nodes, &z.MilliCPU
		}
		in.Zones = append(in.Zones, row)
	}
	if s.Needs&abi.NeedConnections != 0 {
		in.ConnectionsAge = unknownOr(r.ConnectionsAgeMS, r.ConnectionsAgeMS != abi.NoAge)
	}
	if s.Needs&abi.NeedOutcomes != 0 {
		in.OutcomesWindow = unknownOr(r.OutcomesWindowMS, r.OutcomesWindowMS != 0)
	}
	for i := range r.Endpoints {
		if i == maxInputEndpoints {
			in.Omitted = len(r.Endpoints) - i
			break
		}
		in.Endpoints = append(in.Endpoints, newInputEndpoint(s, i, wallTime))
	}
	return in
}

func newInputEndpoint(s *policy.Seen, i int, wallTime func(int64) time.Time) InputEndpoint {
	r, e := &s.Request, &s.Request.Endpoints[i]
	at := func(ms int64) *time.Time {
		if ms == abi.NoTime {
			return nil
		}
		t := wallTime(ms).UTC()
		return &t
	}
	out := InputEndpoint{
		Address: e.Addr.String(), Conditions: []string{}, Weight: e.Weight, ReadySince: at(e.ReadySince), TerminatingSince: at(e.TerminatingSince),
		Values: inputValues(s.Keys, r.Keys, e.Values, true),
	}
	for bit, name := range conditionNames {
		if e.Conditions&(1<<bit) != 0 {
			out.Conditions = append(out.Conditions, name)
		}
	}
	if s.Needs&abi.NeedPodNames != 0 {
		out.Pod = e.Pod
	}
	if s.Needs&abi.NeedConnections != 0 && e.Connections != abi.ConnectionsUnknown {
		out.Connections = &e.Connections
	}
	if s.Needs&abi.NeedOutcomes != 0 && r.OutcomesWindowMS != 0 {
		o := &e.Outcomes
		out.Outcomes = &InputOutcomes{
			InputCounts: InputCounts{uint64(o.Attempts), uint64(o.Answered), uint64(o.Refused), uint64(o.Unanswered)},
			Total:       InputCounts{o.TotalAttempts, o.TotalAnswered, o.TotalRefused, o.TotalUnanswered},
			Since:       wallTime(o.Since).UTC(),
		}
	}
	return out
}

// inputValues returns the values of the declared keys of Pods, or of Services, among those of all keys.
func inputValues(declared, all []string, values []abi.Value, pods bool) (out []InputValue) {
	for _, k := range declared {
		if abi.IsPodKey(k) != pods {
			continue
		}
		row, at := InputValue{Key: k}, 0
		for _, other := range all {
			if abi.IsPodKey(other) != pods {
				continue
			}
			if other == k && at < len(values) && values[at].Present {
				text := shorten(values[at].Text, maxInputText)
				row.Value = &text
			}
			at++
		}
		out = append(out, row)
	}
	return out
}

func unknownOr(ms uint32, known bool) string {
	if !known {
		return Unknown
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

// shorten cuts a text that is longer than n bytes.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}

package state

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Limits of an Input. Values are what somebody wrote into an object.
const (
	maxInputEndpoints = 200 // beyond: Omitted
	maxInputText      = 128 // bytes of a value; settings have four times as many
)

// conditionNames are the names of condition bits, in their order.
var conditionNames = [...]string{"ready", "serving", "terminating", "local", "chosen", "hintedZone", "hintedNode", "eligible", "held"}

// newInputs converts what the plugins of a chain saw.
func newInputs(seen []policy.Seen, wallTime func(int64) time.Time) (out []api.Input) {
	for i := range seen {
		out = append(out, newInput(&seen[i], wallTime))
	}
	return out
}

func newInput(s *policy.Seen, wallTime func(int64) time.Time) api.Input {
	r := &s.Request
	in := api.Input{
		Plugin: s.Plugin, At: wallTime(s.At).UTC(), Changed: s.Changed, Settings: shorten(s.Settings, 4*maxInputText), Endpoints: []api.InputEndpoint{},
		Service: inputValues(s.Keys, r.Keys, r.ServiceValues, false),
	}
	nodes := s.Needs&abi.NeedNodes != 0
	if nodes && r.NodeCount > 0 {
		in.NodeIndex, in.NodeCount = &r.NodeIndex, &r.NodeCount
	}
	for i := range r.Zones {
		z := &r.Zones[i]
		row := api.InputZone{Name: z.Name, Ready: z.Ready, Serving: z.Serving, Total: z.Total}
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

func newInputEndpoint(s *policy.Seen, i int, wallTime func(int64) time.Time) api.InputEndpoint {
	r, e := &s.Request, &s.Request.Endpoints[i]
	at := func(ms int64) *time.Time {
		if ms == abi.NoTime {
			return nil
		}
		t := wallTime(ms).UTC()
		return &t
	}
	out := api.InputEndpoint{
		Address: e.Addr.String(), Conditions: []string{}, Capacity: ratio(e.Capacity), Share: ratio(e.Share), Group: e.Group,
		ReadySince: at(e.ReadySince), TerminatingSince: at(e.TerminatingSince),
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
		out.Outcomes = &api.InputOutcomes{
			InputCounts: api.InputCounts{Attempts: uint64(o.Attempts), Answered: uint64(o.Answered), Refused: uint64(o.Refused), Unanswered: uint64(o.Unanswered)},
			Total:       api.InputCounts{Attempts: o.TotalAttempts, Answered: o.TotalAnswered, Refused: o.TotalRefused, Unanswered: o.TotalUnanswered},
			Since:       wallTime(o.Since).UTC(),
		}
	}
	return out
}

// inputValues returns the values of the declared keys of Pods, or of Services, among those of all keys.
func inputValues(declared, all []string, values []abi.Value, pods bool) (out []api.InputValue) {
	for _, k := range declared {
		if abi.IsEndpointKey(k) != pods {
			continue
		}
		row, at := api.InputValue{Key: k}, 0
		for _, other := range all {
			if abi.IsEndpointKey(other) != pods {
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
		return api.Unknown
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

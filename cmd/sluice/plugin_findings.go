package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/node/agent/dataplane"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// decider is a loaded plugin.
type decider interface {
	Decide(req *abi.Request, resp *abi.Response) error
	Role() abi.Role
}

// sampleAnswer is the answer to a sample request with at least one eligible endpoint.
type sampleAnswer struct {
	name    string
	resp    abi.Response
	parts   []float64 // of the new connections, by endpoint; nil: none gets any
	weights []uint16
	wasted  bool // endpoints that are not eligible have a value above 0
}

// askSamples asks for answers to all sample requests.
func askSamples(p decider, settings string, keys []string) (all []sampleAnswer, err error) {
	for _, s := range wasm.Samples(keys...) {
		a := sampleAnswer{name: s.Name}
		s.Request.Settings.Text = settings
		a.resp.Reset(len(s.Request.Endpoints))
		if err := p.Decide(s.Request, &a.resp); err != nil {
			return nil, fmt.Errorf("sample request %q: %w", s.Name, err)
		}
		eligible := false
		for i := range a.resp.Results {
			ok := s.Request.Endpoints[i].Conditions&abi.Eligible != 0
			eligible = eligible || ok
			a.wasted = a.wasted || !ok && a.resp.Results[i].Value > 0
		}
		if a.parts, a.weights = applied(s.Request, p.Role(), &a.resp); eligible {
			all = append(all, a)
		}
	}
	return all, nil
}

// applied returns what endpoints get if a plugin's answer is that of a chain. It changes the request.
func applied(req *abi.Request, role abi.Role, resp *abi.Response) (parts []float64, weights []uint16) {
	req.Apply(role, abi.AnswerOf(resp))
	parts, weights = req.Parts(nil), make([]uint16, len(req.Endpoints))
	abi.Weights(weights, parts)
	return parts, weights
}

// checkWeights returns an error if no answer leaves an endpoint for new connections, and warnings about answers that do not or
// that are rounded.
func checkWeights(all []sampleAnswer, role abi.Role) (warnings []string, err error) {
	value := "a share"
	if role.WritesCapacity() {
		value = "capacity"
	}
	var empty, wasted []string
	for i := range all {
		if a := &all[i]; a.parts == nil {
			empty = append(empty, a.name)
			if a.wasted {
				wasted = append(wasted, a.name)
			}
		}
	}
	switch {
	case len(empty) == 0:
	case len(empty) < len(all):
		warnings = append(warnings, fmt.Sprintf("no eligible endpoint has capacity and a share above 0 in the answer to sample %s: such a decision fails, and the last good "+
			"one stays in force: give %s to at least one eligible endpoint", names(empty), value))
	case len(wasted) > 0:
		err = fmt.Errorf("only endpoints that are not eligible have %s, in the answers to all sample requests: every decision would fail: "+
			"give %s to endpoints that have the condition eligible", value, value)
	default:
		err = fmt.Errorf("no endpoint has capacity and a share above 0 in the answers to all sample requests: every decision would fail: "+
			"give %s to at least one eligible endpoint; one for which the plugin sets nothing keeps what it has", value)
	}
	if text := rounded(all); text != "" {
		warnings = append(warnings, text)
	}
	return warnings, err
}

// mostEndpoints of a sample that is checked against rounding: with more endpoints than the sum of weights can be, any difference
// is lost.
const mostEndpoints = 100

// mostRounding is by what factor rounding may change what an endpoint gets without a warning.
const mostRounding = 1.1

// rounded returns how the answer that rounding changes most is rounded, "" if it changes none much.
func rounded(all []sampleAnswer) string {
	var samples []string // of which the first is the one that is described
	worst, share, got, total := mostRounding, 0.0, 0.0, 0
	for i := range all {
		a := &all[i]
		if len(a.parts) > mostEndpoints {
			continue
		}
		sum, some, isWorst := 0, false, false
		for _, w := range a.weights {
			sum += int(w)
		}
		for j, part := range a.parts {
			if part == 0 {
				continue
			}
			now := float64(a.weights[j]) / float64(sum)
			by := max(now/part, part/now)
			if some = some || by > mostRounding; by > worst {
				worst, share, got, total, isWorst = by, part, now, sum, true
			}
		}
		if isWorst {
			samples = slices.Insert(samples, 0, a.name)
		} else if some {
			samples = append(samples, a.name)
		}
	}
	if len(samples) == 0 {
		return ""
	}
	return fmt.Sprintf("shares are rounded to weights with a sum of %d, and an endpoint gets %.3g %% of the connections instead of %.3g %%, in the answer to sample %s: "+
		"use shares that differ less", total, 100*got, 100*share, names(samples))
}

// checkModes returns what modes cannot represent of the answers, once for modes with the same limits.
func checkModes(all []sampleAnswer, modes dataplane.Modes) (warnings []string) {
	found := map[string][]string{} // names of modes by text
	for i := range modes {
		caps := modes[i].Caps()
		text := balanceOf(all, &caps)
		if text == "" {
			continue
		}
		if found[text] == nil {
			warnings = append(warnings, text)
		}
		found[text] = append(found[text], modes[i].Name)
	}
	for i, text := range warnings {
		noun := "mode "
		if len(found[text]) > 1 {
			noun = "modes "
		}
		warnings[i] = noun + strings.Join(found[text], " and ") + ": " + text
	}
	return warnings
}

// balanceOf returns which balance of an answer a backend replaces, "" if it supports all.
func balanceOf(all []sampleAnswer, caps *plan.Caps) string {
	byABI := map[uint8]plan.Balance{abi.BalanceRandom: plan.Random, abi.BalanceRoundRobin: plan.RoundRobin,
		abi.BalanceSourceHash: plan.SourceHash, abi.BalanceLeastConnections: plan.LeastConnections}
	for i := range all {
		if b, ok := byABI[all[i].resp.Balance]; ok && !slices.Contains(caps.Balances, b) {
			return fmt.Sprintf("balance %s, in the answer to sample request %q, is replaced by %s, as the mode does not implement it", b, all[i].name, caps.Balances[0])
		}
	}
	return ""
}

// A sequence of requests for one Service, each with the state of the answer before. In each, one endpoint has left and a new one
// has come.
const (
	sequenceLength    = 512
	sequenceEndpoints = 10
	sequencePeriod    = 10_000 // ms between requests
)

// checkState feeds the state of answers back, and returns an error if it outgrows its limit, or a warning if it goes on growing.
func checkState(p decider, settings string, keys []string) (warning string, err error) {
	var largest [4]int // in each quarter of the sequence
	var state []byte
	var states abi.EndpointStates
	prior := map[netip.AddrPort]int32{}
	var resp abi.Response
	for n := range sequenceLength {
		req := sequenceRequest(n, keys)
		req.Settings.Text, req.State, req.EndpointStates = settings, state, states.For(req)
		for i := range req.Endpoints {
			e := &req.Endpoints[i]
			if w, ok := prior[e.Addr]; ok {
				e.PriorWeight = w
			}
		}
		resp.Reset(len(req.Endpoints))
		if err := p.Decide(req, &resp); err != nil {
			if n > 0 && len(state) > 0 && len(state) == slices.Max(largest[:]) {
				return "", fmt.Errorf("the state grows: after %d requests for a Service whose endpoints are replaced one by one it has %d bytes, and the next decision "+
					"fails: remove what is about endpoints that have left, and bound the rest: %w", n, len(state), err)
			}
			return "", fmt.Errorf("request %d of a sequence in which each has the state of the answer before: %w", n+1, err)
		}
		state, states = append(state[:0], resp.State...), abi.StatesOf(req, &resp)
		clear(prior)
		_, weights := applied(req, p.Role(), &resp)
		for i := range req.Endpoints {
			prior[req.Endpoints[i].Addr] = int32(weights[i])
		}
		quarter := &largest[n*len(largest)/sequenceLength]
		*quarter = max(*quarter, len(state))
	}
	if largest[0] < largest[1] && largest[1] < largest[2] && largest[2] < largest[3] {
		return fmt.Sprintf("the state grows: %d, %d, %d and %d bytes after %d, %d, %d and %d requests for a Service whose endpoints are replaced one by one; at %d bytes, decisions "+
			"fail: remove what is about endpoints that have left, and bound the rest", largest[0], largest[1], largest[2], largest[3],
			sequenceLength/4, sequenceLength/2, sequenceLength*3/4, sequenceLength, abi.MaxStateLen), nil
	}
	return "", nil
}

// sequenceRequest returns request n of the sequence. Of three endpoints, one refuses connections and one stays silent.
func sequenceRequest(n int, keys []string) *abi.Request {
	req := wasm.SampleRequest(sequenceEndpoints, keys...)
	req.Now += int64(n) * sequencePeriod
	req.Generation = uint64(n + 1)
	req.OutcomesWindowMS, req.ConnectionsAgeMS = sequencePeriod, 0
	for i := range req.Endpoints {
		e, number := &req.Endpoints[i], n+i
		e.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(number >> 8), byte(number)}), 8080)
		e.Pod = fmt.Sprintf("cart-6d4cf56db6-s%04d", number)
		age := int64(sequenceEndpoints-i) * sequencePeriod
		e.ReadySince = req.Now - age
		e.Connections = uint32(number % 7)
		o := abi.Outcomes{Attempts: 20, Since: e.ReadySince}
		*[]*uint32{&o.Answered, &o.Refused, &o.Unanswered}[number%3] = o.Attempts
		windows := uint64(sequenceEndpoints - i)
		o.TotalAttempts, o.TotalAnswered = windows*uint64(o.Attempts), windows*uint64(o.Answered)
		o.TotalRefused, o.TotalUnanswered = windows*uint64(o.Refused), windows*uint64(o.Unanswered)
		e.Outcomes = o
	}
	return req
}

// names quotes the first name, and counts the others.
func names(list []string) string {
	if len(list) == 1 {
		return fmt.Sprintf("request %q", list[0])
	}
	return fmt.Sprintf("request %q and %d more", list[0], len(list)-1)
}

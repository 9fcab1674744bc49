package main

import (
	"errors"
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
}

// sampleAnswer is the answer to a sample request with at least one eligible endpoint.
type sampleAnswer struct {
	name     string
	req      *abi.Request
	resp     abi.Response
	eligible int  // weights above 0 of eligible endpoints
	wasted   bool // others have weight
}

// askSamples asks for answers to all sample requests.
func askSamples(p decider, settings string, keys []string) (all []sampleAnswer, err error) {
	for _, s := range wasm.Samples(keys...) {
		a := sampleAnswer{name: s.Name, req: s.Request}
		a.req.Settings.Text = settings
		a.resp.Reset(len(a.req.Endpoints))
		if err := p.Decide(a.req, &a.resp); err != nil {
			return nil, fmt.Errorf("sample request %q: %w", s.Name, err)
		}
		some := false
		for i := range a.resp.Results {
			switch weight := &a.resp.Results[i].Weight; {
			case a.req.Endpoints[i].Conditions&abi.Eligible == 0:
				a.wasted = a.wasted || *weight > 0
				*weight = 0
			default:
				some = true
				a.eligible += min(1, int(*weight))
			}
		}
		if some {
			all = append(all, a)
		}
	}
	return all, nil
}

// checkWeights returns an error if no answer has weight, and warnings about weights that are missing or too large.
func checkWeights(all []sampleAnswer) (warnings []string, err error) {
	var empty, wasted, largest []string
	for i := range all {
		a := &all[i]
		if a.eligible == 0 {
			empty = append(empty, a.name)
			if a.wasted {
				wasted = append(wasted, a.name)
			}
		}
		if slices.ContainsFunc(a.resp.Results, func(r abi.Result) bool { return r.Weight == abi.MaxWeight }) {
			largest = append(largest, a.name)
		}
	}
	switch {
	case len(empty) == 0:
	case len(empty) < len(all):
		warnings = append(warnings, fmt.Sprintf("no eligible endpoint has a weight above 0 in the answer to sample %s: such a decision fails, and the last good "+
			"one stays in force: give weight to at least one eligible endpoint", names(empty)))
	case len(wasted) > 0:
		err = errors.New("only endpoints that are not eligible have weight, in the answers to all sample requests: every decision would fail: " +
			"give weight to endpoints that have the condition eligible")
	default:
		err = errors.New("no endpoint has a weight above 0 in the answers to all sample requests: every decision would fail: " +
			"give weight to at least one eligible endpoint; one for which the plugin sets nothing keeps its weight")
	}
	if len(largest) > 0 {
		warnings = append(warnings, fmt.Sprintf("weights are %d in the answer to sample %s: that is the largest, and greater ones are clamped to it, "+
			"so that their ratios are lost: use smaller weights", abi.MaxWeight, names(largest)))
	}
	return warnings, err
}

// mostEndpoints of a sample that is checked against the sums of weights that backends represent: with more endpoints than they represent
// sums, any difference of weights is lost.
const mostEndpoints = 100

// checkModes returns what modes cannot represent of the answers, once for modes with the same limits.
func checkModes(all []sampleAnswer, modes dataplane.Modes) (warnings []string) {
	found := map[string][]string{} // names of modes by text
	for i := range modes {
		caps := modes[i].Caps()
		for _, text := range []string{roundedBy(all, &caps), balanceOf(all, &caps)} {
			if text == "" {
				continue
			}
			if found[text] == nil {
				warnings = append(warnings, text)
			}
			found[text] = append(found[text], modes[i].Name)
		}
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

// roundedBy returns how a backend rounds the answer that it changes most, "" if it represents all.
func roundedBy(all []sampleAnswer, caps *plan.Caps) string {
	var samples []string // of which the first is the one that is described
	var worst, total int
	var share, got float64
	for i := range all {
		a := &all[i]
		if len(a.resp.Results) > mostEndpoints || a.eligible == 0 {
			continue
		}
		f := &plan.Frontend{Key: plan.Key{Protocol: caps.Protocols[0]}, Balance: caps.Balances[0]}
		for j, r := range a.resp.Results {
			if r.Weight > 0 {
				f.Pool.Endpoints = append(f.Pool.Endpoints, plan.Endpoint{Addr: a.req.Endpoints[j].Addr, Weight: r.Weight})
			}
		}
		n, _ := plan.NormalizeFrontend(f, *caps)
		before, after := f.Pool.Total(), n.Pool.Total()
		rounded, isWorst := false, false
		for j := range f.Pool.Endpoints {
			want, have := int(f.Pool.Endpoints[j].Weight), int(n.Pool.Endpoints[j].Weight)
			if want*after == have*before {
				continue
			}
			rounded = true
			w, h := float64(want)/float64(before), float64(have)/float64(after)
			if worst == 0 || max(w/h, h/w) > max(share/got, got/share) {
				worst, total, share, got, isWorst = before, after, w, h, true
			}
		}
		if isWorst {
			samples = slices.Insert(samples, 0, a.name)
		} else if rounded {
			samples = append(samples, a.name)
		}
	}
	if len(samples) == 0 {
		return ""
	}
	return fmt.Sprintf("weights that sum to %d are rounded to a sum of %d, and an endpoint gets %.3g %% of the connections instead of %.3g %%, in the answer to sample %s: "+
		"use smaller weights", worst, total, 100*got, 100*share, names(samples))
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

// A sequence of requests for one Service, each with the state of the answer before. In each, one endpoint has left and a new one has come.
const (
	sequenceLength    = 512
	sequenceEndpoints = 10
	sequencePeriod    = 10_000 // ms between requests
)

// checkState feeds the state of answers back, and returns an error if it outgrows its limit, or a warning if it goes on growing.
func checkState(p decider, settings string, keys []string) (warning string, err error) {
	var largest [4]int // in each quarter of the sequence
	var state []byte
	prior := map[netip.AddrPort]int32{}
	var resp abi.Response
	for n := range sequenceLength {
		req := sequenceRequest(n, keys)
		req.Settings.Text, req.State = settings, state
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
		state = append(state[:0], resp.State...)
		clear(prior)
		for i := range req.Endpoints {
			prior[req.Endpoints[i].Addr] = int32(resp.Results[i].Weight)
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

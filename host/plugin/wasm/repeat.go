package wasm

import (
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

const (
	// firstDecisions of a plugin are repeated more often: one in two. If all were, both instances would have the same history.
	firstDecisions = 128
	// repeatsPerInstance is how many decisions an instance repeats before a new one replaces it.
	repeatsPerInstance = 256
	// repeatBurst is the fuel for repeats that a plugin starts with and can save up, in addition to that of starting an instance.
	// Its calls add 4/RepeatOneIn of their fuel.
	repeatBurst = 50_000_000
	// repeatSlack is the fuel that a repeat may use in addition to starting an instance and twice the first call: for growing
	// buffers.
	repeatSlack = 1_000_000
	// maxFailedRepeats in a row mean that the plugin answers in the first instance only.
	maxFailedRepeats = 16
	// warmUps is how many sample requests an instance answers before it repeats decisions: from the start, its history is
	// another.
	warmUps = 3
)

// repeats is the state of repeating decisions in a second instance, whose history differs from that of the first.
type repeats struct {
	oneIn  int          // 0: none
	seed   maphash.Seed // unknown to guests
	first  int          // of the first decisions, those that are left
	tokens int64        // fuel that repeats may use
	burst  int64        // most tokens
	failed int          // repeats in a row that ended with an error
	answer abi.Response
	stats  Repeats
}

// Repeats contains counters of repeated decisions.
type Repeats struct {
	Equal     uint64
	Different uint64
	Failed    uint64 // without answers to compare: the second instance ended with an error or at its deadline, or one lacked memory
	Skipped   uint64 // because the fuel for repeats was used up, or the memory of all plugins
	Fuel      uint64 // used by all of them
}

// newRepeats returns the state for a new revision.
func (p *Plugin) newRepeats() repeats {
	burst := repeatBurst + p.report.InitFuel
	return repeats{oneIn: p.options.RepeatOneIn, seed: p.host.seed, first: firstDecisions, tokens: burst, burst: burst}
}

// due reports whether a decision is to be repeated. It is a function of the request, with a key that guests do not know.
func (r *repeats) due(req *abi.Request) bool {
	if r.oneIn == 0 {
		return false
	}
	oneIn := uint64(r.oneIn)
	if r.first > 0 {
		r.first--
		oneIn = min(oneIn, 2)
	}
	h := maphash.Comparable(r.seed, sampleKey{req.Namespace, req.Service, req.Port, req.Now, req.Generation, req.Family, req.Pool})
	return h%oneIn == 0
}

// sampleKey identifies a request: its generation increases with each change of the other fields.
type sampleKey struct {
	namespace, service, port string
	now                      int64
	generation               uint64
	family, pool             uint8
}

// earn adds to the fuel for repeats after a decision.
func (r *repeats) earn(fuel int64) {
	r.tokens = min(r.tokens+fuel/max(1, int64(r.oneIn)/4), r.burst)
}

// refund gives back fuel for repeats.
func (r *repeats) refund(fuel int64) { r.tokens = min(r.tokens+fuel, r.burst) }

// repeat asks a second instance for a decision, if that is due, and returns an error if the answers differ. An instance that
// does not answer proves nothing.
func (p *Plugin) repeat(namespace string, req *abi.Request, resp *abi.Response, fuel int64) *ImpureError {
	r := &p.repeats
	r.earn(fuel)
	if !r.due(req) {
		return nil
	}
	key := instanceKey{namespace: namespace, second: true}
	price := fuel
	scarce := false
	if p.pool.guests[key] == nil {
		price += p.report.InitFuel
		scarce = p.memoryIsScarce()
	}
	if scarce || r.tokens < min(price, r.burst) {
		r.stats.Skipped++
		return nil
	}
	first := p.guest
	g, h, used, err := p.second(key, req)
	if err == nil {
		g.maxFuel = 2*fuel + p.report.InitFuel + repeatSlack
		r.answer.Reset(len(req.Endpoints))
		err = g.callDecide(&p.decoder, req, h, &r.answer)
		used += g.fuelUsed
	}
	r.tokens -= used
	r.stats.Fuel += uint64(max(0, used))
	if err != nil {
		r.stats.Failed++
		p.log.Debug("decision not repeated", "err", err)
		if g == nil || g.call.refused || errors.Is(err, errLate) {
			r.failed = 0
		} else if r.failed++; r.failed >= maxFailedRepeats {
			return impure(req, fmt.Sprintf("%d calls in a row were answered by one instance, and failed when they were repeated in another: %v", r.failed, err))
		}
		if g != nil {
			p.drop(g)
		}
		return nil
	}
	r.failed = 0
	if first.call.refused || g.call.refused { // a function of the request, and of memory
		r.stats.Failed++
		return nil
	}
	if diff := diffResponses(req, resp, &r.answer); diff != "" {
		r.stats.Different++
		return impure(req, "two instances answer the same request differently: "+diff)
	}
	r.stats.Equal++
	if g.repeated++; g.repeated >= repeatsPerInstance {
		p.drop(g)
	}
	return nil
}

// second makes the second instance with a key the current guest, with the settings of a request, and returns the fuel that was
// used to start and to configure it.
func (p *Plugin) second(key instanceKey, req *abi.Request) (g *guest, h handle, used int64, err error) {
	g, h, used, err = p.configuredInstance(key, req.Settings.Text)
	if g == nil {
		return nil, h, p.report.InitFuel, err
	}
	if err != nil || g.repeated > 0 {
		return g, h, used, err
	}
	used += p.report.InitFuel
	for n := range warmUps {
		sample := SampleRequest(n+1, h.keys...)
		p.repeats.answer.Reset(n + 1)
		err = g.callDecide(&p.decoder, sample, h, &p.repeats.answer)
		used += g.fuelUsed
		if err != nil {
			return g, h, used, err
		}
	}
	return g, h, used, nil
}

// ImpureError means that two instances of a plugin have answered the same request differently, or that one answers and the other
// fails.
type ImpureError struct {
	namespace string
	text      string
}

func impure(req *abi.Request, what string) *ImpureError {
	return &ImpureError{req.Namespace, fmt.Sprintf("Service %s/%s:%s: %s: %s", req.Namespace, req.Service, req.Port, what, impureCause(false))}
}

// Error implements error. It names a Service, so it is for the log and for the Services of the same namespace.
func (e *ImpureError) Error() string { return e.text }

// impureError is the error of all calls after an ImpureError. Services of other namespaces do not get the answers.
func (p *Plugin) impureError(req *abi.Request) error {
	err := error(p.impure)
	if req.Namespace != p.impure.namespace {
		err = errImpure
	}
	return &DecideError{Failures: p.failures, Suspended: true, Err: err}
}

var errImpure = errors.New("two instances answered a request of another namespace differently; sluice has logged both answers")

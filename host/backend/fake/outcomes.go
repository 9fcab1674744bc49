package fake

import (
	"context"
	"fmt"
	"maps"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Response is how an endpoint responds to new connections.
type Response uint8

// The responses. Endpoints answer unless Kernel.SetResponse says otherwise.
const (
	Answers Response = iota
	Refuses
	Silent
)

// SetResponse makes an endpoint respond in a certain way to connections from now on.
func (k *Kernel) SetResponse(e model.EndpointKey, r Response) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.responses[e] = r
}

// countOutcome counts a new connection if a frontend with Outcomes has the endpoint.
func (k *Kernel) countOutcome(e model.EndpointKey) Response {
	r := k.responses[e]
	if !watches(k.tables[Name], e) {
		return r
	}
	c := k.outcomes[e]
	c.Attempts++
	switch r {
	case Answers:
		c.Answered++
	case Refuses:
		c.Refused++
	}
	k.outcomes[e] = c
	return r
}

// watches reports whether a frontend with Outcomes has an endpoint.
func watches(p *plan.Plan, e model.EndpointKey) bool {
	for k, f := range p.Frontends {
		if !f.Outcomes || k.Protocol != e.Protocol {
			continue
		}
		for m := range f.AllEndpoints() {
			if m.Addr == e.Addr {
				return true
			}
		}
	}
	return false
}

// forgetOutcomes deletes the counters of endpoints that no frontend with Outcomes has any more.
func (k *Kernel) forgetOutcomes() {
	if len(k.outcomes) > 0 {
		maps.DeleteFunc(k.outcomes, func(e model.EndpointKey, _ backend.OutcomeCounters) bool { return !watches(k.tables[Name], e) })
	}
}

// UncountedEndpoints implements backend.OutcomeCounter. There is no limit.
func (b *Backend) UncountedEndpoints() int { return 0 }

// ReadOutcomes implements backend.OutcomeCounter.
func (b *Backend) ReadOutcomes(ctx context.Context) (map[model.EndpointKey]backend.OutcomeCounters, error) {
	if b.closed {
		return nil, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("fake: read outcomes: %w", err)
	}
	k := b.kernel
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stats.OutcomeReads++
	out := map[model.EndpointKey]backend.OutcomeCounters{}
	if p := k.tables[Name]; p != nil {
		for key, f := range p.Frontends {
			if !f.Outcomes {
				continue
			}
			for m := range f.AllEndpoints() {
				e := model.EndpointKey{Addr: m.Addr, Protocol: key.Protocol}
				out[e] = k.outcomes[e]
			}
		}
	}
	return out, nil
}

package policy

import (
	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Without is what would be decided about a pool if the guard of its policy made it fall back, as far as that is known: the
// default rules, or the last decision of another policy, applied to the endpoints that there are now.
type Without struct {
	Policy  string   // that has decided; "": the default rules
	Weights []uint16 // parallel to Input.Port.Endpoints; nil: not known, or nothing would get connections
	Balance uint8    // abi.Balance…
}

// formerly is the last decision about a pool of the policy before the one that decides now.
type formerly struct {
	policy string
	good   *lastGood
}

// without returns what would be decided without the policy of a pool.
func (m *poolState) without(in *Input) *Without {
	w := &Without{Policy: m.before.policy}
	defaults := make([]uint16, len(in.Port.Endpoints))
	for i := range defaults {
		if chosen(in, i) && !in.Port.Endpoints[i].Held(in.Pool == abi.PoolLocal) {
			defaults[i] = 1
		}
	}
	switch good := m.before.good; {
	case !anyPositive(defaults):
	case w.Policy == "":
		w.Weights = defaults
	case good != nil:
		w.Weights, w.Balance = good.applyTo(in, defaults), good.balance
	}
	return w
}

// Shift is how the connections of a Service are shared differently with a policy than without. Where pools differ, the larger
// difference counts.
type Shift struct {
	Unknown       bool // what would be decided without the policy is not known
	all           bool // the balance differs: the shares say nothing
	more          map[model.EndpointKey]float64
	least, unseen float64
}

// Add adds a decision about a pool of a port. instead is the name of the policy that applies without the one that has decided, ""
// for none.
func (s *Shift) Add(port *eligibility.Port, d *Decision, instead string) {
	w := d.Without
	switch {
	case w == nil || w.Policy != instead || w.Weights == nil && instead != "":
		s.Unknown = true
		return
	case d.Balance != w.Balance:
		s.all = true
		return
	}
	with, without := total(d.Weights), total(w.Weights)
	if with == 0 || without == 0 {
		return
	}
	unseen := 0.0
	for i := range port.Endpoints {
		if float64(d.Weights[i])*without == float64(w.Weights[i])*with {
			continue
		}
		now, then := float64(d.Weights[i])/with, float64(w.Weights[i])/without
		unseen += max(0, then-2*now)
		if now > 0 {
			s.set(model.EndpointKey{Addr: port.Endpoints[i].Addr, Protocol: port.Name.Protocol}, max(-1, 1-then/now))
		}
	}
	s.unseen = max(s.unseen, unseen)
}

func (s *Shift) set(key model.EndpointKey, more float64) {
	if s.more == nil {
		s.more = map[model.EndpointKey]float64{}
	}
	if before := s.more[key]; max(before, -before) < max(more, -more) {
		s.more[key] = more
	}
	s.least = min(s.least, more)
}

// Of returns the outcomes of connections to an endpoint with its shift, without the outcomes.
func (s *Shift) Of(key model.EndpointKey) GuardOutcomes {
	if s.all {
		return GuardOutcomes{More: 1, Unseen: 1}
	}
	return GuardOutcomes{More: s.more[key], Least: s.least, Unseen: s.unseen}
}

package simulation

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// state is what a node has decided about a Service, from a time on.
type state struct {
	at time.Duration
	// weights are those by pool, then parallel to the port's endpoints; nil: the port does not have the pool. With a route, the
	// last one is that of the connections that are refused.
	weights [][]uint16
	held    [][]float64 // by port, the share of each backend in the load pool; nil: it has no route, or no demand
	changes int         // weights of pools that are others than in the state before
	calls   uint64      // of plugins
}

// trajectory is the states of a node over time.
type trajectory struct {
	states []state
	err    error // the first failure of the policy
	policy *policy.Policy
}

// nodeRun decides about the Services of a unit on one node over time, like the planner of that node. Its evaluator is reused.
type nodeRun struct {
	sim       *Simulation
	config    *Config
	evaluator *policy.Evaluator
	rules     *eligibility.EndpointRules
	services  []serviceOnNode // those of the unit; reused

	unit    *unit
	class   *class
	set     *policy.Set
	signals *signals // nil: no policy needs any
}

// serviceOnNode is a Service of the unit.
type serviceOnNode struct {
	svc       *serviceRun
	ports     []portOnNode // parallel to those of the Service; reused
	needs     uint32       // of its policies
	times     timeList     // when its input changes
	requeue   time.Duration
	due       bool
	decided   bool                  // at the present time
	decisions []policy.PortDecision // the last ones, parallel to ports, as far as policies decide about them; reused
	calls     uint64                // of plugins, for decisions
	record    *planner.Record       // of decisions; nil: it is no backend
	rates     []endpointRate
	out       trajectory
}

// endpointRate is the rate of the connections to an endpoint that the kernel has in a pool.
type endpointRate struct {
	key  model.EndpointKey
	rate float64
}

// run returns the trajectories of a class, parallel to the Services of the unit. run is the number of the configuration.
func (r *nodeRun) run(u *unit, c *class, run int) (out []trajectory) {
	needs := r.begin(u, c, run)
	read := never
	if needs&abi.NeedOutcomes != 0 {
		read = -countBefore
	}
	for next := -settle; next <= r.sim.world.end && next != never; {
		due := false
		for i := range r.services {
			s := &r.services[i]
			changed := s.times.skip(next)
			s.due = s.due || changed || next >= s.requeue
		}
		if next == read {
			r.read(next)
			read += r.config.Period
		}
		for i := range r.services {
			due = due || r.services[i].due
		}
		if due {
			r.decideAll(next)
		}
		next = read
		for i := range r.services {
			next = min(next, r.services[i].requeue, r.services[i].times.next())
		}
	}
	for i := range r.services {
		out = append(out, r.services[i].out)
	}
	r.forget()
	return out
}

// begin begins a run, and returns what plugins need in it.
func (r *nodeRun) begin(u *unit, c *class, run int) (needs uint32) {
	r.unit, r.class, r.set = u, c, c.sets[run]
	for len(r.services) < len(u.services) {
		r.services = append(r.services, serviceOnNode{})
	}
	r.services = r.services[:len(u.services)]
	for i, svc := range u.services {
		s := &r.services[i]
		*s = serviceOnNode{svc: svc, ports: s.ports, decisions: s.decisions[:0], rates: s.rates[:0], due: true}
		for j := range svc.ports {
			if p := &svc.ports[j]; p.asks() {
				of, _ := r.set.For(svc.service, p.spec.Name, "")
				s.out.policy = cmp.Or(s.out.policy, of)
				s.needs |= r.needs(of)
			}
			s.decisions = append(s.decisions, policy.PortDecision{})
		}
		s.times = r.times(s)
		needs |= s.needs
	}
	r.signals, r.evaluator.Signals = nil, nil
	if needs&(abi.NeedOutcomes|abi.NeedConnections) != 0 {
		r.signals = newSignals(r.sim.world, r.sim.lifetime)
		r.evaluator.Signals = r.signals
	}
	return needs
}

// read takes a reading of outcomes. Services that have to decide because of new failures are due.
func (r *nodeRun) read(t time.Duration) {
	for _, key := range r.signals.read(t) {
		for i := range r.services {
			s := &r.services[i]
			s.due = s.due || s.needs&abi.NeedOutcomes != 0 && s.svc.has(key)
		}
	}
}

// never is later than any time.
const never time.Duration = 1 << 62

// timeList are times at which something changes, in order.
type timeList []time.Duration

func (l timeList) next() time.Duration {
	if len(l) == 0 {
		return never
	}
	return l[0]
}

// skip removes the times up to t, and reports whether there are any.
func (l *timeList) skip(t time.Duration) (some bool) {
	for l.next() <= t {
		*l, some = (*l)[1:], true
	}
	return some
}

// times returns when the input of a Service changes.
func (r *nodeRun) times(s *serviceOnNode) (out timeList) {
	out = append(out, r.class.fate...)
	for _, v := range s.svc.versions {
		out = append(out, v.at)
	}
	for i := range s.svc.ports {
		for _, v := range s.svc.ports[i].routes {
			out = append(out, v.at)
		}
	}
	if s.needs&abi.NeedNodes != 0 {
		for _, v := range r.sim.world.nodes {
			out = append(out, v.at)
		}
	}
	slices.Sort(out)
	return out
}

// needs returns what the plugins of a policy need, and NeedOutcomes for its panic hold.
func (r *nodeRun) needs(p *policy.Policy) uint32 {
	if p == nil {
		return 0
	}
	needs, _ := r.evaluator.Needs(p)
	if p.Panic.Below > 0 {
		needs |= abi.NeedOutcomes
	}
	return needs
}

// decideAll decides about the Services that are due at t, and about those that routes split over them. A node that is lost goes
// on when it is back.
func (r *nodeRun) decideAll(t time.Duration) {
	if r.signals != nil {
		r.signals.begin(t)
		defer r.signals.end()
	}
	if isLost(r.class.fate, t) {
		for i := range r.services {
			r.services[i].due, r.services[i].requeue = false, never
		}
		return
	}
	for again := true; again; {
		again = false
		for i := range r.services {
			if s := &r.services[i]; s.due {
				s.due, s.decided = false, true
				again = r.decide(s, t) || again
			}
		}
	}
	for i := range r.services {
		s := &r.services[i]
		if s.decided {
			s.decided = false
			r.finish(s, t)
		}
		for _, e := range s.rates {
			if r.signals != nil {
				r.signals.set(e.key, e.rate, t)
			}
		}
	}
}

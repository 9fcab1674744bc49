package planner

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/claims"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// round is the planning of one Service: each port in each family is evaluated, then the frontends are set. That of a large
// Service takes several Plans. It keeps to the Service as it was at its beginning; a change meanwhile leads to another round.
//
// The ports before next are added, except those in open, which follow in their order; frontends and sums are those of added
// ports.
type round struct {
	svc       *model.Service
	policies  []*policy.Policy    // by port; nil: none
	choiceErr *policy.ChoiceError // of the annotation; nil: none
	err       error               // of the policy's chain
	failed    []PolicyError       // of each policy whose chain fails
	addrs     []claims.Addr
	ranges    [2]ranges // of IPv4 and IPv6
	quota     quota
	next      int       // what to evaluate next: twice the index of the port, plus one for IPv6
	port      portRound // that of next
	// open are evaluated ports before next that are not added, because one before them waits for the answer to a call of this
	// Plan.
	open      []portRound
	paused    bool           // it goes on when these answers are there, or are late
	evaluated bool           // all ports
	routes    []*model.Route // by port; nil: it has none
	record    *Record        // nil: the Service is no backend of a route
	nextSplit int            // the first port that is not split, as next has it
	again     bool           // the Service has changed since the beginning

	frontends []*plan.Frontend
	summary   tally.Builder
	decisions *decisionCache // nil without a policy
	udp       udpRound
	ports     []model.PortName
	enforced  chainWait
	shadow    chainWait
	// The first frontend of the port with the most endpoints, if that is more than the limit.
	crowded   *plan.Frontend
	endpoints int
	// Endpoints of all ports that may not be, and the first frontend and reason.
	unsafe    int
	unsafeAt  *plan.Frontend
	unsafeWhy error
	sheds     map[shedKey]wantedShed
	shedding  *policy.Policy // that asks for more of them than it may
	counted   tally.Wanted
	guards    []*guard // that concern the Service
	instead   string   // the policy that applies without the guarded one that decides; "": none
	shift     policy.Shift
}

// portRound is the evaluation of a port in one family; before it begins, the decision has no Port. A port with many endpoints
// takes several turns: selecting 10,000 endpoints takes 2 ms, and so does deciding about a pool of them.
type portRound struct {
	decision  policy.PortDecision
	policy    *policy.Policy
	next      int             // round.next when it began
	holds     [2]*policy.Hold // by pool
	decided   [2]bool
	asked     [2]bool      // the decision waits for the answer to a call of this Plan
	requeueAt [2]time.Time // of the pool's policy
}

func (o *portRound) asks() bool { return o.asked != [2]bool{} }

// governed reports whether the Service has a policy or an annotation about it, or whether its connections are counted.
func (r *round) governed() bool {
	return r.decisions != nil || r.choiceErr != nil || r.svc.Settings != "" || r.counted.Outcomes
}

// waitsFor reports whether a round goes on with the decision about a pool.
func (r *round) waitsFor(k policy.PoolKey) bool {
	for i := range r.open {
		if r.open[i].waitsFor(k) {
			return true
		}
	}
	return r.port.waitsFor(k)
}

func (o *portRound) waitsFor(k policy.PoolKey) bool {
	p := o.decision.Port
	return p != nil && o.asked[k.Pool] && p.Name == k.Port && p.Family == k.Family
}

// pool returns the decision about a pool, and whether the port has it.
func (o *portRound) pool(pool int) (d *policy.Decision, used bool) {
	if pool == abi.PoolLocal {
		return &o.decision.Local, o.decision.Port.UsesLocal
	}
	return &o.decision.Cluster, o.decision.Port.UsesCluster
}

// add adds the decision about a port and its frontends.
func (r *round) add(l *Limits, d *policy.PortDecision, frontends []*plan.Frontend) {
	r.frontends = append(r.frontends, frontends...)
	r.summary.Add(r.svc, d)
	if d.Port.Refused > 0 && len(frontends) > 0 {
		if r.unsafe += d.Port.Refused; r.unsafeAt == nil {
			r.unsafeAt, r.unsafeWhy = frontends[0], d.Port.FirstRefusal
		}
	}
	if d.Port.Omitted > 0 && d.Port.Omitted+l.Endpoints > r.endpoints && len(frontends) > 0 {
		r.crowded, r.endpoints = frontends[0], d.Port.Omitted+l.Endpoints
	}
}

// addDecision adds the decision about the Service's own endpoints of a port.
func (r *round) addDecision(d *policy.PortDecision, by *policy.Policy) {
	r.counted.Add(d.Port)
	if r.decisions != nil {
		r.decisions.add(d)
	}
	if r.record != nil {
		r.record.Add(d, by)
	}
	if n := len(r.ports); n == 0 || r.ports[n-1] != d.Port.Name {
		r.ports = append(r.ports, d.Port.Name)
	}
}

// routeOf returns the route of a port, by twice its index; nil: none.
func (r *round) routeOf(at int) *model.Route {
	if r.routes == nil {
		return nil
	}
	return r.routes[at/len(model.Families)]
}

// ranges are the source ranges of a Service in one family; nil if every source may connect.
type ranges struct {
	list    []netip.Prefix
	omitted int
}

// chainWait is what a Service waits for because of the chain of its policy, or of its shadow. It is planned again for a shadow
// after everything else.
type chainWait struct {
	requeueAt int64 // Unix milliseconds, 0: only on a change
	awaited   int   // plugin calls that are queued or running
}

// add adds what a chain of a pool waits for.
func (w *chainWait) add(d *policy.Evaluation, requeueAt time.Time) {
	if !requeueAt.IsZero() {
		w.requeueAt = earlier(w.requeueAt, requeueAt.UnixMilli())
	}
	if d.Pending != nil {
		w.awaited++
	}
}

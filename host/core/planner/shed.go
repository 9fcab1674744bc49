package planner

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

const (
	// shedTime is how long a shed takes.
	shedTime = time.Minute
	// shedStep is the minimum time from the end of a step of the sheds to the next one.
	shedStep = time.Second
	// shedGrace is for how long a shed may have waited before its first step. One that is older has been going on before a restart,
	// and continues where it would be: what it has reset must not be reset again.
	shedGrace = 5 * time.Second
	// shedRetry is the wait after a step that failed.
	shedRetry = 10 * time.Second
)

// sheds are the sheds in progress.
type sheds struct {
	services  map[model.Name]map[shedKey]*shed
	running   bool    // a step has been passed to the caller
	steps     []*shed // what it consists of
	notBefore int64   // the next step, Unix milliseconds
}

// shedKey identifies a shed: the cluster pool and the local pool of a Service port share the connections of an endpoint.
type shedKey struct {
	port     model.PortName
	endpoint netip.AddrPort
}

// shed resets part of an endpoint's connections, in steps that are spread over shedTime. A step that is late resets more, up to
// limit, and the later ones follow.
type shed struct {
	at        int64  // when it began, Unix milliseconds
	share     uint64 // to be reset in all, of plan.ShedSpace
	limit     uint64 // of a step
	done      uint64 // what the steps have reset so far
	pending   uint64 // done after the step that is running
	frontends []plan.Key
}

// wantedShed is a shed that the policy of a Service asks for.
type wantedShed struct {
	at        int64
	permille  uint16 // asked for
	share     uint64
	limit     uint64
	bounded   bool // share is less than asked for
	frontends []plan.Key
}

// ShedBounded is a shed that a policy's limit makes smaller.
type ShedBounded struct {
	Service model.Name
	Policy  string
	Limit   int // percent per second
}

// String describes the bound. The text is the same each time, so that Events can be aggregated.
func (b *ShedBounded) String() string {
	return fmt.Sprintf("policy %s resets fewer established connections than its plugins ask for: maxShedPercentPerSecond is %d",
		b.Policy, b.Limit)
}

// EffectiveShed returns how many permille of the connections are reset of those that are asked for, given the limit in percent per second.
func EffectiveShed(permille uint16, limit int) uint16 {
	return uint16(min(int(permille), abi.MaxShedPermille, limit*10*int(shedTime/time.Second)))
}

// addSheds adds the sheds of a port's decisions, through the frontends of the pools that they are about.
func (r *round) addSheds(d *policy.PortDecision, by *policy.Policy, frontends []*plan.Frontend) {
	if d.Cluster.Sheds == nil && d.Local.Sheds == nil {
		return
	}
	limit := max(1, by.MaxShedPercentPerSecond)
	for i := range d.Port.Endpoints {
		key := shedKey{d.Port.Name, d.Port.Endpoints[i].Addr}
		var w wantedShed
		var inCluster, inLocal bool
		for pool, of := range [...]*policy.Decision{abi.PoolCluster: &d.Cluster, abi.PoolLocal: &d.Local} {
			if of.Sheds == nil || of.Sheds[i].Permille == 0 {
				continue
			}
			if s := of.Sheds[i]; s.Permille > w.permille {
				w.permille, w.at = s.Permille, s.At
			}
			inCluster, inLocal = inCluster || pool == abi.PoolCluster, inLocal || pool == abi.PoolLocal
		}
		if w.permille == 0 {
			continue
		}
		share := EffectiveShed(w.permille, limit)
		if w.bounded = share < w.permille; w.bounded {
			r.shedding = by
		}
		w.share, w.limit = uint64(share)*plan.ShedSpace/abi.MaxShedPermille, uint64(limit)*plan.ShedSpace/100
		for _, f := range frontends {
			usesLocal := f.Outside != nil || f.Kind == plan.ClusterIP && r.svc.InternalLocal
			usesCluster := f.Kind != plan.ClusterIP || !r.svc.InternalLocal
			if inCluster && usesCluster || inLocal && usesLocal {
				w.frontends = append(w.frontends, f.Key)
			}
		}
		if r.sheds == nil {
			r.sheds = map[shedKey]wantedShed{}
		}
		r.sheds[key] = w
	}
}

// set replaces the sheds of a Service by those that its policy asks for. It reports whether one that begins is bounded.
func (s *sheds) set(name model.Name, wanted map[shedKey]wantedShed, nowMS int64) (bounded bool) {
	before := s.services[name]
	if len(wanted) == 0 {
		delete(s.services, name)
		return false
	}
	now := map[shedKey]*shed{}
	for key, w := range wanted {
		c := before[key]
		switch {
		case c != nil && c.at == w.at: // goes on, or has been completed by the last step
		case nowMS >= w.at+shedTime.Milliseconds():
			continue // it has ended
		default:
			c = &shed{at: w.at}
			if nowMS-w.at >= shedGrace.Milliseconds() {
				c.done = w.due(nowMS)
			}
			bounded = bounded || w.bounded
		}
		c.share, c.limit, c.frontends = w.share, w.limit, w.frontends
		now[key] = c
	}
	delete(s.services, name)
	if len(now) > 0 {
		if s.services == nil {
			s.services = map[model.Name]map[shedKey]*shed{}
		}
		s.services[name] = now
	}
	return bounded
}

// due returns what should be reset at a time.
func (w *wantedShed) due(nowMS int64) uint64 { return dueShare(w.at, w.share, nowMS) }

func dueShare(at int64, share uint64, nowMS int64) uint64 {
	elapsed := min(max(nowMS-at, 0), shedTime.Milliseconds())
	return share * uint64(elapsed) / uint64(shedTime.Milliseconds())
}

// Sheds returns the next step of the sheds in progress, empty if it is not due. The caller resets the connections, and then calls ShedsDone,
// both without delaying Plan. now is by the clock of Plan.
func (p *Planner) Sheds(now time.Time) (steps []plan.Shed) {
	s, nowMS := &p.sheds, now.UnixMilli()
	if s.running || len(s.services) == 0 || nowMS < s.notBefore {
		return nil
	}
	for _, name := range slices.SortedFunc(maps.Keys(s.services), model.Name.Compare) {
		of := s.services[name]
		for _, key := range slices.SortedFunc(maps.Keys(of), shedKey.compare) {
			c := of[key]
			c.pending = min(dueShare(c.at, c.share, nowMS), c.done+c.limit)
			if c.pending <= c.done {
				c.pending = c.done
				continue
			}
			step := plan.Shed{Endpoint: key.endpoint, Seed: uint64(c.at), From: c.done, To: c.pending, Until: c.share}
			for _, k := range c.frontends { // another Service may have got the frontend
				if f := p.claims.Plan().Frontends[k]; f != nil && f.Owner == key.port {
					step.Frontends = append(step.Frontends, k)
				}
			}
			if len(step.Frontends) > 0 {
				steps, s.steps = append(steps, step), append(s.steps, c)
			}
		}
	}
	s.running = len(steps) > 0
	if !s.running {
		s.end(nowMS)
	}
	return steps
}

// ShedsDone ends the step that Sheds has returned. What is deferred (nil: nothing) is repeated by the next one. A step that has failed
// is repeated later.
func (p *Planner) ShedsDone(now time.Time, ok bool, deferred []bool) {
	s := &p.sheds
	if !ok {
		s.running, s.steps, s.notBefore = false, nil, now.Add(shedRetry).UnixMilli()
		return
	}
	for i, c := range s.steps {
		if i < len(deferred) && deferred[i] {
			c.pending = c.done
		}
	}
	s.end(now.UnixMilli())
}

// end ends a step that has succeeded.
func (s *sheds) end(nowMS int64) {
	s.running, s.steps, s.notBefore = false, nil, nowMS+shedStep.Milliseconds()
	for name, of := range s.services {
		maps.DeleteFunc(of, func(_ shedKey, c *shed) bool {
			c.done = max(c.done, c.pending)
			return c.done >= c.share && nowMS >= c.at+shedTime.Milliseconds()
		})
		if len(of) == 0 {
			delete(s.services, name)
		}
	}
}

// NextSheds returns when to call Sheds; zero: nothing is in progress, or ShedsDone comes first.
func (p *Planner) NextSheds() time.Time {
	s := &p.sheds
	if s.running || len(s.services) == 0 {
		return time.Time{}
	}
	return time.UnixMilli(s.notBefore)
}

func (k shedKey) compare(l shedKey) int {
	return cmp.Or(k.port.Compare(l.port), k.endpoint.Compare(l.endpoint))
}

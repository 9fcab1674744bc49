package planner

import (
	"maps"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/claims"
)

// sheds are the sheds in progress.
type sheds struct {
	table     *claims.Table
	byService map[model.Name]map[shedKey]*shed
	running   bool    // a step has been passed to the caller
	steps     []*shed // what it consists of
	notBefore int64   // the next step, Unix milliseconds
}

// set replaces the sheds of a Service by those that its policy asks for. It reports whether one that begins is bounded.
func (s *sheds) set(name model.Name, wanted map[shedKey]wantedShed, nowMS int64) (bounded bool) {
	before := s.byService[name]
	if len(wanted) == 0 {
		delete(s.byService, name)
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
	delete(s.byService, name)
	if len(now) > 0 {
		if s.byService == nil {
			s.byService = map[model.Name]map[shedKey]*shed{}
		}
		s.byService[name] = now
	}
	return bounded
}

// Sheds returns the next step of the sheds in progress, empty if it is not due. The caller resets the connections, and then calls
// ShedsDone, both without delaying Plan. now is by the clock of Plan.
func (s *sheds) Sheds(now time.Time) (steps []plan.Shed) {
	nowMS := now.UnixMilli()
	if s.running || len(s.byService) == 0 || nowMS < s.notBefore {
		return nil
	}
	for _, name := range slices.SortedFunc(maps.Keys(s.byService), model.Name.Compare) {
		of := s.byService[name]
		for _, key := range slices.SortedFunc(maps.Keys(of), shedKey.compare) {
			c := of[key]
			c.pending = min(dueShare(c.at, c.share, nowMS), c.done+c.limit)
			if c.pending <= c.done {
				c.pending = c.done
				continue
			}
			step := plan.Shed{Endpoint: key.endpoint, Seed: uint64(c.at), From: c.done, To: c.pending, Until: c.share}
			for _, k := range c.frontends { // another Service may have got the frontend
				if f := s.table.Plan().Frontends[k]; f != nil && f.Owner == key.port {
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

// ShedsDone ends the step that Sheds has returned. What is deferred (nil: nothing) is repeated by the next one. A step that has
// failed is repeated later.
func (s *sheds) ShedsDone(now time.Time, ok bool, deferred []bool) {
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
	for name, of := range s.byService {
		maps.DeleteFunc(of, func(_ shedKey, c *shed) bool {
			c.done = max(c.done, c.pending)
			return c.done >= c.share && nowMS >= c.at+shedTime.Milliseconds()
		})
		if len(of) == 0 {
			delete(s.byService, name)
		}
	}
}

// NextSheds returns when to call Sheds; zero: nothing is in progress, or ShedsDone comes first.
func (s *sheds) NextSheds() time.Time {
	if s.running || len(s.byService) == 0 {
		return time.Time{}
	}
	return time.UnixMilli(s.notBefore)
}

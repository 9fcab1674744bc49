package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/plan"
)

// patience is how often tables of another mode stay in force because a frontend fails that they may have.
const patience = 3

// sent is what an Apply has done so far.
type sent struct {
	backend.Report
	link bool // it is there
}

// add counts what the companion did.
func (s *sent) add(r backend.Report) {
	s.Messages, s.Elements = s.Messages+r.Messages, s.Elements+r.Elements
	s.Transactions, s.Longest = s.Transactions+r.Transactions, max(s.Longest, r.Longest)
}

// again asks for another Apply, of 0 for none.
func (s *sent) again(after time.Duration) {
	if after > 0 && (s.RequeueAfter == 0 || after < s.RequeueAfter) {
		s.RequeueAfter = after
	}
}

// Apply brings the kernel to next. Members come first, then addresses, frontends, weights, and last what goes, so that
// no connection finds nothing. A frontend for which a message fails, a second time too, is as near to the plan as it can
// be without, and the others do not wait for it.
func (b *Backend) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error) {
	b.sent = sent{}
	err := ctx.Err()
	if err == nil {
		err = b.apply(ctx, next, d)
	}
	return b.sent.Report, err
}

func (b *Backend) apply(ctx context.Context, next *plan.Plan, d *plan.Delta) error {
	whole := d == nil || !b.trusted
	b.trusted, b.unsure = false, false // until it is through
	var jobs []*job
	if whole {
		if err := b.settings(false); err != nil {
			return err
		}
		s, err := b.load(ctx)
		if err != nil {
			return err
		}
		b.adopt(s)
		jobs, d = b.allJobs(next), nil
	} else {
		d = b.stuck.again(next, d)
		jobs = b.jobs(d)
	}
	each(jobs, b.learn)
	if err := b.guard(ctx, jobs); err != nil {
		return err
	}
	each(jobs, b.membersIn)
	each(jobs, b.bind)
	if b.now.replaces && b.declined < patience {
		// The tables from before forward what would be missing. They stay, unless it goes on.
		if slices.ContainsFunc(jobs, func(j *job) bool { return j.stays }) {
			b.declined++
			return failures(jobs)
		}
	}
	companion := b.frontends(ctx, next, d, jobs)
	if err := ctx.Err(); err != nil {
		return errors.Join(failures(jobs), companion, err)
	}
	for _, j := range jobs {
		b.weights(j)
	}
	for _, j := range jobs {
		b.membersOut(j)
	}
	rest := b.tidy(ctx, jobs, whole)
	for _, j := range jobs {
		// What no frontend has is found by looking at everything only.
		b.unsure = b.unsure || !j.key.Addr.IsValid() && len(j.errs) > 0
	}
	if companion != nil || rest != nil || b.unsure {
		return errors.Join(failures(jobs), companion, rest)
	}
	b.trusted = true
	return b.stuck.note(jobs)
}

// adopt makes what was read the mirror.
func (b *Backend) adopt(s *state) {
	b.now = *s
	clear(b.stuck)
	b.linger.adopt(b.now.servers)
}

// frontends has the companion take all but those that stay as they are. When that fails all of them do.
func (b *Backend) frontends(ctx context.Context, next *plan.Plan, d *plan.Delta, jobs []*job) error {
	var bad bool
	for _, j := range jobs {
		bad = bad || j.stays && j.key.Addr.IsValid()
		if !j.stays && j.next != nil {
			b.now.list(j.key, 1)
		}
	}
	if bad {
		next, d = b.without(next, d, jobs)
	}
	r, err := b.companion.Apply(ctx, next, d)
	b.sent.add(r)
	if err != nil && ctx.Err() == nil && (d == nil || !bad && len(b.stuck) == 0) {
		// What became of it is read, and the rest is done, once. Not where the plan has more than the companion may.
		b.log.Debug("the companion of IPVS: trying once more", "err", err)
		r, err = b.companion.Apply(ctx, next, nil)
		b.sent.add(r)
	}
	if err != nil {
		for _, j := range jobs {
			j.stays = true
		}
		return fmt.Errorf("ipvs: the companion: %w", err)
	}
	b.sent.again(r.RequeueAfter)
	b.now.replaces = false
	for _, j := range jobs {
		b.settle(j)
	}
	// Nobody else forwards any more what comes to these.
	clear(b.now.passing)
	if !b.returned {
		if _, err := leaving(b.o.Netns, nil); err != nil {
			return err
		}
		b.returned = true
	}
	return b.guard(ctx, jobs)
}

// without leaves the frontends that stay as they are in the companion.
func (b *Backend) without(next *plan.Plan, d *plan.Delta, jobs []*job) (*plan.Plan, *plan.Delta) {
	stays := map[plan.Key]bool{}
	for _, j := range jobs {
		if j.stays {
			stays[j.key] = true
		}
	}
	if d != nil {
		out := &plan.Delta{Global: d.Global}
		for _, c := range d.Changes {
			if !stays[c.Key] {
				out.Changes = append(out.Changes, c)
			}
		}
		return next, out
	}
	out := &plan.Plan{Global: next.Global, Frontends: maps.Clone(next.Frontends)}
	for k := range stays {
		if was := b.now.plan.Frontends[k]; was != nil {
			f := *was
			if f.Outside != nil {
				o := *f.Outside
				f.Outside = &o
			}
			b.now.raise(&f)
			out.Frontends[k] = &f
		} else {
			delete(out.Frontends, k)
		}
	}
	return out, nil
}

// settle notes what the companion has now.
func (b *Backend) settle(j *job) {
	if j.stays {
		return
	}
	if b.freeMarks(j); j.next == nil {
		b.now.list(j.key, -1)
	}
}

// tidy looks after members that linger, and takes addresses away that have nothing. It tells when to do so again.
func (b *Backend) tidy(ctx context.Context, jobs []*job, whole bool) error {
	again, err := b.lookAfter(whole)
	if err != nil {
		return err
	}
	b.sent.again(again)
	for _, j := range jobs {
		if j.next == nil && j.key.Addr.IsValid() {
			b.rest(j.key.Addr)
		}
	}
	if whole {
		if err := b.move(); err != nil {
			return err
		}
		b.restAll()
	}
	again, err = b.unbind()
	b.sent.again(again)
	return errors.Join(err, b.unguard(ctx))
}

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// job is a frontend that changes, or a virtual server that no frontend has any more.
type job struct {
	key   plan.Key
	next  *plan.Frontend // nil: it goes
	parts []part
	err   error // it stays as it was
}

// part is one of a frontend's virtual servers, and what is wanted of it.
type part struct {
	key     serverKey
	tcp     bool // its connections end by themselves
	wanted  bool
	service service
	members []plan.Member
	// hold keeps new members at weight 0 until the companion guards them.
	hold bool
}

// Apply brings the kernel to next. Members come first, then frontends, weights, and last what goes, so that no
// connection finds nothing.
func (b *Backend) Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (engine.Report, error) {
	b.sent = sent{}
	var r engine.Report
	err := ctx.Err()
	if err == nil {
		r, err = b.apply(ctx, next, d)
	}
	r.Messages += b.sent.messages
	r.Elements += b.sent.elements
	return r, err
}

func (b *Backend) apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (r engine.Report, err error) {
	whole := d == nil || !b.trusted
	b.trusted = false // until it is through
	var jobs []*job
	if whole {
		s, err := b.load(ctx)
		if err != nil {
			return r, err
		}
		b.adopt(s)
		jobs = b.allJobs(next)
		d = nil
	} else {
		jobs = b.jobs(d)
	}
	var errs []error
	b.each(jobs, b.learn)
	b.each(jobs, b.membersIn)
	if b.now.replaces {
		// What forwards without the addresses stops to in the moment in which the companion comes.
		b.each(jobs, b.bind)
	}
	if r, err = b.frontends(ctx, next, d, jobs); err != nil {
		return r, errors.Join(append(failures(jobs), err)...)
	}
	b.now.replaces = false
	for _, j := range jobs {
		b.settle(j)
	}
	b.each(jobs, b.bind)
	b.each(jobs, b.weights)
	b.each(jobs, b.membersOut)
	again, err := b.tidy(jobs, whole)
	if err != nil {
		errs = append(errs, err)
	}
	if errs = append(failures(jobs), errs...); len(errs) > 0 {
		return r, errors.Join(errs...)
	}
	if again > 0 && (r.Again == 0 || again < r.Again) {
		r.Again = again
	}
	b.trusted = true
	return r, nil
}

// each does a step for every job that nothing has failed for.
func (b *Backend) each(jobs []*job, step func(*job) error) {
	for _, j := range jobs {
		if j.err != nil {
			continue
		}
		if err := step(j); err != nil {
			j.err = fmt.Errorf("ipvs: %s: %w", j, err)
		}
	}
}

func (j *job) String() string {
	if j.next != nil {
		return j.next.Owner.String() + " " + j.key.String()
	}
	if j.key.Addr.IsValid() {
		return j.key.String()
	}
	return "left over"
}

func failures(jobs []*job) (errs []error) {
	for _, j := range jobs {
		if j.err != nil {
			errs = append(errs, j.err)
		}
	}
	return errs
}

// adopt makes what was read the mirror.
func (b *Backend) adopt(s *state) {
	b.now = *s
	b.linger.adopt(b.now.servers)
}

// jobs are what a delta asks for.
func (b *Backend) jobs(d *plan.Delta) []*job {
	out := make([]*job, 0, len(d.Changes))
	for _, c := range d.Changes {
		out = append(out, b.job(c.Key, c.New))
	}
	return out
}

// allJobs are everything that the plan or the kernel has.
func (b *Backend) allJobs(next *plan.Plan) []*job {
	keys := next.Keys()
	for k := range b.now.listed {
		if next.Frontends[k] == nil {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, plan.Key.Compare)
	out := make([]*job, 0, len(keys))
	had := map[serverKey]bool{}
	for _, k := range keys {
		j := b.job(k, next.Frontends[k])
		for _, p := range j.parts {
			had[p.key] = true
		}
		out = append(out, j)
	}
	left := &job{}
	for _, k := range slices.SortedFunc(maps.Keys(b.now.servers), compareServers) {
		if !had[k] {
			left.parts = append(left.parts, part{key: k, tcp: k.mark != 0 || k.proto == model.TCP})
		}
	}
	return append(out, left)
}

// job finds out what a frontend's virtual servers are to be.
func (b *Backend) job(k plan.Key, f *plan.Frontend) *job {
	j := &job{key: k}
	if f != nil {
		f, _ = plan.NormalizeFrontend(f, b.caps)
	}
	j.next = f
	j.err = b.assignMarks(k, f)
	main, inside, outside := b.now.keys(k)
	var pools [3]*plan.Pool
	switch {
	case f == nil:
	case k.IsNodePort():
		pools[1], pools[2] = &f.Pool, f.Outside
	case f.Outside != nil:
		pools[0], pools[1] = f.Outside, &f.Pool
	default:
		pools[0] = &f.Pool
	}
	for i, key := range []serverKey{main, inside, outside} {
		if key == (serverKey{}) {
			continue
		}
		p := part{key: key, tcp: k.Protocol == model.TCP}
		if pool := pools[i]; pool != nil && len(pool.Members) > 0 {
			p.wanted, p.members, p.service = true, pool.Members, b.service(f)
			// A virtual server at an address that is the node's already takes connections at once.
			p.hold = key.mark == 0 && f.SourceRanges != nil && !b.now.listed[k]
		}
		if p.wanted || b.now.servers[key] != nil {
			j.parts = append(j.parts, p)
		}
	}
	return j
}

// assignMarks gives a frontend's pools the marks that they are told by.
func (b *Backend) assignMarks(k plan.Key, f *plan.Frontend) (err error) {
	if f == nil {
		return nil
	}
	m := b.now.marks[k]
	before := m
	if len(f.Pool.Members) > 0 && m.Inside == 0 && (k.IsNodePort() || f.Outside != nil) {
		m.Inside, err = b.now.newMark()
	}
	if err == nil && k.IsNodePort() && f.Outside != nil && len(f.Outside.Members) > 0 && m.Outside == 0 {
		m.Outside, err = b.now.newMark()
	}
	if m != before {
		b.now.marks[k] = m
	}
	return err
}

// membersIn makes virtual servers and adds members. Nothing that takes connections stops to.
func (b *Backend) membersIn(j *job) error {
	for i := range j.parts {
		p := &j.parts[i]
		if !p.wanted {
			continue
		}
		s, err := b.server(p)
		if err != nil {
			return err
		}
		s.wanted = true
		for _, m := range p.members {
			want := member{addr: m.Addr, weight: m.Weight}
			if p.hold {
				want.weight = 0
			}
			at, ok := s.find(m.Addr)
			switch {
			case !ok:
				if err := b.do(op{kind: addMember, key: p.key, member: want}); err != nil {
					return err
				}
				s.members = slices.Insert(s.members, at, want)
			case s.members[at].lingering, s.members[at].weight == 0 && want.weight > 0:
				if err := b.setMember(p.key, s, at, want); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// server gives the virtual server of a part, made or taken over when it is not sluice's yet.
func (b *Backend) server(p *part) (*server, error) {
	if s := b.now.servers[p.key]; s != nil {
		return s, nil
	}
	s := &server{service: p.service}
	if _, taken := b.now.foreign[p.key]; taken {
		for _, x := range b.o.ExcludeCIDRs {
			if x.Contains(p.key.addr) {
				return nil, fmt.Errorf("virtual server %s is somebody else's, in %s of ipvs.excludeCIDRs", p.key, x)
			}
		}
		b.log.Warn("taking over a virtual server", "server", p.key.String())
		if err := b.do(op{kind: setServer, key: p.key, service: p.service}); err != nil {
			return nil, err
		}
		delete(b.now.foreign, p.key)
		var err error
		if s.members, err = b.takeOver(p.key); err != nil {
			return nil, err
		}
	} else if err := b.do(op{kind: addServer, key: p.key, service: p.service}); err != nil {
		return nil, err
	}
	b.now.put(p.key, s)
	return s, nil
}

// takeOver gives the members of somebody else's virtual server; those that are forwarded in another way, or have
// thresholds, are changed to ours.
func (b *Backend) takeOver(k serverKey) ([]member, error) {
	list, err := b.ipvs.members(k)
	if err != nil {
		return nil, fmt.Errorf("list the members of virtual server %s: %w", k, hint(err))
	}
	var out []member
	for _, m := range list {
		if m.foreign {
			if err := b.do(op{kind: setMember, key: k, member: m.member}); err != nil {
				return nil, err
			}
		}
		out = append(out, m.member)
	}
	slices.SortFunc(out, func(a, b member) int { return a.addr.Compare(b.addr) })
	return out, nil
}

func (b *Backend) setMember(k serverKey, s *server, at int, want member) error {
	if s.members[at] == want {
		return nil
	}
	if err := b.do(op{kind: setMember, key: k, member: want}); err != nil {
		return err
	}
	s.members[at] = want
	return nil
}

// weights sets weights and schedulers, first those that grow.
func (b *Backend) weights(j *job) error {
	for i := range j.parts {
		p := &j.parts[i]
		s := b.now.servers[p.key]
		if !p.wanted || s == nil {
			continue
		}
		if s.service != p.service {
			if err := b.do(op{kind: setServer, key: p.key, service: p.service}); err != nil {
				return err
			}
			s.service = p.service
		}
		for _, grow := range []bool{true, false} {
			for _, m := range p.members {
				at, ok := s.find(m.Addr)
				if !ok || (m.Weight > s.members[at].weight) != grow {
					continue
				}
				if err := b.setMember(p.key, s, at, member{addr: m.Addr, weight: m.Weight}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// bind makes a frontend's address the node's.
func (b *Backend) bind(j *job) error {
	if j.next == nil {
		return nil
	}
	a := j.key.Addr
	if j.key.IsNodePort() || b.now.bound[a] || b.now.own[a] {
		return nil
	}
	if err := b.address("add address", a, b.links.add); err != nil {
		return err
	}
	b.now.bound[a] = true
	return nil
}

// settle notes what the companion has now.
func (b *Backend) settle(j *job) {
	if j.err == nil {
		if b.freeMarks(j); j.next == nil {
			b.now.list(j.key, -1)
		}
	}
}

// freeMarks forgets marks that the companion has no more.
func (b *Backend) freeMarks(j *job) {
	m, ok := b.now.marks[j.key]
	if !ok {
		return
	}
	f := j.next
	if f == nil || len(f.Pool.Members) == 0 || f.Outside == nil && !j.key.IsNodePort() {
		m.Inside = 0
	}
	if f == nil || f.Outside == nil || len(f.Outside.Members) == 0 || !j.key.IsNodePort() {
		m.Outside = 0
	}
	if b.now.marks[j.key] = m; m.Inside|m.Outside == 0 {
		delete(b.now.marks, j.key)
	}
}

// frontends has the companion take what nothing has failed for.
func (b *Backend) frontends(ctx context.Context, next *plan.Plan, d *plan.Delta, jobs []*job) (engine.Report, error) {
	var bad bool
	for _, j := range jobs {
		bad = bad || j.err != nil && j.key.Addr.IsValid()
		if j.err == nil && j.next != nil {
			b.now.list(j.key, 1)
		}
	}
	if bad {
		next, d = b.without(next, d, jobs)
	}
	r, err := b.companion.Apply(ctx, next, d)
	if err != nil && ctx.Err() == nil {
		// What became of it is read, and the rest is done, once.
		b.log.Warn("the companion of IPVS: trying once more", "err", err)
		var more engine.Report
		more, err = b.companion.Apply(ctx, next, nil)
		r.Messages, r.Elements = r.Messages+more.Messages, r.Elements+more.Elements
		r.Transactions, r.Longest = r.Transactions+more.Transactions, max(r.Longest, more.Longest)
		r.Again = more.Again
	}
	if err != nil {
		err = fmt.Errorf("ipvs: the companion: %w", err)
	}
	return r, err
}

// learn finds out whether an address that a frontend is new at is the node's own.
func (b *Backend) learn(j *job) error {
	a := j.key.Addr
	if j.next == nil || j.key.IsNodePort() || b.now.vips[a] > 0 || b.now.bound[a] || b.now.own[a] {
		return nil
	}
	local, err := b.links.own(a)
	if err != nil {
		return fmt.Errorf("look up the route to %s: %w", a, err)
	}
	if local {
		b.now.own[a] = true
	}
	return nil
}

// without leaves the frontends that failed as they are in the companion.
func (b *Backend) without(next *plan.Plan, d *plan.Delta, jobs []*job) (*plan.Plan, *plan.Delta) {
	failed := map[plan.Key]bool{}
	for _, j := range jobs {
		if j.err != nil {
			failed[j.key] = true
		}
	}
	if d != nil {
		out := &plan.Delta{Global: d.Global}
		for _, c := range d.Changes {
			if !failed[c.Key] {
				out.Changes = append(out.Changes, c)
			}
		}
		return next, out
	}
	out := &plan.Plan{Global: next.Global, Frontends: maps.Clone(next.Frontends)}
	for k := range failed {
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

// membersOut takes members off, and virtual servers that nobody has any more. A TCP member with connections stays
// for them.
func (b *Backend) membersOut(j *job) error {
	for i := range j.parts {
		p := &j.parts[i]
		s := b.now.servers[p.key]
		if s == nil {
			continue
		}
		s.wanted = p.wanted
		stay := make(map[netip.AddrPort]bool, len(p.members))
		for _, m := range p.members {
			stay[m.Addr] = true
		}
		for at := 0; at < len(s.members); at++ {
			m := s.members[at]
			switch {
			case stay[m.addr] && p.wanted || m.lingering:
			case p.tcp:
				if err := b.setMember(p.key, s, at, member{addr: m.addr, lingering: true}); err != nil {
					return err
				}
				b.linger.add(p.key)
			default:
				if err := b.do(op{kind: delMember, key: p.key, member: m}); err != nil {
					return err
				}
				s.members = slices.Delete(s.members, at, at+1)
				at--
			}
		}
		if err := b.removeEmpty(p.key); err != nil {
			return err
		}
	}
	return nil
}

// removeEmpty deletes a virtual server that nobody wants and that has no member.
func (b *Backend) removeEmpty(k serverKey) error {
	s := b.now.servers[k]
	if s == nil || s.wanted || len(s.members) > 0 {
		return nil
	}
	if err := b.do(op{kind: delServer, key: k}); err != nil {
		return err
	}
	b.now.remove(k)
	b.linger.drop(k)
	b.freeMark(k)
	return nil
}

// freeMark makes a mark free that tells no pool any more, in neither family.
func (b *Backend) freeMark(k serverKey) {
	if k.mark == 0 {
		return
	}
	delete(b.now.byMark, k.mark)
}

// tidy looks after members that linger, and takes addresses away that have nothing. It tells when to do so again.
func (b *Backend) tidy(jobs []*job, whole bool) (again time.Duration, err error) {
	again, err = b.lookAfter(whole)
	if err != nil {
		return 0, err
	}
	if whole {
		for _, a := range slices.SortedFunc(maps.Keys(b.now.bound), netip.Addr.Compare) {
			if err := b.unbind(a); err != nil {
				return 0, err
			}
		}
		return again, nil
	}
	for _, j := range jobs {
		if j.next == nil && j.key.Addr.IsValid() {
			if err := b.unbind(j.key.Addr); err != nil {
				return 0, err
			}
		}
	}
	return again, nil
}

// unbind takes an address away that has neither frontends nor virtual servers.
func (b *Backend) unbind(a netip.Addr) error {
	if !b.now.bound[a] || b.now.vips[a] > 0 || b.now.at[a] > 0 {
		return nil
	}
	if err := b.address("delete address", a, b.links.del); err != nil {
		return err
	}
	delete(b.now.bound, a)
	return nil
}

package ipvs

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
)

// job is a frontend that changes, or the virtual servers that no frontend has any more.
type job struct {
	key   plan.Key
	next  *plan.Frontend // nil: it goes
	parts []part
	errs  []error
	stays bool // in the companion, as it was
}

// part is one of a frontend's virtual servers, and what is wanted of it.
type part struct {
	key     serverKey
	lasts   bool // its connections go on until they are ended, unlike those of UDP
	wanted  bool
	service service
	members []plan.Member
	// hold keeps new members at weight 0 until the companion guards them.
	hold bool
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

// fail notes an error, beside which the job goes on.
func (j *job) fail(err error) { j.errs = append(j.errs, fmt.Errorf("ipvs: %s: %w", j, err)) }

// each does a step for every job. One that fails leaves its frontend as it is in the companion.
func each(jobs []*job, step func(*job) error) {
	for _, j := range jobs {
		if j.stays {
			continue
		}
		if err := step(j); err != nil {
			j.fail(err)
			j.stays = true
		}
	}
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
			left.parts = append(left.parts, part{key: k, lasts: k.mark != 0 || k.proto != model.UDP})
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
	if err := b.assignMarks(k, f); err != nil {
		j.fail(err)
		j.stays = true
	}
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
		p := part{key: key, lasts: k.Protocol != model.UDP}
		if pool := pools[i]; pool != nil && len(pool.Members) > 0 {
			p.wanted, p.members, p.service = true, pool.Members, b.service(f)
		}
		if p.wanted || b.now.servers[key] != nil {
			j.parts = append(j.parts, p)
		}
	}
	return j
}

package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Caps are the capabilities of a backend. They are constant once the backend is open.
type Caps struct {
	Name string // nftables, ipvs, fake
	// Ratios means that the backend represents the ratio of weights only: in lowest terms, with a sum of at most max(MaxTotal,
	// number of endpoints). Otherwise it represents the weights themselves.
	Ratios   bool
	MaxTotal int
	// MaxHashTotal takes the place of MaxTotal for SourceHash; 0: MaxTotal.
	MaxHashTotal int
	// ZeroWeight means that the backend represents endpoints of weight 0. Their phase is Draining.
	ZeroWeight bool
	// Remote means that the backend represents which endpoints are remote.
	Remote bool
	// Balances that the backend supports. The first one replaces unsupported ones. Without any, every plan fits.
	Balances []Balance
	// MaxEndpoints of a pool, and MaxName of the names of a Service, of its namespace and of its ports, in bytes; 0: no limit.
	MaxEndpoints, MaxName int
	// CoarseAffinity means that the backend represents affinity timeouts above 5 minutes rounded up, by a twentieth at most: the
	// number of different ones is bounded, to 754. It depends on nothing else, so no Service has influence on the timeout of
	// another one.
	CoarseAffinity bool
	// Outcomes means that the backend counts the outcomes of connections: it is a backend.OutcomeCounter.
	Outcomes bool
	// LongLived means that the backend takes frontends with LongLived; see backend.Offloader.
	LongLived bool
	// Step returns the next step from one frontend to another one, and its cost in units of about 0.15 µs of one core; a nil
	// frontend does not exist. The step is to itself if the budget has room for the rest, the change cannot be divided, or the
	// budget is math.MaxInt. Step is a pure function. A nil Step does not divide changes, which cost nothing then.
	Step func(from, to *Frontend, budget int) (next *Frontend, cost int)
	// Client returns the endpoint that SourceHash gives a client, by its address, of a pool that forwards. nil: only the data
	// plane knows.
	Client func(p *Pool, from netip.Addr) netip.AddrPort
}

// fits reports whether nothing of a frontend is lost. That is so for nearly all frontends, so it must not allocate.
func (c *Caps) fits(f *Frontend) bool {
	return c == nil || len(c.Balances) == 0 ||
		slices.Contains(c.Balances, f.Balance) && c.affinity(f.Affinity) == f.Affinity && (c.Outcomes || !f.Outcomes) &&
			(c.LongLived || !f.LongLived) && c.names(&f.Owner) &&
			c.fitsPool(&f.Pool, f.Balance) && (f.Outside == nil || c.fitsPool(f.Outside, f.Balance))
}

// names reports whether the backend represents the names of an owner.
func (c *Caps) names(o *model.PortName) bool {
	return c.MaxName == 0 || max(len(o.Service.Namespace), len(o.Service.Name), len(o.Port)) <= c.MaxName
}

// shorten returns an owner whose names the backend represents. A name that is too long ends in a hash.
func (c *Caps) shorten(o model.PortName) model.PortName {
	for _, s := range []*string{&o.Service.Namespace, &o.Service.Name, &o.Port} {
		if c.MaxName > 0 && len(*s) > c.MaxName {
			sum := sha256.Sum256([]byte(*s))
			*s = (*s)[:c.MaxName-17] + "-" + hex.EncodeToString(sum[:8])
		}
	}
	return o
}

// maxTotal is the bound of the sum of the weights of a pool, in lowest terms.
func (c *Caps) maxTotal(b Balance) int {
	if b == SourceHash && c.MaxHashTotal > 0 {
		return c.MaxHashTotal
	}
	return c.MaxTotal
}

// fitsPool reports whether the backend has room for all endpoints of a pool and represents the ratio of their weights.
func (c *Caps) fitsPool(p *Pool, b Balance) bool {
	if c.MaxEndpoints > 0 && len(p.Endpoints) > c.MaxEndpoints {
		return false
	}
	if !c.Ratios {
		return true
	}
	sum, g, n := sumGCD(p.Endpoints)
	return n == 0 || sum/g <= max(c.maxTotal(b), n)
}

// affinity returns an affinity timeout as the backend represents it.
func (c *Caps) affinity(d time.Duration) time.Duration {
	if !c.CoarseAffinity || d < time.Second {
		return d
	}
	step := 5 * time.Minute
	for _, s := range [...]struct{ until, step time.Duration }{
		{5 * time.Minute, time.Second}, {30 * time.Minute, 15 * time.Second}, {2 * time.Hour, time.Minute},
	} {
		if d <= s.until {
			step = s.step
			break
		}
	}
	return (d + step - 1).Truncate(step)
}

// isStripped reports whether a backend has a pool without a change.
func (c *Caps) isStripped(p *Pool) bool {
	for i := range p.Endpoints {
		m := &p.Endpoints[i]
		switch {
		case m.Deadline != 0 || m.Remote && !c.Remote:
			return false
		case m.Weight > 0 && m.Phase != Active:
			return false
		case m.Weight == 0 && (!c.ZeroWeight || m.Phase != Draining):
			return false
		}
	}
	_, g, _ := sumGCD(p.Endpoints)
	return !c.Ratios || g <= 1
}

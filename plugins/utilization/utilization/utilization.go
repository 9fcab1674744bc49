// Package utilization implements the plugin utilization: endpoints with a lower utilization than the others, by their own
// reports, get more connections, and those with a higher one get fewer.
package utilization

import (
	"math"
	"slices"
	"strconv"

	le "github.com/sluice-proxy/sluice/plugins/internal/littleendian"
	"github.com/sluice-proxy/sluice/plugins/internal/loads"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin keeps only buffers between calls: history is in the states of the request. The load of an endpoint is what a request
// costs it, or its utilization if requests are not reported, relative to the median.
type plugin struct {
	settings settings
	set      loads.Set
	reports  []report  // parallel to the endpoints of set
	ordered  []float64 // loads
	numbers  []float64 // cache by text, whose IDs are valid for the life of an instance; 0: not known, -1: no number
	buf      []byte
}

// report is what an endpoint reports; 0: nothing.
type report struct{ utilization, requests, errors, load float64 }

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{settings: defaults()} }

// Needs implements sdk.Needer.
func (*plugin) Needs() sdk.Need { return sdk.NeedEndpointState }

// Keys implements sdk.Keyer: fields of utilization, of which the first that an endpoint reports counts, then requests and errors
// a second.
func (p *plugin) Keys() []string {
	if p.settings.From != "" {
		return []string{p.settings.From, sdk.Load("rps_fractional"), sdk.Load("eps")}
	}
	return []string{sdk.Load("application_utilization"), sdk.Load("cpu_utilization"), sdk.Load("rps_fractional"), sdk.Load("eps")}
}

// Decide multiplies the share of each endpoint by the inverse of its average load.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	now := int64(req.Now()) / 1000
	stepped := readState(req.State(), now)
	p.set.Collect(req, &p.settings.Settings)
	if len(p.set.Endpoints) < 2 {
		return nil
	}
	due, held := stepped == 0 || now >= stepped+p.settings.IntervalSeconds, p.collect(req)
	// A step that changes nothing is none: how often the plugin is called does not matter.
	changed := due && p.step()
	if changed {
		stepped = now
	}
	why := ""
	if !slices.ContainsFunc(p.reports, func(r report) bool { return r.load > 0 }) {
		why = "no endpoint reports its utilization"
	}
	p.set.Apply(req, resp, why)
	p.set.Remember(resp)
	p.buf = appendState(p.buf[:0], stepped)
	resp.SetState(p.buf)
	if changed || held || !due {
		loads.Requeue(resp, &p.settings.Settings, stepped, now)
	}
	return nil
}

// collect collects the reports of the endpoints, and reports whether some of them do not count yet.
func (p *plugin) collect(req *sdk.Request) (held bool) {
	p.reports = p.reports[:0]
	used, counted := 0, 0 // endpoints that report a utilization, and those that report requests too
	for i := range p.set.Endpoints {
		r := p.report(req, p.set.Endpoints[i].Index)
		since := req.Endpoint(p.set.Endpoints[i].Index).ReadySince()
		if since == 0 || req.Now().Sub(since) < sdk.Duration(p.settings.HoldSeconds)*sdk.Second {
			held = held || since != 0 && r.utilization > 0
			r = report{}
		}
		if r.utilization > 0 {
			if used++; r.requests > 0 {
				counted++
			}
		}
		p.reports = append(p.reports, r)
	}
	failing := float64(p.settings.ErrorPercent) / 100
	for i := range p.reports {
		r := &p.reports[i]
		switch {
		case r.utilization == 0:
		case 2*counted < used:
			r.load = r.utilization
		case r.requests > 0:
			// Requests that fail cost little: without the second part, an endpoint that fails would attract connections.
			r.load = (r.utilization + float64(failing*min(1, r.errors/r.requests))) / r.requests
		}
	}
	return held
}

// report returns what endpoint i reports.
func (p *plugin) report(req *sdk.Request, i int) (r report) {
	key := 0
	for ; r.utilization == 0 && (key == 0 || key == 1 && p.settings.From == ""); key++ {
		r.utilization = p.number(req, i, key)
	}
	if key = 1; p.settings.From == "" {
		key = 2
	}
	r.requests, r.errors = p.number(req, i, key), p.number(req, i, key+1)
	return r
}

// most bounds a number that is reported, maxIDs the cache of them.
const (
	most   = 1e9
	maxIDs = 1 << 16
)

// number returns the value of a key of endpoint i, 0 for none or an invalid one.
func (p *plugin) number(req *sdk.Request, i, key int) float64 {
	id, present := req.PodValue(i, key)
	switch {
	case !present || id == sdk.NoString:
		return 0
	case id >= maxIDs:
		return max(0, parse(req.Text(id)))
	case int(id) >= len(p.numbers):
		p.numbers = append(p.numbers, make([]float64, int(id)+1-len(p.numbers))...)
	}
	if p.numbers[id] == 0 {
		p.numbers[id] = parse(req.Text(id))
	}
	return max(0, p.numbers[id])
}

// parse returns a number, -1 if the text is none above 0.
func parse(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0 && n <= most) {
		return -1
	}
	return n
}

// step makes the averages follow the reports, and reports whether one has changed. An endpoint that reports nothing follows the
// median, as one whose load is that.
func (p *plugin) step() (changed bool) {
	p.ordered = p.ordered[:0]
	for i := range p.reports {
		if l := p.reports[i].load; l > 0 {
			p.ordered = append(p.ordered, l)
		}
	}
	median := 0.0
	if n := len(p.ordered); n > 0 {
		median = (nth(p.ordered, (n-1)/2) + nth(p.ordered, n/2)) / 2
	}
	for i := range p.set.Endpoints {
		reading := uint64(loads.One)
		if l := p.reports[i].load; l > 0 {
			reading = uint64(math.Round(min(l/median, 1000) * loads.One))
		}
		changed = p.set.Follow(&p.set.Endpoints[i], reading) || changed
	}
	return changed
}

// nth returns the number that would be at position k if all were sorted, and reorders them (Hoare's FIND): sorting all of them
// costs a guest as much as the rest of a decision.
func nth(all []float64, k int) float64 {
	for lo, hi := 0, len(all)-1; lo < hi; {
		i, j, pivot := lo, hi, all[(lo+hi)/2]
		for i <= j {
			for all[i] < pivot {
				i++
			}
			for pivot < all[j] {
				j--
			}
			if i <= j {
				all[i], all[j] = all[j], all[i]
				i, j = i+1, j-1
			}
		}
		if j < k {
			lo = i
		}
		if k < i {
			hi = j
		}
	}
	return all[k]
}

const (
	stateVersion = 1
	stateSize    = 5
)

// readState decodes when the averages last changed, Unix seconds; 0: never, or the state is another's.
func readState(b []byte, now int64) int64 {
	if len(b) != stateSize || b[0] != stateVersion || int64(le.Uint32(b[1:])) > now {
		return 0
	}
	return int64(le.Uint32(b[1:]))
}

func appendState(b []byte, stepped int64) []byte {
	return le.AppendUint32(append(b, stateVersion), uint32(stepped))
}

package simulation

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// portLoad is the load of a Service port in a run, by sample.
type portLoad struct {
	port   *servicePort
	load   []float64 // of endpoint e at sample s: [s*len(port.endpoints)+e]; connections per second
	demand []float64
	failed []float64
	held   []float64 // of part p at sample s: [s*len(port.parts)+p]; connections per second that a route gives its backends
	matrix []float64 // from zone i to zone j: [i*zones+j], added up over samples
	empty  []int
	single []int
}

func newPortLoad(p *servicePort, samples, zones int) *portLoad {
	return &portLoad{
		port: p, load: make([]float64, samples*len(p.endpoints)), demand: make([]float64, samples), failed: make([]float64, samples),
		held: make([]float64, samples*len(p.parts)), matrix: make([]float64, zones*zones), empty: make([]int, samples), single: make([]int, samples),
	}
}

// stateAt returns the state at t. from is the index of one before, and set to its index.
func (tr *trajectory) stateAt(from *int, t time.Duration) *state {
	for *from+1 < len(tr.states) && tr.states[*from+1].at <= t {
		*from++
	}
	return &tr.states[*from]
}

// addClass adds what the nodes of a class do to the load of port number i in each run, and to the divergence of the runs.
func (w *worker) addClass(svc *serviceRun, i int, c *class, runs []trajectory, loads []*portLoad, divergence []float64) {
	p := &svc.ports[i]
	rate := w.sim.demand.rate(c.node, p.name, p.spec.Port) * float64(c.members)
	from := make([]int, len(runs))
	weights, sums := make([][]uint16, len(runs)), make([]float64, len(runs))
	for s := range w.sim.samples {
		t := w.sim.sampleTime(s)
		if isLost(c.fate, t) {
			continue
		}
		for r := range runs {
			now := runs[r].stateAt(&from[r], t)
			weights[r], sums[r] = now.weights[2*i+p.loadPool], 0
			for _, w := range weights[r] {
				sums[r] += float64(w)
			}
			loads[r].add(w.sim, &w.totals[r].samples[s], c, s, t, rate, weights[r], sums[r])
			if p.routes != nil {
				for part, share := range now.held[i] {
					loads[r].held[s*len(p.parts)+part] += rate * share
				}
			}
		}
		if len(runs) == 2 {
			divergence[s] += rate * distance(weights, sums)
		}
	}
}

// add adds the load of a class at a sample.
func (l *portLoad) add(sim *Simulation, all *sampleTotals, c *class, s int, t time.Duration, rate float64, weights []uint16, sum float64) {
	n := len(l.port.endpoints)
	if n == 0 && l.port.routes == nil {
		return
	}
	l.demand[s] += rate
	all.zoneDemand[c.zone] += rate
	if sum == 0 {
		l.failed[s] += rate
		l.empty[s] += c.members
		return
	}
	used := 0
	row, zones := l.load[s*n:(s+1)*n], len(sim.world.zones)
	for e, weight := range weights {
		if weight == 0 {
			continue
		}
		part := rate * float64(weight) / sum
		if e == n { // refused
			l.failed[s] += part
			continue
		}
		used++
		row[e] += part
		zone := l.port.endpoints[e].zone
		l.matrix[c.zone*zones+zone] += part
		all.zoneLoad[zone] += part
		if sim.world.zones[c.zone] != "" && sim.world.zones[zone] != "" {
			all.zoned += part
			if zone != c.zone {
				all.crossing += part
			}
		}
		if len(sim.world.answers) > 0 {
			if kind := sim.world.answerAt(l.port.endpoints[e].addr.Addr(), t).kind; kind == scenario.Refuses || kind == scenario.Silent {
				l.failed[s] += part
			}
		}
	}
	if used == 1 && l.port.readyAt(t) > 1 {
		l.single[s] += c.members
	}
}

// weightOf returns the weight of a part at t among the parts.
func (p *servicePort) weightOf(part int, t time.Duration) float64 {
	if p.routes == nil {
		return 1
	}
	return float64(p.routeAt(t).Backends[part].Weight)
}

// readyAt returns the number of ready endpoints at t, of the parts with weight. An endpoint of several parts counts once.
func (p *servicePort) readyAt(t time.Duration) (n int) {
	seen := make([]bool, len(p.endpoints))
	for i := range p.parts {
		of := &p.parts[i]
		if of.own == nil || p.weightOf(i, t) == 0 {
			continue
		}
		for j, ready := range of.own.readyAt(t) {
			if e := of.at[j]; ready && !seen[e] {
				seen[e] = true
				n++
			}
		}
	}
	return n
}

// readyAt returns which endpoints are ready at t.
func (o *ownEndpoints) readyAt(t time.Duration) []bool { return o.ready[o.svc.versionAt(t)] }

// distance returns the share of connections that goes elsewhere: half the sum of the differences of shares. Connections that only
// one has an endpoint for all do.
func distance(weights [][]uint16, sums []float64) float64 {
	if sums[0] == 0 || sums[1] == 0 {
		if sums[0] == sums[1] {
			return 0
		}
		return 1
	}
	d := 0.0
	for e := range weights[0] {
		d += math.Abs(float64(weights[0][e])/sums[0] - float64(weights[1][e])/sums[1])
	}
	return d / 2
}

// overloads calls f for each endpoint at a sample that is ready or has load, with the ratio of its load to its fair share. The
// fair share is the demand in proportion to the capacity of the endpoints that are ready, or have load if none is; with a route,
// that of each backend.
func (l *portLoad) overloads(s int, t time.Duration, f func(endpoint int, load, overload float64)) {
	n := len(l.port.endpoints)
	row := l.load[s*n : (s+1)*n]
	demand := 0.0
	for _, load := range row {
		demand += load
	}
	if demand == 0 {
		return
	}
	ready, fair, capacity := l.port.fairShares(t, row)
	for e, load := range row {
		if fair[e] > 0 && (ready[e] || load > 0) {
			f(e, load, load*capacity/(demand*fair[e]))
		}
	}
}

// fairShares returns which endpoints are ready at t, and the fair share of each, of all: its capacity, weighted by the share of
// its part in the load.
func (p *servicePort) fairShares(t time.Duration, load []float64) (ready []bool, fair []float64, all float64) {
	ready, fair = make([]bool, len(load)), make([]float64, len(load))
	capacities, weights := make([]float64, len(p.parts)), 0.0
	for i := range p.parts {
		of := &p.parts[i]
		if of.own == nil {
			continue
		}
		now := of.own.readyAt(t)
		some := slices.Contains(now, true)
		for j, e := range of.at {
			if ready[e] = ready[e] || now[j]; now[j] || !some && load[e] > 0 {
				capacities[i] += p.endpoints[e].capacity
			}
		}
		if capacities[i] > 0 {
			all += capacities[i]
			weights += p.weightOf(i, t)
		}
	}
	for i, capacity := range capacities {
		if w := p.weightOf(i, t); capacity > 0 && w > 0 {
			for _, e := range p.parts[i].at {
				fair[e] += p.endpoints[e].capacity * (w / weights * all / capacity)
			}
		}
	}
	return ready, fair, all
}

// histogram counts overloads in steps of 0.01 up to 10.
type histogram struct {
	buckets [1000]uint32
	count   uint64
	largest float64
	load    float64 // sum of the loads
	loaded  float64 // sum of load × overload
}

func (h *histogram) add(load, overload float64) {
	h.buckets[min(len(h.buckets)-1, int(overload*100))]++
	h.count++
	h.largest = max(h.largest, overload)
	h.load += load
	h.loaded += load * overload
}

func (h *histogram) merge(other *histogram) {
	for i, n := range other.buckets {
		h.buckets[i] += n
	}
	h.count += other.count
	h.largest = max(h.largest, other.largest)
	h.load += other.load
	h.loaded += other.loaded
}

// p99 returns the 99th percentile, rounded up to 0.01; above 10 it is the largest one.
func (h *histogram) p99() float64 {
	left := h.count / 100 // those above
	for i := len(h.buckets) - 1; i >= 0; i-- {
		n := uint64(h.buckets[i])
		if n > left {
			if i == len(h.buckets)-1 {
				return h.largest
			}
			return min(h.largest, float64(i+1)/100)
		}
		left -= n
	}
	return 0
}

func (h *histogram) mean() float64 { return ratio(h.loaded, h.load) }

// ratio returns a/b, 0 for 0/0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

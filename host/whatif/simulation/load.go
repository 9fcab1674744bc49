package simulation

import (
	"math"
	"time"

	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// portLoad is the load of a Service port in a run, by sample.
type portLoad struct {
	port   *servicePort
	load   []float64 // of endpoint e at sample s: [s*len(port.endpoints)+e]; connections per second
	demand []float64
	failed []float64
	matrix []float64 // from zone i to zone j: [i*zones+j], added up over samples
	empty  []int
	single []int
}

func newPortLoad(p *servicePort, samples, zones int) *portLoad {
	return &portLoad{
		port: p, load: make([]float64, samples*len(p.endpoints)), demand: make([]float64, samples), failed: make([]float64, samples),
		matrix: make([]float64, zones*zones), empty: make([]int, samples), single: make([]int, samples),
	}
}

// weightsAt returns the weights of the load pool of port number i at t, and their sum.
func (tr *trajectory) weightsAt(from *int, i int, p *servicePort, t time.Duration) (weights []uint16, sum float64) {
	for *from+1 < len(tr.states) && tr.states[*from+1].at <= t {
		*from++
	}
	weights = tr.states[*from].weights[2*i+p.loadPool]
	for _, w := range weights {
		sum += float64(w)
	}
	return weights, sum
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
			weights[r], sums[r] = runs[r].weightsAt(&from[r], i, p, t)
			loads[r].add(w.sim, &w.totals[r].samples[s], svc, c, s, t, rate, weights[r], sums[r])
		}
		if len(runs) == 2 {
			divergence[s] += rate * distance(weights, sums)
		}
	}
}

// add adds the load of a class at a sample.
func (l *portLoad) add(sim *Simulation, all *sampleTotals, svc *serviceRun, c *class, s int, t time.Duration, rate float64, weights []uint16, sum float64) {
	n := len(l.port.endpoints)
	if n == 0 {
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
		used++
		part := rate * float64(weight) / sum
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
	if used == 1 && l.port.readyAt(svc.versionAt(t)) > 1 {
		l.single[s] += c.members
	}
}

// readyAt returns the number of ready endpoints in a version.
func (p *servicePort) readyAt(version int) (n int) {
	for _, ready := range p.ready[version] {
		if ready {
			n++
		}
	}
	return n
}

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
// fair share is the demand in proportion to the capacity of the endpoints that are ready, or have load if none is.
func (l *portLoad) overloads(s, version int, f func(endpoint int, load, overload float64)) {
	n := len(l.port.endpoints)
	row, ready := l.load[s*n:(s+1)*n], l.port.ready[version]
	demand, capacity := 0.0, 0.0
	some := l.port.readyAt(version) > 0
	for e, load := range row {
		demand += load
		if ready[e] || !some && load > 0 {
			capacity += l.port.endpoints[e].capacity
		}
	}
	if demand == 0 {
		return
	}
	for e, load := range row {
		if ready[e] || load > 0 {
			f(e, load, load*capacity/(demand*l.port.endpoints[e].capacity))
		}
	}
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

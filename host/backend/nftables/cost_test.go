package nftables

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

// sizeRecorder records the sizes of transactions. onSend is called for each.
type sizeRecorder struct {
	nfnl.Transport
	sizes  []int
	onSend func(bytes int)
}

func (w *sizeRecorder) Send(b []byte) error {
	if isTransaction(b) {
		w.sizes = append(w.sizes, len(b))
		if w.onSend != nil {
			w.onSend(len(b))
		}
	}
	return w.Transport.Send(b)
}

// report applies a plan and returns the report.
func (d *testEnv) report(p *plan.Plan, delta *plan.Delta) backend.Report {
	d.Helper()
	r, err := d.b.Apply(context.Background(), p, delta)
	if err != nil {
		d.Fatal(err)
	}
	return r
}

// replaceFrontend changes a frontend in the plan and returns the delta.
func replaceFrontend(p *plan.Plan, f *plan.Frontend) *plan.Delta {
	d := &plan.Delta{Changes: []plan.Change{{Key: f.Key, Old: p.Frontends[f.Key], New: f}}}
	p.Frontends[f.Key] = f
	return d
}

// TestUpdateCostDoesNotDependOnClusterSize counts messages, elements, transactions and allocations, instead of
// measuring time.
func TestUpdateCostDoesNotDependOnClusterSize(t *testing.T) {
	testenv.OnceForAllKernels(t)
	type cost struct{ replaced, shrunk, halved, removed, added backend.Report }
	measure := func(services int) (c cost, allocations float64) {
		d := newTestEnv(t, 0)
		p := cluster(services, 10)
		d.report(p, nil)
		strip := func(r backend.Report) backend.Report { r.Longest = 0; return r }
		i := services / 2
		c.replaced = strip(d.report(p, replaceFrontend(p, clusterFrontend(i, 10, 1))))
		nine := clusterFrontend(i, 10, 1)
		nine.Pool.Endpoints = nine.Pool.Endpoints[:9]
		c.shrunk = strip(d.report(p, replaceFrontend(p, nine)))
		five := clusterFrontend(i, 10, 1)
		five.Pool.Endpoints = five.Pool.Endpoints[:5]
		c.halved = strip(d.report(p, replaceFrontend(p, five))) // another slot table, which no pool used before
		old := p.Frontends[nine.Key]
		delete(p.Frontends, nine.Key)
		c.removed = strip(d.report(p, &plan.Delta{Changes: []plan.Change{{Key: nine.Key, Old: old}}}))
		c.added = strip(d.report(p, replaceFrontend(p, clusterFrontend(i, 10, 0))))
		states, n := [2]*plan.Frontend{clusterFrontend(i, 10, 1), clusterFrontend(i, 10, 0)}, 0
		allocations = testing.AllocsPerRun(200, func() {
			d.report(p, replaceFrontend(p, states[n%2]))
			n++
		})
		return c, allocations
	}
	services := 44_125
	if testing.Short() {
		services = 8000
	}
	small, smallAllocations := measure(1000)
	large, largeAllocations := measure(services)
	if small != large {
		t.Errorf("with 1000 Services\n%+v\nwith %d\n%+v", small, services, large)
	}
	// A slot changes its endpoint, and so does a hairpin entry.
	if r := small.replaced; r.Elements > 4 || r.Messages > 4 || r.Transactions != 1 {
		t.Errorf("an endpoint replaced: %+v", r)
	}
	if r := small.halved; r.Messages > 6 {
		t.Errorf("a pool of a kind that there was none of: %+v: rules were written", r)
	}
	if largeAllocations > smallAllocations+1 { // a map may just grow
		t.Errorf("%.0f allocations with %d Services, %.0f with 1000", largeAllocations, services, smallAllocations)
	}
}

// TestPartOfALargePoolIsAllThatIsWritten: the planner changes a pool of more than a thousand endpoints in parts, whose weights
// have no influence on the slots of the others.
func TestPartOfALargePoolIsAllThatIsWritten(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 0)
	p := cluster(600, 1)
	pool := clusterFrontend(600, 4000, 0)
	weights := [...]uint16{1, 0, 300, 0, 65535, 0}
	for i := range pool.Pool.Endpoints {
		pool.Pool.Endpoints[i].Weight = weights[i%len(weights)]
	}
	caps := Caps()
	fit := func(f *plan.Frontend) *plan.Frontend { x := plan.NewFitter(&caps); return x.Fit(f) }
	p.Frontends[pool.Key] = fit(pool)
	d.report(p, nil)
	const changed = 50 // endpoints that lose their weight; as many get one
	for i := range 10 {
		next := *pool
		next.Pool.Endpoints = slices.Clone(next.Pool.Endpoints)
		for j := range changed {
			e := next.Pool.Endpoints[2*(i*changed+j):]
			e[0].Weight, e[1].Weight = 0, 1+2*e[0].Weight%1000
		}
		// A slot changes its endpoint, and so does a hairpin entry.
		if r := d.report(p, replaceFrontend(p, fit(&next))); r.Elements > 4*changed || r.Transactions != 1 {
			t.Errorf("part %d: %+v", i, r)
		}
		pool = &next
	}
	d.expectPlan(p)
}

func TestTransactionSizeIsBoundedAtStart(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 0)
	w := &sizeRecorder{Transport: d.b.conn.Transport}
	d.b.conn.Transport = w
	p := cluster(3000, 20)
	giant := clusterFrontend(3000, 30_000, 0)
	p.Frontends[giant.Key] = giant
	d.report(p, nil)
	large := 0
	for _, n := range w.sizes {
		if n > softTxBytes+structureRoom {
			large++
		}
		if n > nfnl.DefaultSendBuffer {
			t.Errorf("a transaction of %d bytes", n)
		}
	}
	// 30,000 slots are 2.5 MB, in transactions of less than 1 MiB.
	if large == 0 || large > 4 {
		t.Errorf("%d transactions larger than is usual: %v", large, w.sizes)
	}
	d.expectPlan(p)

	// Shrinking to three other endpoints is bounded too.
	w.sizes = nil
	other := clusterFrontend(3000, 30_000, 0)
	other.Pool.Endpoints = other.Pool.Endpoints[len(other.Pool.Endpoints)-3:]
	d.report(p, replaceFrontend(p, other))
	d.expectPlan(p)
	for _, n := range w.sizes {
		if n > nfnl.DefaultSendBuffer {
			t.Errorf("a transaction of %d bytes", n)
		}
	}
}

func TestTransactionSizeIsBoundedDuringReplacement(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 0)
	p := cluster(3000, 20)
	d.report(p, nil)
	d.addForeignChain()
	w := &sizeRecorder{Transport: d.b.conn.Transport}
	d.b.conn.Transport = w
	r := d.report(p, nil)
	for _, n := range w.sizes {
		if n > softTxBytes+structureRoom {
			t.Errorf("a transaction of %d bytes", n)
		}
	}
	if r.Elements < 2*3000*20 || r.Transactions != len(w.sizes) {
		t.Errorf("%+v in %d transactions", r, len(w.sizes))
	}
	d.expectPlan(p)
}

func TestTransactionsShrinkWhileTheKernelIsSlow(t *testing.T) {
	testenv.OnceForAllKernels(t)
	d := newTestEnv(t, 0)
	slowly := 4 * time.Microsecond // per byte: what should take 10 ms takes a second
	w := &sizeRecorder{Transport: d.b.conn.Transport, onSend: func(n int) { d.clock.t = d.clock.t.Add(time.Duration(n) * slowly) }}
	d.b.conn.Transport = w
	d.b.inSync = false
	p := cluster(2000, 20)
	r := d.report(p, nil)
	if r.Transactions != len(w.sizes) || r.Longest <= nfnl.MaxTxTime {
		t.Fatalf("%+v for %d transactions", r, len(w.sizes))
	}
	for i, n := range w.sizes[len(w.sizes)/2:] {
		if time.Duration(n)*slowly > 2*nfnl.MaxTxTime+10*time.Millisecond && n > 2*nfnl.MinTxBytes {
			t.Errorf("transaction %d of %d still has %d bytes", len(w.sizes)/2+i, len(w.sizes), n)
		}
	}
	slowed := len(w.sizes)
	d.expectPlan(p)

	// When the kernel is fast again, transactions grow again.
	w.onSend, w.sizes = nil, nil
	q := cluster(4000, 20)
	d.report(q, plan.Diff(p, q))
	if last := w.sizes[len(w.sizes)/2]; last < softTxBytes/2 || len(w.sizes) >= slowed {
		t.Errorf("%d transactions of up to %d bytes, %d while it was slow", len(w.sizes), last, slowed)
	}
	d.expectPlan(q)
}

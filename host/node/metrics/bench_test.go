package metrics_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/node/metrics"
)

// BenchmarkObserveChange measures the cost of metrics for a change of one of 10,000 Services.
func BenchmarkObserveChange(b *testing.B) {
	m := metrics.New(metrics.Options{Mode: metrics.Mode{Name: "nftables", NFTables: true}, Started: time.Unix(0, 0)})
	p := planner.New(planner.Settings{Node: "n0", MasqueradeMark: 1}, nil)
	changes := []model.Change{synced}
	for i := range 10_000 {
		n := fmt.Sprint("s", i)
		c := service(n, 0, nil)
		c.Service.ClusterIPs[0] = netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
		changes = append(changes, c, endpoints(n, never, "n1", "n2"))
	}
	p.Apply(changes)
	p.Plan(time.Unix(1, 0))
	flip := [][]model.Change{{endpoints("s7", never, "n1")}, {endpoints("s7", never, "n1", "n2")}}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c := flip[i%2]
		b.StopTimer()
		p.Apply(c)
		step := p.Plan(time.Unix(2, 0))
		b.StartTimer()
		m.OnEnqueue(c, time.Unix(2, 0))
		m.OnDequeue()
		m.OnPlan(&engine.PlannedStep{At: time.Unix(2, 0), Duration: time.Millisecond, Result: &step})
		m.OnApply(&engine.ApplyResult{At: time.Unix(3, 0), Attempted: true, Duration: time.Millisecond, Synced: true})
	}
}

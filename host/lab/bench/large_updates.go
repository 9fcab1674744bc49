package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
)

// largeUpdate has the cost of a large update: its duration, number of transactions, the longest of them, and the latency of
// another Service's updates meanwhile.
type largeUpdate struct {
	What         string
	Seconds      float64
	Transactions int
	Longest      float64     // milliseconds
	Other        percentiles // milliseconds
	OtherCPU     percentiles // CPU time of the engine's thread meanwhile, which does not contain what other processes take
}

// probeInterval is the interval of the other Service's updates.
const probeInterval = 5 * time.Millisecond

// measureLargeUpdates measures large updates of a cluster with zone hints on every endpoint.
func measureLargeUpdates(ctx context.Context, s size, how settings) (out []largeUpdate, err error) {
	l, err := newHarness(ctx, harnessOptions{modules: how.bin, chain: []string{"zone-spill"}, locked: true})
	if err != nil {
		return nil, err
	}
	defer l.stop()
	w := newClusterState(s)
	w.hints = true
	if _, err := l.apply(w.all()); err != nil {
		return nil, err
	}
	giant, many := s.services, make([]model.SliceEndpoint, 10_000)
	for j := range many {
		w.last++
		many[j] = w.endpoint(giant, w.last)
		many[j].Hints = nil
	}
	flipped := append([]model.SliceEndpoint(nil), many...)
	flipped[17].Ready, flipped[17].Serving = false, false
	var burst []model.Change
	for i := range min(5000, s.services-1) {
		burst = append(burst, w.change(1+i, replaced))
	}
	var namespaceGone []model.Change
	for i := range min(2000, s.services-1) {
		for _, c := range append(slicesOf(1+i, w.endpointsOfService(1+i)), service(1+i)) {
			namespaceGone = append(namespaceGone, model.Change{Kind: c.Kind, Name: c.Name})
		}
	}
	manyPorts, contestants := tenantServices(1, 2000, 60), tenantServices(4000, 5, 0)
	for i, step := range []struct {
		what    string
		changes []model.Change
	}{
		{"a Service with 10,000 endpoints is created", append(slicesOf(giant, many), service(giant))},
		{"one of its endpoints becomes unready", []model.Change{slice(giant, 0, flipped[:perSlice])}},
		{"it is deleted", append(deletions(slicesOf(giant, many)), deletions([]model.Change{service(giant)})...)},
		{"this node's zone changes, and with it the endpoints of every Service", []model.Change{node(0, zoneName(1))}},
		{fmt.Sprintf("%d slices change at once", len(burst)), burst},
		{"a namespace with 2,000 Services is deleted", namespaceGone},
		{"a Service with 2,000 ports and 60 external IPs is created", manyPorts},
		{"it is deleted", deletions(manyPorts)},
		{"4,000 Services that contest 5 NodePorts are created", contestants},
		{"they are deleted", deletions(contestants)},
	} {
		profiled := how.profile(fmt.Sprint("worst-", i))
		h, err := l.measureLargeUpdate(w, step.what, step.changes)
		profiled()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", step.what, err)
		}
		out = append(out, h)
	}
	return out, nil
}

// tenantServices returns Services in a namespace of their own, with ports, the same NodePorts and external IPs.
func tenantServices(services, ports, externalIPs int) (out []model.Change) {
	for i := range services {
		s := &model.Service{
			Name:       model.Name{Namespace: "tenant", Name: fmt.Sprintf("svc-%d-%d", ports, i)},
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)})},
		}
		for j := range externalIPs {
			s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{198, 51, 100, byte(j)}))
		}
		for j := range ports {
			s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", j), Protocol: model.TCP, Port: uint16(1 + j), NodePort: uint16(30000 + j)})
		}
		out = append(out, model.Change{Kind: model.ServiceKind, Name: s.Name, Service: s})
	}
	return out
}

func deletions(list []model.Change) (out []model.Change) {
	for _, c := range list {
		out = append(out, model.Change{Kind: c.Kind, Name: c.Name})
	}
	return out
}

// measureLargeUpdate sends changes, and updates Service 0 at probeInterval until all are programmed.
func (l *harness) measureLargeUpdate(w *clusterState, what string, c []model.Change) (largeUpdate, error) {
	h := largeUpdate{What: what}
	l.latencies.reset()
	begin := time.Now()
	l.send(begin, c)
	for n := 1; ; n++ {
		due := begin.Add(time.Duration(n) * probeInterval)
		time.Sleep(time.Until(due))
		left := l.latencies.left()
		if l.latencies.idle() && left == 0 {
			break
		}
		l.latencies.mark()
		l.send(due, []model.Change{w.change(0, replaced)})
	}
	if err := l.waitProgrammed(); err != nil {
		return h, err
	}
	sum := l.latencies.reset()
	h.Seconds = max(sum.last.Sub(begin).Seconds(), 0)
	h.Transactions, h.Longest, h.Other = sum.transactions, milliseconds(sum.longest), percentilesOf(sum.marked)
	h.OtherCPU = percentilesOf(sum.markedCPU)
	return h, nil
}

func printLargeUpdates(w io.Writer, s string, all []largeUpdate) {
	fmt.Fprintf(w, "\n**Large updates**, %s, zone hints on every endpoint; meanwhile an endpoint of another Service is updated every 5 ms\n\n", s)
	fmt.Fprint(w, "| | total, s | transactions | longest, ms | latency of the other Service, ms: median, p99, max | engine CPU meanwhile, ms: median, p99, max |\n|---|---|---|---|---|---|\n")
	for _, h := range all {
		fmt.Fprintf(w, "| %s | %.3f | %d | %.0f | %.1f, %.1f, %.1f | %.1f, %.1f, %.1f |\n", h.What, h.Seconds, h.Transactions, h.Longest,
			h.Other.Median, h.Other.P99, h.Other.Max, h.OtherCPU.Median, h.OtherCPU.P99, h.OtherCPU.Max)
	}
}

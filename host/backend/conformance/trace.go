package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
)

// An expected drop is confirmed by silence. An expected answer gets more time: the machine may stand still for many seconds.
const (
	silence       = 1500 * time.Millisecond
	answerTimeout = time.Minute
)

// traceAgreement compares connections of all kinds through random clusters with the result of `sluice trace`.
func (s *session) traceAgreement() {
	w := s.fixture.Traffic
	if w.Listen == nil {
		s.Fatal("Traffic has no Listen: a packet that sluice does not handle cannot be distinguished from a lost one")
	}
	const clusters, flows = 8, 250
	counts := map[string]int{}
	prev := empty()
	for i := range s.times(clusters) {
		seed := s.seed + uint64(i)
		s.step = fmt.Sprintf("seed %d", seed)
		c := testgen.NewCluster(seed, testgen.ClusterOptions{
			Index: i % 100, Targets: slices.Concat(w.Servers, w.HostNetworkServers), NodeAddrs: s.nodeAddrs(), Clients: s.from(), Interfaces: s.interfaces(), Protocols: w.Protocols,
		})
		pl := planner.New(c.Settings, nil)
		pl.Apply(c.Changes)
		pl.Plan(time.Unix(1_700_000_000, 0))
		next := pl.Current()
		var d *plan.Delta
		if i%2 == 1 {
			d = plan.Diff(prev, next)
		}
		s.apply(next, d)
		prev = next
		var list []plan.Flow
		trace := next.Tracer(pl.NodeAddrs())
		for len(list) < flows {
			if f := c.Flow(); !isRemote(trace.Trace(f).Frontend, f.From) {
				list = append(list, f)
			}
		}
		for _, what := range s.compare(trace, list) {
			counts[what]++
		}
		if s.Failed() {
			s.Fatalf("%s: the plan:\n%s", s.step, plan.Format(next))
		}
	}
	s.Logf("connections by outcome: %v", counts)
	for _, what := range []string{"masqueraded", "source kept", "REJECT", "DROP", "NONE"} {
		if counts[what] == 0 {
			s.Errorf("no connection resulted in %s", what)
		}
	}
}

// isRemote reports whether the source of a flow, which is on this node, is an endpoint that is on another node as far as the plan
// knows: its connections to itself are not masqueraded.
func isRemote(f *plan.Frontend, from netip.Addr) bool {
	if f != nil {
		for e := range f.AllEndpoints() {
			if e.Remote && e.Addr.Addr() == from {
				return true
			}
		}
	}
	return false
}

// nodeAddrs returns the node's addresses, those of its Node object first.
func (s *session) nodeAddrs() []netip.Addr {
	out := slices.Clone(s.fixture.Traffic.Global.NodePortAddrs)
	for _, a := range s.fixture.Traffic.Node {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

func (s *session) from() (out []netip.Addr) {
	for _, c := range s.fixture.Traffic.Clients {
		out = append(out, c.From)
	}
	return out
}

func (s *session) interfaces() map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for _, c := range s.fixture.Traffic.Clients {
		out[c.From] = c.Interface
	}
	return out
}

// compare makes the connections concurrently and returns their outcomes. It ends when enough have another than they should.
func (s *session) compare(trace *plan.Tracer, list []plan.Flow) []string {
	s.Helper()
	const enough = 20
	w := s.fixture.Traffic
	clients := map[netip.Addr]Client{}
	for _, c := range w.Clients {
		clients[c.From] = c
	}
	type place struct {
		to    netip.AddrPort
		proto model.Protocol
	}
	served := map[place]bool{}
	var stops []func()
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	want := make([]plan.Outcome, len(list))
	for i := range list {
		f := list[i]
		want[i] = trace.Trace(f)
		// Without a server, a packet that should have been rejected but was not would still look rejected on the node,
		// and dropped elsewhere.
		if at := (place{f.To, f.Protocol}); len(want[i].Candidates) == 0 && !served[at] {
			served[at] = true
			stop, err := w.Listen(f.To, f.Protocol)
			if err != nil {
				s.Fatalf("%s: listen on %s/%s: %v", s.step, f.To, f.Protocol, err)
			}
			stops = append(stops, stop)
		}
	}
	out := make([]string, len(list))
	var next, wrong atomic.Int64
	var wg sync.WaitGroup
	for range max(w.Parallel, 1) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(list) && wrong.Load() < enough; i = int(next.Add(1)) - 1 {
				if out[i] = s.agree(clients[list[i].From], list[i], &want[i]); out[i] == "" {
					wrong.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return out
}

// agree makes one connection and compares it with its trace. Safe for concurrent use.
func (s *session) agree(c Client, f plan.Flow, want *plan.Outcome) string {
	w := s.fixture.Traffic
	if c.Timeout = answerTimeout; want.Matched && want.Verdict == plan.Drop {
		c.Timeout = silence
	}
	seen, err := w.Connect(c, f.To, f.Protocol)
	if err != nil {
		s.Errorf("%s: %s → %s/%s: %v; the trace says %s", s.step, c.Name, f.To, f.Protocol, err, summary(want))
		return ""
	}
	if seen.Close != nil {
		seen.Close()
	}
	got := seen.Verdict.String()
	switch {
	case seen.NotProxied:
		got = "not proxied"
	case seen.Verdict == plan.Forward:
		got = fmt.Sprintf("forwarded to %s, source %s", seen.Server, seen.Source)
	}
	bad := func() string {
		s.Errorf("%s: %s → %s/%s: %s; the trace says %s", s.step, c.Name, f.To, f.Protocol, got, summary(want))
		return ""
	}
	switch {
	case !want.Matched && w.NodeOwns != nil && w.NodeOwns(f.To.Addr()):
		if seen.NotProxied || seen.Verdict != plan.Reject {
			return bad()
		}
		return "REJECT"
	case !want.Matched:
		if !seen.NotProxied {
			return bad()
		}
		return "NONE"
	case seen.NotProxied || seen.Verdict != want.Verdict:
		return bad()
	case want.Verdict != plan.Forward:
		return strings.ToUpper(want.Verdict.String())
	}
	i := slices.IndexFunc(want.Candidates, func(m plan.Candidate) bool { return m.Addr == seen.Server })
	if i < 0 {
		return bad()
	}
	masquerade, node, onNode := want.Candidates[i].Masquerade, w.Node.Contains(f.From), slices.Contains(w.HostNetworkServers, seen.Server)
	if onNode && !node {
		masquerade = false
	}
	if sourceVisible := !node || c.ExplicitSource && !onNode; sourceVisible && (seen.Source != f.From) != masquerade {
		return bad()
	}
	if masquerade {
		return "masqueraded"
	}
	return "source kept"
}

// summary formats a trace.
func summary(o *plan.Outcome) string {
	if !o.Matched {
		return "NONE: " + o.Why
	}
	text := o.Verdict.String()
	for _, c := range o.Candidates {
		text += " " + c.Addr.String()
		if c.Masquerade {
			text += " masqueraded"
		}
	}
	if o.Frontend != nil {
		text += fmt.Sprintf(": %s %s of %s", o.Frontend.Kind, o.Frontend.Key, o.Frontend.Owner)
	}
	return text + ": " + o.Why
}

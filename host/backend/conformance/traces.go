package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/clustergen"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
)

// Silence is a drop after a while. Where an answer is due, it may take longer: on a busy machine, and because Linux
// sends a lost SYN again after a second.
const (
	silence  = 1500 * time.Millisecond
	patience = 5 * time.Second
)

// traces makes connections of all kinds through random clusters, and compares what they see with what `sluice trace`
// says: the planner's plan, resolved.
func (s *session) traces() {
	w := s.sub.Wire
	if w.Listen == nil {
		s.Fatal("the wire has no Listen: nothing would tell a packet that was left alone from a lost one")
	}
	const clusters, flows = 8, 250
	counts := map[string]int{}
	prev := empty()
	for i := range s.times(clusters) {
		seed := s.seed + uint64(i)
		s.where = fmt.Sprintf("seed %d", seed)
		c := clustergen.New(seed, clustergen.Options{
			Index: i % 100, Targets: slices.Concat(w.Members, w.OnNode), NodeAddrs: s.nodeAddrs(), Clients: s.from(), Interfaces: s.interfaces(), Protocols: w.Protocols,
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
		for range flows {
			list = append(list, c.Flow())
		}
		for _, what := range s.compare(next.Resolver(pl.NodeAddrs()), list) {
			counts[what]++
		}
		if s.Failed() {
			s.Fatalf("%s: the plan:\n%s", s.where, plan.Format(next))
		}
	}
	s.Logf("connections by what became of them: %v", counts)
	for _, what := range []string{"masqueraded", "source kept", "REJECT", "DROP", "NONE"} {
		if counts[what] == 0 {
			s.Errorf("no connection was to come to %s", what)
		}
	}
}

// nodeAddrs are the node's addresses, those of its Node object first.
func (s *session) nodeAddrs() []netip.Addr {
	out := slices.Clone(s.sub.Wire.Global.NodePortAddrs)
	for _, a := range s.sub.Wire.Node {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

func (s *session) from() (out []netip.Addr) {
	for _, c := range s.sub.Wire.Clients {
		out = append(out, c.From)
	}
	return out
}

func (s *session) interfaces() map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for _, c := range s.sub.Wire.Clients {
		out[c.From] = c.Interface
	}
	return out
}

// compare makes the connections, several at a time, and gives what became of them.
func (s *session) compare(trace *plan.Resolver, list []plan.Flow) []string {
	s.Helper()
	w := s.sub.Wire
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
		want[i] = trace.Resolve(f)
		// Without a server, a packet that should have been refused and was not would look refused on the node, and
		// dropped elsewhere.
		if at := (place{f.To, f.Protocol}); len(want[i].Candidates) == 0 && !served[at] {
			served[at] = true
			stop, err := w.Listen(f.To, f.Protocol)
			if err != nil {
				s.Fatalf("%s: listen on %s/%s: %v", s.where, f.To, f.Protocol, err)
			}
			stops = append(stops, stop)
		}
	}
	out := make([]string, len(list))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range max(w.Parallel, 1) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(list); i = int(next.Add(1)) - 1 {
				out[i] = s.agree(clients[list[i].From], list[i], &want[i])
			}
		})
	}
	wg.Wait()
	return out
}

// agree makes one connection and compares it with its trace. It is called from several goroutines.
func (s *session) agree(c Client, f plan.Flow, want *plan.Outcome) string {
	w := s.sub.Wire
	if c.Patience = patience; want.Ours && want.Verdict == plan.Drop {
		c.Patience = silence
	}
	seen, err := w.Connect(c, f.To, f.Protocol)
	if err != nil {
		s.Errorf("%s: %s → %s/%s: %v; the trace says %s", s.where, c.Name, f.To, f.Protocol, err, inWords(want))
		return ""
	}
	if seen.Close != nil {
		seen.Close()
	}
	got := seen.Verdict.String()
	switch {
	case seen.Passed:
		got = "left alone"
	case seen.Verdict == plan.Forward:
		got = fmt.Sprintf("forwarded to %s, which sees %s", seen.Member, seen.Source)
	}
	bad := func() string {
		s.Errorf("%s: %s → %s/%s: %s; the trace says %s", s.where, c.Name, f.To, f.Protocol, got, inWords(want))
		return ""
	}
	switch {
	case !want.Ours && w.Taken != nil && w.Taken(f.To.Addr()):
		if seen.Passed || seen.Verdict != plan.Reject {
			return bad()
		}
		return "REJECT"
	case !want.Ours:
		if !seen.Passed {
			return bad()
		}
		return "NONE"
	case seen.Passed || seen.Verdict != want.Verdict:
		return bad()
	case want.Verdict != plan.Forward:
		return strings.ToUpper(want.Verdict.String())
	}
	i := slices.IndexFunc(want.Candidates, func(m plan.Candidate) bool { return m.Addr == seen.Member })
	if i < 0 {
		return bad()
	}
	masquerade, node, onNode := want.Candidates[i].Masquerade, w.Node.Has(f.From), slices.Contains(w.OnNode, seen.Member)
	if onNode && !node {
		masquerade = false
	}
	if tells := !node || c.Plain && !onNode; tells && (seen.Source != f.From) != masquerade {
		return bad()
	}
	if masquerade {
		return "masqueraded"
	}
	return "source kept"
}

// inWords is a trace in a few words.
func inWords(o *plan.Outcome) string {
	if !o.Ours {
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

package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// fakeSignals is what is known of connections, by the last byte of the endpoint's address.
type fakeSignals struct {
	reading     uint64
	window      time.Duration
	outcomes    map[byte]abi.Outcomes
	failedAt    map[byte]uint64
	age         time.Duration // negative: not counted
	connections map[byte]uint32
	asked       int
}

func (f *fakeSignals) OutcomesWindow(time.Time) (uint64, time.Duration) {
	f.asked++
	return f.reading, f.window
}

func (f *fakeSignals) Outcomes(k model.EndpointKey) (abi.Outcomes, uint64) {
	f.asked++
	n := k.Addr.Addr().As4()[3]
	return f.outcomes[n], f.failedAt[n]
}

func (f *fakeSignals) ConnectionsAge(time.Time) (time.Duration, bool) {
	f.asked++
	return f.age, f.age >= 0
}

func (f *fakeSignals) Connections(k model.EndpointKey) (uint32, bool) {
	f.asked++
	n, ok := f.connections[k.Addr.Addr().As4()[3]]
	return n, ok
}

// signalsPlugin records the last request.
type signalsPlugin struct {
	fakePlugin
	needs uint32
	seen  abi.Request
}

func (s *signalsPlugin) Needs(string) uint32 { return s.needs }

func (s *signalsPlugin) Decide(req *abi.Request, resp *abi.Response) error {
	s.seen = *req
	s.seen.Endpoints = slices.Clone(req.Endpoints)
	return s.fakePlugin.Decide(req, resp)
}

func newSignalsFixture(needs uint32) (*fixture, *signalsPlugin, *fakeSignals) {
	p := &signalsPlugin{fakePlugin: fakePlugin{decide: favorFirst(7)}, needs: needs}
	b := newFixture()
	b.plugins["p"] = p
	b.policy.Steps = []Step{{Plugin: "p"}}
	s := &fakeSignals{
		reading: 5, window: 1500 * time.Millisecond, outcomes: map[byte]abi.Outcomes{1: {Attempts: 9, TotalAttempts: 90, Since: 7}}, failedAt: map[byte]uint64{},
		age: 2500 * time.Microsecond, connections: map[byte]uint32{0: 3, 1: abi.ConnectionsUnknown},
	}
	b.evaluator.Signals = s
	return b, p, s
}

func TestRequestHasTheSignalsThatPluginsNeed(t *testing.T) {
	b, p, s := newSignalsFixture(abi.NeedOutcomes | abi.NeedConnections)
	b.expect(t, "first", FromChain, 7, 1, 1)
	if p.seen.OutcomesWindowMS != 1500 || p.seen.Endpoints[1].Outcomes != s.outcomes[1] || p.seen.Endpoints[0].Outcomes != (abi.Outcomes{}) {
		t.Errorf("%+v", p.seen)
	}
	if p.seen.ConnectionsAgeMS != 3 {
		t.Errorf("age %d ms, want it rounded up", p.seen.ConnectionsAgeMS)
	}
	var got []uint32
	for _, e := range p.seen.Endpoints {
		got = append(got, e.Connections)
	}
	if want := []uint32{3, abi.ConnectionsUnknown - 1, abi.ConnectionsUnknown}; !slices.Equal(got, want) {
		t.Errorf("connections %v, want %v", got, want)
	}
}

func TestSignalsThatNoPluginNeedsCostNothing(t *testing.T) {
	b, p, s := newSignalsFixture(0)
	b.expect(t, "first", FromChain, 7, 1, 1)
	if s.asked != 0 {
		t.Errorf("asked %d times", s.asked)
	}
	if p.seen.OutcomesWindowMS != 0 || p.seen.ConnectionsAgeMS != abi.NoAge || p.seen.Endpoints[0].Connections != abi.ConnectionsUnknown {
		t.Errorf("%+v", p.seen)
	}
}

func TestSignalsThatAreNotCountedAreUnknown(t *testing.T) {
	b, p, s := newSignalsFixture(abi.NeedOutcomes | abi.NeedConnections)
	s.window, s.age, s.failedAt[1] = 0, -1, 5
	b.expect(t, "first", FromChain, 7, 1, 1)
	if p.seen.OutcomesWindowMS != 0 || p.seen.Endpoints[1].Outcomes != (abi.Outcomes{}) || p.seen.ConnectionsAgeMS != abi.NoAge ||
		p.seen.Endpoints[0].Connections != abi.ConnectionsUnknown {
		t.Errorf("%+v", p.seen)
	}
}

func TestNewFailuresCallThePluginAgainAndNumbersDoNot(t *testing.T) {
	b, p, s := newSignalsFixture(abi.NeedOutcomes | abi.NeedConnections)
	steps := []struct {
		what   string
		change func()
		called bool
	}{
		{"first", func() {}, true},
		{"other numbers", func() {
			s.reading, s.outcomes[1] = 6, abi.Outcomes{Attempts: 10}
			s.connections[0]++
			s.age++
		}, false},
		{"a new failure", func() { s.reading, s.failedAt[1] = 7, 7 }, true},
		{"the same failure", func() { s.reading = 8 }, false},
		{"a failure of an endpoint of another pool", func() { s.reading, s.failedAt[200] = 9, 9 }, false},
		{"two failures since the last plan", func() { s.reading, s.failedAt[0], s.failedAt[1] = 12, 10, 12 }, true},
		{"nothing new", func() { s.reading = 13 }, false},
	}
	for _, c := range steps {
		before := p.calls
		c.change()
		b.expect(t, c.what, FromChain, 7, 1, 1)
		if (p.calls > before) != c.called {
			t.Errorf("%s: %d calls", c.what, p.calls-before)
		}
	}
}

func TestPluginOfAChainThatDoesNotNeedOutcomesIsNotCalledForFailures(t *testing.T) {
	b, p, s := newSignalsFixture(abi.NeedOutcomes)
	other := &fakePlugin{decide: favorFirst(7)}
	b.plugins["other"] = other
	b.policy.Steps = append(b.policy.Steps, Step{Plugin: "other"})
	b.expect(t, "first", FromChain, 7, 1, 1)
	s.reading, s.failedAt[1] = 6, 6
	b.expect(t, "a failure", FromChain, 7, 1, 1)
	if p.calls != 2 || other.calls != 1 {
		t.Errorf("%d and %d calls", p.calls, other.calls)
	}
}

func TestFailuresDoNotShortenTheBackoffOfAFailingPlugin(t *testing.T) {
	b, p, s := newSignalsFixture(abi.NeedOutcomes)
	p.decide = failDecide
	b.expect(t, "first", FromDefault, 1, 1, 1)
	for range 10 {
		s.reading++
		s.failedAt[1] = s.reading
		b.expect(t, "a failure", FromDefault, 1, 1, 1)
	}
	if p.calls != 1 {
		t.Errorf("%d calls", p.calls)
	}
}

func TestFailureDuringALateCallCallsThePluginAgain(t *testing.T) {
	b, p, s := newSignalsFixture(abi.NeedOutcomes)
	late := &lateCaller{}
	b.late = late
	b.decide()
	late.begin()
	s.reading, s.failedAt[1] = 6, 6
	b.decide() // waits for the answer about reading 5
	late.end(b.evaluator)
	b.decide()
	late.begin()
	late.end(b.evaluator)
	b.expect(t, "both answered", FromChain, 7, 1, 1)
	if p.calls != 2 {
		t.Errorf("%d calls", p.calls)
	}
}

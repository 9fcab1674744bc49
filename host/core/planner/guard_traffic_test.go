package planner

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// byAddress is a plugin with a share for each endpoint, by the last byte of its address; 1 where there is none.
type byAddress struct {
	policytest.Plugin
	shares map[byte]uint32
}

func (p *byAddress) Decide(req *abi.Request, resp *abi.Response) error {
	for i := range req.Endpoints {
		share, ok := p.shares[req.Endpoints[i].Addr.Addr().As16()[15]]
		if !ok {
			share = 10
		}
		resp.Results[i].Value = abi.One / 10 * share
	}
	return nil
}

// traffic is a random pattern of connections from a node to the endpoints of a guarded policy: what clients do, and what becomes
// of it.
type traffic struct {
	*Planner
	r       *rand.Rand
	now     time.Time
	tracker *outcomes.Tracker
	kernel  map[model.EndpointKey]*outcomes.Counters
	later   map[int]map[model.EndpointKey]uint64 // answers, by the reading in which they come
	reading int
	shares  map[model.Name]map[model.EndpointKey]float64 // as planned

	trial, former *byAddress // what the guarded policy decides, and the one before it; former nil: the default rules
	endpoints     int        // of each Service; 0: some
	percent       int        // of the guard; 0: some
	rate          func(reading int) float64
	fails         func(e model.EndpointKey, reading int) float64 // the share of connections to an endpoint that fails
	refused       float64                                        // of the connections that fail; the others are unanswered
	slow          float64                                        // of the answers that come up to 2 s later
}

const trafficPeriod = 500 * time.Millisecond

// newTraffic returns one to three Services with two to eight endpoints each.
func newTraffic(seed uint64) *traffic {
	x := &traffic{r: rand.New(rand.NewPCG(seed, 8)), now: time.Unix(1000, 0), tracker: outcomes.NewTracker(), kernel: map[model.EndpointKey]*outcomes.Counters{}, later: map[int]map[model.EndpointKey]uint64{}}
	x.trial = &byAddress{shares: map[byte]uint32{}}
	x.refused, x.slow = float64(x.r.IntN(3))/2, float64(x.r.IntN(2))*0.05
	return x
}

func (x *traffic) start() {
	settings := testSettings()
	guard := policy.Guard{FailedPercent: cmp.Or(x.percent, []int{1, 2, 5}[x.r.IntN(3)]), Window: []time.Duration{5 * time.Second, 10 * time.Second, 30 * time.Second}[x.r.IntN(3)]}
	set := &policy.Set{Policies: map[string]*policy.Policy{"trial": {Name: "trial", Steps: []policy.Step{{Plugin: "trial"}}, Guard: guard}}, Bindings: []policy.Binding{{Policy: "trial"}}}
	if x.former != nil {
		set.Policies["former"] = &policy.Policy{Name: "former", Steps: []policy.Step{{Plugin: "former"}}}
		set.Default = "former"
	}
	settings.Policies = set
	x.Planner = New(settings, func(name string) (policy.Plugin, error) {
		if name == "former" {
			return x.former, nil
		}
		return x.trial, nil
	})
	x.UseSignals(&failures{})
	var changes []model.Change
	for i := range 1 + x.r.IntN(3) {
		name := model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}
		n := 2 + x.r.IntN(7)
		if x.endpoints > 0 {
			n = x.endpoints
		}
		s := slice(name, n)
		for j := range s.Endpoints {
			s.Endpoints[j].Addr = netip.AddrFrom4([4]byte{10, 244, byte(i), byte(j)})
		}
		changes = append(changes, model.Change{Kind: model.ServiceKind, Name: name, Service: &model.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})}, Ports: []model.ServicePort{{Name: "p0", Protocol: model.TCP, Port: 80}},
		}}, model.Change{Kind: model.SliceKind, Name: name, Slice: s})
	}
	x.Apply(append(changes, ownNode("z0"), model.Change{Kind: model.Synced}))
	x.plan()
}

// plan plans, and reads the shares of the endpoints from the plan.
func (x *traffic) plan() {
	x.PlanNow(x.now)
	x.shares = map[model.Name]map[model.EndpointKey]float64{}
	for _, name := range x.ServiceNames() {
		shares, sum := map[model.EndpointKey]float64{}, 0.0
		for f := range x.claims.Has(name) {
			for _, e := range f.Pool.Endpoints {
				key := model.EndpointKey{Addr: e.Addr, Protocol: f.Key.Protocol}
				shares[key] += float64(e.Weight)
				sum += float64(e.Weight)
				if x.kernel[key] == nil {
					x.kernel[key] = &outcomes.Counters{}
				}
			}
		}
		for key := range shares {
			shares[key] /= sum
		}
		x.shares[name] = shares
	}
}

// draw returns how many of n come, each with a probability.
func (x *traffic) draw(n uint64, p float64) (out uint64) {
	if p <= 0 {
		return 0
	}
	for range n {
		if x.r.Float64() < p {
			out++
		}
	}
	return out
}

// next makes the connections until the next reading, and takes it. It reports whether the guard has changed.
func (x *traffic) next() bool {
	x.reading++
	for key, n := range x.later[x.reading] {
		x.kernel[key].Answered += n
	}
	delete(x.later, x.reading)
	rate := x.rate(x.reading)
	for i, name := range x.ServiceNames() {
		for key, share := range x.shares[name] {
			want := rate * share / float64(1+i*i) // Services of different sizes
			n := uint64(want) + x.draw(1, want-math.Floor(want))
			x.connect(key, n)
		}
	}
	x.now = x.now.Add(trafficPeriod)
	changes := x.tracker.Update(x.now, func(yield func(model.EndpointKey, outcomes.Counters) bool) {
		for key, c := range x.kernel {
			if !yield(key, *c) {
				return
			}
		}
	})
	_, _, length := x.tracker.Last()
	before := x.phase()
	x.AddOutcomes(x.now, length, changes)
	if x.phase() == before {
		return false
	}
	x.plan()
	return true
}

func (x *traffic) connect(key model.EndpointKey, n uint64) {
	c := x.kernel[key]
	c.Attempts += n
	failed := x.draw(n, x.fails(key, x.reading))
	refused := x.draw(failed, x.refused)
	slow := x.draw(n-failed, x.slow)
	c.Refused += refused
	c.Answered += n - failed - slow
	if slow > 0 {
		at := x.reading + 1 + x.r.IntN(4)
		if x.later[at] == nil {
			x.later[at] = map[model.EndpointKey]uint64{}
		}
		x.later[at][key] += slow
	}
}

func (x *traffic) phase() policy.GuardPhase { return x.evaluator.Guards["trial"].Phase }

// run runs until the guard has fallen back, at most for a number of readings after the policy has come into force. It returns how
// many readings it was in force, and whether the node has fallen back.
func (x *traffic) run(readings int) (inForce int, fellBack bool) {
	for range 400 {
		if x.phase() != policy.GuardBaseline {
			break
		}
		x.next()
	}
	for ; inForce < readings && x.phase() == policy.GuardInForce; inForce++ {
		x.next()
	}
	return inForce, x.phase() == policy.GuardFallenBack
}

// pattern makes the rate and the failures random: connections that begin late, bursts, days of a minute, few connections;
// failures that are independent, of endpoints that come and go, of one endpoint all the time, of all at once, and with the load.
func (x *traffic) pattern() {
	r := x.r
	mean, phase := 1+math.Pow(r.Float64(), 3)*60, r.IntN(200)
	x.rate = func(n int) float64 { return mean }
	switch r.IntN(5) {
	case 0: // young: nothing at first
		x.rate = func(n int) float64 { return mean * float64(oneIf(n > phase)) }
	case 1: // bursts
		on, off := 1+r.IntN(20), 1+r.IntN(40)
		x.rate = func(n int) float64 { return 2 * mean * float64(oneIf((n+phase)%(on+off) < on)) }
	case 2: // days
		x.rate = func(n int) float64 { return mean * (1 + math.Sin(float64(n+phase)/20)) }
	case 3: // few
		x.rate = func(n int) float64 { return 0.8 }
	}
	usual, bad := math.Pow(r.Float64(), 6)*0.2, byte(r.IntN(3))
	x.fails = func(model.EndpointKey, int) float64 { return usual }
	begin, length, every := r.IntN(300), 1+r.IntN(60), 20+r.IntN(200)
	switch r.IntN(6) {
	case 0: // an endpoint comes and goes
		x.fails = func(e model.EndpointKey, n int) float64 {
			if e.Addr.Addr().As4()[3] == bad && (n+begin)%every < length {
				return 1
			}
			return usual
		}
	case 1: // an endpoint fails all the time
		x.fails = func(e model.EndpointKey, n int) float64 {
			return max(usual, float64(oneIf(e.Addr.Addr().As4()[3] == bad)))
		}
	case 2: // an endpoint begins to fail
		x.fails = func(e model.EndpointKey, n int) float64 {
			return max(usual, float64(oneIf(e.Addr.Addr().As4()[3] == bad && n > begin)))
		}
	case 3: // all at once
		x.fails = func(e model.EndpointKey, n int) float64 {
			return max(usual, float64(oneIf((n+begin)%every < length))/2)
		}
	case 4: // with the load
		x.fails = func(e model.EndpointKey, n int) float64 { return min(1, usual+x.rate(n)/mean/20) }
	}
}

// patternsOfTraffic returns how many patterns a test tries: SLUICE_PATTERNS=10000 for the figures of host/core/policy/README.md.
func patternsOfTraffic(t *testing.T, otherwise int) int {
	t.Helper()
	if text := os.Getenv("SLUICE_PATTERNS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if testing.Short() {
		return otherwise / 4
	}
	return otherwise
}

// TestPolicyThatChangesNothingNeverFallsBack: the policy shares connections as the default rules do, or as the policy before it
// did, which gives endpoints unequal shares.
func TestPolicyThatChangesNothingNeverFallsBack(t *testing.T) {
	patterns := patternsOfTraffic(t, 2000)
	inForce, fellBack := 0, 0
	for seed := range patterns {
		x := newTraffic(uint64(seed))
		if x.r.IntN(2) == 0 {
			for i := range byte(8) {
				x.trial.shares[i] = 1 + uint32(x.r.IntN(10))
			}
			x.former = &byAddress{shares: maps.Clone(x.trial.shares)}
		}
		x.pattern()
		x.start()
		n, back := x.run(160)
		if n > 0 {
			inForce++
		}
		if back {
			if fellBack++; fellBack <= 3 {
				t.Errorf("seed %d: after %d readings: %s", seed, n, x.evaluator.Guards["trial"])
			}
		}
	}
	t.Logf("%d patterns: in force in %d, fallen back in %d", patterns, inForce, fellBack)
	if inForce < patterns*3/4 {
		t.Errorf("only %d of %d policies come into force", inForce, patterns)
	}
	if fellBack > 0 {
		t.Errorf("%d of %d fall back", fellBack, patterns)
	}
}

// TestPolicyThatMovesConnectionsOnlyDoesNotFallBack: the policy gives some endpoints more connections and others fewer, and as
// many fail at all of them: independently of each other, also in bursts, with the load, or all at once for a time. Endpoints that
// get less than half of the connections that they would get without it are taken to fail as they did before, in part: such a
// policy falls back in a hundredth of the patterns at most, most of them with failures all at once.
func TestPolicyThatMovesConnectionsOnlyDoesNotFallBack(t *testing.T) {
	patterns := patternsOfTraffic(t, 500)
	for _, tt := range []struct{ least, most, percent int }{{5, 10, 0}, {1, 10, 1}} {
		readings, fellBack := 0, 0
		for seed := range patterns {
			x := newTraffic(uint64(seed) + 1<<32)
			for i := range byte(8) {
				x.trial.shares[i] = uint32(tt.least + x.r.IntN(tt.most-tt.least+1))
			}
			x.pattern()
			usual, begin, length := math.Pow(x.r.Float64(), 4)*0.3, x.r.IntN(200), 1+x.r.IntN(60)
			x.fails = func(_ model.EndpointKey, n int) float64 { return usual }
			if seed%2 == 0 {
				x.fails = func(_ model.EndpointKey, n int) float64 { return usual + float64(oneIf((n+begin)%200 < length))/4 }
			}
			x.start()
			n, back := x.run(160)
			if readings += n; back {
				if fellBack++; fellBack <= 3 {
					t.Logf("shares %d to %d, seed %d: after %d readings: %s", tt.least, tt.most, seed, n, x.evaluator.Guards["trial"])
				}
			}
		}
		t.Logf("shares %d to %d: %d readings, %d of %d fall back", tt.least, tt.most, readings, fellBack, patterns)
		if fellBack*100 > tt.percent*patterns {
			t.Errorf("shares %d to %d: %d of %d policies fall back, want %d %% at most", tt.least, tt.most, fellBack, patterns, tt.percent)
		}
	}
}

// TestHarmfulPolicyFallsBackInTime: a policy gives one of three endpoints all connections, or most of them, while this one fails
// in part, after a baseline without failures. The guard allows 2 %.
func TestHarmfulPolicyFallsBackInTime(t *testing.T) {
	for _, tt := range []struct {
		what     string
		shares   map[byte]uint32
		percent  int
		readings int // at most, with 60 connections in each
	}{
		{"all", map[byte]uint32{1: 0, 2: 0}, 100, 10},
		{"all", map[byte]uint32{1: 0, 2: 0}, 50, 10},
		{"all", map[byte]uint32{1: 0, 2: 0}, 10, 20},
		{"four fifths", map[byte]uint32{0: 8, 1: 1, 2: 1}, 100, 10},
		{"four fifths", map[byte]uint32{0: 8, 1: 1, 2: 1}, 10, 40},
	} {
		worst, late := 0, 0
		for seed := range uint64(40) {
			x := newTraffic(seed)
			x.trial.shares, x.endpoints, x.percent, x.slow, x.refused = tt.shares, 3, 2, 0, 1
			x.rate = func(int) float64 { return 60 }
			failing := 0.0
			x.fails = func(e model.EndpointKey, n int) float64 {
				if e.Addr.Addr().As4()[3] == 0 && x.phase() == policy.GuardInForce {
					return failing
				}
				return 0
			}
			failing = float64(tt.percent) / 100
			x.start()
			n, back := x.run(120)
			if worst = max(worst, n); !back || n > tt.readings+4 { // and the two seconds that do not count
				late++
			}
		}
		t.Logf("%s, %d %% fail: at most %d readings", tt.what, tt.percent, worst)
		if late > 0 {
			t.Errorf("%s, %d %% fail: %d of 40 take more than %d readings, up to %d", tt.what, tt.percent, late, tt.readings, worst)
		}
	}
}

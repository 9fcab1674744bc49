package planner

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

var (
	shedPort    = model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http", Protocol: model.TCP}
	shedTestKey = plan.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, Protocol: model.TCP}
	shedTarget  = netip.MustParseAddrPort("10.244.0.1:8080")
)

// shedPlanner returns a planner whose plan has one frontend.
func shedPlanner() *Planner {
	p := New(Settings{}, nil)
	p.claims.Plan().Frontends[shedTestKey] = &plan.Frontend{Key: shedTestKey, Owner: shedPort}
	return p
}

func (p *Planner) wantShed(at int64, permille uint16, limit int, now time.Time) (bounded bool) {
	share := EffectiveShed(permille, limit)
	return p.sheds.set(shedPort.Service, map[shedKey]wantedShed{{shedPort, shedTarget}: {
		at: at, permille: permille, share: uint64(share) * plan.ShedSpace / 1000, limit: uint64(limit) * plan.ShedSpace / 100,
		bounded: share < permille, frontends: []plan.Key{shedTestKey},
	}}, now.UnixMilli())
}

// TestShedIsExactEvenAndBounded: over random sequences of steps that are late, fail, are deferred, or follow a suspension,
// exactly the connections of the share are reset, each once; no step resets more than the limit; two steps are a second apart;
// and while nothing is late, the share grows evenly.
func TestShedIsExactEvenAndBounded(t *testing.T) {
	seeds := 3000
	if testing.Short() {
		seeds = 300
	}
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 0x5ed))
		p := shedPlanner()
		now := time.UnixMilli(1_700_000_000_000)
		at, permille, limit := now.UnixMilli(), uint16(1+rng.IntN(1000)), 1+rng.IntN(4)
		punctual := seed%3 == 0
		wanted := uint64(min(int(permille), limit*600)) * plan.ShedSpace / 1000
		if bounded := p.wantShed(at, permille, limit, now); bounded != (int(permille) > limit*600) {
			t.Fatalf("seed %d: bounded %t: %d permille, %d %% a second", seed, bounded, permille, limit)
		}
		done, lastEnd := uint64(0), time.Time{}
		for steps := 0; !p.NextSheds().IsZero(); steps++ {
			if steps > 2000 {
				t.Fatalf("seed %d: no end", seed)
			}
			now = later(now, p.NextSheds())
			if !punctual {
				now = now.Add(time.Duration(rng.IntN(700)) * time.Millisecond)
				if rng.IntN(40) == 0 { // a suspended machine
					now = now.Add(time.Duration(rng.IntN(600)) * time.Second)
				}
				if rng.IntN(4) == 0 { // the same answer again
					p.wantShed(at, permille, limit, now)
				}
			}
			sheds := p.Sheds(now)
			if again := p.Sheds(now); len(again) > 0 {
				t.Fatalf("seed %d: another step while one is running", seed)
			}
			if len(sheds) == 0 {
				continue
			}
			s := sheds[0]
			if len(sheds) != 1 || s.From != done || s.To <= s.From || s.Until != wanted || s.Seed != uint64(at) || s.Endpoint != shedTarget || len(s.Frontends) != 1 {
				t.Fatalf("seed %d: step %+v after %d of %d", seed, sheds, done, wanted)
			}
			if width := s.To - s.From; width > uint64(limit)*plan.ShedSpace/100 {
				t.Fatalf("seed %d: a step of %d, the limit is %d %%", seed, width, limit)
			}
			if !lastEnd.IsZero() && now.Sub(lastEnd) < time.Second {
				t.Fatalf("seed %d: %s between two steps", seed, now.Sub(lastEnd))
			}
			if due := wanted * uint64(min(now.UnixMilli()-at, 60_000)) / 60_000; s.To > due {
				t.Fatalf("seed %d: %d are reset, %d are due", seed, s.To, due)
			} else if punctual && due-s.To > wanted/60+1 {
				t.Fatalf("seed %d: %d are reset, %d are due, and nothing was late", seed, s.To, due)
			}
			if !punctual {
				now = now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond) // the step takes as long
			}
			lastEnd = now
			switch rng.IntN(8) {
			case 0:
				if !punctual {
					p.ShedsDone(now, false, nil)
					continue
				}
			case 1:
				if !punctual {
					p.ShedsDone(now, true, []bool{true})
					continue
				}
			}
			p.ShedsDone(now, true, nil)
			done = s.To
		}
		if done != wanted {
			t.Fatalf("seed %d: %d of %d are reset", seed, done, wanted)
		}
		if p.wantShed(at, permille, limit, now); !p.NextSheds().IsZero() {
			t.Fatalf("seed %d: the same answer begins again", seed)
		}
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// step runs the next step of the sheds when it is due, and returns it.
func (p *Planner) step(now *time.Time) (s plan.Shed) {
	for len(s.Frontends) == 0 && !p.NextSheds().IsZero() {
		*now = later(*now, p.NextSheds())
		if sheds := p.Sheds(*now); len(sheds) > 0 {
			s = sheds[0]
			p.ShedsDone(*now, true, nil)
		}
	}
	return s
}

func TestShedContinuesAfterARestartWhereItWouldBe(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	at := now.UnixMilli()
	p := shedPlanner()
	now = now.Add(30 * time.Second)
	p.wantShed(at, 600, 1, now)
	now = now.Add(time.Second)
	if s, half := p.step(&now), uint64(300)*plan.ShedSpace/1000; s.From != half || s.To <= half {
		t.Errorf("the first step is %+v, want one from %d", s, half)
	}
	p = shedPlanner()
	now = time.UnixMilli(at).Add(2 * time.Second) // the answer came late
	p.wantShed(at, 600, 1, now)
	if s := p.step(&now); s.From != 0 || s.To != plan.ShedSpace/100 {
		t.Errorf("the first step is %+v, want one that begins at 0 and keeps to the limit", s)
	}
	p = shedPlanner()
	now = time.UnixMilli(at).Add(time.Minute)
	if p.wantShed(at, 600, 1, now); !p.NextSheds().IsZero() {
		t.Error("a shed that has ended begins again")
	}
}

func TestAnotherAnswerReplacesTheShedAndKeepsToTheLimit(t *testing.T) {
	p := shedPlanner()
	now := time.UnixMilli(1_700_000_000_000)
	for range 20 { // a plugin that changes its mind all the time
		p.wantShed(now.UnixMilli(), uint16(500+now.Unix()%7), 1, now)
		if at := p.NextSheds(); now.Before(at) {
			if sheds := p.Sheds(now); len(sheds) > 0 {
				t.Fatalf("step %+v before it is due", sheds)
			}
		}
		before := now
		s := p.step(&now)
		if s.To-s.From > plan.ShedSpace/100 || now.Sub(before) > 2*time.Second {
			t.Fatalf("step %+v after %s", s, now.Sub(before))
		}
		now = now.Add(200 * time.Millisecond)
	}
	p.sheds.set(shedPort.Service, nil, now.UnixMilli())
	if !p.NextSheds().IsZero() {
		t.Error("the shed goes on without an answer")
	}
}

func TestShedLeavesFrontendsOfOtherServicesAlone(t *testing.T) {
	p := shedPlanner()
	now := time.UnixMilli(1_700_000_000_000)
	p.wantShed(now.UnixMilli(), 500, 1, now)
	other := shedPort
	other.Service.Name = "other"
	p.claims.Plan().Frontends[shedTestKey] = &plan.Frontend{Key: shedTestKey, Owner: other}
	now = now.Add(2 * time.Second)
	if sheds := p.Sheds(now); len(sheds) > 0 {
		t.Errorf("connections of another Service are shed: %+v", sheds)
	}
}

// TestPolicyShedsAreBoundedAndReportedOnce: a plugin that asks for all connections gets what the policy allows, by all frontends
// of the pool that it decides about, and the Service is reported when it begins to ask.
func TestPolicyShedsAreBoundedAndReportedOnce(t *testing.T) {
	svc := &model.Service{Name: shedPort.Service, ClusterIPs: []netip.Addr{shedTestKey.Addr}, InternalLocal: true,
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080}}}
	slice := &model.EndpointSlice{Name: svc.Name, Service: svc.Name, Family: model.IPv4, Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
		Endpoints: []model.SliceEndpoint{{Addr: shedTarget.Addr(), Node: "n0", Ready: true}, {Addr: shedTarget.Addr().Next(), Ready: true}}}
	pol := &policy.Policy{Name: "p", Steps: []policy.Step{{Plugin: "p"}}, MaxShedPercentPerSecond: 1}
	p := New(Settings{Node: "n0", MasqueradeMark: 1, Policies: &policy.Set{Policies: map[string]*policy.Policy{"p": pol}, Default: "p"}},
		func(string) (policy.Plugin, error) { return policytest.Plugin{Answer: shedAll}, nil })
	now := time.UnixMilli(1_700_000_000_000)
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: svc.Name, Service: svc}, {Kind: model.SliceKind, Name: slice.Name, Slice: slice}, {Kind: model.Synced}})
	if got := p.PlanNow(now).ShedsBounded; len(got) != 1 || got[0] != (ShedBounded{svc.Name, "p", 1}) {
		t.Fatalf("bounded: %+v", got)
	}
	now = now.Add(time.Second)
	p.markChanged(svc.Name)
	if got := p.PlanNow(now).ShedsBounded; len(got) != 0 {
		t.Errorf("reported again: %+v", got)
	}
	nodePort := plan.Key{Addr: netip.IPv4Unspecified(), Port: 30080, Protocol: model.TCP}
	sheds := p.Sheds(now)
	if len(sheds) != 1 || sheds[0].Endpoint != shedTarget || !slices.Equal(sheds[0].Frontends, []plan.Key{nodePort}) || sheds[0].Until != plan.ShedSpace*6/10 {
		t.Errorf("sheds %+v, want 60 %% through the NodePort", sheds)
	}
	p.ShedsDone(now, true, nil)
	p.Apply([]model.Change{{Kind: model.ServiceKind, Name: svc.Name}})
	if p.PlanNow(now); !p.NextSheds().IsZero() {
		t.Error("the sheds of a deleted Service go on")
	}
}

// shedAll sheds all connections of the first endpoint in the cluster pool.
func shedAll(req *abi.Request, resp *abi.Response) error {
	for i := range resp.Results {
		resp.Results[i].Value = abi.One
	}
	if req.Pool == abi.PoolCluster {
		resp.Results[0].ShedPermille = 1000
	}
	return nil
}

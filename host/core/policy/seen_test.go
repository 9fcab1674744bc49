package policy

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// sameInputs reports whether two requests are equal except for the chain's earlier answers, and what derives from them.
func sameInputs(a, b abi.Request) bool {
	strip := func(r abi.Request) abi.Request {
		r.Generation, r.State, r.Settings = 0, nil, abi.Settings{}
		eps := make([]abi.Endpoint, len(r.Endpoints))
		for i, e := range r.Endpoints {
			e.PriorWeight = 0
			eps[i] = e
		}
		r.Endpoints = eps
		if len(r.Keys) == 0 {
			r.Keys = nil
		}
		return r
	}
	return reflect.DeepEqual(strip(a), strip(b))
}

// TestSeenIsWhatThePluginSaw compares with the request that the plugin recorded, also after the node has counted more
// connections.
func TestSeenIsWhatThePluginSaw(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		b, p, signals := newSignalsFixture(r.Uint32() & abi.AllNeeds)
		b.set(1+r.IntN(4), r.IntN(3))
		b.in.Pool = uint8(r.IntN(2))
		b.in.Zones = []abi.Zone{{Name: "a", Nodes: r.Uint32N(9)}}
		for i := range b.in.Port.Endpoints {
			e := &b.in.Port.Endpoints[i]
			e.Pod, e.Zone, e.Local = "web", []string{"", "a", "b"}[r.IntN(3)], r.IntN(2) == 0 || i == 0
			e.InLocal = e.InCluster && e.Local
		}
		b.in.Port.UsesLocal = true
		d, _ := b.decide()
		if d.Origin != FromChain {
			t.Fatalf("seed %d: %v, %v", seed, d.Origin, d.Err)
		}
		saw := p.seen
		signals.outcomes = map[byte]abi.Outcomes{0: {Attempts: 1000}}
		signals.connections, signals.age, signals.window = nil, time.Hour, time.Hour
		b.now = b.now.Add(10 * time.Second)
		all := b.evaluator.Seen(&b.in)
		if len(all) != 1 || all[0].Changed || all[0].At != saw.Now || all[0].Needs != p.needs || all[0].Plugin != "p" {
			t.Fatalf("seed %d: %+v", seed, all)
		}
		if !sameInputs(all[0].Request, saw) {
			t.Fatalf("seed %d:\ngot  %+v\nsaw  %+v", seed, all[0].Request, saw)
		}
	}
}

func TestSeenSaysWhenTheInputHasChangedSince(t *testing.T) {
	failing := false
	first, second := newNeedy(0), newNeedy(abi.NeedNodes)
	first.decide = func(req *abi.Request, resp *abi.Response) error {
		if failing {
			return errors.New("on purpose")
		}
		return favorFirst(3)(req, resp)
	}
	second.keys = []string{"label:a"}
	b := newNeedyFixture(first, second)
	if b.evaluator.Seen(&b.in) != nil {
		t.Error("a plugin that was not called has seen something")
	}
	b.expect(t, "first call", FromChain, 7, 1, 1)
	all := b.evaluator.Seen(&b.in)
	if len(all) != 2 || all[0].Changed || all[1].Changed || all[1].Keys[0] != "label:a" {
		t.Fatalf("%+v", all)
	}
	if in, out := all[0].Request.Endpoints[0].Share, all[1].Request.Endpoints[0].Share; in != abi.One || out != 3*abi.One {
		t.Errorf("shares %d and %d, want 1 and 3", in, out)
	}
	failing = true
	b.in.Port.Endpoints[0].Zone = "c"
	b.expect(t, "the first fails", FromLastGood, 7, 1, 1)
	all = b.evaluator.Seen(&b.in)
	if len(all) != 2 || !all[0].Changed || !all[1].Changed {
		t.Errorf("after a change: %+v", all)
	}
	b.in.Port.Endpoints = b.in.Port.Endpoints[:2]
	if b.evaluator.Seen(&b.in) != nil {
		t.Error("other endpoints than at the last decision")
	}
}

func TestWhatIsNotAskedForIsNotKept(t *testing.T) {
	b, _, _ := newSignalsFixture(abi.NeedNodes)
	b.decide()
	for _, m := range b.evaluator.pools {
		if m.enforced.steps[0].told != nil {
			t.Error("numbers of connections are kept for a plugin that does not ask for them")
		}
	}
}

// The times and values of Pods are part of the input.
func TestSeenHasThePodsOfTheAnswer(t *testing.T) {
	p := newNeedy(0)
	p.keys = []string{"label:track", abi.KeyPodCPU}
	b := newNeedyFixture(p)
	b.in.Port.Endpoints[0].Pod = "web-0"
	pod := &model.Pod{Labels: map[string]string{"track": "canary"}, MilliCPU: 250, ReadySince: b.now.Add(-time.Hour).UnixMilli()}
	b.in.Pods.All = map[model.Name]*model.Pod{{Namespace: "shop", Name: "web-0"}: pod}
	b.expect(t, "first call", FromChain, 7, 1, 1)
	b.now = b.now.Add(time.Hour)
	all := b.evaluator.Seen(&b.in)
	if len(all) != 1 || all[0].Changed || !sameInputs(all[0].Request, p.request) {
		t.Fatalf("got  %+v\nsaw  %+v", all, p.request)
	}
	if e := all[0].Request.Endpoints[0]; e.ReadySince != pod.ReadySince || e.Values[0].Text != "canary" || e.Values[1].Text != "250" {
		t.Errorf("%+v", e)
	}
}

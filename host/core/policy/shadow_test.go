package policy

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

func equalShadows(a, b *Shadow) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.Equal(a.Weights, b.Weights) && a.Divergence == b.Divergence && a.Compared == b.Compared && len(a.Steps) == len(b.Steps)
}

// onlyFirst gives all connections to the first endpoint with capacity.
func onlyFirst(req *abi.Request, resp *abi.Response) error {
	for i := range req.Endpoints {
		if req.Endpoints[i].Capacity > 0 {
			resp.Results[i].Value = 1
			resp.Results[i].Reason = "first"
			return nil
		}
	}
	return errors.New("none")
}

func (b *fixture) expectShadow(t *testing.T, what string, divergence float64, weights ...uint16) *Shadow {
	t.Helper()
	d, _ := b.decide()
	s := d.Shadow
	if s == nil || !slices.Equal(s.Weights, weights) || s.Compared != (weights != nil) || math.Abs(s.Divergence-divergence) > 1e-9 {
		t.Fatalf("%s: got %+v, want weights %v, divergence %g", what, s, weights, divergence)
	}
	return s
}

func TestShadowIsComparedWithWhatIsEnforced(t *testing.T) {
	enforced := &fakePlugin{decide: favorFirst(1)}
	b := newFixture(enforced)
	b.shadow(&fakePlugin{decide: onlyFirst})
	d := b.expect(t, "enforced", FromChain, 1, 1, 1)
	b.expectShadow(t, "first", 2.0/3, 1, 0, 0)
	if s := d.Shadow.Steps; len(s) != 1 || s[0].Plugin != "plugin0/shadow" || s[0].Reasons.At(0) != "first" || s[0].Reasons.At(1) != "" {
		t.Fatalf("steps %+v", s)
	}
	enforced.decide = failDecide
	b.set(4, 0)
	b.expect(t, "the last good one is in force", FromLastGood, 1, 1, 1, 1)
	b.expectShadow(t, "compared with it", 0.75, 1, 0, 0, 0)
	b.policy = b.policy.clone()
	b.policy.OnFailure = Default
	b.expect(t, "the default rules are in force", FromDefault, 1, 1, 1, 1)
	b.expectShadow(t, "compared with them", 0.75, 1, 0, 0, 0)
	b.set(1, 0)
	b.expectShadow(t, "one endpoint", 0, 1)
	b.set(0, 0)
	b.expectShadow(t, "no endpoint", 0)
	b.set(0, 2) // all terminate, and are chosen
	b.expectShadow(t, "terminating", 0.5, 1, 0)
}

func TestPolicyWithoutPluginsComparesShadowWithDefaultRules(t *testing.T) {
	b := newFixture()
	b.shadow(&fakePlugin{decide: onlyFirst})
	b.expect(t, "default rules", FromDefault, 1, 1, 1)
	b.expectShadow(t, "shadow", 2.0/3, 1, 0, 0)
	b.policy = &Policy{Name: b.policy.Name, Panic: Panic{Below: 50}}
	if d := b.expect(t, "without a shadow", FromChain, 1, 1, 1); d.Shadow != nil {
		t.Fatalf("%+v", d.Shadow)
	}
}

func TestShadowIsAskedOnlyWhenItsInputHasChanged(t *testing.T) {
	enforced, shadow := &fakePlugin{}, &fakePlugin{}
	requeue := func(p *fakePlugin, after time.Duration) {
		p.decide = func(req *abi.Request, resp *abi.Response) error {
			resp.RequeueAfter = after
			resp.State = fmt.Append(nil, p.calls)
			return favorFirst(1)(req, resp)
		}
	}
	requeue(enforced, 5*time.Second)
	requeue(shadow, 2*time.Second)
	b := newFixture(enforced)
	b.shadow(shadow)
	d, at := b.decide()
	if !at.Equal(time.Unix(1005, 0)) || !d.Shadow.RequeueAt.Equal(time.Unix(1002, 0)) {
		t.Fatalf("requeued at %v, the shadow at %v", at, d.Shadow.RequeueAt)
	}
	b.decide()
	for _, want := range [][2]int{{1, 1}, {1, 2}, {1, 2}, {1, 3}, {2, 3}} { // at 1001 s and so on
		b.now = b.now.Add(time.Second)
		if b.decide(); enforced.calls != want[0] || shadow.calls != want[1] {
			t.Fatalf("at %v: %d and %d calls, want %v", b.now.Unix(), enforced.calls, shadow.calls, want)
		}
	}
	b.shadow(shadow) // an equal policy
	if b.decide(); enforced.calls != 2 || shadow.calls != 3 {
		t.Fatalf("read again: %d and %d calls", enforced.calls, shadow.calls)
	}
	b.policy = b.policy.clone()
	b.policy.Shadow[0].Settings = `{"a":1}`
	if b.decide(); enforced.calls != 2 || shadow.calls != 4 {
		t.Fatalf("new settings of the shadow: %d and %d calls", enforced.calls, shadow.calls)
	}
}

func TestShadowWaitsAndFailsOnItsOwn(t *testing.T) {
	enforced, shadow := &fakePlugin{decide: favorFirst(1)}, &fakePlugin{decide: onlyFirst}
	b, l := newLateFixture(enforced)
	b.shadow(shadow)
	step := func() {
		l.begin()
		l.end(b.evaluator)
	}
	b.decide()
	if len(l.queued) != 2 || l.queued[0].Shadow || !l.queued[1].Shadow {
		t.Fatalf("queued %+v: want the enforced one first", l.queued)
	}
	step()
	if d := b.expect(t, "the shadow waits", FromChain, 1, 1, 1); d.Pending != nil || d.Err != nil || d.Shadow.Pending == nil || !errors.Is(d.Shadow.Err, ErrPending) {
		t.Fatalf("%+v, shadow %+v", d, d.Shadow)
	}
	if n := b.evaluator.Awaited(); n != 0 {
		t.Fatalf("%d pools wait", n)
	}
	b.expectShadow(t, "no answer yet", 0)
	step()
	b.expectShadow(t, "answered", 2.0/3, 1, 0, 0)
	b.set(4, 0)
	b.decide()
	step()
	if s := b.expectShadow(t, "waits for the new endpoints", 0.5, 1, 0, 0, 1); s.Pending == nil {
		t.Fatal("it does not wait") // the new endpoint has the mean of the weights
	}
	shadow.decide = failDecide
	step()
	if s := b.expectShadow(t, "fails", 0); s.Err == nil || s.Pending != nil {
		t.Fatalf("%+v", s)
	}
	if d := b.expect(t, "in force", FromChain, 1, 1, 1, 1); d.Err != nil {
		t.Fatal(d.Err)
	}
}

// TestShadowSurvivesRestart: its state, its last good decision, and both apart from those of the enforced chain.
func TestShadowSurvivesRestart(t *testing.T) {
	seen := map[string]string{}
	remember := func(name string, weight uint32) *fakePlugin {
		return &fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
			seen[name] = fmt.Sprint(string(req.State), " ", req.Endpoints[0].PriorWeight)
			resp.State = append(resp.State, name...)
			return favorFirst(weight)(req, resp)
		}}
	}
	b := newFixture(remember("enforced", 7))
	b.shadow(remember("shadow", 3))
	b.decide()
	b.restart(t)
	b.set(2, 0)
	b.decide()
	if seen["enforced"] != "enforced 7" || seen["shadow"] != "shadow 3" {
		t.Fatalf("after a restart: %q", seen)
	}
	b.restart(t)
	b.policy.Shadow = nil
	b.decide()
	b.restart(t)
	b.shadow(remember("shadow", 3))
	if b.decide(); seen["shadow"] != fmt.Sprint(" ", abi.NoWeight) {
		t.Fatalf("a new shadow remembers %q", seen["shadow"])
	}
}

// TestServiceSettingsReachShadow: the enforced chain alone decides whether they are in force.
func TestServiceSettingsReachShadow(t *testing.T) {
	var saw string
	refuses := false
	shadow := &fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		if saw = req.Settings.Text; refuses {
			return fmt.Errorf("%w: no", abi.ErrSettings)
		}
		return favorFirst(1)(req, resp)
	}}
	b := newFixture(&fakePlugin{decide: favorFirst(7)})
	b.shadow(shadow)
	b.policy.Steps[0].ServiceSettings, b.policy.Shadow[0].ServiceSettings = []string{"a", "b"}, []string{"a"}
	set := func(text string) error {
		svc := *b.in.Service
		svc.Settings = text
		b.in.Service = &svc
		b.expect(t, text, FromChain, 7, 1, 1)
		return b.evaluator.Settings(b.in.Service, b.policy).Err
	}
	if err := set(`{"plugin0":{"a":1}}`); err != nil || saw != `{"a":1}` {
		t.Fatalf("%v, shadow saw %s", err, saw)
	}
	if err := set(`{"plugin0":{"b":1}}`); err != nil || saw != "" {
		t.Fatalf("%v, shadow saw %s, which its policy does not allow", err, saw)
	}
	refuses = true
	if err := set(`{"plugin0":{"a":2}}`); err != nil || saw != `{"a":2}` {
		t.Fatalf("%v, shadow saw %s", err, saw)
	}
	if s := b.expectShadow(t, "refused", 0); !errors.Is(s.Err, abi.ErrSettings) {
		t.Fatal(s.Err)
	}
	b.plugins["only/shadow"] = shadow
	b.policy = b.policy.clone()
	b.policy.Shadow[0].Plugin = "only/shadow"
	if err := set(`{"only":{"a":2}}`); err == nil {
		t.Fatal("a plugin of the shadow has let settings of the Service come into force")
	}
}

// TestDivergence compares with moving connections one by one, for small weights.
func TestDivergence(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		n := 1 + r.IntN(5)
		a, b := make([]uint16, n), make([]uint16, n)
		sumA, sumB := 0, 0
		for i := range n {
			a[i], b[i] = uint16(r.IntN(4)), uint16(r.IntN(4))
			sumA, sumB = sumA+int(a[i]), sumB+int(b[i])
		}
		got, ok := Divergence(a, b)
		if ok != (sumA > 0 && sumB > 0) {
			t.Fatalf("%v, %v: %t", a, b, ok)
		}
		if !ok {
			continue
		}
		kept := 0 // of sumA·sumB connections
		for i := range n {
			kept += min(int(a[i])*sumB, int(b[i])*sumA)
		}
		if want := 1 - float64(kept)/float64(sumA*sumB); math.Abs(got-want) > 1e-9 {
			t.Fatalf("%v, %v: %g, want %g", a, b, got, want)
		}
		if back, _ := Divergence(b, a); math.Abs(back-got) > 1e-9 {
			t.Fatalf("%v, %v: %g, the other way %g", a, b, got, back)
		}
	}
	if got, ok := Divergence([]uint16{1, 1}, nil); got != 0 || ok {
		t.Fatalf("no shadow: %g, %t", got, ok)
	}
}

// TestShadowHasNoEffect decides random inputs with and without a shadow that fails, hangs, is refused, sheds and resets. Both
// chains have the same plugin.
func TestShadowHasNoEffect(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		wild := func(salt uint64) func(*abi.Request, *abi.Response) error {
			return func(req *abi.Request, resp *abi.Response) error {
				r := rand.New(rand.NewPCG(seed^salt, req.Generation<<20^uint64(req.Now)/1000^uint64(len(req.State))<<50))
				for i := range resp.Results {
					v := &resp.Results[i]
					v.Value, v.Flags = r.Uint32N(9), uint32(r.IntN(2))*abi.FlagKeepDraining
					v.ShedPermille = uint16(r.IntN(2) * r.IntN(1000))
					if r.IntN(3) == 0 {
						v.ResetAfterMS = uint32(r.IntN(5000))
					}
				}
				resp.State = append(append(resp.State, req.State...), 'x')[:min(len(req.State)+1, 9)]
				resp.Balance = uint8(r.IntN(3))
				resp.RequeueAfter = time.Duration(r.IntN(4)) * time.Second
				switch r.IntN(6) {
				case 0:
					return errors.New("trap")
				case 1:
					return fmt.Errorf("%w: at will", abi.ErrSettings)
				}
				return nil
			}
		}
		plain, l := newLateFixture(&fakePlugin{decide: wild(1)}, &fakePlugin{decide: wild(2)})
		shadowed, k := newLateFixture(&fakePlugin{decide: wild(1)}, &fakePlugin{decide: wild(2)})
		onFailure := OnFailure(r.IntN(2))
		plain.policy.OnFailure, shadowed.policy.OnFailure = onFailure, onFailure
		same := r.IntN(2) == 0
		salt := r.Uint64()
		if same {
			salt = 1
		}
		shadowed.shadow(&fakePlugin{decide: wild(salt)})
		for range 30 {
			if r.IntN(2) == 0 {
				plain.set(r.IntN(6), 0)
				plain.in.Pool = uint8(r.IntN(2))
				for i := range plain.in.Port.Endpoints {
					e := &plain.in.Port.Endpoints[i]
					e.Ready, e.Serving, e.Terminating, e.Local = r.IntN(3) > 0, r.IntN(2) == 0, r.IntN(4) == 0, r.IntN(2) == 0
					e.InCluster, e.InLocal = e.Eligible() && r.IntN(3) > 0, e.Eligible() && e.Local && r.IntN(2) == 0
				}
			}
			plain.now = plain.now.Add(time.Duration(r.IntN(2500)) * time.Millisecond)
			shadowed.in, shadowed.now = plain.in, plain.now
			l.full = r.IntN(8) == 0
			k.full = l.full
			for n := r.IntN(3); n > 0 && len(l.queued) > 0; n-- {
				l.begin()
				l.end(plain.evaluator)
				i := slices.IndexFunc(k.queued, func(c *Call) bool { return !c.Shadow })
				c := k.queued[i]
				k.queued = slices.Delete(k.queued, i, i+1)
				c.Do()
				shadowed.evaluator.Answer(c)
			}
			for n := r.IntN(3); n > 0 && len(k.queued) > 0; n-- { // a shadow's call, or none: it hangs
				if i := slices.IndexFunc(k.queued, func(c *Call) bool { return c.Shadow }); i >= 0 {
					c := k.queued[i]
					k.queued = slices.Delete(k.queued, i, i+1)
					c.Do()
					shadowed.evaluator.Answer(c)
				}
			}
			if r.IntN(10) == 0 { // a change of the shadow
				shadowed.policy = shadowed.policy.clone()
				shadowed.policy.Shadow[0].Settings = fmt.Sprint(r.IntN(3))
			}
			extra := r.IntN(3) == 0 // because of the shadow
			if extra {
				shadowed.decide()
			}
			want, wantAt := plain.decide()
			got, gotAt := shadowed.decide()
			if got.Shadow == nil || want.Shadow != nil {
				t.Fatalf("seed %d: shadows %v, %v", seed, got.Shadow, want.Shadow)
			}
			got.Shadow = nil
			if got.Err, want.Err = text(got.Err), text(want.Err); !gotAt.Equal(wantAt) || !reflect.DeepEqual(plainSteps(got), plainSteps(want)) {
				t.Fatalf("seed %d: with a shadow %+v at %v\nwithout %+v at %v", seed, got, gotAt, want, wantAt)
			}
		}
	}
}

// text returns an error with the same text, which reflect.DeepEqual can compare.
func text(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(err.Error())
}

func plainSteps(d Decision) Decision {
	for i := range d.Steps {
		d.Steps[i].Err = text(d.Steps[i].Err)
	}
	return d
}

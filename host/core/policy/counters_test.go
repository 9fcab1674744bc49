package policy

import (
	"fmt"
	"math"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func TestCountersAreThoseOfTheManifest(t *testing.T) {
	by := [abi.MaxCounters]uint32{1, 0, 7, math.MaxUint32} // the last two have no names
	p := &fakePlugin{decide: func(req *abi.Request, resp *abi.Response) error {
		resp.Counters = by
		return favorFirst(7)(req, resp)
	}}
	b := newFixture(p)
	b.decide()
	want := "[{{p plugin0 first} 1} {{p plugin0 second} 0}]"
	if got := fmt.Sprint(b.evaluator.Counters()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if b.evaluator.Counters() != nil {
		t.Error("nothing has changed")
	}
	b.decide() // of an answer that is there
	if b.evaluator.Counters() != nil {
		t.Error("an answer counts twice")
	}
	b.set(2, 0)
	by[1] = math.MaxUint32
	b.decide()
	b.set(3, 1)
	b.policy = b.policy.clone()
	b.policy.Name = "q"
	b.decide()
	want = fmt.Sprintf("[{{p plugin0 first} 2} {{p plugin0 second} %d} {{q plugin0 first} 1} {{q plugin0 second} %[1]d}]", math.MaxUint32)
	if got := fmt.Sprint(b.evaluator.Counters()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	p.decide = failDecide
	b.set(1, 0)
	if b.decide(); b.evaluator.Counters() != nil {
		t.Error("a failure counts")
	}
}

func TestACounterStaysAtTheLargestNumber(t *testing.T) {
	var c counters
	key, by := CounterKey{"p", "plugin", "a"}, [abi.MaxCounters]uint32{math.MaxUint32}
	c.add(key.Policy, key.Plugin, []string{key.Counter}, &by)
	c.totals[key] = math.MaxUint64 - 1
	for range 2 {
		if c.add(key.Policy, key.Plugin, []string{key.Counter}, &by); c.totals[key] != math.MaxUint64 {
			t.Errorf("%d", c.totals[key])
		}
	}
}

// TestCountersOfPluginsThatAreGoneAreForgotten: of another policy, of a plugin that its policy has no more, of a shadow, and of a
// name that the plugin has no more.
func TestCountersOfPluginsThatAreGoneAreForgotten(t *testing.T) {
	plugin := &fakePlugin{} // its counters are first and second
	e := NewEvaluator(func(name string) (Plugin, error) {
		if name == "loading" {
			return nil, ErrPending
		}
		return plugin, nil
	})
	by := [abi.MaxCounters]uint32{1, 1, 1, 1}
	e.counters.add("r", "a", []string{"first"}, &by)
	for _, key := range []CounterKey{{"p", "a", "first"}, {"p", "a", "third"}, {"p", "b", "first"}, {"p", ShadowPlugin("a"), "first"}, {"q", "a", "first"}, {"", "a", "first"},
		{"", "b", "first"}, {"p", "loading", "any"}} {
		e.counters.totals[key] = 5
	}
	e.Counters()
	e.KeepCounters(&Set{Policies: map[string]*Policy{"p": {Name: "p", Steps: []Step{{Plugin: "a"}, {Plugin: "loading"}}}}})
	if got, want := fmt.Sprint(e.Counters()), "[{{ a first} 5} {{p a first} 5} {{p loading any} 5}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	keep := &Object{Name: model.Name{Namespace: "shop", Name: "o"}, Policy: &Policy{Name: "o", Steps: []Step{{Plugin: "a"}}}}
	gone := &Object{Name: model.Name{Namespace: "shop", Name: "p"}, Policy: &Policy{Name: "p", Steps: []Step{{Plugin: "a"}}}}
	e.counters.totals[CounterKey{"o", "a", "first"}], e.counters.totals[CounterKey{"o", "b", "first"}] = 5, 5
	objects := &Set{}
	objects.SetObjects([]*Object{keep})
	e.KeepCountersOf([]*Object{keep, gone}, objects)
	if got, want := fmt.Sprint(e.Counters()), "[{{ a first} 5} {{o a first} 5}]"; got != want {
		t.Errorf("after changes of objects: %s, want %s", got, want)
	}
	if e.KeepCounters(&Set{}); fmt.Sprint(e.Counters()) != "[]" || len(e.counters.totals) != 0 {
		t.Errorf("without policies: %v", e.counters.totals)
	}
}

func TestCountersAreBounded(t *testing.T) {
	var c counters
	by := [abi.MaxCounters]uint32{1, 1, 1, 1}
	for i := range 3 * maxCounters {
		c.add(fmt.Sprint(i), "plugin", []string{"a", "b"}, &by)
	}
	if n, more := len(c.totals), c.totals[CounterKey{"", "plugin", "a"}]; n != maxCounters+2 || more != 3*maxCounters-maxCounters/2 {
		t.Errorf("%d counters, %d of further policies", n, more)
	}
}

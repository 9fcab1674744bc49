package policy

import (
	"errors"
	"reflect"
	"testing"
	"time"
)

// notInRevision lists the fields of a policy that have no effect on its answers. Those of Shadow and Guard decide whether answers
// are compared or used, not what they are.
var notInRevision = map[string]bool{
	// By itself; it decides which settings of a step are in it.
	"Policy.FromObject": true,

	"Policy.Preset": true,
	"Policy.Name":   true, "Policy.Shadow": true, "Policy.Guard": true, "Step.Own": true, "Step.PolicySettings": true,
}

// otherFields are other values of the fields of fullPolicy, by type and name.
var otherFields = map[string]any{
	"Policy.Name":        "q",
	"Policy.Steps":       []Step{{Plugin: "a", Settings: `{"x":1}`, ServiceSettings: []string{"x"}}, {Plugin: "a"}},
	"Policy.IgnoreHints": true, "Policy.LongLived": true, "Policy.OnFailure": Default, "Policy.Panic": Panic{50, time.Minute}, "Policy.MaxShedPercentPerSecond": 2,
	"Step.Plugin": "b", "Step.Settings": `{"x":2}`, "Step.ServiceSettings": []string{"y"},
}

func fullPolicy() *Policy {
	return &Policy{Name: "p", Panic: Panic{50, time.Second}, Steps: []Step{{Plugin: "a", Settings: `{"x":1}`, ServiceSettings: []string{"x"}}}}
}

// sameCode returns plugins of one revision.
func sameCode(revision string) func(string) (Plugin, error) {
	return func(string) (Plugin, error) { return &fakePlugin{revision: revision}, nil }
}

// TestRevisionCoversPolicy: a new field needs a place in the revision, or in notInRevision.
func TestRevisionCoversPolicy(t *testing.T) {
	before := Revision(fullPolicy(), sameCode("1"))
	if len(before) != revisionDigits {
		t.Fatalf("revision %q", before)
	}
	check := func(part func(*Policy) reflect.Value) {
		typ := part(fullPolicy()).Type()
		for i := range typ.NumField() {
			name := typ.Name() + "." + typ.Field(i).Name
			other, ok := otherFields[name]
			if !ok {
				if !notInRevision[name] {
					t.Errorf("%s: not in otherFields, so it is not known whether it changes the revision", name)
				}
				continue
			}
			p := fullPolicy()
			part(p).Field(i).Set(reflect.ValueOf(other).Convert(typ.Field(i).Type))
			if changed := Revision(p, sameCode("1")) != before; changed == notInRevision[name] {
				t.Errorf("%s: the revision changes with it: %t", name, changed)
			}
		}
	}
	check(func(p *Policy) reflect.Value { return reflect.ValueOf(p).Elem() })
	check(func(p *Policy) reflect.Value { return reflect.ValueOf(&p.Steps[0]).Elem() })
	if Revision(fullPolicy(), sameCode("2")) == before {
		t.Error("the revision of the plugin is not in it")
	}
}

// TestSettingsOfServicesDoNotChangeTheRevision: a tenant does not make series of metrics.
func TestSettingsOfServicesDoNotChangeTheRevision(t *testing.T) {
	p := fullPolicy()
	q, err := p.withServiceSettings(`{"a": {"x": 5}}`)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := Revision(p, sameCode("1")), Revision(q, sameCode("1")); a != b {
		t.Errorf("%s, with settings of a Service %s", a, b)
	}
	bound, err := p.WithSettings(map[string]string{"a": `{"x": 5}`})
	if err != nil {
		t.Fatal(err)
	}
	if Revision(bound, sameCode("1")) == Revision(p, sameCode("1")) {
		t.Error("settings of a binding do not change it")
	}
}

func TestRevisionIsUnknownWhileAPluginIsNotLoaded(t *testing.T) {
	p, b := fullPolicy(), newFixture(&fakePlugin{revision: "1"})
	b.policy.Steps = append(b.policy.Steps, Step{Plugin: "late"})
	if r := b.evaluator.Revision(b.policy); r != "" {
		t.Errorf("revision %q without a plugin", r)
	}
	b.plugins["late"] = &fakePlugin{revision: "1"}
	first := b.evaluator.Revision(b.policy)
	if first == "" || b.evaluator.Revision(b.policy) != first {
		t.Errorf("revision %q", first)
	}
	b.plugins["late"] = &fakePlugin{revision: "2"}
	if second := b.evaluator.Revision(b.policy); second == first || second != Revision(b.policy, b.evaluator.plugins) {
		t.Errorf("revision %q after a reload, %q before", second, first)
	}
	if r := Revision(p, func(string) (Plugin, error) { return nil, errors.New("not loaded") }); r != "" || Revision(nil, nil) != "" {
		t.Errorf("revision %q", r)
	}
	for range 2 * maxRevisions {
		copied := *b.policy
		b.evaluator.Revision(&copied)
	}
	if n := len(b.evaluator.revisions); n > maxRevisions {
		t.Errorf("%d revisions are remembered", n)
	}
}

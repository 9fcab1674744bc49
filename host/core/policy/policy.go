package policy

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Policy is a named chain of plugins, which may be empty if it has a shadow, or Panic or LongLived is set.
type Policy struct {
	Name   string
	Preset string // that Steps are from, for people; "": none
	Steps  []Step
	// Shadow is a second chain, with names from ShadowPlugin. It gets the same inputs, and its decisions are compared with what
	// is enforced, see Decision.Shadow. Nil: none.
	Shadow []Step
	// IgnoreHints gives plugins all ready endpoints of the cluster pool as chosen, whatever topology hints say. The default
	// rules, which decide without an answer of the plugins, follow hints.
	IgnoreHints bool
	LongLived   bool // see plan.Frontend
	OnFailure   OnFailure
	Panic       Panic
	// MaxShedPercentPerSecond bounds which part of an endpoint's connections is reset in a second because of Shed.
	MaxShedPercentPerSecond int
	Guard                   Guard
	// FromObject: the policy is that of an Object, and Services have no settings of their own for it.
	FromObject bool
}

// equal reports whether two policies are equal; reading a configuration again makes new ones.
func (p *Policy) equal(q *Policy) bool {
	return p == q || p.Name == q.Name && p.Preset == q.Preset && p.IgnoreHints == q.IgnoreHints && p.LongLived == q.LongLived && p.OnFailure == q.OnFailure && p.Panic == q.Panic &&
		p.MaxShedPercentPerSecond == q.MaxShedPercentPerSecond && equalSteps(p.Steps, q.Steps) && equalSteps(p.Shadow, q.Shadow)
}

// All returns the steps of the chain, then those of the shadow.
func (p *Policy) All() iter.Seq[*Step] {
	return func(yield func(*Step) bool) {
		for _, steps := range [...][]Step{p.Steps, p.Shadow} {
			for i := range steps {
				if !yield(&steps[i]) {
					return
				}
			}
		}
	}
}

func equalSteps(a, b []Step) bool { return slices.EqualFunc(a, b, Step.equal) }

// Step is a plugin of a chain with its settings.
type Step struct {
	Plugin   string // of a shadow: see ShadowPlugin
	Settings string // canonical JSON object, "" for none
	// Own reports that Settings have fields that the Service sets. PolicySettings are the settings without them; "" if not Own.
	Own            bool
	PolicySettings string
	// ServiceSettings are the top-level fields of the settings that Services may set, sorted.
	ServiceSettings []string
}

func (s Step) equal(t Step) bool {
	return s.Plugin == t.Plugin && s.Settings == t.Settings && s.Own == t.Own && s.PolicySettings == t.PolicySettings &&
		slices.Equal(s.ServiceSettings, t.ServiceSettings)
}

// Configured returns the settings of the configuration: those without what the Service sets.
func (s *Step) Configured() string {
	if s.Own {
		return s.PolicySettings
	}
	return s.Settings
}

// settings returns the settings in the form of a request.
func (s *Step) settings() abi.Settings {
	return abi.Settings{Text: s.Settings, Own: s.Own, Policy: s.PolicySettings}
}

// OnFailure is which decision is in force while a chain fails.
type OnFailure uint8

// The decisions in force while a chain fails: its last good decision (or the default rules if there is none), or the default
// rules.
const (
	LastGood OnFailure = iota
	Default
)

func (f OnFailure) String() string { return [...]string{"LastGood", "Default"}[f] }

// MarshalText implements encoding.TextMarshaler.
func (f OnFailure) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler; "" is LastGood.
func (f *OnFailure) UnmarshalText(text []byte) error {
	switch string(text) {
	case "", "LastGood":
		*f = LastGood
	case "Default":
		*f = Default
	default:
		return fmt.Errorf("%q: must be LastGood or Default", text)
	}
	return nil
}

// Binding attaches a policy to the Services that its selector matches.
type Binding struct {
	Namespaces []string // empty: every namespace
	Selector   Selector
	Nodes      Nodes
	Policy     string
	// Settings are merged over those of the policy, by name of the plugin: JSON objects.
	Settings map[string]string
	// Applied is the policy with Settings; nil: they change nothing. Set.Apply sets it.
	Applied *Policy
}

// Selector is a label selector: all requirements must match. An empty one matches everything.
type Selector []Requirement

// Requirement is a condition on a label with the semantics of Kubernetes label selectors.
type Requirement struct {
	Key    string
	Op     Op
	Values []string // In and NotIn
}

// Op is the operator of a Requirement.
type Op uint8

// The operators of label selectors. NotIn matches when the label is absent, as in Kubernetes.
const (
	In Op = iota
	NotIn
	Exists
	DoesNotExist
)

// matches reports whether labels match the selector.
func (s Selector) matches(labels map[string]string) bool {
	for _, r := range s {
		v, has := labels[r.Key]
		ok := false
		switch r.Op {
		case In:
			ok = has && slices.Contains(r.Values, v)
		case NotIn:
			ok = !has || !slices.Contains(r.Values, v)
		case Exists:
			ok = has
		case DoesNotExist:
			ok = !has
		}
		if !ok {
			return false
		}
	}
	return true
}

// Set is all policies and how they are attached to Services.
type Set struct {
	Policies map[string]*Policy
	Bindings []Binding // the first match wins
	Allow    []Allow   // what annotations may choose
	Default  string    // policy of Services that nothing else names; "" for none

	node    Node
	onNode  []bool // parallel to Bindings, see SetNode
	objects objects
	// suspended are the names of the policies that Suspend passes over.
	suspended map[string]bool
}

// All returns all policies, sorted by name, then those that the settings of bindings make, then those of objects.
func (s *Set) All() (all []*Policy) {
	for _, name := range slices.Sorted(maps.Keys(s.Policies)) {
		all = append(all, s.Policies[name])
	}
	for i := range s.Bindings {
		if p := s.Bindings[i].Applied; p != nil {
			all = append(all, p)
		}
	}
	for _, o := range s.Objects() {
		all = append(all, o.Policy)
	}
	return all
}

// bound returns the policy of a Service without regard to its annotation and to objects, nil for none, and its layer: that of the
// first binding that matches, or else the default.
func (s *Set) bound(svc *model.Service) (*Policy, string) {
	for i := range s.Bindings {
		b := &s.Bindings[i]
		if b.Selects(svc) && s.applies(i) && !s.suspended[b.Policy] {
			if b.Applied != nil {
				return b.Applied, LayerBinding
			}
			return s.Policies[b.Policy], LayerBinding
		}
	}
	if s.suspended[s.Default] {
		return nil, LayerDefault
	}
	return s.Policies[s.Default], LayerDefault
}

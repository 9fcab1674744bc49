package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/spelling"
)

// Allow lets the annotation sluice.dev/policy of Services choose policies.
type Allow struct {
	Namespaces []string // empty: every namespace
	Policies   []string // names
}

// allows reports whether Services of a namespace may choose a policy.
func (s *Set) allows(namespace, policy string) bool {
	return slices.ContainsFunc(s.Allow, func(a Allow) bool {
		return (len(a.Namespaces) == 0 || slices.Contains(a.Namespaces, namespace)) && slices.Contains(a.Policies, policy)
	})
}

// choices returns the names of the policies that Services of a namespace may choose, sorted.
func (s *Set) choices(namespace string) (names []string) {
	for name := range s.Policies {
		if s.allows(namespace, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// ChoiceError is why the annotation of a Service chooses no policy.
type ChoiceError struct {
	Service model.Name
	Policy  string // that the annotation names
	// NotAllowed: there is such a policy, but Services of the namespace may not choose it.
	NotAllowed bool
	// Kept is the policy that the annotation has chosen before and that stays in force; "": the policy that applies without the
	// annotation.
	Kept    string
	Choices []string // names of the policies that Services of the namespace may choose, sorted
}

// Equal reports whether two errors, which may be nil, tell the owner of the Service the same.
func (e *ChoiceError) Equal(f *ChoiceError) bool {
	return e == f || e != nil && f != nil && e.Policy == f.Policy && e.NotAllowed == f.NotAllowed && e.Kept == f.Kept && slices.Equal(e.Choices, f.Choices)
}

// Limits of the text of a ChoiceError: an Event has 1024 bytes.
const maxListed, maxListedBytes = 20, 500

// Error implements error. The owner of the Service reads it, so it names no policy that the Service may not choose, except the
// one that the annotation has.
func (e *ChoiceError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Service %s: metadata.annotations[sluice.dev/policy]: ", e.Service)
	if e.NotAllowed {
		fmt.Fprintf(&b, "Services of namespace %s may not choose policy %.*q", e.Service.Namespace, maxQuoted, e.Policy)
	} else {
		fmt.Fprintf(&b, "no policy %.*q%s", maxQuoted, e.Policy, spelling.DidYouMean(e.Policy, e.Choices))
	}
	fmt.Fprintf(&b, " (allowed: %s); ", list(e.Choices))
	if e.Kept != "" {
		fmt.Fprintf(&b, "policy %s, which it has chosen before, stays in force", e.Kept)
	} else {
		b.WriteString("what applies without the annotation is in force")
	}
	return b.String()
}

// list returns some of the names, with the number of the others.
func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	length := 0
	for i, name := range names {
		if length += len(name); i == maxListed || length > maxListedBytes && i > 0 {
			return fmt.Sprintf("%s and %d more", strings.Join(names[:i], ", "), len(names)-i)
		}
	}
	return strings.Join(names, ", ")
}

// ofFile returns the policy that the configuration file gives a Service, nil for none, and its layer: that of its annotation, or
// else of the first binding that matches, or else the default. When the annotation chooses no policy, ofFile returns an error and
// the policy that it has chosen last, as long as the Service may choose that, or else the policy that applies without the
// annotation. last is the name of that policy, "" for none. A policy that Suspend passes over is replaced by the one that applies
// without it.
func (s *Set) ofFile(svc *model.Service, last string) (*Policy, string, *ChoiceError) {
	var err *ChoiceError
	name, namespace := svc.Policy, svc.Name.Namespace
	if chosen := s.Policies[name]; name != "" && (chosen == nil || !s.allows(namespace, name)) {
		err = &ChoiceError{Service: svc.Name, Policy: name, NotAllowed: chosen != nil, Choices: s.choices(namespace)}
		if name = ""; s.Policies[last] != nil && s.allows(namespace, last) {
			name, err.Kept = last, last
		}
	}
	if name != "" && !s.suspended[name] {
		return s.Policies[name], LayerAnnotation, err
	}
	p, layer := s.bound(svc)
	return p, layer, err
}

// Suspend makes For pass over a policy, or not any more, and reports whether that is a change.
func (s *Set) Suspend(policy string, suspended bool) (changed bool) {
	if s.suspended[policy] == suspended {
		return false
	}
	if s.suspended == nil {
		s.suspended = map[string]bool{}
	}
	s.suspended[policy] = suspended
	return true
}

// applicable is Applicable, given what the annotation has chosen last.
func (s *Set) applicable(svc *model.Service, last string) (out []*Policy) {
	for i := range max(1, len(svc.Ports)) {
		if i > 0 && s.samePorts(svc) {
			break
		}
		t := *s
		t.suspended = map[string]bool{}
		for {
			p, _ := t.For(svc, portName(svc, i), last)
			if p == nil {
				break
			}
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
			if p.Guard.FailedPercent == 0 {
				break
			}
			t.suspended[p.Name] = true
		}
	}
	return out
}

// Possible returns the policies one of which is in force for a Service, whatever its annotation has chosen before, and whatever
// guards do.
func (s *Set) Possible(svc *model.Service) []*Policy {
	out := s.applicable(svc, "")
	if svc.Policy == "" {
		return out
	}
	if _, _, err := s.ofFile(svc, ""); err != nil {
		for _, name := range err.Choices {
			if q := s.Policies[name]; !slices.Contains(out, q) {
				out = append(out, q)
			}
		}
	}
	return out
}

// portName returns the name of a port; a Service without ports has the policies of an unnamed one.
func portName(svc *model.Service, i int) string {
	if len(svc.Ports) == 0 {
		return ""
	}
	return svc.Ports[i].Name
}

// Package tally counts, for metrics and health checks, what a plan and its connections consist of. Each count is kept up to date
// by what a Service contributed before and contributes now, so it costs as much as the change. It is pure.
package tally

import (
	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// ByFamily is a value for each IP family.
type ByFamily[T any] [2]T

// At returns a pointer to the value of a family.
func (b *ByFamily[T]) At(f model.Family) *T {
	if f == model.IPv6 {
		return &b[1]
	}
	return &b[0]
}

// Totals are running counts over the plan. Maintaining them costs as much as the change, not as the plan.
type Totals struct {
	Services int // in the plan
	Failing  int // Services whose policy fails
	Limited  int // Services of which limits leave something out
	Holding  int // Services whose policy holds endpoints
	Held     int // endpoints of Service ports that count as ready although they are not
	// Choices are the Services whose annotation names a policy.
	Choices [ChoiceNotAllowed + 1]int // by Choice; ChoiceNone is not counted
	// Services whose own settings are in force, and those of which they are not.
	OwnSettings, RefusedSettings int
	// HintsIgnored are the Services with topology hints that are not followed, by the reason.
	HintsIgnored [eligibility.HintsNodeWithoutZone + 1]int
	Conflicts    int // frontends that a Service wants and another one has
	Family       ByFamily[FamilyTotals]
	Policies     []PolicyTotals   // sorted by name; read-only
	Fallbacks    []PluginFallback // sorted by plugin; read-only
	Guards       []GuardTotals    // sorted by policy; read-only
}

// Choice is what comes of the annotation of a Service that names its policy.
type Choice uint8

// Results of the annotation.
const (
	ChoiceNone       Choice = iota // there is no annotation
	ChoiceInForce                  // its policy is in force
	ChoiceNotFound                 // there is no such policy
	ChoiceNotAllowed               // Services of the namespace may not choose it
)

// ChoiceOf returns what comes of the annotation of a Service, given the error of choosing its policy.
func ChoiceOf(svc *model.Service, err *policy.ChoiceError) Choice {
	switch {
	case svc.Policy == "":
		return ChoiceNone
	case err == nil:
		return ChoiceInForce
	case err.NotAllowed:
		return ChoiceNotAllowed
	}
	return ChoiceNotFound
}

// FamilyTotals are the counts of a family.
type FamilyTotals struct {
	Frontends [plan.NodePort + 1]int // by Kind
	Endpoints [plan.Draining + 1]int // by Phase; an endpoint of a Service port counts once, as active if it is active in any pool
	// Services with traffic policy Local that have endpoints, but none on this node.
	NoLocalInternal, NoLocalExternal int
}

// PolicyTotals are the counts of a policy. A decision is about one pool of one Service port in one family.
type PolicyTotals struct {
	Policy    string
	Decisions [policy.FromLastGood + 1]int // by policy.Origin
	Shadow    ShadowTotals
}

// PluginFallback counts the decisions in force because a plugin fails. Decisions that wait for a plugin call are not counted.
type PluginFallback struct {
	Plugin            string
	LastGood, Default int
}

// GuardTotals is what a guard of a policy that concerns Services does.
type GuardTotals struct {
	Policy string
	Phase  policy.GuardPhase
	Blind  bool
}

// HealthCheck is the state that a Service's healthCheckNodePort reports.
type HealthCheck struct {
	Service model.Name
	Port    uint16 // 0: the Service no longer has one
	// Serves reports whether the Service has the family. Local is the number of its ready endpoint addresses on this node.
	Serves ByFamily[bool]
	Local  ByFamily[int]
}

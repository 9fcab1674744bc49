package planner

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
)

// Result is the result of a Plan.
type Result struct {
	// Calls are calls of plugins that the Plan waits for: see Plan. Nothing else is set then.
	Calls []*policy.Call

	Delta     *plan.Delta
	Resets    []plan.Reset
	StaleUDP  []plan.Key // frontends whose UDP flows may be stale, to pass to UDPFlows once the plan is programmed
	RequeueAt time.Time  // call Plan again at this time at the latest; zero: only on a change
	Errors    []error    // *ServiceError; each is reported once while it lasts
	// FormerNodePortAddrs are addresses that serve NodePorts no longer.
	FormerNodePortAddrs []netip.Addr
	// ChoiceErrors are why the annotations of Services choose no policy; each is reported once while it lasts.
	ChoiceErrors []*policy.ChoiceError
	// SettingsErrors are why the settings of Services are not in force; each is reported once while it lasts.
	SettingsErrors []*ServiceError
	// Warnings are about missing input and conflicts; each is reported once while it lasts.
	Warnings []string
	// NewConflicts are frontends that a Service wants and does not get, one of each Service with new ones. NewlyLimited is what
	// Settings.ServiceLimits leave out of Services that were within them. Warnings includes both.
	NewConflicts, NewlyLimited []plan.Degradation
	// Holds are the Services whose policy has begun to hold endpoints, or holds none any more.
	Holds []HoldChange
	// ShadowErrors are why shadows of policies fail; one of each Service, once while it lasts.
	ShadowErrors []*ServiceError
	// Shadows are the Services of which the comparison with the shadow of their policy has changed.
	Shadows []tally.ServiceShadow
	// ShedsBounded are Services of which fewer established connections are reset than a plugin has begun to ask for.
	ShedsBounded []ShedBounded
	UDPDrains    UDPDrains
	// Planned is the number of Services that were planned. Remaining is the number of those left to the next Plan: they are
	// deferred, see PlanInBatches, or the changes are more than one Plan does.
	Planned, Remaining int
	// HealthChecks are the Services whose health check has changed.
	HealthChecks []tally.HealthCheck
	NodeStatus   NodeStatus
	Totals       tally.Totals
	Triggers     []Trigger // of the changes since the last Plan
	// Connections are the totals that have changed since the last Plan.
	Connections []tally.ServiceConnections
	// Guards are the guards that have changed since the last Plan.
	Guards []GuardChange
	// PolicyConnections are those of all policies, sorted; nil if none has changed since the last Plan.
	PolicyConnections []tally.PolicyConnections
	// PluginCounters are the counters of all plugins, sorted; nil if none has changed since the last Plan.
	PluginCounters []policy.Counter
}

// ServiceError is a failure of a Service's policy or settings.
type ServiceError struct {
	Service model.Name
	Err     error // its text names the Service
}

// Error implements error.
func (e *ServiceError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ServiceError) Unwrap() error { return e.Err }

// HoldChange is the beginning or the end of a policy's panic hold on a Service.
type HoldChange struct {
	Service model.Name
	Policy  string
	Panic   policy.Panic
	Held    bool // whether endpoints are held now
	Cluster bool // endpoints of a cluster pool are or were held: other nodes see the same
}

// String describes the change. The text is the same each time, so that Events can be aggregated.
func (c *HoldChange) String() string {
	if !c.Held {
		return fmt.Sprintf("the panic hold of policy %s has ended: only endpoints that are ready get new connections", c.Policy)
	}
	return fmt.Sprintf("policy %s holds endpoints that are not ready: fewer than %d %% of the endpoints are ready, so those that were "+
		"within the last %s still get new connections", c.Policy, c.Panic.Below, c.Panic.Hold)
}

// addHold adds the beginning or the end of a hold, given the summaries before and after a round.
func (res *Result) addHold(r *round, before, now *tally.Summary) {
	if (before.Held > 0) == (now.Held > 0) {
		return
	}
	c := HoldChange{Service: r.svc.Name, Policy: before.Policy(), Held: now.Held > 0, Cluster: before.HeldCluster || now.HeldCluster}
	if i := slices.IndexFunc(r.policies, func(of *policy.Policy) bool { return of != nil && of.Panic.Below > 0 }); i >= 0 {
		c.Policy, c.Panic = r.policies[i].Name, r.policies[i].Panic
	}
	res.Holds = append(res.Holds, c)
}

// NodeStatus is what health checks report of this node.
type NodeStatus struct {
	// Eligible reports whether load balancers may use this node: the Node exists and is not being deleted (KEP-3836).
	Eligible bool
	// HealthAddrs are the addresses that health check ports listen on, sorted. The unspecified address means all addresses of
	// its family.
	HealthAddrs []netip.Addr
	// LocalhostAddrs are the loopback addresses that serve TCP NodePorts, sorted.
	LocalhostAddrs []netip.Addr
}

// Trigger is the time of the event that caused a change of endpoints, see model.EndpointSlice.Trigger.
type Trigger struct {
	At     int64 // Unix milliseconds
	Family model.Family
}

// addShadow adds the comparison of a Service's shadow if it has changed.
func (res *Result) addShadow(name model.Name, before, now *tally.Summary) {
	if after := now.ServiceShadow(name); before.ServiceShadow(name) != after {
		res.Shadows = append(res.Shadows, after)
	}
}

package state

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/policy"
	"github.com/sluice-proxy/sluice/host/service"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Explanation is the output of `sluice explain -o json`.
type Explanation struct {
	Service string `json:"service"`
	// NodeName and Zone are those of the node that the plan is for; without a zone it follows no hints for zones.
	NodeName string `json:"nodeName"`
	Zone     string `json:"zone,omitempty"`
	// NodeWarnings is what the node's Node lacks, and what applies instead.
	NodeWarnings []string `json:"nodeWarnings,omitempty"`
	Policy       string   `json:"policy,omitempty"`
	Plugins      []string `json:"plugins,omitempty"`
	// Revision identifies what the policy answers with; "": not known, because a plugin is not loaded, or no policy.
	Revision string `json:"revision,omitempty"`
	// Annotation is that of the Service that names its policy; nil: none.
	Annotation *Annotation `json:"annotation,omitempty"`
	// Nodes is why bindings for some of the nodes apply on this node or not.
	Nodes  []string `json:"nodes,omitempty"`
	Shadow *Shadow  `json:"shadow,omitempty"` // nil: the policy has none
	Error  string   `json:"error,omitempty"`
	// Guards are the guards of the policies that apply to the Service, or would if their guards let them.
	Guards []Guard `json:"guards,omitempty"`
	// Settings are those that the Service sets by its annotation; nil: none.
	Settings *Settings `json:"settings,omitempty"`
	// Pods is whether the Pods of the Service have been read, if a plugin declares keys of Pods: pending, read or unavailable.
	Pods      string   `json:"pods,omitempty"`
	Frontends []string `json:"frontends"`
	Contested []string `json:"contested,omitempty"` // frontends that another Service has
	Omitted   []string `json:"omitted,omitempty"`   // what is left out because of limits or addresses
	// Unrestricted are frontends to which the Service's loadBalancerSourceRanges do not apply, each with the reason.
	Unrestricted []string `json:"unrestricted,omitempty"`
	// Ignored are external IPs that are not served because of externalIPs: Ignore.
	Ignored []string `json:"ignoredExternalIPs,omitempty"`
	// WithoutPort are endpoints that a port does not reach, because their EndpointSlices do not have it; see AddWithoutPort.
	WithoutPort []string `json:"withoutPort,omitempty"`
	// Degraded are frontends that the backend can represent only approximately, Unprogrammed those that the kernel has rejected.
	Degraded     []string `json:"degraded,omitempty"`
	Unprogrammed []string `json:"unprogrammed,omitempty"`
	Node         *Node    `json:"node,omitempty"` // what of the configuration is in force
	Pools        []Pool   `json:"pools"`
	// Requests are those that AddRequests adds.
	Requests []Request `json:"requests,omitempty"`
}

// podsUnavailable is the value of Explanation.Pods if the Pods cannot be read.
var podsUnavailable = model.PodsUnavailable.String()

// AddLost adds what the backend cannot represent of the Service's frontends.
func (x *Explanation) AddLost(lost []plan.Degradation) {
	for i := range lost {
		if d := &lost[i]; d.Owner.Service.String() == x.Service {
			x.Degraded = append(x.Degraded, fmt.Sprintf("%s: wanted %s, got %s: %s", d.Frontend, d.Wanted, d.Got, d.Why))
		}
	}
}

// Annotation is the annotation of a Service that names its policy.
type Annotation struct {
	Policy string `json:"policy"`
	Error  string `json:"error,omitempty"` // why it chooses no policy, and what is in force instead
}

// Settings are settings that a Service sets.
type Settings struct {
	Annotation string `json:"annotation"`
	Error      string `json:"error,omitempty"` // why the annotation is not in force
	// InForce are the settings of each plugin, with those of the policy, by name.
	InForce []PluginSettings `json:"inForce,omitempty"`
}

// Guard is the guard of a policy.
type Guard struct {
	Policy   string             `json:"policy"`
	State    string             `json:"state"`           // baseline, in force or fallen back
	Since    *time.Time         `json:"since,omitempty"` // nil: in another boot, or before a plugin of the policy is loaded
	Blind    bool               `json:"blind,omitempty"` // nothing is known of connections: the state does not change
	Baseline policy.GuardCounts `json:"baseline"`        // connections under the policies that apply without this one
	Recent   policy.GuardCounts `json:"recent"`          // in the last window, or in the one that was the reason to fall back
	Text     string             `json:"text"`
}

// PluginSettings are the settings of a plugin.
type PluginSettings struct {
	Plugin   string `json:"plugin"`
	Settings string `json:"settings"` // JSON
}

// Pool is the endpoints of a Service port in one family, for traffic from the cluster or for traffic that must stay on the
// node.
type Pool struct {
	Port     string `json:"port"`
	Number   uint16 `json:"number"`
	Protocol string `json:"protocol"`
	Family   string `json:"family"`
	Pool     string `json:"pool"` // cluster or local
	Topology string `json:"topology"`
	// HintsIgnored is why topology hints of the endpoints are not followed; "": they are, or there are none.
	HintsIgnored string      `json:"hintsIgnored,omitempty"`
	DecidedBy    string      `json:"decidedBy"`
	Pending      *Pending    `json:"pending,omitempty"`
	Shadow       *PoolShadow `json:"shadow,omitempty"`
	Panic        *Panic      `json:"panic,omitempty"` // of a policy with panic
	Endpoints    []Endpoint  `json:"endpoints"`
	Inputs       []Input     `json:"inputs,omitempty"` // of each plugin that has answered, then of those of the shadow
}

// Pending is the plugin call that a decision waits for.
type Pending struct {
	Plugin         string     `json:"plugin"`
	Since          time.Time  `json:"since"`
	ThrottledSince *time.Time `json:"throttledSince,omitempty"` // the plugin has used up its share of CPU time
}

// Panic is the panic hold of a pool.
type Panic struct {
	Panicking bool   `json:"panicking"` // fewer than Below percent of the endpoints that do not terminate are ready
	Ready     int    `json:"ready"`
	Total     int    `json:"total"`
	Held      int    `json:"held"` // endpoints that count as ready although they are not
	Below     int    `json:"below"`
	Hold      string `json:"hold"`
	// OutcomesCounted: held endpoints are those to which connections from this node do not fail. Otherwise that is not known.
	OutcomesCounted bool `json:"outcomesCounted"`
}

// Endpoint is an endpoint in a pool, with its weight and the reasons for it.
type Endpoint struct {
	Address  string          `json:"address"`
	Pod      string          `json:"pod,omitempty"`
	Node     string          `json:"node,omitempty"`
	Zone     string          `json:"zone,omitempty"`
	Eligible bool            `json:"eligible"`
	Why      string          `json:"why"`
	Default  uint16          `json:"default"` // weight by the default rules
	Steps    []Step          `json:"steps,omitempty"`
	Shadow   *EndpointShadow `json:"shadow,omitempty"` // nil: the policy has no shadow, or it has no decision
	Weight   uint16          `json:"weight"`
	Share    float64         `json:"share"` // of new connections, 0 to 1
	ResetAt  *time.Time      `json:"resetAt,omitempty"`
	Shed     *Shed           `json:"shed,omitempty"` // of its established connections
	// HeldUntil is until when a panic hold makes the endpoint count as ready.
	HeldUntil *time.Time    `json:"heldUntil,omitempty"`
	Kernel    []KernelShare `json:"kernel,omitempty"`
}

// Shed is that part of an endpoint's established connections is reset over a minute.
type Shed struct {
	Permille uint16 `json:"permille"`
	// Wanted is what the plugin asks for. It is more than Permille if maxShedPercentPerSecond of the policy bounds it.
	Wanted uint16     `json:"wanted"`
	Since  *time.Time `json:"since,omitempty"` // nil: in another boot
}

// Step is the decision of one plugin on an endpoint.
type Step struct {
	Plugin string `json:"plugin"`
	Weight uint16 `json:"weight"`
	Reason string `json:"reason,omitempty"`
}

// KernelShare is the weight of an endpoint behind a frontend, as it is programmed in the kernel.
type KernelShare struct {
	Frontend string `json:"frontend"`
	Weight   uint16 `json:"weight"`
	Total    int    `json:"total"`
	// Connections through the frontend; nil except in mode ipvs.
	Connections *Connections `json:"connections,omitempty"`
}

// localhostAddrs returns the loopback addresses on which a frontend is served.
func localhostAddrs(e *planner.Explanation, f *plan.Frontend) (out []string) {
	for _, a := range e.LocalhostAddrs {
		if f.Key.IsNodePort() && f.Key.Protocol == model.TCP && a.Is4() == f.Key.Addr.Is4() {
			out = append(out, a.String())
		}
	}
	return out
}

// NewExplanation converts the planner's explanation. wallTime converts a time of the planner, in Unix milliseconds, to wall time.
func NewExplanation(e *planner.Explanation, wallTime func(int64) time.Time) *Explanation {
	x := &Explanation{Service: e.Service.Name.String(), NodeName: e.Node, Zone: e.Zone, NodeWarnings: e.NodeWarnings, Frontends: []string{}, Pools: []Pool{}}
	if e.Policy != nil {
		x.Policy, x.Shadow = e.Policy.Name, newShadow(e.Policy, &e.Shadow)
		for _, s := range e.Policy.Steps {
			x.Plugins = append(x.Plugins, s.Plugin)
		}
	}
	x.Revision = e.Revision
	if name := e.Service.Policy; name != "" {
		x.Annotation = &Annotation{Policy: name}
		if e.Choice != nil {
			x.Annotation.Error = e.Choice.Error()
		}
	}
	for i := range e.NodeBindings {
		x.Nodes = append(x.Nodes, e.NodeBindings[i].String())
	}
	for i := range e.Guards {
		x.Guards = append(x.Guards, newGuard(&e.Guards[i], wallTime))
	}
	x.Settings = newSettings(&e.Settings)
	if e.Err != nil && !waits(e) {
		x.Error = e.Err.Error()
	}
	if e.Pods != nil {
		x.Pods = e.Pods.String()
	}
	for _, f := range e.Frontends {
		x.Frontends = append(x.Frontends, f.Kind.String()+" "+f.Key.String())
		if at := localhostAddrs(e, f); len(at) > 0 && len(e.Service.SourceRanges) > 0 {
			x.Degraded = append(x.Degraded, fmt.Sprintf("%s at %s: wanted loadBalancerSourceRanges, got all users of this node: source ranges do not apply to NodePorts",
				f.Key, strings.Join(at, ", ")))
		}
	}
	for _, d := range e.Conflicts {
		x.Contested = append(x.Contested, d.Wanted+" "+d.Frontend.String()+": "+d.Why)
	}
	if n := e.Contested - len(e.Conflicts); n > 0 {
		x.Contested = append(x.Contested, fmt.Sprintf("%d more frontends", n))
	}
	for _, d := range e.Omitted {
		x.Omitted = append(x.Omitted, fmt.Sprintf("wanted %s, got %s: %s", d.Wanted, d.Got, d.Why))
	}
	x.Unrestricted = Unrestricted(e)
	for _, a := range e.Ignored[:min(len(e.Ignored), maxUnrestricted)] {
		x.Ignored = append(x.Ignored, a.String())
	}
	if more := len(e.Ignored) - maxUnrestricted; more > 0 {
		x.Ignored = append(x.Ignored, fmt.Sprintf("%d more", more))
	}
	for i := range e.Decisions {
		d := &e.Decisions[i]
		var seen planner.PortSeen
		if i < len(e.Seen) {
			seen = e.Seen[i]
		}
		if d.Port.UsesCluster {
			x.Pools = append(x.Pools, newPool(d.Port, &d.Cluster, abi.PoolCluster, e.Policy, wallTime))
			x.Pools[len(x.Pools)-1].Inputs = newInputs(seen.Cluster, wallTime)
		}
		if d.Port.UsesLocal {
			x.Pools = append(x.Pools, newPool(d.Port, &d.Local, abi.PoolLocal, e.Policy, wallTime))
			x.Pools[len(x.Pools)-1].Inputs = newInputs(seen.Local, wallTime)
		}
	}
	return x
}

// maxUnrestricted bounds how many frontends Unrestricted lists, and how many external IPs Explanation.Ignored.
const maxUnrestricted = 20

// Unrestricted describes the frontends to which the source ranges of a Service do not apply.
func Unrestricted(e *planner.Explanation) (out []string) {
	list := e.Unrestricted()
	for _, f := range list[:min(len(list), maxUnrestricted)] {
		out = append(out, f.Kind.String()+" "+f.Key.String()+": "+planner.WhyUnrestricted(f))
	}
	if more := len(list) - maxUnrestricted; more > 0 {
		out = append(out, fmt.Sprintf("%d more frontends", more))
	}
	return out
}

func newGuard(g *planner.GuardStatus, wallTime func(int64) time.Time) Guard {
	out := Guard{Policy: g.Policy, State: g.State.Phase.String(), Blind: g.Blind, Baseline: g.State.Baseline, Recent: g.State.Recent, Text: g.String()}
	if at := wallTime(g.State.Since).UTC(); g.State.Since != 0 {
		out.Since = &at
	}
	return out
}

func newSettings(s *policy.ServiceSettings) *Settings {
	if s.Text == "" {
		return nil
	}
	x := &Settings{Annotation: s.Text}
	if s.Err != nil {
		x.Error = s.Err.Error()
	}
	if s.InForce == nil {
		return x
	}
	for step := range s.InForce.All() {
		x.InForce = append(x.InForce, PluginSettings{step.Plugin, cmp.Or(step.Settings, "{}")})
	}
	return x
}

// waits reports whether the error only means that a plugin has not answered yet: the pools say which one.
func waits(e *planner.Explanation) bool {
	return errors.Is(e.Err, policy.ErrPending) && slices.ContainsFunc(e.Decisions, func(d planner.PortDecision) bool {
		return d.Cluster.Pending != nil || d.Local.Pending != nil
	})
}

func newPool(p *service.Port, d *policy.Decision, pool uint8, of *policy.Policy, wallTime func(int64) time.Time) Pool {
	out := Pool{
		Port: p.Name.Port, Number: p.Spec.Port, Protocol: p.Name.Protocol.String(), Family: p.Family.String(),
		Pool: "cluster", Topology: p.Topology.String(), DecidedBy: d.Origin.String(), Endpoints: []Endpoint{},
	}
	if pool == abi.PoolLocal {
		out.Pool = "local"
	}
	out.Pending, out.Shadow = newPending(d.Pending, wallTime), newPoolShadow(d.Shadow, wallTime)
	if h := d.Hold; h != nil && of != nil {
		out.Panic = &Panic{h.Panicking, h.Ready, h.Total, h.Held, of.Panic.Below, of.Panic.Hold.String(), h.Counted}
	}
	if pool == abi.PoolCluster {
		out.HintsIgnored = p.Hints.String()
	}
	weights := totalOf(d.Weights)
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		row := Endpoint{
			Address: e.Addr.String(), Pod: e.Pod, Node: e.Node, Zone: e.Zone,
			Eligible: e.Eligible(), Why: p.Explain(e), Weight: d.Weights[i],
		}
		if d.Sheds != nil && d.Sheds[i].Permille != 0 && of != nil {
			s := d.Sheds[i]
			row.Shed = &Shed{Permille: planner.EffectiveShed(s.Permille, of.MaxShedPercentPerSecond), Wanted: s.Permille}
			if at := wallTime(s.At).UTC(); s.At != 0 {
				row.Shed.Since = &at
			}
		}
		if h := d.Hold; h != nil && h.Until != nil && h.Until[i] != 0 {
			at := wallTime(h.Until[i]).UTC()
			row.Eligible, row.Why, row.HeldUntil = true, "not ready, held by the policy's panic", &at
		}
		if h := d.Hold; h != nil && h.Failing != nil && h.Failing[i] {
			row.Why += ", not held: connections from this node fail"
		}
		if pool == abi.PoolLocal && !e.Local {
			row.Eligible, row.Why = false, "not on this node"
		}
		if pool == abi.PoolCluster && e.InCluster || pool == abi.PoolLocal && e.InLocal {
			row.Default = 1
		}
		row.Steps, row.Shadow, row.Share = newSteps(d.Steps, i), newEndpointShadow(d.Shadow, i), share(row.Weight, weights)
		if d.ResetAt != nil && d.ResetAt[i] != 0 {
			at := wallTime(d.ResetAt[i]).UTC()
			row.ResetAt = &at
		}
		out.Endpoints = append(out.Endpoints, row)
	}
	return out
}

func newPending(p *policy.Pending, wallTime func(int64) time.Time) *Pending {
	if p == nil {
		return nil
	}
	out := &Pending{Plugin: p.Plugin, Since: wallTime(p.Since).UTC()}
	if at := p.ThrottledSince.UTC(); !p.ThrottledSince.IsZero() {
		out.ThrottledSince = &at
	}
	return out
}

// newSteps returns the decisions of plugins on endpoint i.
func newSteps(steps []policy.StepResult, i int) (out []Step) {
	for _, s := range steps {
		if s.Err == nil {
			out = append(out, Step{s.Plugin, s.Weights[i], s.Reasons.At(i)})
		}
	}
	return out
}

func totalOf(weights []uint16) (sum int) {
	for _, w := range weights {
		sum += int(w)
	}
	return sum
}

func share(weight uint16, total int) float64 {
	if total == 0 {
		return 0
	}
	return float64(weight) / float64(total)
}

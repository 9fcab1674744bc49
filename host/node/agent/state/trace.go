package state

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// NewTracedFlow returns a flow with addresses.
func NewTracedFlow(f plan.Flow) *api.TracedFlow {
	return &api.TracedFlow{From: f.From.String(), To: f.To.String(), Protocol: f.Protocol.String()}
}

// Tracer traces flows through one plan.
type Tracer struct {
	planner *planner.Planner
	resolve func(plan.Flow) plan.Outcome
	known   map[model.Name]*planner.Explanation
}

// NewTracer returns a Tracer of many flows. The plan must not change as long as it is in use.
func NewTracer(p *planner.Planner) *Tracer {
	return &Tracer{p, p.Current().Tracer(p.NodeAddrs()).Trace, map[model.Name]*planner.Explanation{}}
}

// Trace traces one flow. It costs less than a Tracer of one flow.
func Trace(p *planner.Planner, flow plan.Flow) api.Traced {
	one := Tracer{p, func(f plan.Flow) plan.Outcome { return p.Current().Trace(f, p.NodeAddrs()) }, map[model.Name]*planner.Explanation{}}
	return one.Trace(flow)
}

// Trace returns what happens to a new connection, and why.
func (t *Tracer) Trace(flow plan.Flow) api.Traced {
	o := t.resolve(flow)
	a := api.Traced{Verdict: "NONE", Endpoints: []api.TracedEndpoint{}}
	if o.Matched {
		a.Verdict = [...]string{plan.Forward: "DNAT", plan.Reject: "REJECT", plan.Drop: "DROP"}[o.Verdict]
	}
	for _, c := range o.Candidates {
		a.Endpoints = append(a.Endpoints, api.TracedEndpoint{
			Address: c.Addr.String(), Refused: plan.IsRefusing(c.Addr.Addr()), Weight: c.Weight, Share: c.Share, Masquerade: c.Masquerade,
		})
	}
	if o.Frontend == nil {
		a.Why = t.unclaimed(flow, &o)
		return a
	}
	a.Service = o.Frontend.Owner.String()
	at := o.Frontend.Key.String()
	if o.Frontend.Kind == plan.NodePort {
		at = fmt.Sprintf("%d/%s", o.Frontend.Key.Port, flow.Protocol)
	}
	a.Why = o.Frontend.Kind.String() + " " + at + ": " + strings.Join(t.reasons(flow, &o), "; ")
	return a
}

// unclaimed explains why no frontend matches a flow.
func (t *Tracer) unclaimed(flow plan.Flow, o *plan.Outcome) string {
	p := t.planner.Current()
	if d, kind, ok := t.planner.LeftOut(flow.To, flow.Protocol); ok {
		return fmt.Sprintf("%s %s of %s is left out: wanted %s, got %s: %s", kind, d.Frontend, d.Owner, d.Wanted, d.Got, d.Why)
	}
	if o.Matched && o.Verdict == plan.Reject {
		return fmt.Sprintf("%s is the ClusterIP of %s, which has no port %d/%s",
			flow.To.Addr(), strings.Join(ownersOf(p, flow.To.Addr()), " and "), flow.To.Port(), flow.Protocol)
	}
	if o.Matched {
		i := slices.IndexFunc(p.Global.ServiceCIDRs, func(r netip.Prefix) bool { return r.Contains(flow.To.Addr()) })
		return fmt.Sprintf("%s is in the ServiceCIDR %s, and not allocated to a Service", flow.To.Addr(), p.Global.ServiceCIDRs[i])
	}
	star := netip.IPv4Unspecified()
	if flow.To.Addr().Is6() {
		star = netip.IPv6Unspecified()
	}
	nodePort := p.Frontends[plan.Key{Addr: star, Port: flow.To.Port(), Protocol: flow.Protocol}]
	if nodePort != nil && flow.To.Addr().IsLoopback() && slices.Contains(t.planner.LocalhostAddrs(), flow.To.Addr()) {
		return localhostReason(nodePort)
	}
	if nodePort != nil && t.planner.NodeAddrs().Contains(flow.To.Addr()) {
		return fmt.Sprintf("NodePort %d of %s is available on %s only (nodePortAddresses; on loopback only with localhost)",
			flow.To.Port(), nodePort.Owner, addrList(p.Global.NodePortAddrs, flow.To.Addr()))
	}
	if name, ok := t.planner.IgnoredExternalIP(flow.To.Addr()); ok {
		return fmt.Sprintf("%s is an external IP of %s, which is not served (externalIPs: Ignore)", flow.To.Addr(), name)
	}
	return fmt.Sprintf("no Service listens on %s/%s", flow.To, flow.Protocol)
}

// localhostReason describes what happens to a connection to a NodePort at a loopback address that nodePortAddresses selects: the
// kernel delivers it to this node's own listener.
func localhostReason(f *plan.Frontend) string {
	pool, which := &f.Pool, "all endpoints"
	if f.Outside != nil {
		pool, which = f.Outside, "endpoints on this node (externalTrafficPolicy Local)"
	}
	at := fmt.Sprintf("NodePort %d of %s", f.Key.Port, f.Owner)
	switch {
	case f.Key.Protocol != model.TCP:
		return at + ": on loopback addresses, NodePorts are served over TCP only (KEP-6032)"
	case pool.Verdict != plan.Forward:
		return at + ": not served on loopback addresses, because no endpoint can serve of " + which
	}
	var to []string
	for _, e := range pool.Endpoints {
		if e.Weight > 0 && !plan.IsRefusing(e.Addr.Addr()) {
			to = append(to, e.Addr.String())
		}
	}
	if more := len(to) - maxListedEndpoints; more > 0 {
		to = append(to[:maxListedEndpoints], fmt.Sprintf("and %d more", more))
	}
	text := fmt.Sprintf("%s: sluice itself accepts the connection (nodePortAddresses: localhost) and connects to one of %s: %s", at, which, strings.Join(to, ", "))
	if f.Affinity > 0 {
		text += fmt.Sprintf("; session affinity: all connections keep the same one for %s", f.Affinity)
	}
	return text + "; the endpoint sees the node's address"
}

// maxListedEndpoints bounds the endpoints in a reason.
const maxListedEndpoints = 10

// reasons explains an outcome: the frontend, the endpoints, and the source address that they see.
func (t *Tracer) reasons(flow plan.Flow, o *plan.Outcome) []string {
	f := o.Frontend
	if f.SourceRanges != nil && !slices.ContainsFunc(f.SourceRanges, func(r netip.Prefix) bool { return r.Contains(flow.From) }) {
		return []string{fmt.Sprintf("%s is not in loadBalancerSourceRanges %v, which apply to Pods and nodes too", flow.From, f.SourceRanges)}
	}
	x := t.explain(f.Owner.Service)
	who := "the source is outside the cluster"
	switch o.Source {
	case plan.FromPod:
		who = "the source is a Pod"
	case plan.FromNode:
		who = "the source is this node"
	}
	local := f.Outside != nil && o.Outside
	var out []string
	switch {
	case f.Kind == plan.ClusterIP:
		if local = x != nil && x.Service.InternalLocal; local {
			out = append(out, "internalTrafficPolicy Local")
		}
	case f.Outside == nil:
		out = append(out, "externalTrafficPolicy Cluster")
	case local:
		out = append(out, who+": externalTrafficPolicy Local")
	default:
		out = append(out, who+": externalTrafficPolicy Local does not apply")
	}
	split, refusals := splitOf(x, f, local)
	if o.Verdict != plan.Forward {
		if local && o.Verdict == plan.Drop {
			return append(out, "no endpoint on this node can serve, but others can")
		}
		return append(append(out, "no endpoint anywhere can serve"), refusals...)
	}
	scope := "all endpoints"
	if local {
		scope = "endpoints on this node"
	}
	if d := decisionFor(x, f); split != nil {
		scope += fmt.Sprintf(", split by %s %s", split.Route.Name.Kind, split.Route.Name.Name)
	} else if d != nil {
		scope += chosenBy(d, x, local)
	}
	out = append(append(out, scope), refusals...)
	if x != nil && len(x.Service.SourceRanges) > 0 && f.SourceRanges == nil && f.Kind != plan.ClusterIP {
		out = append(out, planner.WhyUnrestricted(f))
	}
	if f.Affinity > 0 {
		out = append(out, fmt.Sprintf("session affinity: a client keeps its endpoint for %s", f.Affinity))
	}
	if f.LongLived {
		out = append(out, "trafficHint LongLived: once established, it may go by a flowtable")
	}
	return append(append(out, balanceReason(x, flow.From, o)...), masqueradeReason(who, o))
}

// splitOf returns how a route splits the connections to a frontend, nil if none does, and what it refuses of those to a pool.
func splitOf(x *planner.Explanation, f *plan.Frontend, local bool) (s *planner.Split, refusals []string) {
	if x == nil {
		return nil, nil
	}
	if s = x.SplitOf(f); s == nil {
		return nil, nil
	}
	if local {
		return s, s.Refusals(abi.PoolLocal)
	}
	return s, s.Refusals(abi.PoolCluster)
}

// balanceReason describes the balance, unless it is random, which the shares describe.
func balanceReason(x *planner.Explanation, from netip.Addr, o *plan.Outcome) []string {
	f, pool := o.Frontend, &o.Frontend.Pool
	if o.Outside {
		pool = f.Outside
	}
	switch {
	case f.Balance == plan.Random:
		return nil
	case f.Balance != plan.SourceHash:
		return []string{"balance " + f.Balance.String()}
	case x == nil || x.Client == nil:
		return []string{"balance source hash: each client always gets the same endpoint, which only the kernel knows"}
	}
	return []string{fmt.Sprintf("balance source hash: %s always gets %s", from, x.Client(pool, from))}
}

// chosenBy describes the rule that selected the endpoints, or the policy that set their weights.
func chosenBy(d *policy.PortDecision, x *planner.Explanation, local bool) string {
	decision, ready := &d.Cluster, slices.ContainsFunc(d.Port.Endpoints, func(e eligibility.Endpoint) bool { return e.Ready && (!local || e.Local) })
	if local {
		decision = &d.Local
	}
	text := ""
	switch {
	case !ready:
		text = " that still serve while terminating, because none is ready"
	case !local && d.Port.Topology != eligibility.NoTopology:
		text = ", selected by topology hints for the " + d.Port.Topology.String()
	}
	if x.Policy != nil {
		text += fmt.Sprintf(", decided by %s (%s)", decision.Origin, x.Policy.Name)
	}
	return text
}

func masqueradeReason(source string, o *plan.Outcome) string {
	all := !slices.ContainsFunc(o.Candidates, func(c plan.Candidate) bool { return !c.Masquerade })
	some := slices.ContainsFunc(o.Candidates, func(c plan.Candidate) bool { return c.Masquerade })
	switch f := o.Frontend; {
	case f.Masquerade == plan.MasqueradeAlways && f.Kind == plan.ClusterIP:
		return "masqueraded: masqueradeAll"
	case f.Masquerade == plan.MasqueradeAlways:
		return "masqueraded, because replies must return through this node"
	case all && f.Masquerade != plan.MasqueradeNever && o.Source != plan.FromPod:
		return "masqueraded: " + source
	case some:
		return "the source address is kept, except for the endpoint that is the source"
	}
	return "the source address is kept"
}

// explain returns the explanation of a Service, or nil if there is none.
func (t *Tracer) explain(name model.Name) *planner.Explanation {
	x, ok := t.known[name]
	if !ok {
		x, _ = t.planner.Explain(name)
		t.known[name] = x
	}
	return x
}

func decisionFor(x *planner.Explanation, f *plan.Frontend) *policy.PortDecision {
	if x == nil {
		return nil
	}
	for i := range x.Decisions {
		if d := &x.Decisions[i]; d.Port.Name == f.Owner && d.Port.Family == f.Key.Family() {
			return d
		}
	}
	return nil
}

// ownersOf names the Services that have an address.
func ownersOf(p *plan.Plan, a netip.Addr) []string {
	var out []string
	for k, f := range p.Frontends {
		if k.Addr == a && f.Kind == plan.ClusterIP {
			out = append(out, f.Owner.Service.String())
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func addrList(addrs []netip.Addr, family netip.Addr) string {
	var out []string
	for _, a := range addrs {
		if a.Is4() == family.Is4() {
			out = append(out, a.String())
		}
	}
	if len(out) == 0 {
		return "no address of this node"
	}
	return strings.Join(out, ", ")
}

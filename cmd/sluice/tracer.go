package main

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/printable"
	"github.com/sluice-proxy/sluice/host/service"
)

// traced is the result of tracing a flow.
type traced struct {
	Verdict string `json:"verdict"` // DNAT, REJECT, DROP or NONE
	// Service port that took the connection; empty when none did.
	Service   string           `json:"service"`
	Endpoints []tracedEndpoint `json:"endpoints"` // that the connection may reach
	Why       string           `json:"why"`
}

type tracedEndpoint struct {
	Address    string  `json:"address"`
	Weight     uint16  `json:"weight"`
	Share      float64 `json:"share"` // of new connections, 0 to 1
	Masquerade bool    `json:"masquerade"`
}

// tracer traces flows through one plan.
type tracer struct {
	planner  *planner.Planner
	resolver *plan.Tracer
	known    map[model.Name]*planner.Explanation
}

func newTracer(p *planner.Planner) *tracer {
	return &tracer{p, p.Current().Tracer(p.NodeAddrs()), map[model.Name]*planner.Explanation{}}
}

func (t *tracer) trace(flow plan.Flow) traced {
	o := t.resolver.Trace(flow)
	a := traced{Verdict: "NONE", Endpoints: []tracedEndpoint{}}
	if o.Matched {
		a.Verdict = [...]string{plan.Forward: "DNAT", plan.Reject: "REJECT", plan.Drop: "DROP"}[o.Verdict]
	}
	for _, c := range o.Candidates {
		a.Endpoints = append(a.Endpoints, tracedEndpoint{c.Addr.String(), c.Weight, c.Share, c.Masquerade})
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
func (t *tracer) unclaimed(flow plan.Flow, o *plan.Outcome) string {
	p := t.planner.Current()
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
	if nodePort != nil && t.planner.NodeAddrs().Contains(flow.To.Addr()) {
		return fmt.Sprintf("NodePort %d of %s is available on %s only (nodePortAddresses; never on loopback)",
			flow.To.Port(), nodePort.Owner, addrList(p.Global.NodePortAddrs, flow.To.Addr()))
	}
	return fmt.Sprintf("no Service listens on %s/%s", flow.To, flow.Protocol)
}

// reasons explains an outcome: the frontend, the endpoints, and the source address that they see.
func (t *tracer) reasons(flow plan.Flow, o *plan.Outcome) []string {
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
	if o.Verdict != plan.Forward {
		if local && o.Verdict == plan.Drop {
			return append(out, "no endpoint on this node can serve, but others can")
		}
		return append(out, "no endpoint anywhere can serve")
	}
	scope := "all endpoints"
	if local {
		scope = "endpoints on this node"
	}
	if d := decisionFor(x, f); d != nil {
		scope += chosenBy(d, x, local)
	}
	out = append(out, scope)
	if f.Affinity > 0 {
		out = append(out, fmt.Sprintf("session affinity: a client keeps its endpoint for %s", f.Affinity))
	}
	return append(out, masqueradeReason(who, o))
}

// chosenBy describes the rule that selected the endpoints, or the policy that set their weights.
func chosenBy(d *planner.PortDecision, x *planner.Explanation, local bool) string {
	decision, ready := &d.Cluster, slices.ContainsFunc(d.Port.Endpoints, func(e service.Endpoint) bool { return e.Ready && (!local || e.Local) })
	if local {
		decision = &d.Local
	}
	text := ""
	switch {
	case !ready:
		text = " that still serve while terminating, because none is ready"
	case !local && d.Port.Topology != service.NoTopology:
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
func (t *tracer) explain(name model.Name) *planner.Explanation {
	x, ok := t.known[name]
	if !ok {
		x, _ = t.planner.Explain(name)
		t.known[name] = x
	}
	return x
}

func decisionFor(x *planner.Explanation, f *plan.Frontend) *planner.PortDecision {
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

// printTrace prints a result in human-readable form.
func printTrace(w io.Writer, a *traced, flow plan.Flow) error {
	fmt.Fprintf(w, "%s → %s/%s  %s", flow.From, flow.To, flow.Protocol, a.Verdict)
	if a.Service != "" {
		fmt.Fprintf(w, "  %s", printable.Escape(a.Service))
	}
	fmt.Fprintf(w, "\n  %s\n", printable.Escape(a.Why))
	if len(a.Endpoints) == 0 {
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "  ENDPOINT\tWEIGHT\tSHARE\tSOURCE")
	for _, e := range a.Endpoints {
		source := "kept"
		if e.Masquerade {
			source = "masqueraded"
		}
		fmt.Fprintf(tw, "  %s\t%d\t%.1f %%\t%s\n", e.Address, e.Weight, 100*e.Share, source)
	}
	return tw.Flush()
}

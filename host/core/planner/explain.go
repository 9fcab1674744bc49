package planner

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// Explanation explains the weights of a Service's endpoints.
type Explanation struct {
	Service *model.Service
	// Node and Zone are those that the plan is for; "": the node has no zone, or is not known.
	Node, Zone string
	// NodeWarnings are those of Planner.NodeWarnings.
	NodeWarnings []string
	Policy       *policy.Policy      // of the first port that has one; nil: none
	Ports        []PortPolicy        // by port of the Service
	Revision     string              // of the policy; "": not known, or no policy
	Choice       *policy.ChoiceError // why the annotation of the Service chooses no policy; nil: it does, or there is none
	// NodeBindings are the bindings with Nodes that match the Service, up to the one that applies; none if the Service has chosen
	// its policy.
	NodeBindings []policy.NodeBinding
	Guards       []GuardStatus          // of the policies that apply to it, or would
	Settings     policy.ServiceSettings // that the Service has set; InForce is the policy with them
	Err          error                  // of the policy's chain
	Decisions    []policy.PortDecision
	Seen         []PortSeen // parallel to Decisions; nil: no policy
	Splits       []*Split   // parallel to Decisions: nil without a route of the port
	// Losing are the routes of ports that have an older route.
	Losing    []LosingRoute
	Frontends []*plan.Frontend // in the plan
	// LocalhostAddrs are the loopback addresses on which NodePorts are served over TCP.
	LocalhostAddrs []netip.Addr
	Conflicts      []plan.Degradation // the first frontends that the Service wants and does not get, at most maxExplained
	// Contested is the number of all such frontends.
	Contested int
	// Pods is whether the Pods of the Service have been read; nil: no plugin of the policy declares keys of Pods.
	Pods *model.PodsState
	// DrainingSince is since when endpoints drain, Unix milliseconds.
	DrainingSince map[netip.AddrPort]int64
	Omitted       []plan.Degradation // what is left out because of Settings.ServiceLimits or the endpoints' addresses
	Shadow        tally.ServiceShadow
	// Ignored are the external IPs of the Service that are not served because of Settings.ExternalIPs.
	Ignored []netip.Addr
	// Client is that of the backend's plan.Caps; nil: not known.
	Client func(p *plan.Pool, from netip.Addr) netip.AddrPort
	slices []*model.EndpointSlice // of the Service
}

// PortPolicy is the policy of a Service port, and what gives it one, or would.
type PortPolicy struct {
	Port       model.ServicePort
	Policy     *policy.Policy // nil: none
	Candidates []policy.Candidate
}

// PolicyOf returns the policy of a port, nil for none.
func (e *Explanation) PolicyOf(port model.PortName) *policy.Policy {
	for i := range e.Ports {
		if p := &e.Ports[i]; p.Port.Name == port.Port && p.Port.Protocol == port.Protocol {
			return p.Policy
		}
	}
	return nil
}

// maxExplained bounds how many conflicts an Explanation lists.
const maxExplained = 100

// Explain returns the last decisions about a Service. It calls no plugin.
func (rs *rounds) Explain(name model.Name) (*Explanation, error) {
	if !rs.cluster.Synced {
		return nil, fmt.Errorf("Service %s: the cluster has not been read yet", name)
	}
	svc, s := rs.cluster.Services[name], rs.services[name]
	if svc == nil || s == nil {
		return nil, rs.NotFound(name)
	}
	e := &Explanation{Service: svc, Node: rs.settings.Node, Zone: rs.nodeInfo.Zone, NodeWarnings: rs.NodeWarnings(), LocalhostAddrs: rs.LocalhostAddrs()}
	ports, choice := rs.evaluator.Chosen(rs.settings.Policies, svc, nil)
	e.Choice = choice
	for i, of := range ports[:min(len(ports), len(svc.Ports))] {
		e.Policy = cmp.Or(e.Policy, of)
		e.Ports = append(e.Ports, PortPolicy{svc.Ports[i], of, rs.evaluator.Candidates(rs.settings.Policies, svc, svc.Ports[i].Name)})
	}
	e.Revision = rs.evaluator.Revision(e.Policy)
	if !chosen(svc, e.Policy, e.Choice) {
		e.NodeBindings = rs.settings.Policies.NodeBindings(svc)
	}
	e.Shadow = s.summary.ServiceShadow(name)
	if q := s.policy; q != nil {
		e.Settings, e.Err = q.settings, q.err
		for _, g := range q.guards {
			e.Guards = append(e.Guards, g.status())
		}
	}
	if rs.evaluator.Declares(ports...).Pods {
		state := rs.cluster.PodsOf(name)
		e.Pods = &state
	}
	routes := rs.routes.attached(svc)
	if s.decisions != nil {
		e.Decisions = withoutRoute(s.decisions.unpack(rs.cluster.Slices[name]), svc, routes)
		for i := range e.Decisions {
			e.Seen = append(e.Seen, rs.seen(svc, &e.Decisions[i]))
		}
	} else if e.Policy == nil { // decisions of the default rules are not cached: they follow from the cluster state
		e.Decisions = withoutRoute(rs.decideAll(svc), svc, routes)
	}
	rs.explainRoutes(e, routes)
	e.Frontends = slices.SortedStableFunc(rs.claims.Has(name), func(f, g *plan.Frontend) int {
		return cmp.Or(f.Owner.Compare(g.Owner), cmp.Compare(f.Key.Family(), g.Key.Family()), cmp.Compare(f.Kind, g.Kind))
	})
	e.Conflicts, e.Contested = rs.claims.ConflictsOf(name, maxExplained)
	e.Omitted, e.DrainingSince = s.omitted, maps.Clone(s.draining)
	e.addTerminating()
	if rs.settings.ExternalIPs == IgnoreExternalIPs {
		e.Ignored = svc.ExternalIPs
	}
	if rs.rules.Caps != nil {
		e.Client = rs.rules.Caps.Client
	}
	e.slices = slices.Clone(rs.cluster.Slices[name])
	return e, nil
}

// chosen reports whether the annotation of a Service has chosen the policy that decides, so that bindings do not matter.
func chosen(svc *model.Service, decides *policy.Policy, err *policy.ChoiceError) bool {
	switch {
	case svc.Policy == "" || decides == nil:
		return false
	case err != nil:
		return err.Kept == decides.Name
	}
	return svc.Policy == decides.Name
}

// decideAll returns the decisions of the default rules about a Service.
func (rs *rounds) decideAll(svc *model.Service) (out []policy.PortDecision) {
	r := rs.begin(svc)
	svc = r.svc
	for i := range svc.Ports {
		for _, f := range model.Families {
			if svc.HasFamily(f) {
				out = append(out, rs.decide(r, rs.selectPort(svc, i, f), r.policies[i], time.Time{}))
			}
		}
	}
	return out
}

// PortSeen is what the plugins of a Service port's policy saw, by pool.
type PortSeen struct{ Cluster, Local []policy.Seen }

// seen returns what the plugins saw when they gave the answers of a decision.
func (rs *rounds) seen(svc *model.Service, d *policy.PortDecision) (out PortSeen) {
	port := *d.Port
	port.Endpoints = slices.Clone(port.Endpoints)
	for i := range port.Endpoints {
		e := &port.Endpoints[i]
		e.HeldCluster, e.HeldLocal = isHeld(d.Cluster.Hold, i), isHeld(d.Local.Hold, i)
	}
	in := rs.input(svc, &port)
	if port.UsesCluster {
		in.Pool = abi.PoolCluster
		out.Cluster = rs.evaluator.Seen(&in)
	}
	if port.UsesLocal {
		in.Pool = abi.PoolLocal
		out.Local = rs.evaluator.Seen(&in)
	}
	return out
}

func isHeld(h *policy.Hold, i int) bool { return h != nil && h.Until != nil && h.Until[i] != 0 }

// addTerminating completes since when endpoints drain with what plugins saw: that survives restarts.
func (e *Explanation) addTerminating() {
	for i := range e.Seen {
		for _, seen := range slices.Concat(e.Seen[i].Cluster, e.Seen[i].Local) {
			for j := range seen.Request.Endpoints {
				r := &seen.Request.Endpoints[j]
				if since, ok := e.DrainingSince[r.Addr]; ok && r.TerminatingSince != 0 && r.TerminatingSince < since {
					e.DrainingSince[r.Addr] = r.TerminatingSince
				}
			}
		}
	}
}

// Unrestricted returns the frontends that every source may use although the Service has loadBalancerSourceRanges. ClusterIPs are
// not among them: no proxy restricts these.
func (e *Explanation) Unrestricted() (out []*plan.Frontend) {
	if len(e.Service.SourceRanges) == 0 {
		return nil
	}
	for _, f := range e.Frontends {
		if f.SourceRanges == nil && f.Kind != plan.ClusterIP {
			out = append(out, f)
		}
	}
	return out
}

// WhyUnrestricted returns why source ranges do not apply to a frontend that Unrestricted returns.
func WhyUnrestricted(f *plan.Frontend) string {
	switch f.Kind {
	case plan.ExternalIP:
		return "loadBalancerSourceRanges do not apply to external IPs"
	case plan.NodePort:
		return "loadBalancerSourceRanges do not apply to NodePorts"
	}
	return fmt.Sprintf("loadBalancerSourceRanges have no range of %s", f.Key.Family())
}

// WithoutPort is endpoints in EndpointSlices that do not have a port of their Service.
type WithoutPort struct {
	Port   model.ServicePort
	Family model.Family
	Has    []model.SlicePort // that the slices have instead
	Count  int               // endpoints, of the first maxLooked
	Names  []string          // of the first ones: Pods, or addresses; at most maxNamed
}

// maxNamed bounds WithoutPort.Names.
const maxNamed = 10

// String names the endpoints, and says why the port does not reach them.
func (w *WithoutPort) String() string {
	names := strings.Join(w.Names, ", ")
	if more := w.Count - len(w.Names); more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	var has []string
	for _, p := range w.Has {
		if p.Name == w.Port.Name {
			return fmt.Sprintf("%s %s: not at %s: their EndpointSlices have it with protocol %s", portText(&w.Port), w.Family, names, p.Protocol)
		}
		has = append(has, fmt.Sprintf("%s/%s", nameOf(p.Name), p.Protocol))
	}
	if has == nil {
		has = []string{"none"}
	}
	if more := len(has) - maxNamed; more > 0 {
		has = append(has[:maxNamed], fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%s %s: not at %s: their EndpointSlices do not have the port, but %s; a targetPort that is a name must be that of a container port of these Pods",
		portText(&w.Port), w.Family, names, strings.Join(has, ", "))
}

func portText(p *model.ServicePort) string {
	return fmt.Sprintf("%s %d/%s", nameOf(p.Name), p.Port, p.Protocol)
}

func nameOf(port string) string {
	if port == "" {
		return "(unnamed)"
	}
	return port
}

// maxLooked bounds the endpoints and ports of slices that withoutPort looks at.
const maxLooked = 200_000

// WithoutPort finds the endpoints of the Service that one of its ports does not reach, because no EndpointSlice has them with
// that port; at most maxExplained groups of them. It takes some milliseconds for a large Service; call it outside of the loop.
func (e *Explanation) WithoutPort() []WithoutPort { return withoutPort(e.Service, e.slices) }

func withoutPort(svc *model.Service, list []*model.EndpointSlice) (out []WithoutPort) {
	looked := 0
	for _, p := range svc.Ports {
		for _, family := range model.Families {
			var with, without []*model.EndpointSlice
			want := model.SlicePort{Name: p.Name, Protocol: p.Protocol}
			for _, s := range list {
				if looked += 1 + len(s.Ports); looked > maxLooked {
					return out
				}
				if s.Family != family || !svc.HasFamily(family) {
					continue
				}
				if slices.ContainsFunc(s.Ports, func(q model.SlicePort) bool { return q.Compare(want) == 0 && q.Port != 0 }) {
					with = append(with, s)
				} else if len(s.Endpoints) > 0 {
					without = append(without, s)
				}
			}
			if len(without) == 0 {
				continue
			}
			reached := map[netip.Addr]bool{}
			for _, s := range with {
				if looked += len(s.Endpoints); looked > maxLooked {
					return out
				}
				for i := range s.Endpoints {
					reached[s.Endpoints[i].Addr] = true
				}
			}
			first := len(out)
			for _, s := range without {
				if looked += len(s.Endpoints); looked > maxLooked {
					break
				}
				at := first + slices.IndexFunc(out[first:], func(w WithoutPort) bool { return slices.Equal(w.Has, s.Ports) })
				if at < first {
					if at = len(out); at == maxExplained {
						break
					}
					out = append(out, WithoutPort{Port: p, Family: family, Has: s.Ports})
				}
				out[at].add(s, reached)
			}
			out = slices.DeleteFunc(out, func(w WithoutPort) bool { return w.Count == 0 })
			if looked > maxLooked || len(out) == maxExplained {
				return out
			}
		}
	}
	return out
}

// add adds the endpoints of a slice, except those that another slice has with the port.
func (w *WithoutPort) add(s *model.EndpointSlice, reached map[netip.Addr]bool) {
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if reached[e.Addr] {
			continue
		}
		reached[e.Addr] = true // named once
		if w.Count++; len(w.Names) < maxNamed {
			name := e.Addr.String()
			if e.Pod != "" {
				name = "Pod " + e.Pod
			}
			w.Names = append(w.Names, name)
		}
	}
}

package planner

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/util/spelling"
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
	// NodeBindings are the bindings with Nodes that match the Service, up to the one that applies; none if the Service has chosen its policy.
	NodeBindings []policy.NodeBinding
	Guards       []GuardStatus          // of the policies that apply to it, or would
	Settings     policy.ServiceSettings // that the Service has set; InForce is the policy with them
	Err          error                  // of the policy's chain
	Decisions    []policy.PortDecision
	Seen         []PortSeen       // parallel to Decisions; nil: no policy
	Frontends    []*plan.Frontend // in the plan
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
	slices  []*model.EndpointSlice // of the Service
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
func (p *Planner) Explain(name model.Name) (*Explanation, error) {
	if !p.cluster.Synced {
		return nil, fmt.Errorf("Service %s: the cluster has not been read yet", name)
	}
	svc, s := p.cluster.Services[name], p.services[name]
	if svc == nil || s == nil {
		return nil, p.NotFound(name)
	}
	e := &Explanation{Service: svc, Node: p.settings.Node, Zone: p.nodeInfo.Zone, NodeWarnings: p.NodeWarnings(), Settings: s.settings, Err: s.err, LocalhostAddrs: p.LocalhostAddrs()}
	ports, choice := p.evaluator.Chosen(p.settings.Policies, svc, nil)
	e.Choice = choice
	for i, of := range ports[:min(len(ports), len(svc.Ports))] {
		e.Policy = cmp.Or(e.Policy, of)
		e.Ports = append(e.Ports, PortPolicy{svc.Ports[i], of, p.evaluator.Candidates(p.settings.Policies, svc, svc.Ports[i].Name)})
	}
	e.Revision = p.evaluator.Revision(e.Policy)
	if !chosen(svc, e.Policy, e.Choice) {
		e.NodeBindings = p.settings.Policies.NodeBindings(svc)
	}
	e.Shadow = s.summary.ServiceShadow(name)
	for _, g := range s.guards {
		e.Guards = append(e.Guards, g.status())
	}
	if slices.ContainsFunc(ports, p.evaluator.DeclaresPods) {
		state := p.cluster.PodsOf(name)
		e.Pods = &state
	}
	if s.decisions != nil {
		e.Decisions = s.decisions.unpack(p.cluster.Slices[name])
		for i := range e.Decisions {
			e.Seen = append(e.Seen, p.seen(svc, &e.Decisions[i]))
		}
	} else if e.Policy == nil { // decisions of the default rules are not cached: they follow from the cluster state
		e.Decisions = p.decideAll(svc)
	}
	e.Frontends = slices.SortedStableFunc(p.claims.Has(name), func(f, g *plan.Frontend) int {
		return cmp.Or(f.Owner.Compare(g.Owner), cmp.Compare(f.Key.Family(), g.Key.Family()), cmp.Compare(f.Kind, g.Kind))
	})
	e.Conflicts, e.Contested = p.claims.ConflictsOf(name, maxExplained)
	e.Omitted, e.DrainingSince = s.omitted, maps.Clone(s.draining)
	e.addTerminating()
	if p.settings.ExternalIPs == IgnoreExternalIPs {
		e.Ignored = svc.ExternalIPs
	}
	e.slices = slices.Clone(p.cluster.Slices[name])
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
func (p *Planner) decideAll(svc *model.Service) (out []policy.PortDecision) {
	r := p.begin(svc)
	svc = r.svc
	for i := range svc.Ports {
		for _, f := range model.Families {
			if svc.HasFamily(f) {
				port := eligibility.SelectEndpoints(svc, &svc.Ports[i], f, p.cluster.Slices[svc.Name], p.nodeInfo)
				out = append(out, p.decide(r, port, r.policies[i], time.Time{}))
			}
		}
	}
	return out
}

// PortSeen is what the plugins of a Service port's policy saw, by pool.
type PortSeen struct{ Cluster, Local []policy.Seen }

// seen returns what the plugins saw when they gave the answers of a decision.
func (p *Planner) seen(svc *model.Service, d *policy.PortDecision) (out PortSeen) {
	port := *d.Port
	port.Endpoints = slices.Clone(port.Endpoints)
	for i := range port.Endpoints {
		e := &port.Endpoints[i]
		e.HeldCluster, e.HeldLocal = isHeld(d.Cluster.Hold, i), isHeld(d.Local.Hold, i)
	}
	in := p.input(svc, &port)
	if port.UsesCluster {
		in.Pool = abi.PoolCluster
		out.Cluster = p.evaluator.Seen(&in)
	}
	if port.UsesLocal {
		in.Pool = abi.PoolLocal
		out.Local = p.evaluator.Seen(&in)
	}
	return out
}

func isHeld(h *policy.Hold, i int) bool { return h != nil && h.Until != nil && h.Until[i] != 0 }

// NotFound returns the error about a Service that the planner does not have, with those that are probably meant: of the same name in other
// namespaces, or else of a similar name.
func (p *Planner) NotFound(name model.Name) error {
	var others, siblings []string
	for _, n := range p.ServiceNames() {
		if n.Name == name.Name {
			others = append(others, n.String())
		} else if n.Namespace == name.Namespace {
			siblings = append(siblings, n.Name)
		}
	}
	hint := spelling.DidYouMean(name.Name, siblings)
	if len(others) > 0 {
		hint = "; there is " + strings.Join(others, ", ")
	}
	return fmt.Errorf("Service %s: not found (or headless, ExternalName, or for another proxy)%s", name, hint)
}

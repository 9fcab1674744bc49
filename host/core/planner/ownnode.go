package planner

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// rememberNode takes in this node's Node. What forwarding needs of it outlasts its deletion, and the time until it is complete
// after it was registered again: the machine, its Pods and connections are still there.
func (w *world) rememberNode(n *model.Node) {
	if n == nil {
		return
	}
	last := w.LastNode()
	kept := &model.Node{Name: n.Name, Zone: n.Zone, Labels: n.Labels, Addresses: n.Addresses, PodCIDRs: n.PodCIDRs}
	if last != nil && len(n.Addresses) == 0 {
		// A cloud's controller sets addresses and the zone of a new Node. Of others, a missing zone is a value.
		if kept.Addresses = last.Addresses; n.Zone == "" {
			kept.Zone = last.Zone
		}
	}
	if last != nil && len(n.PodCIDRs) == 0 {
		kept.PodCIDRs = last.PodCIDRs
	}
	w.evaluator.Node = kept
}

// LastNode returns what is in force of this node's Node, also while there is none: its name, zone, labels, addresses and
// podCIDRs. Nil: none has been known. It is read-only.
func (w *world) LastNode() *model.Node {
	if n := w.evaluator.Node; n != nil && n.Name == w.settings.Node {
		return n
	}
	return nil // a checkpoint may be of another node
}

const staysInForce = "what was last known stays in force: "

// nodeWarning is what this node's Node lacks.
type nodeWarning struct {
	text string
	kept bool // what was last known stays in force
}

// ownNode returns this node's Node, with its addresses completed by the settings, and warnings about what it lacks.
func (w *world) ownNode() (*model.Node, []nodeWarning) {
	s := &w.settings
	own := &model.Node{Name: s.Node}
	known, last := w.cluster.Nodes[s.Node], w.LastNode()
	if last != nil {
		*own = *last
	}
	if s.BindAddress.IsValid() {
		own.Addresses = append([]netip.Addr{s.BindAddress}, own.Addresses...)
	}
	var warn []nodeWarning
	say := func(what, consequence string, kept bool) {
		warn = append(warn, nodeWarning{"Node " + s.Node + ": " + what + ": " + consequence, kept})
	}
	if known != nil && last != nil && len(known.Addresses) == 0 && len(last.Addresses) > 0 {
		say("no address", staysInForce+lastKnown(&model.Node{Addresses: last.Addresses, Zone: last.Zone}), true)
	}
	if s.PodsOfNode && known != nil && last != nil && len(known.PodCIDRs) == 0 && len(last.PodCIDRs) > 0 {
		say("no spec.podCIDRs", staysInForce+lastKnown(&model.Node{PodCIDRs: last.PodCIDRs}), true)
	}
	lacks := []string{}
	if known == nil && last != nil {
		lacks = append(lacks, staysInForce+lastKnown(last))
	}
	for _, l := range []struct {
		missing           bool
		what, consequence string
	}{
		{s.PodsOfNode && len(own.PodCIDRs) == 0, "no spec.podCIDRs", "no source counts as a Pod"},
		{(s.NodePortPrefixes == nil || s.NodePortPrimary) && len(own.Addresses) == 0, "no address", "NodePorts are not served: connections to them are refused"},
	} {
		switch {
		case !l.missing:
		case known == nil:
			lacks = append(lacks, l.consequence)
		default:
			say(l.what, l.consequence, false)
		}
	}
	if len(lacks) > 0 {
		if last == nil {
			lacks = append(lacks, "topology hints for zones and bindings by labels of the node do not apply")
		}
		say("not found", strings.Join(append(lacks, "/healthz answers 503"), "; "), last != nil)
	}
	return own, warn
}

func lastKnown(n *model.Node) string {
	var out []string
	if len(n.Addresses) > 0 {
		out = append(out, "addresses "+joined(n.Addresses))
	}
	if len(n.PodCIDRs) > 0 {
		out = append(out, "podCIDRs "+joined(plan.NormalizePrefixes(n.PodCIDRs)))
	}
	if n.Zone != "" {
		out = append(out, "zone "+n.Zone)
	}
	if len(n.Labels) > 0 {
		out = append(out, fmt.Sprintf("%d labels", len(n.Labels)))
	}
	return strings.Join(out, ", ")
}

func joined[T fmt.Stringer](list []T) string {
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].String()
	}
	return strings.Join(out, " ")
}

// Package subset implements the plugin subset: each node sends connections to a subset of the endpoints, so that an endpoint has
// connections from few nodes. Every endpoint is in as many subsets as any other, give or take one.
package subset

import (
	"slices"
	"strconv"

	"github.com/sluice-proxy/sluice/sdk"
)

// plugin has no state except its settings: a decision follows from the request alone.
type plugin struct {
	settings settings

	ring  []uint64            // endpoints with weight: hash<<32 | index in the request; reused between requests
	texts map[position]string // of reasons
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{settings: defaults(), texts: map[position]string{}} }

// Needs implements sdk.Needer: the position of the node.
func (*plugin) Needs() sdk.Need { return sdk.NeedNodes }

// Decide takes the weight of the endpoints that are not in the subset of this node. It follows Twitter's "Deterministic Aperture":
// endpoints are on a ring in an order that is the same on every node, the nodes are at equal distances on it, and each takes the
// endpoints that follow. So any run of n ÷ m endpoints has one node, and each endpoint is in ⌊m·k/n⌋ or ⌈m·k/n⌉ subsets.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	if req.Pool() == sdk.PoolLocal { // endpoints of this node are in no other node's pool
		return nil
	}
	p.ring = p.ring[:0]
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Weight() > 0 {
			p.ring = append(p.ring, uint64(e.Addr().Hash())<<32|uint64(i))
		}
	}
	n := len(p.ring)
	index, nodes, known := req.NodeIndex()
	if !known {
		p.setReasons(resp, "all endpoints: the position of the node is unknown")
		return nil
	}
	k := size(int(p.settings.Endpoints), n, nodes)
	if k >= n {
		p.setReasons(resp, "all "+strconv.Itoa(n)+" endpoints")
		return nil
	}
	// Sorted by hash, so that endpoints of a node or a zone, whose addresses are close, are in different subsets.
	slices.Sort(p.ring)
	start := place(index, n, nodes)
	in := resp.AddReason(p.subsetReason(position{int32(k), int32(n), int32(index), int32(nodes)}))
	out := resp.AddReason("not in the subset of this node")
	for at, x := range p.ring {
		i := int(uint32(x))
		if (at-start+n)%n < k {
			resp.SetReasonID(i, in)
			continue
		}
		resp.SetWeight(i, 0)
		resp.SetReasonID(i, out)
	}
	return nil
}

// setReasons sets the same reason for all endpoints with weight.
func (p *plugin) setReasons(resp *sdk.Response, text string) {
	reason := resp.AddReason(text)
	for _, x := range p.ring {
		resp.SetReasonID(int(uint32(x)), reason)
	}
}

// position is what the reason of a subset says: k of n endpoints, for a node.
type position struct{ k, n, index, nodes int32 }

// maxTexts bounds the texts that are kept: building one costs as much as the rest of a decision.
const maxTexts = 1024

func (p *plugin) subsetReason(at position) string {
	text, ok := p.texts[at]
	if !ok {
		if len(p.texts) >= maxTexts {
			clear(p.texts)
		}
		text = strconv.Itoa(int(at.k)) + " of " + strconv.Itoa(int(at.n)) + " endpoints, node " + strconv.Itoa(int(at.index)+1) + " of " + strconv.Itoa(int(at.nodes))
		p.texts[at] = text
	}
	return text
}

// size returns the size of a subset of n endpoints: k, or more if every endpoint would otherwise not be in some subset.
func size(k, n, nodes int) int { return min(n, max(k, 1+(n-1)/nodes)) }

// place returns the place of a node on a ring of n endpoints. A node that is not ready can have an index of nodes, which is the place
// of the first one.
func place(index, n, nodes int) int {
	return int(uint64(index) * uint64(n) / uint64(nodes) % uint64(n))
}

// Package subset implements the plugin subset: each node sends connections to a subset of the endpoints, so that an endpoint has
// connections from few nodes. Every endpoint is in as many subsets as any other, give or take one.
package subset

import (
	"slices"
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin has no state except its settings: a decision follows from the request alone.
type plugin struct {
	settings settings

	ring    []uint64            // endpoints that get connections: class<<52 | hash<<20 | index in the request; reused between requests
	several bool                // classes
	fair    []uint64            // what endpoints get of the connections, if there are several classes
	shares  []int               // of an endpoint of each zone and group; -1: there is none
	zoned   []bool              // by group
	classes []class             // of the ring, in order
	texts   map[position]string // of reasons
}

// class is a part of the ring with a subset of its own: the endpoints of a group, or those of a zone in a group of which previous
// plugins treat zones differently.
type class struct {
	end    int     // of its part of the ring
	size   int     // of the subset
	start  int     // place of the first endpoint, in the class
	factor float64 // of shares: how much the subset gets more than without subsets
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{settings: defaults(), texts: map[position]string{}} }

// Needs implements sdk.Needer: the position of the node.
func (*plugin) Needs() sdk.Need { return sdk.NeedNodes }

// Decide takes the share of the endpoints that are not in the subset of this node. It follows Twitter's "Deterministic Aperture":
// endpoints are on a ring in an order that is the same on every node, the nodes are at equal distances on it, and each takes the
// endpoints that follow. So any run of n ÷ m endpoints has one node, and each endpoint is in ⌊m·k/n⌋ or ⌈m·k/n⌉ subsets.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	if req.Pool() == sdk.PoolLocal { // endpoints of this node are in no other node's pool
		return nil
	}
	p.sort(req)
	index, nodes, known := req.NodeIndex()
	if !known {
		p.setReasons(resp, "all endpoints: the position of the node is unknown")
		return nil
	}
	if size(int(p.settings.Endpoints), len(p.ring), nodes) >= len(p.ring) {
		p.setReasons(resp, "all "+strconv.Itoa(len(p.ring))+" endpoints")
		return nil
	}
	p.divide(index, nodes)
	p.apply(req, resp, index, nodes)
	return nil
}

const (
	indexBits = 20
	classAt   = 52
	maxClass  = 1<<(64-classAt) - 1
)

func indexOf(x uint64) int { return int(x & (1<<indexBits - 1)) }

// sort puts the endpoints on the ring, by class and then by hash, so that endpoints of a node, whose addresses are close, are in
// different subsets.
func (p *plugin) sort(req *sdk.Request) {
	zones := req.NumZones() + 1
	p.shares, p.zoned = p.shares[:0], p.zoned[:0]
	for range req.NumGroups() * zones {
		p.shares = append(p.shares, -1)
	}
	for range req.NumGroups() {
		p.zoned = append(p.zoned, false)
	}
	for i := range req.NumEndpoints() {
		if e := req.Endpoint(i); e.Capacity() > 0 {
			p.shares[e.Group()*zones+e.ZoneIndex()+1] = e.Share()
		}
	}
	p.several = len(p.zoned) > 1
	for g := range p.zoned {
		one := -1
		for _, share := range p.shares[g*zones:][:zones] {
			p.zoned[g] = p.zoned[g] || share >= 0 && one >= 0 && share != one
			one = max(one, share)
		}
		p.several = p.several || p.zoned[g]
	}
	p.ring = p.ring[:0]
	for i := range min(req.NumEndpoints(), 1<<indexBits) {
		e := req.Endpoint(i)
		if e.Load() == 0 {
			continue
		}
		x := uint64(e.Addr().Hash())<<indexBits | uint64(i)
		if p.several {
			at := e.Group() * zones
			if p.zoned[e.Group()] {
				at += e.ZoneIndex() + 1
			}
			x |= uint64(min(at, maxClass)) << classAt
		}
		p.ring = append(p.ring, x)
	}
	slices.Sort(p.ring)
	if p.several {
		p.fair = weights.Fair(p.fair, req)
	}
}

// divide finds the classes, and their parts of the subset: by what they get of the connections, so that each connection has as
// many endpoints to go to.
func (p *plugin) divide(index, nodes int) {
	p.classes = p.classes[:0]
	if n := len(p.ring); !p.several {
		p.classes = append(p.classes, class{end: n, size: size(int(p.settings.Endpoints), n, nodes), start: place(index, n, nodes)})
		return
	}
	for begin := 0; begin < len(p.ring); {
		c, all := class{end: begin}, uint64(0)
		for ; c.end < len(p.ring) && p.ring[c.end]>>classAt == p.ring[begin]>>classAt; c.end++ {
			all += p.fair[indexOf(p.ring[c.end])]
		}
		n := c.end - begin
		c.size = size(int((uint64(p.settings.Endpoints)*all+weights.Whole/2)/weights.Whole), n, nodes)
		c.start = place(index, n, nodes)
		kept := uint64(0)
		for at := range c.size {
			kept += p.fair[indexOf(p.ring[begin+(c.start+at)%n])]
		}
		if c.factor = 1; kept > 0 { // a group can have no part of the connections
			c.factor = float64(all) / float64(kept)
		}
		p.classes, begin = append(p.classes, c), c.end
	}
}

// apply sets shares and reasons. All endpoints of a class together get what they got before.
func (p *plugin) apply(req *sdk.Request, resp *sdk.Response, index, nodes int) {
	out, top := resp.AddReason("not in the subset of this node"), 0.0
	for _, c := range p.classes {
		top = max(top, c.factor)
	}
	begin := 0
	for _, c := range p.classes {
		n := c.end - begin
		in := resp.AddReason(p.subsetReason(position{int32(c.size), int32(n), int32(index), int32(nodes)}))
		for at := range n {
			i, turn := indexOf(p.ring[begin+at]), at-c.start
			if turn < 0 {
				turn += n
			}
			if turn >= c.size {
				resp.SetShare(i, 0)
				resp.SetReasonID(i, out)
				continue
			}
			if p.several {
				resp.SetShare(i, max(1, int(float64(req.Endpoint(i).Share())*c.factor/top)))
			}
			resp.SetReasonID(i, in)
		}
		begin = c.end
	}
}

// setReasons sets the same reason for all endpoints on the ring.
func (p *plugin) setReasons(resp *sdk.Response, text string) {
	reason := resp.AddReason(text)
	for _, x := range p.ring {
		resp.SetReasonID(indexOf(x), reason)
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

// place returns the place of a node on a ring of n endpoints. A node that is not ready can have an index of nodes, which is the
// place of the first one.
func place(index, n, nodes int) int {
	return int(uint64(index) * uint64(n) / uint64(nodes) % uint64(n))
}

package simulation

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// nodeState is a Node.
type nodeState struct {
	node     *model.Node
	lost     bool // it has no network
	detected bool // the control plane knows
	times    int  // how often it has been lost
	pods     []*pod
}

// pod is the Pod of endpoints, or an address that has none. What is not part of a statement does not change.
type pod struct {
	name     model.Name // its address instead of a name, if it has none
	node     *nodeState // nil: unknown
	addrs    []netip.Addr
	slices   []model.Name // that have one of the addresses
	services []model.Name // of the slices
	phase    phase
	ready    bool // by its own
	serving  bool
	evicted  bool // while its Node is lost
	down     bool // flaps
	answer   answer
	// Whether endpoints have hints for their zone and Node.
	hintZones, hintNodes bool
}

type phase uint8

const (
	running phase = iota
	starting
	terminating
	gone
)

func newTimeline(w *world, file *scenario.File, seed int64) *timeline {
	t := &timeline{
		file: file, cluster: w.cluster, world: w, random: rand.New(rand.NewPCG(uint64(seed), 0x51)),
		nodes: map[string]*nodeState{}, byZone: map[string][]*nodeState{}, pods: map[model.Name]*pod{}, podAt: map[netip.Addr]*pod{},
		services: map[model.Name][]*pod{}, slices: map[model.Name]*model.EndpointSlice{}, own: map[model.Name]bool{}, madeIn: map[string]int{}, touched: map[model.Name]bool{},
		addrs: [2]netip.Addr{netip.MustParseAddr("198.18.0.0"), netip.MustParseAddr("2001:db8:5::")},
	}
	t.clock.Settle = t.commit
	for _, name := range sortedKeys(w.cluster.Nodes) {
		n := &nodeState{node: w.cluster.Nodes[name]}
		t.nodes[name] = n
		t.byZone[n.node.Zone] = append(t.byZone[n.node.Zone], n)
	}
	for _, zone := range sortedKeys(t.byZone) {
		nodes := t.byZone[zone]
		t.random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	}
	for _, name := range slices.SortedFunc(maps.Keys(w.cluster.Slices), model.Name.Compare) {
		for _, s := range w.cluster.Slices[name] {
			for i := range s.Endpoints {
				t.addEndpoint(s, &s.Endpoints[i])
			}
		}
	}
	return t
}

// addEndpoint adds an endpoint to its Pod.
func (t *timeline) addEndpoint(s *model.EndpointSlice, e *model.SliceEndpoint) {
	name := model.Name{Namespace: s.Name.Namespace, Name: e.Pod}
	p := t.podAt[e.Addr]
	if p == nil && e.Pod != "" {
		p = t.pods[name]
	}
	if p == nil {
		if e.Pod == "" {
			name.Name = e.Addr.String()
		}
		p = &pod{name: name, node: t.nodes[e.Node], ready: e.Ready, serving: e.Serving}
		if e.Terminating {
			p.phase = terminating
		}
		if p.node != nil {
			p.node.pods = append(p.node.pods, p)
		}
		t.pods[name] = p
	}
	p.hintZones, p.hintNodes = p.hintZones || len(e.ForZones()) > 0, p.hintNodes || len(e.ForNodes()) > 0
	t.link(p, s, e.Addr)
}

// link records that a slice has an address of a Pod.
func (t *timeline) link(p *pod, s *model.EndpointSlice, a netip.Addr) {
	t.podAt[a] = p
	if !slices.Contains(p.addrs, a) {
		p.addrs = append(p.addrs, a)
	}
	if !slices.Contains(p.slices, s.Name) {
		p.slices = append(p.slices, s.Name)
	}
	if !slices.Contains(p.services, s.Service) {
		p.services = append(p.services, s.Service)
		t.services[s.Service] = append(t.services[s.Service], p)
	}
}

// slice returns the current value of a slice.
func (t *timeline) slice(name model.Name) *model.EndpointSlice {
	if s := t.slices[name]; s != nil {
		return s
	}
	return t.cluster.Slice(name)
}

// change returns a slice that may be changed until the time advances.
func (t *timeline) change(name model.Name) *model.EndpointSlice {
	s := t.slice(name)
	if !t.own[name] {
		c := *s
		c.Endpoints = slices.Clone(s.Endpoints)
		s = &c
		t.slices[name], t.own[name] = s, true
		if t.copied += len(s.Endpoints); t.copied > maxCopied {
			t.err = fmt.Errorf("the endpoints of changed EndpointSlices are more than %d, at %s", maxCopied, t.clock.Now())
		}
	}
	t.touched[s.Service] = true
	return s
}

// conditions returns the conditions of the endpoints of a Pod.
func (p *pod) conditions() (ready, serving, isTerminating bool) {
	up := !p.down && (p.node == nil || !p.node.detected)
	switch p.phase {
	case starting:
		return false, false, false
	case terminating:
		return false, p.serving && up, true
	}
	return p.ready && up, p.serving && up, false
}

// update writes what has changed about a Pod to its slices and answers.
func (t *timeline) update(p *pod) {
	ready, serving, isTerminating := p.conditions()
	for _, name := range p.slices {
		s := t.slice(name)
		for i := 0; i < len(s.Endpoints); i++ {
			e := &s.Endpoints[i]
			switch {
			case !slices.Contains(p.addrs, e.Addr):
			case p.phase == gone:
				s = t.change(name)
				s.Endpoints = slices.Delete(s.Endpoints, i, i+1)
				i--
			case e.Ready != ready || e.Serving != serving || e.Terminating != isTerminating:
				s = t.change(name)
				e = &s.Endpoints[i]
				e.Ready, e.Serving, e.Terminating = ready, serving, isTerminating
			}
		}
	}
	now := p.answer
	if p.node != nil && p.node.lost {
		now.kind = scenario.Silent
	}
	now.at = t.clock.Now()
	for _, a := range p.addrs {
		if last := t.world.answerAt(a, t.clock.Now()); last.kind != now.kind || last.delay != now.delay {
			t.world.answers[a] = append(t.world.answers[a], now)
		}
	}
}

// terminate deletes a Pod; its endpoints disappear after its grace period.
func (t *timeline) terminate(p *pod, grace time.Duration) {
	p.phase = terminating
	t.update(p)
	t.after(grace, func() {
		if p.phase == terminating {
			p.phase = gone
			t.update(p)
		}
	})
}

// placed returns the Pods of a Service that are not deleted.
func (t *timeline) placed(name model.Name) (out []*pod) {
	for _, p := range t.services[name] {
		if p.phase == running || p.phase == starting {
			out = append(out, p)
		}
	}
	return out
}

// place returns the Node for a new Pod of a Service: in the zone with the fewest of its Pods, and then the fewest new Pods, the
// Nodes take turns; one that has none of its Pods is preferred. Nil: there is none.
func (t *timeline) place(name model.Name) *nodeState {
	byZone, has := map[string]int{}, map[*nodeState]bool{}
	for _, p := range t.placed(name) {
		if p.node != nil {
			byZone[p.node.node.Zone]++
			has[p.node] = true
		}
	}
	usable := func(n *nodeState) bool { return !n.lost && n.node.Ready && !n.node.Leaving }
	var best string
	found := false
	for _, zone := range sortedKeys(t.byZone) {
		fewer := cmp.Or(cmp.Compare(byZone[zone], byZone[best]), cmp.Compare(t.madeIn[zone], t.madeIn[best])) < 0
		if slices.ContainsFunc(t.byZone[zone], usable) && (!found || fewer) {
			best, found = zone, true
		}
	}
	if !found {
		return nil
	}
	nodes := t.byZone[best]
	i := slices.IndexFunc(nodes, func(n *nodeState) bool { return usable(n) && !has[n] })
	if i < 0 {
		i = slices.IndexFunc(nodes, usable)
	}
	n := nodes[i]
	t.madeIn[best]++
	copy(nodes[i:], nodes[i+1:])
	nodes[len(nodes)-1] = n
	return n
}

// create creates a Pod like another one, which becomes ready after startup; then onReady is called.
func (t *timeline) create(service model.Name, like *pod, startup time.Duration, onReady func()) *pod {
	if t.made++; t.made > maxNewPods {
		t.err = fmt.Errorf("more than %d new Pods, at %s", maxNewPods, t.clock.Now())
	}
	p := &pod{
		name: model.Name{Namespace: service.Namespace, Name: fmt.Sprintf("%s-new-%d", service.Name, t.made)},
		node: t.place(service), phase: starting, ready: true, serving: true, hintZones: like.hintZones, hintNodes: like.hintNodes,
	}
	if p.node == nil { // it stays Pending, without an address
		return p
	}
	p.node.pods = append(p.node.pods, p)
	t.pods[p.name] = p
	e := model.SliceEndpoint{Node: p.node.node.Name, Zone: p.node.node.Zone, Pod: p.name.Name, Hints: p.hints()}
	families, done := map[model.Family]netip.Addr{}, map[string]bool{}
	for _, name := range like.slices {
		old := t.slice(name)
		if key := old.Service.String() + old.Family.String(); done[key] {
			continue
		} else {
			done[key] = true
		}
		if !families[old.Family].IsValid() {
			families[old.Family] = t.newAddr(old.Family)
		}
		s := t.change(name)
		e.Addr = families[old.Family]
		s.Endpoints = append(s.Endpoints, e)
		t.link(p, s, e.Addr)
	}
	object := model.Pod{Name: p.name}
	if o := t.world.pods[like.name]; o != nil {
		object = *o
		object.Name = p.name
	}
	if !t.ownPods {
		t.ownPods, t.world.pods = true, maps.Clone(t.world.pods)
	}
	t.world.pods[p.name] = &object
	t.after(startup, func() {
		if p.phase == starting {
			p.phase = running
			object.ReadySince = t.world.start.Add(t.clock.Now()).UnixMilli()
			t.update(p)
			if onReady != nil {
				onReady()
			}
		}
	})
	return p
}

// hints returns the hints of the endpoints of a new Pod: its own zone and Node, as with trafficDistribution.
func (p *pod) hints() *model.Hints {
	if !p.hintZones && !p.hintNodes {
		return nil
	}
	h := &model.Hints{}
	if p.hintZones {
		h.Zones = []string{p.node.node.Zone}
	}
	if p.hintNodes {
		h.Nodes = []string{p.node.node.Name}
	}
	return h
}

// newAddr returns an address that no endpoint has, in the ranges for benchmarks (RFC 2544) and documentation (RFC 3849).
func (t *timeline) newAddr(f model.Family) netip.Addr {
	i := 0
	if f == model.IPv6 {
		i = 1
	}
	for t.addrs[i] = t.addrs[i].Next(); t.podAt[t.addrs[i]] != nil; {
		t.addrs[i] = t.addrs[i].Next()
	}
	return t.addrs[i]
}

package sdktest

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/scenario/scenariotest"
)

// endpoint is an endpoint of a pool by the Service rules.
type endpoint struct {
	index      int // in Cluster.Endpoints
	addr       netip.AddrPort
	conditions uint32
	isDefault  bool // the default rules choose it
}

func usesCluster(c *scenariotest.Cluster) bool {
	return !c.Service.InternalLocal || c.Service.ExternalLocal
}

func usesLocal(c *scenariotest.Cluster) bool {
	return c.Service.InternalLocal || c.Service.ExternalLocal
}

// endpoints applies the Service rules: ready endpoints, in the cluster pool those whose topology hints are for this node if all
// have hints and one of them matches; without ready endpoints, terminating ones that still serve. They are sorted by address.
func endpoints(c *scenariotest.Cluster, id uint8) (eps []endpoint) {
	own := &c.Nodes[0]
	local := id == abi.PoolLocal
	ready, hintedTo := 0, map[uint32]int{} // of all endpoints that are ready: how many have hints, by kind
	matches := map[uint32]bool{}           // one of the hints of a kind is for this node
	poolReady := false
	hints := func(e *scenariotest.Endpoint, kind uint32) (some, here bool) {
		if kind == abi.HintedNode {
			return len(e.NodeHints) > 0, slices.Contains(e.NodeHints, own.Name)
		}
		return len(e.ZoneHints) > 0, own.Zone != "" && slices.Contains(e.ZoneHints, own.Zone)
	}
	kinds := []uint32{abi.HintedNode, abi.HintedZone} // the first one takes precedence
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		if !e.Ready {
			continue
		}
		ready++
		poolReady = poolReady || !local || e.Node == own.Name
		for _, kind := range kinds {
			if some, here := hints(e, kind); some {
				hintedTo[kind]++
				matches[kind] = matches[kind] || here
			}
		}
	}
	follow := uint32(0)
	for _, kind := range kinds {
		if follow == 0 && ready > 0 && hintedTo[kind] == ready && matches[kind] {
			follow = kind
		}
	}
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		isLocal := e.Node == own.Name
		if local && !isLocal {
			continue
		}
		out := endpoint{index: i, addr: e.Addr}
		set := func(is bool, bit uint32) {
			if is {
				out.conditions |= bit
			}
		}
		set(e.Ready, abi.Ready)
		set(e.Serving, abi.Serving)
		set(e.Terminating, abi.Terminating)
		set(isLocal, abi.Local)
		set(e.Ready || e.Serving && e.Terminating, abi.Eligible)
		for _, kind := range kinds {
			_, here := hints(e, kind)
			set(here, kind)
		}
		out.isDefault = e.Ready && (local || follow == 0 || out.conditions&follow != 0) || !poolReady && e.Serving && e.Terminating
		set(out.isDefault || c.IgnoreHints && !local && e.Ready, abi.Chosen)
		eps = append(eps, out)
	}
	slices.SortFunc(eps, func(a, b endpoint) int { return a.addr.Compare(b.addr) })
	return eps
}

// request returns the request for a pool, without state and generation. It has the inputs only that the plugin needs.
func (e *engine) request(p *pool, c *scenariotest.Cluster, eps []endpoint, id uint8, now time.Time) *abi.Request {
	svc, own, needs := &c.Service, &c.Nodes[0], e.plugin.Needs()
	req := &abi.Request{
		Now: now.Unix() * 1000, Namespace: svc.Namespace, Service: svc.Name, Port: svc.Port, PortNumber: svc.Number, Protocol: svc.Protocol,
		Family: svc.Family, Pool: id, InternalPolicyLocal: svc.InternalLocal, ExternalPolicyLocal: svc.ExternalLocal,
		SessionAffinityMS: svc.Affinity.Milliseconds(), Node: own.Name, NodeIndex: abi.NoIndex, Zone: own.Zone, Zones: zones(c, needs),
		ConnectionsAgeMS: abi.NoAge, Keys: e.plugin.Keys(),
	}
	for _, n := range c.Nodes {
		if n.Ready && needs&abi.NeedNodes != 0 {
			req.NodeCount++
		}
	}
	if req.NodeCount > 0 {
		req.NodeIndex = 0
		for _, n := range c.Nodes {
			if n.Ready && n.Name < own.Name {
				req.NodeIndex++
			}
		}
	}
	for _, k := range req.Keys {
		if !abi.IsEndpointKey(k) {
			req.ServiceValues = append(req.ServiceValues, valueOf(k, svc.Labels, svc.Annotations, svc.NamespaceLabels, nil, 0))
		}
	}
	for i := range eps {
		from := &c.Endpoints[eps[i].index]
		out := abi.Endpoint{
			Addr: from.Addr, Conditions: eps[i].conditions, Node: from.Node, Zone: from.Zone,
			PriorWeight: abi.NoWeight, ReadySince: p.since[from.Addr].ready, TerminatingSince: p.since[from.Addr].terminating,
			Connections: abi.ConnectionsUnknown,
		}
		if r, ok := p.good[from.Addr]; ok {
			out.PriorWeight = int32(r.weight)
		}
		if needs&abi.NeedPodNames != 0 {
			out.Pod = from.Name
		}
		if needs&abi.NeedConnections != 0 && !c.CountedAt.IsZero() {
			out.Connections = from.Connections
			req.ConnectionsAgeMS = uint32(now.Sub(c.CountedAt).Milliseconds())
		}
		for _, k := range req.Keys {
			if abi.IsEndpointKey(k) {
				out.Values = append(out.Values, valueOf(k, from.Labels, from.Annotations, nodeLabels(c, from.Node), from.Load, from.MilliCPU))
			}
		}
		req.Endpoints = append(req.Endpoints, out)
	}
	req.Begin()
	if needs&abi.NeedOutcomes != 0 {
		e.watch.add(req)
	}
	return req
}

// zones returns the zone of this node, or those of all Nodes if they are needed, and the zones of endpoints.
func zones(c *scenariotest.Cluster, needs uint32) (all []abi.Zone) {
	row := func(name string) *abi.Zone {
		i, ok := slices.BinarySearchFunc(all, name, func(z abi.Zone, name string) int { return strings.Compare(z.Name, name) })
		if !ok {
			all = slices.Insert(all, i, abi.Zone{Name: name})
		}
		return &all[i]
	}
	for i, n := range c.Nodes {
		switch {
		case n.Zone == "":
		case needs&abi.NeedNodes != 0:
			z := row(n.Zone)
			z.Nodes++
			z.MilliCPU += n.MilliCPU
		case i == 0:
			row(n.Zone)
		}
	}
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		if e.Zone == "" {
			continue
		}
		z := row(e.Zone)
		z.Total++
		if e.Ready {
			z.Ready++
		}
		if e.Serving {
			z.Serving++
		}
	}
	return all
}

// nodeLabels returns the labels of a Node, nil if there is none with that name.
func nodeLabels(c *scenariotest.Cluster, name string) map[string]string {
	for i := range c.Nodes {
		if c.Nodes[i].Name == name {
			return c.Nodes[i].Labels
		}
	}
	return nil
}

// valueOf returns the value of a declared key of an object with labels and annotations, of its Node or namespace, which has
// others, or of the load that it reports.
func valueOf(declared string, labels, annotations, others, load map[string]string, milliCPU int64) abi.Value {
	kind, name, _ := abi.KeyKind(declared)
	text, ok := labels[name]
	switch kind {
	case abi.KeyPodCPU:
		text, ok = strconv.FormatInt(milliCPU, 10), milliCPU > 0
	case abi.KeyPodAnnotation, abi.KeyServiceAnnotation:
		text, ok = annotations[name]
	case abi.KeyNodeLabel, abi.KeyNamespaceLabel:
		text, ok = others[name]
	case abi.KeyLoad:
		text, ok = load[name]
	}
	return abi.Value{Text: cmp.Or(text, ""), Present: ok}
}

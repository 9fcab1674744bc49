package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// size is the number of Services and the total number of endpoints. If it does not divide evenly, as many Services as
// possible have the same number of endpoints and the last few share the rest.
type size struct{ services, endpoints int }

// parseSize parses 1000x10 (Services × endpoints of each) or 5006:250011 (Services : total endpoints).
func parseSize(text string) (s size, err error) {
	a, b, each := strings.Cut(text, "x")
	if !each {
		a, b, _ = strings.Cut(text, ":")
	}
	if s.services, err = strconv.Atoi(a); err == nil {
		s.endpoints, err = strconv.Atoi(b)
	}
	if err != nil || s.services < 1 || s.endpoints < 1 {
		return s, fmt.Errorf("size %q: not like 1000x10 or 5006:250011", text)
	}
	if each {
		s.endpoints *= s.services
	}
	return s, nil
}

func (s size) String() string {
	if s.endpoints%s.services == 0 {
		return fmt.Sprintf("%dx%d", s.services, s.endpoints/s.services)
	}
	return fmt.Sprintf("%d:%d", s.services, s.endpoints)
}

// endpointsOf returns the number of endpoints of Service i.
func (s size) endpointsOf(i int) int {
	per := (s.endpoints + s.services - 1) / s.services
	if per == 1 {
		return 1
	}
	full := (s.endpoints - s.services) / (per - 1) // the others have at least one
	if i < full {
		return per
	}
	rest, among := s.endpoints-full*per, s.services-full
	n := rest / among
	if i-full < rest%among {
		n++
	}
	return n
}

// serviceName returns the name of Service i. Service 0, whose updates are measured beside others, has a namespace of its own.
func serviceName(i int) model.Name {
	n := model.Name{Namespace: "bench", Name: "svc-" + strconv.Itoa(i)}
	if i == 0 {
		n.Namespace = "probe"
	}
	return n
}

// service returns a Service with one TCP port and one label.
func service(i int) model.Change {
	n := serviceName(i)
	return model.Change{Kind: model.ServiceKind, Name: n, Service: &model.Service{
		Name: n, Labels: map[string]string{"app": n.Name},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(96 + i>>16), byte(i >> 8), byte(i)})},
		Ports:      []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
	}}
}

// perSlice is the EndpointSlice controller's default maximum.
const perSlice = 100

const nodes, zones = 30, 3

// names are shared by all endpoints, as a source interns them.
var names = func() (t struct {
	node, zone []string
	hints      []*model.Hints
}) {
	for j := range nodes {
		t.node = append(t.node, fmt.Sprint("node-", j))
	}
	for j := range zones {
		t.zone = append(t.zone, fmt.Sprint("zone-", j))
		t.hints = append(t.hints, &model.Hints{Zones: []string{t.zone[j]}})
	}
	return t
}()

func nodeName(j int) string { return names.node[j%nodes] }
func zoneName(j int) string { return names.zone[j%zones] }

// clusterState is the emitted state of the cluster, from which updates are derived.
type clusterState struct {
	size
	hints   bool // each endpoint has a hint for its own zone, except those of Service 0
	rng     *rand.Rand
	last    int                           // number of the last Pod
	updated map[int][]model.SliceEndpoint // endpoints of Services that have been updated
}

func newClusterState(s size) *clusterState {
	return &clusterState{size: s, rng: rand.New(rand.NewPCG(1, 2)), updated: map[int][]model.SliceEndpoint{}, last: s.endpoints}
}

// endpoint returns Pod number id of Service i.
func (w *clusterState) endpoint(i, id int) model.SliceEndpoint {
	e := model.SliceEndpoint{
		Addr: netip.AddrFrom4([4]byte{byte(11 + id>>24), byte(id >> 16), byte(id >> 8), byte(id)}),
		Node: nodeName(id), Zone: zoneName(id), Ready: true, Serving: true,
		Pod: fmt.Sprintf("svc-%d-6d4b75cb6d-%05x", i, id),
	}
	if w.hints && i > 0 {
		e.Hints = names.hints[id%zones]
	}
	return e
}

// endpointsOfService returns the present endpoints of Service i.
func (w *clusterState) endpointsOfService(i int) []model.SliceEndpoint {
	if list, ok := w.updated[i]; ok {
		return list
	}
	list := make([]model.SliceEndpoint, w.endpointsOf(i))
	per := (w.size.endpoints + w.services - 1) / w.services
	for j := range list {
		list[j] = w.endpoint(i, i*per+j)
	}
	return list
}

// slicesOf returns the slices of Service i with a list of endpoints.
func slicesOf(i int, list []model.SliceEndpoint) (out []model.Change) {
	for n := 0; n == 0 || n*perSlice < len(list); n++ {
		out = append(out, slice(i, n, list[n*perSlice:min(len(list), (n+1)*perSlice)]))
	}
	return out
}

func slice(i, n int, list []model.SliceEndpoint) model.Change {
	name := model.Name{Namespace: serviceName(i).Namespace, Name: fmt.Sprintf("svc-%d-%05d", i, n)}
	return model.Change{Kind: model.SliceKind, Name: name, Slice: &model.EndpointSlice{
		Name: name, Service: serviceName(i), Family: model.IPv4,
		Ports:     []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
		Endpoints: list,
	}}
}

// Kinds of updates of an endpoint.
const (
	unready = iota
	readyAgain
	replaced
	added
	removed
	kindsOfChange
)

// change updates one endpoint in the first slice of Service i.
func (w *clusterState) change(i, kind int) model.Change {
	list := append([]model.SliceEndpoint(nil), w.endpointsOfService(i)...)
	at := 0
	if n := min(len(list), perSlice); n > 1 {
		at = w.rng.IntN(n)
	}
	fresh := func() model.SliceEndpoint { w.last++; return w.endpoint(i, w.last) }
	switch {
	case len(list) == 0 || kind == added && len(list) < perSlice:
		list = append(list, fresh())
	case kind == unready:
		list[at].Ready, list[at].Serving = false, false
	case kind == readyAgain:
		for j := range list {
			list[j].Ready, list[j].Serving = true, true
		}
	case kind == removed && len(list) > 1:
		list = append(list[:at], list[at+1:]...)
	default:
		list[at] = fresh()
	}
	w.updated[i] = list
	return slice(i, 0, list[:min(len(list), perSlice)])
}

// all returns the whole state, followed by Synced.
func (w *clusterState) all() []model.Change {
	out := make([]model.Change, 0, 2*w.services+nodes+1)
	for j := range nodes {
		out = append(out, node(j, zoneName(j)))
	}
	for i := range w.services {
		out = append(append(out, service(i)), slicesOf(i, w.endpointsOfService(i))...)
	}
	return append(out, model.Change{Kind: model.Synced})
}

func node(j int, zone string) model.Change {
	n := model.Name{Name: nodeName(j)}
	return model.Change{Kind: model.NodeKind, Name: n, Node: &model.Node{
		Name: n.Name, Zone: zone, MilliCPU: 8000, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(j + 1)})},
	}}
}

// channelSource is a source that emits the changes sent to it.
type channelSource chan []model.Change

// Run implements engine.Source.
func (f channelSource) Run(ctx context.Context, emit func([]model.Change)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-f:
			emit(c)
		}
	}
}

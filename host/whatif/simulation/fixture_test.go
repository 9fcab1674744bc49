package simulation

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/lab/testgen"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/plugins/canary/canary"
	"github.com/sluice-proxy/sluice/plugins/least-loaded/leastloaded"
	"github.com/sluice-proxy/sluice/plugins/lifecycle/lifecycle"
	"github.com/sluice-proxy/sluice/plugins/locality/locality"
	"github.com/sluice-proxy/sluice/plugins/maglev/maglev"
	"github.com/sluice-proxy/sluice/plugins/outlier/outlier"
	"github.com/sluice-proxy/sluice/plugins/rebalance/rebalance"
	"github.com/sluice-proxy/sluice/plugins/subset/subset"
	"github.com/sluice-proxy/sluice/sdk"
)

// native is a plugin in this process as a policy.Plugin.
type native struct{ *sdk.NativePlugin }

func (n native) Needs(string) uint32  { return n.NativePlugin.Needs() }
func (n native) Keys(string) []string { return n.NativePlugin.Keys() }
func (n native) Revision() string     { return n.NativePlugin.Revision() }

// byName gives shares by the name of the node. It is not a bundled plugin: those do so only to act at different times.
type byName struct{}

func (byName) Configure([]byte) error { return nil }

func (byName) Decide(req *sdk.Request, resp *sdk.Response) error {
	name := req.Text(req.Node())
	for i := range req.NumEndpoints() {
		resp.SetShare(i, (1+(int(name[len(name)-1])+i)%7)*sdk.One)
	}
	return nil
}

const (
	warm  = `{"duration": "10s", "steps": 4}`
	drain = `{"stages": [{"percent": 100, "duration": "3s"}, {"percent": 30, "duration": "3s"}]}`
)

// bundled are plugins with settings that act within seconds.
var bundled = map[string]struct {
	create   func() sdk.Plugin
	settings string
}{
	"canary":       {canary.New, `{"by": "label:track", "groups": [{"value": "canary", "percent": 5}]}`},
	"rebalance":    {rebalance.New, ``},
	"locality":     {locality.New, `{"minEndpointsPerZone": 1}`},
	"priority":     {locality.New, `{"mode": "priority", "by": "zone", "groups": [{"values": ["@local"]}, {"values": ["b"]}]}`},
	"lifecycle":    {lifecycle.New, `{"warm": ` + warm + `, "drain": ` + drain + `}`},
	"warm":         {lifecycle.New, `{"warm": ` + warm + `}`},
	"drain":        {lifecycle.New, `{"drain": ` + drain + `}`},
	"maglev":       {maglev.New, ``},
	"subset":       {subset.New, `{"endpoints": 2}`},
	"outlier":      {outlier.New, `{"window": "4s", "baseEjectionTime": "6s", "maxEjectionPercent": 60}`},
	"least-loaded": {leastloaded.New, `{"interval": "3s"}`},
	"by-name":      {func() sdk.Plugin { return byName{} }, ``},
}

// byInput are the plugins whose decisions do not depend on the node itself.
var byInput = []string{"locality", "priority", "lifecycle", "warm", "drain", "maglev"}

// newPlugins returns instances of the plugins for one evaluator.
func newPlugins() Plugins {
	loaded := map[string]policy.Plugin{}
	return func(name string) (policy.Plugin, error) {
		if p := loaded[name]; p != nil {
			return p, nil
		}
		b := bundled[name]
		if preset, plugin, ok := strings.Cut(name, "/"); ok {
			b = bundled[plugin]
			b.settings = settingsOfPreset(preset, plugin)
		}
		p, err := sdk.NewNativePlugin(b.create, []byte(b.settings))
		if err != nil {
			return nil, err
		}
		loaded[name] = native{p}
		return loaded[name], nil
	}
}

// settingsOfPreset returns the settings of a plugin of a preset.
func settingsOfPreset(preset, plugin string) string {
	for _, q := range config.Presets() {
		for _, s := range q.Plugins {
			if q.Name == preset && s.Name == plugin {
				return string(s.Settings)
			}
		}
	}
	return ""
}

// randomCluster returns a cluster with more Nodes than testgen makes, and endpoints that belong to one Service each.
func randomCluster(seed uint64) (*model.Snapshot, *testgen.Cluster) {
	c := testgen.NewCluster(seed, testgen.ClusterOptions{})
	random := rand.New(rand.NewPCG(seed, 1))
	snap, nodes := model.NewSnapshot(), 6+random.IntN(30)
	for i, change := range c.Changes {
		if s := change.Slice; s != nil {
			own := *s
			own.Endpoints = append([]model.SliceEndpoint{}, s.Endpoints...)
			for j := range own.Endpoints {
				e := &own.Endpoints[j]
				e.Addr = ownAddr(e.Addr, s.Service.Name[1:])
				if b := e.Addr.As16(); seed%3 == 0 {
					e.Node = fmt.Sprint("n", (int(b[14])*7+int(b[15])*5)%nodes)
				}
				if random.IntN(3) > 0 {
					e.Pod = "pod-" + e.Addr.String()
				}
			}
			change.Slice = &own
		}
		if n := change.Node; n != nil {
			own := *n
			own.Ready, own.MilliCPU = true, 1000*int64(1+i%3)
			own.Labels = map[string]string{"pool": fmt.Sprint(random.IntN(2))}
			change.Node = &own
		}
		snap.Apply(change)
	}
	for i := range nodes {
		n := &model.Node{
			Name: fmt.Sprintf("n%d", 3+i), Zone: []string{"a", "a", "a", "b", "b", ""}[random.IntN(6)], Ready: random.IntN(8) > 0,
			MilliCPU: 1000 * int64(1+random.IntN(4)/3), Labels: map[string]string{"pool": fmt.Sprint(random.IntN(4) / 3)},
		}
		snap.Apply(model.Change{Kind: model.NodeKind, Name: model.Name{Name: n.Name}, Node: n})
	}
	return snap, c
}

// ownAddr returns another address for each Service; addresses that may not be endpoints stay.
func ownAddr(a netip.Addr, service string) netip.Addr {
	b := a.As16()
	switch {
	case a.Is4() && (b[12] == 10 && b[13] == 244 || b[12] == 192):
		return netip.AddrFrom4([4]byte{10, 200 + service[0] - '0', b[14] + b[12], b[15]})
	case !a.Is4() && b[0] == 0xfd && b[5] != 0x96:
		b[6] = service[0]
		return netip.AddrFrom16(b)
	}
	return a
}

// randomPolicies returns policies with one or two plugins, bindings that select nodes, and panic holds.
func randomPolicies(random *rand.Rand, plugins []string) *policy.Set {
	set := &policy.Set{Policies: map[string]*policy.Policy{}}
	for i := range 1 + random.IntN(3) {
		p := &policy.Policy{Name: fmt.Sprint("p", i), OnFailure: policy.OnFailure(random.IntN(2)), IgnoreHints: random.IntN(2) == 0}
		for range 1 + random.IntN(2) {
			p.Steps = append(p.Steps, policy.Step{Plugin: plugins[random.IntN(len(plugins))]})
		}
		if policy.CheckOrder(p.Steps, newPlugins()) != nil {
			slices.Reverse(p.Steps)
		}
		if random.IntN(3) == 0 {
			p.Panic = policy.Panic{Below: 60, Hold: 8 * time.Second}
		}
		set.Policies[p.Name] = p
		b := policy.Binding{Policy: p.Name}
		switch random.IntN(4) {
		case 0:
			b.Nodes.Permille = 100 + 100*random.IntN(8)
		case 1:
			b.Nodes.Selector = policy.Selector{{Key: "pool", Op: policy.In, Values: []string{"1"}}}
		}
		set.Bindings = append(set.Bindings, b)
	}
	if random.IntN(2) == 0 {
		set.Default = "p0"
	}
	return set
}

var _ policy.Plugin = native{}

// addRoutes adds routes between the Services of a random cluster: cycles, Services that do not exist, weights of 0.
func addRoutes(random *rand.Rand, c *model.Snapshot) {
	for i := range 3 {
		name := model.ObjectName{Kind: model.TCPRouteKind, Name: model.Name{Namespace: "shop", Name: fmt.Sprint("r", i)}}
		if random.IntN(3) == 0 {
			name.Kind = model.UDPRouteKind
		}
		r := &model.Route{Name: name, Created: int64(random.IntN(2))}
		backends := []model.RouteBackend{{Service: "none", Port: 80}}
		for _, svc := range slices.SortedFunc(maps.Keys(c.Services), model.Name.Compare) {
			for _, p := range c.Services[svc].Ports {
				if p.Protocol == r.Protocol() {
					backends = append(backends, model.RouteBackend{Service: svc.Name, Port: p.Port})
				}
			}
		}
		for range 1 + random.IntN(2) {
			r.Parents = append(r.Parents, model.RouteParent{Service: backends[random.IntN(len(backends))].Service})
		}
		for range random.IntN(4) {
			b := backends[(1+random.IntN(2*len(backends)))%len(backends)]
			b.Weight = []uint32{0, 1, 1, 10, 90, model.MaxRouteWeight}[random.IntN(6)]
			r.Backends = append(r.Backends, b)
		}
		c.Apply(model.Change{Kind: model.RouteKind, Group: name.Kind, Name: name.Name, Route: r})
	}
}

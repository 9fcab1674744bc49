package policy

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// newPodFixture is a chain of plugins for three endpoints, of which the first two are Pods that have been read.
func newPodFixture(plugins ...*needsPlugin) *fixture {
	b := newNeedyFixture(plugins...)
	b.in.Port.Endpoints[0].Pod, b.in.Port.Endpoints[1].Pod, b.in.Port.Endpoints[2].Pod = "web-0", "web-1", "gone"
	name := func(ns, pod string) model.Name { return model.Name{Namespace: ns, Name: pod} }
	b.in.Pods = Pods{All: map[model.Name]*model.Pod{
		name("shop", "web-0"): {Labels: map[string]string{"track": "canary"}, Annotations: map[string]string{"cap": "5"}, MilliCPU: 250, ReadySince: 900_000},
		name("shop", "web-1"): {Labels: map[string]string{"track": ""}, Annotations: map[string]string{"cap": strings.Repeat("x", model.MaxAnnotation+1)}},
		name("bank", "gone"):  {Labels: map[string]string{"track": "of another namespace"}},
	}}
	b.in.Service = &model.Service{Labels: map[string]string{"tier": "front"}, Annotations: model.PackAnnotations(map[string]string{"note": "x"}, nil)}
	return b
}

// values writes values, "-" for one that is absent.
func values(list []abi.Value) string {
	var out []string
	for _, v := range list {
		if !v.Present {
			v.Text = "-"
		}
		out = append(out, v.Text)
	}
	return strings.Join(out, ",")
}

func TestRequestHasTheValuesOfDeclaredKeys(t *testing.T) {
	p := newNeedy(0)
	p.keys = []string{"service-annotation:note", "label:track", "request:cpu", "service-label:tier", "annotation:cap", "service-label:none"}
	b := newPodFixture(p)
	b.expect(t, "first call", FromChain, 7, 1, 1)
	var got []string
	for i := range p.request.Endpoints {
		got = append(got, values(p.request.Endpoints[i].Values))
	}
	if want := []string{"canary,250,5", ",-,-", "-,-,-"}; !reflect.DeepEqual(got, want) {
		t.Errorf("values of Pods %q, want %q", got, want)
	}
	if got := values(p.request.ServiceValues); got != "x,front,-" {
		t.Errorf("values of the Service %q", got)
	}
	if p.request.Endpoints[0].ReadySince != 900_000 || p.request.Endpoints[1].ReadySince != 1_000_000 {
		t.Errorf("ready since %d and %d", p.request.Endpoints[0].ReadySince, p.request.Endpoints[1].ReadySince)
	}
	b.in.Pods.All[model.Name{Namespace: "shop", Name: "web-0"}].ReadySince = 5_000_000_000 // the clock of its node is ahead
	b.expect(t, "another time", FromChain, 7, 1, 1)
	if got := p.request.Endpoints[0].ReadySince; got != p.request.Now {
		t.Errorf("ready since %d, after %d", got, p.request.Now)
	}
}

func TestOnlyDeclaredValuesCauseACall(t *testing.T) {
	p := newNeedy(0)
	p.keys = []string{"label:track"}
	b := newPodFixture(p)
	b.expect(t, "first call", FromChain, 7, 1, 1)
	if got := p.request.Endpoints[0].ReadySince; got != 1_000_000 {
		t.Errorf("the Pod's own time, %d, is used although whole Pods need not be read", got)
	}
	web := b.in.Pods.All[model.Name{Namespace: "shop", Name: "web-0"}]
	web.Annotations["cap"], web.MilliCPU, b.in.Service.Labels["tier"] = "6", 1, "back"
	if b.expect(t, "other values", FromChain, 7, 1, 1); p.calls != 1 {
		t.Errorf("%d calls", p.calls)
	}
	web.Labels["track"] = "stable"
	if b.expect(t, "a declared value", FromChain, 7, 1, 1); p.calls != 2 {
		t.Errorf("%d calls", p.calls)
	}
	delete(b.in.Pods.All, model.Name{Namespace: "shop", Name: "web-1"}) // its label was empty, and is absent now
	if b.expect(t, "a Pod is gone", FromChain, 7, 1, 1); p.calls != 3 {
		t.Errorf("%d calls", p.calls)
	}
}

func TestPluginThatDeclaresKeysOfPodsWaitsForThem(t *testing.T) {
	p, plain := newNeedy(0), newNeedy(0)
	p.keys, plain.keys = []string{"label:track"}, []string{"service-label:tier"}
	b := newPodFixture(plain, p)
	b.in.Pods.Pending = true
	d, at := b.decide()
	if !errors.Is(d.Err, ErrPending) || p.calls != 0 || plain.calls != 1 {
		t.Fatalf("%d and %d calls, %v", plain.calls, p.calls, d.Err)
	}
	if want := b.now.Add(valuesWait); !at.Equal(want) {
		t.Errorf("decide again at %s, want %s", at, want)
	}
	b.now = b.now.Add(valuesWait - time.Millisecond)
	if b.decide(); p.calls != 0 {
		t.Error("called before the end of the wait")
	}
	b.now = b.now.Add(time.Millisecond)
	b.expect(t, "without the Pods", FromChain, 7, 1, 1)
	b.in.Pods.Pending = false
	b.expect(t, "with the Pods", FromChain, 7, 1, 1)
	calls := p.calls
	b.in.Pods.Pending = true // for instance because the selector has changed
	d, _ = b.decide()
	if d.Origin != FromLastGood || p.calls != calls {
		t.Errorf("%s, %d calls: the last good decision stays in force during another wait", d.Origin, p.calls-calls)
	}
	b.in.Pods.Pending = false
	if b.expect(t, "they cannot be read", FromChain, 7, 1, 1); p.calls < calls {
		t.Error("not called")
	}
	if !b.evaluator.Declares(nil, b.policy).Pods || b.evaluator.Declares(nil).Pods || b.evaluator.Declares(&Policy{Steps: b.policy.Steps[:1]}).Pods {
		t.Error("which policies declare keys of Pods")
	}
}

func TestLabelsOfNodesAndTheNamespaceAreValues(t *testing.T) {
	p := newNeedy(0)
	p.keys = []string{"namespace-label:env", "node-label:pool", "service-label:tier", "label:track"}
	b := newPodFixture(p)
	node := func(labels map[string]string) *model.Node { return &model.Node{Labels: labels} }
	for i, n := range []string{"n0", "n1", "unknown"} {
		b.in.Port.Endpoints[i].Node = n
	}
	b.in.Labels = Labels{Nodes: map[string]*model.Node{"n0": node(map[string]string{"pool": "spot", "x": "1"}), "n1": node(nil)},
		NodesRead: model.LabelsRead{OnDemand: true}, NamespacesRead: model.LabelsRead{OnDemand: true}}
	if d, at := b.decide(); !errors.Is(d.Err, ErrPending) || p.calls != 0 || !at.Equal(b.now.Add(valuesWait)) {
		t.Fatalf("%d calls before the labels are read, %v", p.calls, d.Err)
	}
	b.in.Labels.NodesRead.Names, b.in.Labels.NamespacesRead.Names = []string{"pool"}, []string{"a", "env"}
	b.in.Labels.Namespace = &model.Namespace{Labels: map[string]string{"env": "prod", "x": "1"}}
	b.expect(t, "the labels are read", FromChain, 7, 1, 1)
	var got []string
	for i := range p.request.Endpoints {
		got = append(got, values(p.request.Endpoints[i].Values))
	}
	if want := []string{"spot,canary", "-,", "-,-"}; !reflect.DeepEqual(got, want) || values(p.request.ServiceValues) != "prod,front" {
		t.Errorf("values %q, want %q; of the Service %q", got, want, values(p.request.ServiceValues))
	}
	if got := b.evaluator.Declares(b.policy); got != (Declared{Pods: true, Nodes: true, Namespace: true}) {
		t.Errorf("declares %+v", got)
	}
	b.in.Labels.Nodes["n0"].Labels["x"], b.in.Labels.Namespace.Labels["x"] = "2", "2"
	if b.expect(t, "labels that the plugin does not declare", FromChain, 7, 1, 1); p.calls != 1 {
		t.Errorf("%d calls", p.calls)
	}
	b.in.Labels.Nodes["n1"].Labels = map[string]string{"pool": "spot"}
	b.expect(t, "a label of a Node", FromChain, 7, 1, 1)
	b.in.Labels.Namespace = nil
	if b.expect(t, "no label of the namespace", FromChain, 7, 1, 1); p.calls != 3 {
		t.Errorf("%d calls", p.calls)
	}
}

func TestLoadOfEndpointsIsValues(t *testing.T) {
	p := newNeedy(0)
	p.keys = []string{"load:eps", "label:track", "load:utilization/queue"}
	b := newPodFixture(p)
	b.in.Labels = Labels{LoadRead: model.LabelsRead{OnDemand: true, Names: []string{"eps"}}}
	if d, at := b.decide(); !errors.Is(d.Err, ErrPending) || p.calls != 0 || !at.Equal(b.now.Add(valuesWait)) {
		t.Fatalf("%d calls before the load is read, %v", p.calls, d.Err)
	}
	b.in.Labels.LoadRead.Names = []string{"eps", "utilization/queue"}
	addr := func(i int) netip.Addr { return b.in.Port.Endpoints[i].Addr.Addr() }
	load := map[netip.Addr]map[string]string{addr(0): {"eps": "1.5", "cpu_utilization": "0.3"}, addr(2): {"utilization/queue": "0"}, netip.MustParseAddr("192.0.2.9"): {"eps": "9"}}
	b.in.Labels.Load = load
	b.expect(t, "the load is read", FromChain, 7, 1, 1)
	var got []string
	for i := range p.request.Endpoints {
		got = append(got, values(p.request.Endpoints[i].Values))
	}
	if want := []string{"1.5,canary,-", "-,,-", "-,-,0"}; !reflect.DeepEqual(got, want) {
		t.Errorf("values %q, want %q", got, want)
	}
	if got := b.evaluator.Declares(b.policy); got != (Declared{Pods: true, Load: true}) {
		t.Errorf("declares %+v", got)
	}
	load[addr(0)]["cpu_utilization"] = "0.9"
	if b.expect(t, "load that the plugin does not declare", FromChain, 7, 1, 1); p.calls != 1 {
		t.Errorf("%d calls", p.calls)
	}
	load[addr(2)]["utilization/queue"] = "0.1"
	if b.expect(t, "another load", FromChain, 7, 1, 1); p.calls != 2 {
		t.Errorf("%d calls", p.calls)
	}
}

func TestNodeIndexIsGivenOnRequestOnly(t *testing.T) {
	for needs, want := range map[uint32][2]uint32{0: {abi.NoIndex, 0}, abi.NeedNodes: {3, 12}} {
		p := newNeedy(needs)
		b := newNeedyFixture(p)
		b.in.NodeIndex, b.in.NodeCount = 3, 12
		b.expect(t, "first call", FromChain, 7, 1, 1)
		if got := [2]uint32{p.request.NodeIndex, p.request.NodeCount}; got != want {
			t.Errorf("needs %d: %v, want %v", needs, got, want)
		}
		b.in.NodeIndex = 4
		if b.expect(t, "another index", FromChain, 7, 1, 1); p.calls != 1+int(needs/abi.NeedNodes) {
			t.Errorf("needs %d: %d calls", needs, p.calls)
		}
	}
}

// TestNoAnswerWidensEligibility: requests contain endpoints that are not eligible. Whatever weights a plugin gives them, no
// connection goes there.
func TestNoAnswerWidensEligibility(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	p := newNeedy(0)
	p.decide = func(req *abi.Request, resp *abi.Response) error {
		for i := range resp.Results {
			resp.Results[i].Value = random.Uint32N(3) * random.Uint32()
			resp.Results[i].Flags = uint32(random.IntN(2))
		}
		return nil
	}
	seen := map[string]int{}
	for range 3000 {
		b := newNeedyFixture(p)
		b.set(random.IntN(6), random.IntN(3))
		b.in.Pool = uint8(random.IntN(2))
		b.in.Port.UsesLocal = b.in.Pool == abi.PoolLocal
		for i := range b.in.Port.Endpoints {
			e := &b.in.Port.Endpoints[i]
			e.Ready, e.Serving, e.Terminating, e.Local = random.IntN(2) == 0, random.IntN(2) == 0, random.IntN(2) == 0, random.IntN(2) == 0
			e.InCluster, e.InLocal = e.Ready, e.Ready && e.Local
		}
		for range 2 { // the second time with an earlier decision, on changed conditions
			d, _ := b.decide()
			for i, w := range d.Weights {
				e := &b.in.Port.Endpoints[i]
				may := e.Ready || e.Serving && e.Terminating
				if may = may && (b.in.Pool == abi.PoolCluster || e.Local); w > 0 && !may {
					t.Fatalf("%s gives weight %d to %+v", d.Origin, w, e)
				}
				if !may {
					seen[d.Origin.String()]++
				}
			}
			if n := len(b.in.Port.Endpoints); n > 0 {
				flip(&b.in.Port.Endpoints[random.IntN(n)])
			}
		}
	}
	if seen["policy"] < 1000 {
		t.Errorf("endpoints that are not eligible, by origin of the decision: %v", seen)
	}
}

func flip(e *eligibility.Endpoint) {
	e.Ready = !e.Ready
	e.InCluster, e.InLocal = e.Ready, e.Ready && e.Local
}

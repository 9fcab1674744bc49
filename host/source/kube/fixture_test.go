package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

const ownNodeName = "node-a"

// speedup is the factor by which the waits of a test are shorter than in production.
const speedup = 100

// acceleratedNow is a clock that runs speedup times faster.
func acceleratedNow() time.Time { return startTime.Add(time.Since(startTime) * speedup) }

var startTime = time.Now()

// letWatchesAge waits until the watches are old enough to be resumed: client-go lists everything again when a watch ends
// within its first second without an event.
func (r *fixture) letWatchesAge() { time.Sleep(2 * time.Second / speedup) } // time passes

// fixture is a source of a fake server and what it has emitted.
type fixture struct {
	t      *testing.T
	server *fakeServer
	source *Source
	stop   func() error

	mu      sync.Mutex
	snap    *model.Snapshot
	batches int
	changes []model.Change // since the last takeChanges
	log     bytes.Buffer
	errors  int // as passed to OnProblems
}

// Write implements io.Writer for the log.
func (r *fixture) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(b)
}

func (r *fixture) logCount(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.log.String(), text)
}

// fixtures contains the tests that have a fixture.
var fixtures sync.Map

// newFixture returns a server with this node's Node, and a source of it that is not running yet.
func newFixture(t *testing.T, edit func(*Options)) *fixture {
	t.Helper()
	if _, another := fixtures.LoadOrStore(t, true); !another { // cleanups run in reverse: this one runs after those of all fixtures
		leaks := goleak.IgnoreCurrent()
		t.Cleanup(func() { testenv.VerifyNoLeaks(t, leaks) })
	}
	r := &fixture{t: t, server: newFakeServer(t), snap: model.NewSnapshot()}
	r.server.put(node(ownNodeName, "z1"))
	o := Options{
		Client: r.server.client(), Node: ownNodeName, Log: slog.New(slog.NewTextHandler(r, nil)), Now: acceleratedNow,
		After:      func(d time.Duration) <-chan time.Time { return time.After(d / speedup) },
		OnProblems: func(errors, _ int) { r.mu.Lock(); r.errors = errors; r.mu.Unlock() },
	}
	if edit != nil {
		edit(&o)
	}
	r.source = New(o)
	r.source.newBackoff = func() *wait.Backoff {
		return &wait.Backoff{Duration: 5 * time.Millisecond, Factor: 2, Jitter: 1, Cap: 50 * time.Millisecond, Steps: 6}
	}
	return r
}

func (r *fixture) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.source.Run(ctx, r.emit) }()
	var once sync.Once
	var err error
	r.stop = func() error {
		once.Do(func() {
			cancel()
			select {
			case err = <-ended:
			case <-time.After(time.Minute):
				r.t.Error("source does not stop")
			}
		})
		return err
	}
	r.t.Cleanup(func() {
		if err := r.stop(); err != nil {
			r.t.Errorf("source failed: %v", err)
		}
	})
}

func (r *fixture) emit(changes []model.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batches++
	for _, c := range changes {
		r.snap.Apply(c)
	}
	r.changes = append(r.changes, changes...)
}

// takeChanges returns what was emitted since the last call, as sign, kind and name.
func (r *fixture) takeChanges() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, c := range r.changes {
		name, gone := c.Name.String(), false
		switch c.Kind {
		case model.Synced:
			out = append(out, "synced")
			continue
		case model.NodesPartialKind, model.PodsReadKind, model.PodsOnDemandKind, model.NodeLabelsKind, model.NamespaceLabelsKind, model.LoadReadKind:
			continue
		case model.NamespaceKind:
			gone = c.Namespace == nil
		case model.LoadKind:
			gone = c.Load == nil
		case model.PodKind:
			gone = c.Pod == nil
		case model.ServiceKind:
			gone = c.Service == nil
		case model.SliceKind:
			gone = c.Slice == nil
		case model.NodeKind:
			gone, name = c.Node == nil, c.Name.Name
		case model.ServiceCIDRKind:
			gone, name = c.CIDR == nil, c.Name.Name
		}
		sign := "+"
		if gone {
			sign = "-"
		}
		out = append(out, fmt.Sprintf("%s%d %s", sign, c.Kind, name))
	}
	r.changes = nil
	return out
}

// onAnyNode is for SetNeeds: what Services need whatever the Node.
func onAnyNode(needs func(*model.Service) Needs) NeedsOn {
	if needs == nil {
		return nil
	}
	return func(*model.Node) func(*model.Service) Needs { return needs }
}

// everyServiceNeedsNodes is for SetNeeds.
func everyServiceNeedsNodes(*model.Service) Needs { return Needs{Nodes: true} }

func (r *fixture) synced() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snap.Synced
}

func (r *fixture) waitSynced() {
	r.t.Helper()
	testenv.Eventually(r.t, "synced", r.synced)
}

// waitInSync waits until the emitted state matches the server's.
func (r *fixture) waitInSync() {
	r.t.Helper()
	var diff string
	testenv.Eventually(r.t, "in sync", func() bool {
		r.source.mu.Lock()
		needs := r.source.demand.needs
		r.source.mu.Unlock()
		want, _, err := Load(context.Background(), r.source.opt.Client, ownNodeName, onAnyNode(needs))
		if err != nil {
			r.t.Fatal(err)
		}
		r.mu.Lock()
		diff = compare(want, r.snap)
		r.mu.Unlock()
		return diff == ""
	}, func() string { return "-server +source\n" + diff })
}

// compare returns the differences of two snapshots. It ignores trigger times of slices.
func compare(want, got *model.Snapshot) string {
	return cmp.Diff(want, got, cmp.AllowUnexported(model.Snapshot{}), cmp.Comparer(func(a, b *model.EndpointSlice) bool { return a.SameContent(b) }),
		cmp.Comparer(func(a, b *model.Service) bool { return equal(a, b) }), cmp.Comparer(func(a, b *model.Node) bool { return equal(a, b) }),
		cmp.Comparer(func(a, b *model.ServiceCIDR) bool { return equal(a, b) }), cmp.Comparer(func(a, b *model.Pod) bool { return equal(a, b) }))
}

func svc(name string, edit ...func(*corev1.Service)) *corev1.Service {
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}}},
	}
	for _, e := range edit {
		e(o)
	}
	return o
}

func slice(name string, endpoints ...string) *discoveryv1.EndpointSlice {
	port, portName, proto, on := int32(8080), "http", corev1.ProtocolTCP, "node-b"
	o := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name + "-x", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &portName, Protocol: &proto, Port: &port}},
	}
	for _, e := range endpoints {
		o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{e}, NodeName: &on, Zone: &on,
			Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z1"}}}})
	}
	return o
}

func node(name, zone string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}, Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: quantity.MustParse("2")}},
	}
}

func cidr(name, prefix string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{prefix}}}
}

// wantEmitted compares what was emitted since the last call, in any order.
func (r *fixture) wantEmitted(what string, lines ...string) {
	r.t.Helper()
	got := r.takeChanges()
	slices.Sort(got)
	slices.Sort(lines)
	if !slices.Equal(got, lines) {
		r.t.Errorf("%s: emitted %q, want %q", what, got, lines)
	}
}

// waitForMarker makes a change and waits until it is emitted, so that everything before it was processed.
func (r *fixture) waitForMarker() {
	r.t.Helper()
	r.server.put(svc("marker", func(o *corev1.Service) { o.Spec.Ports[0].Port = int32(1 + r.server.version%60000) }), slice("marker", fmt.Sprintf("10.9.%d.%d", r.server.version/250%250, r.server.version%250)))
	testenv.Eventually(r.t, "the marker", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.ContainsFunc(r.changes, func(c model.Change) bool { return c.Kind == model.ServiceKind && c.Name.Name == "marker" }) &&
			slices.ContainsFunc(r.changes, func(c model.Change) bool { return c.Kind == model.SliceKind && c.Name.Name == "marker-x" })
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes = slices.DeleteFunc(r.changes, func(c model.Change) bool { return strings.HasPrefix(c.Name.Name, "marker") })
}

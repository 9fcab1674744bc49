// Package cluster_test runs source/kube against a real API server.
package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

// role has all permissions that the source and its Events need.
const role = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: sluice, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: sluice}
rules:
- {apiGroups: [""], resources: [services, nodes], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
- {apiGroups: [networking.k8s.io], resources: [servicecidrs], verbs: [list, watch]}
- {apiGroups: [sluice.dev], resources: [serviceplugins, servicepolicies, clusterservicepolicies], verbs: [list, watch]}
- {apiGroups: [gateway.networking.k8s.io], resources: [tcproutes, udproutes], verbs: [list, watch]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: sluice}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: sluice}
subjects: [{kind: ServiceAccount, name: sluice, namespace: kube-system}]
`

// fixture is a source of a real cluster and what it has emitted.
type fixture struct {
	t       *testing.T
	cluster *testcluster.Cluster
	client  *kube.Client

	mu      sync.Mutex
	snap    *model.Snapshot
	changes []string // since the last take

	logMu sync.Mutex
	log   bytes.Buffer
}

func (r *fixture) logged() string {
	r.logMu.Lock()
	defer r.logMu.Unlock()
	return r.log.String()
}

// Write is the log's. It has a lock of its own: whoever logs may hold a lock that conditions take.
func (r *fixture) Write(b []byte) (int, error) {
	r.logMu.Lock()
	defer r.logMu.Unlock()
	return r.log.Write(b)
}

func (r *fixture) emit(changes []model.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		r.snap.Apply(c)
		gone := c.Service == nil && c.Slice == nil && c.Node == nil && c.CIDR == nil
		r.changes = append(r.changes, fmt.Sprintf("%d %s gone=%t", c.Kind, c.Name, gone))
	}
}

func (r *fixture) takeChanges() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.changes
	r.changes = nil
	return out
}

// timeout is several times the longest delay between the attempts of a reflector, 30 s: a watch that fails again while the API
// server starts or after its connections were closed waits that long.
const timeout = 3 * time.Minute

func (r *fixture) eventually(what string, condition func() bool) {
	r.t.Helper()
	testenv.Within(r.t, timeout, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return condition()
	}, r.logged)
}

// waitInSync waits until the emitted state matches a fresh list.
func (r *fixture) waitInSync() {
	r.t.Helper()
	var diff string
	testenv.Within(r.t, timeout, "in sync", func() bool {
		want, _, err := kube.Load(r.t.Context(), r.client, "n1", onAnyNode(func(*model.Service) kube.Needs { return kube.Needs{Nodes: true} }))
		must(r.t, err)
		r.mu.Lock()
		diff = cmp.Diff(want, r.snap, cmp.AllowUnexported(model.Snapshot{}), cmp.Comparer(func(a, b *model.EndpointSlice) bool { return a.SameContent(b) }),
			cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
		r.mu.Unlock()
		return diff == ""
	}, func() string { return "-list +source\n" + diff }, r.logged)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRealAPIServer uses one cluster for all subtests, because a start is slow.
func TestRealAPIServer(t *testing.T) {
	lo, err := netlink.LinkByName("lo") // in the namespace that TestMain created
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
	const user = "system:serviceaccount:kube-system:sluice"
	c, err := testcluster.Start(t.Context(), testcluster.Options{Audit: []string{user}})
	must(t, err)
	t.Cleanup(c.Close)
	c.LogOnFailure(t)
	ctx := t.Context()
	must(t, c.Apply(ctx, role))
	must(t, c.AddNamespace(ctx, "shop"))
	must(t, c.AddNode(ctx, testcluster.Node{Name: "n1", Zone: "a", Addrs: []netip.Addr{netip.MustParseAddr("172.18.0.11")}}))
	must(t, c.AddNode(ctx, testcluster.Node{Name: "n2", Zone: "b"}))
	const many = 300
	must(t, c.CreateInBulk(ctx, many, func(i int) (*corev1.Service, *discoveryv1.EndpointSlice) {
		name := fmt.Sprint("s", i)
		return testcluster.Service("shop", name, netip.Addr{}, 80), testcluster.Slice("shop", name, 8080,
			testcluster.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), Node: "n2", Zone: "b"})
	}))
	config, err := c.ServiceAccountKubeconfig(ctx, "kube-system", "sluice")
	must(t, err)

	r := &fixture{t: t, cluster: c, snap: model.NewSnapshot()}
	log := slog.New(slog.NewTextHandler(r, nil))
	r.client, err = kube.Connect(kube.Connection{Kubeconfig: config, Version: "test"})
	must(t, err)
	s := kube.New(kube.Options{Client: r.client, Node: "n1", Log: log, Now: time.Now, After: time.After})
	every := func(*model.Service) kube.Needs { return kube.Needs{Nodes: true} }
	s.SetNeeds(onAnyNode(every))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(running, r.emit) }()
	defer func() {
		stop()
		must(t, <-ended)
	}()
	r.eventually("synced", func() bool { return r.snap.Synced })
	r.waitInSync()
	if n := len(r.snap.Services); n != many+1 { // including the API server's own
		t.Errorf("%d Services", n)
	}
	r.takeChanges()

	tapped := newProxiedSource(t, c)
	t.Run("all requests use protobuf", tapped.checkProtobuf)
	t.Run("Services and EndpointSlices are listed", func(t *testing.T) {
		requests, err := c.Requests()
		must(t, err)
		listed, streamed := map[string]bool{}, map[string]bool{}
		for _, q := range requests {
			listed[q.Resource] = listed[q.Resource] || q.Verb == "list"
			streamed[q.Resource] = streamed[q.Resource] || strings.Contains(q.URI, "sendInitialEvents=true")
		}
		for _, resource := range []string{"services", "endpointslices"} {
			if !listed[resource] || streamed[resource] {
				t.Errorf("%s: listed: %t, watched from a list on: %t", resource, listed[resource], streamed[resource])
			}
		}
		if !streamed["servicecidrs"] {
			t.Error("no watch of ServiceCIDRs begins with a list")
		}
	})

	patch := func(name, body string) {
		_, err := c.Client.CoreV1().Services("shop").Patch(ctx, name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
		must(t, err)
	}
	t.Run("a label excludes a Service", func(t *testing.T) {
		patch("s0", `{"metadata":{"labels":{"service.kubernetes.io/service-proxy-name":"x"}}}`)
		r.eventually("it is gone", func() bool { return r.snap.Services[model.Name{Namespace: "shop", Name: "s0"}] == nil })
		patch("s0", `{"metadata":{"labels":null}}`)
		r.eventually("it is back", func() bool { return r.snap.Services[model.Name{Namespace: "shop", Name: "s0"}] != nil })
		r.waitInSync()
	})
	t.Run("annotations and heartbeats are not emitted", func(t *testing.T) {
		r.takeChanges()
		patch("s1", `{"metadata":{"annotations":{"a":"b"}}}`)
		must(t, c.UpdateNode(ctx, "n1", func(n *corev1.Node) { n.Annotations = map[string]string{"beat": "1"} }))
		patch("s2", `{"spec":{"sessionAffinity":"ClientIP"}}`)
		r.eventually("the change behind them", func() bool { return len(r.changes) > 0 })
		if got := r.takeChanges(); len(got) != 1 || got[0] != "1 shop/s2 gone=false" {
			t.Errorf("emitted %q", got)
		}
	})
	t.Run("a restart of the server emits only differences", func(t *testing.T) {
		r.takeChanges()
		must(t, c.RestartAPIServer(ctx))
		must(t, c.Client.CoreV1().Services("shop").Delete(ctx, "s3", metav1.DeleteOptions{}))
		must(t, c.Client.DiscoveryV1().EndpointSlices("shop").Delete(ctx, "s4-1", metav1.DeleteOptions{}))
		r.eventually("both are gone", func() bool {
			return r.snap.Services[model.Name{Namespace: "shop", Name: "s3"}] == nil && r.snap.Slice(model.Name{Namespace: "shop", Name: "s4-1"}) == nil
		})
		r.waitInSync()
		for _, line := range r.takeChanges() {
			// The server removes and adds its own endpoint; the garbage collector deletes the slice of s3.
			if !strings.Contains(line, "shop/s3") && !strings.Contains(line, "shop/s4-1") && !strings.Contains(line, "default/kubernetes") {
				t.Errorf("emitted %s", line)
			}
		}
	})
	t.Run("an outage is reported", func(t *testing.T) {
		c.StopAPIServer()
		r.eventually("stale", func() bool { return strings.Contains(s.StaleReason(), "not watched for ") })
		must(t, c.StartAPIServer(ctx))
		r.eventually("not stale", func() bool {
			return s.StaleReason() == "" && !slices.ContainsFunc(s.WatchStatuses(), func(c kube.WatchStatus) bool { return c.StaleFor > 0 })
		})
		if n := strings.Count(r.logged(), "level=WARN"); n < 1 || n > 4 || strings.Contains(r.logged(), "resourceVersion=") {
			t.Errorf("%d warnings:\n%s", n, r.logged())
		}
		if !slices.ContainsFunc(r.client.Requests(), func(q kube.RequestCount) bool { return q.Code == "<error>" && q.Count > 0 }) {
			t.Errorf("requests %+v", r.client.Requests())
		}
	})
	t.Run("other Nodes are not watched", func(t *testing.T) {
		requests, err := c.Requests()
		must(t, err)
		lists := 0
		for _, q := range requests {
			switch others := strings.Contains(q.URI, "metadata.name%21%3Dn1"); {
			case others && q.Verb == "list":
				lists++
			case others:
				t.Errorf("%+v", q)
			}
		}
		if lists == 0 {
			t.Error("other Nodes are not listed")
		}
		must(t, c.UpdateNode(ctx, "n2", func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "c" }))
		r.eventually("its zone", func() bool { return r.snap.Nodes["n2"].Zone == "c" })
		must(t, c.UpdateNode(ctx, "n2", func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "b" }))
		must(t, c.AddNode(ctx, testcluster.Node{Name: "n3", Zone: "c"}))
		r.eventually("a new Node, with its CPU", func() bool {
			return r.snap.Nodes["n3"] != nil && r.snap.Nodes["n3"].MilliCPU > 0 && r.snap.Nodes["n2"].Zone == "b"
		})
		must(t, c.Client.CoreV1().Nodes().Delete(ctx, "n3", metav1.DeleteOptions{}))
		r.eventually("it is gone", func() bool { return r.snap.Nodes["n3"] == nil })
	})
	t.Run("other Nodes are read while needed", func(t *testing.T) {
		s.SetNeeds(nil)
		r.eventually("gone", func() bool { return len(r.snap.Nodes) == 1 })
		s.SetNeeds(onAnyNode(every))
		r.eventually("back", func() bool { return len(r.snap.Nodes) == 2 && r.snap.Nodes["n2"].Zone == "b" })
	})
	t.Run("values of Pods reach the plan", func(t *testing.T) { checkPods(t, c, config) })
	t.Run("kinds of sluice.dev", func(t *testing.T) { checkKinds(t, c, config) })
	t.Run("a renewed token is used", tapped.checkTokenRenewal)
	t.Run("Events", func(t *testing.T) {
		rec := kube.NewEventRecorder(r.client, "n1", log, time.Now, time.After)
		running, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { rec.Run(running) })
		defer func() { stop(); wg.Wait() }()
		web := model.Name{Namespace: "shop", Name: "s5"}
		rec.NodeEvent(false, kube.ReasonStarting, "sluice test")
		rec.ServiceWarning(web, kube.ReasonFailedToStartServiceHealthcheck, "port 30000: taken")
		rec.SampledServiceWarning(web, kube.ReasonFailedToEvaluatePolicy, "Service shop/s5: plugin p: trap")
		for range 5 {
			rec.SampledServiceWarning(web, kube.ReasonFailedToEvaluatePolicy, "Service shop/s5: plugin p: trap")
		}
		var text string
		reasons := []string{kube.ReasonFailedToEvaluatePolicy, kube.ReasonFailedToStartServiceHealthcheck, kube.ReasonStarting}
		testenv.Eventually(t, "the Events", func() bool {
			svc, err := c.Kubectl(ctx, "", "describe", "service", "-n", "shop", "s5")
			must(t, err)
			n, err := c.Kubectl(ctx, "", "describe", "node", "n1")
			must(t, err)
			text = svc + n
			return !slices.ContainsFunc(reasons, func(reason string) bool { return !strings.Contains(text, reason) })
		}, func() string { return text })
		for _, reason := range reasons {
			if strings.Count(text, reason) != 1 {
				t.Errorf("%s is shown %d times:\n%s", reason, strings.Count(text, reason), text)
			}
		}
	})
}

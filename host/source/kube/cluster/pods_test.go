package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/source/kube"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// weightOfLabel gives each endpoint the capacity in the label of its Pod, 1 without one.
func weightOfLabel(req *abi.Request, resp *abi.Response) error {
	for i := range req.Endpoints {
		resp.Results[i].Value = abi.One
		if v := req.Endpoints[i].Values[0]; v.Present {
			w, err := strconv.ParseUint(v.Text, 10, 16)
			if err != nil {
				return err
			}
			resp.Results[i].Value = abi.One * uint32(w)
		}
	}
	return nil
}

var weighted = model.Name{Namespace: "shop", Name: "weighted"}

// podsOfWeighted are the needs of the Service called weighted.
func onAnyNode(needs func(*model.Service) kube.Needs) kube.NeedsOn {
	return func(*model.Node) func(*model.Service) kube.Needs { return needs }
}

func podsOfWeighted(s *model.Service) kube.Needs {
	if s.Name != weighted {
		return kube.Needs{}
	}
	return kube.Needs{Pods: source.PodKeys{Labels: []string{"weight"}}}
}

// weightedNode is a source with a planner whose policy sees labels.
type weightedNode struct {
	source *kube.Source

	mu      sync.Mutex
	log     bytes.Buffer
	planner *planner.Planner
	weights []uint16 // of the last plan
	state   model.PodsState
	changed chan struct{}
}

// Write implements io.Writer for the log.
func (n *weightedNode) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.Write(b)
}

func newWeightedNode(t *testing.T, kubeconfig string) *weightedNode {
	t.Helper()
	client, err := kube.Connect(kube.Connection{Kubeconfig: kubeconfig, Version: "test"})
	must(t, err)
	n := &weightedNode{changed: make(chan struct{}, 1)}
	set := &policy.Set{Policies: map[string]*policy.Policy{"weight": {Name: "weight", Steps: []policy.Step{{Plugin: "weight"}}}}, Default: "weight"}
	n.planner = planner.New(planner.Settings{Node: "n1", Policies: set}, func(string) (policy.Plugin, error) {
		return policytest.Plugin{Answer: weightOfLabel, Values: []string{"label:weight"}}, nil
	})
	n.source = kube.New(kube.Options{Client: client, Node: "n1", Log: slog.New(slog.NewTextHandler(n, nil)), Now: time.Now, After: time.After})
	n.source.SetNeeds(onAnyNode(podsOfWeighted))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.source.Run(ctx, n.emit) }()
	t.Cleanup(func() {
		stop()
		must(t, <-ended)
	})
	return n
}

func (n *weightedNode) emit(changes []model.Change) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.planner.Apply(changes)
	n.planner.PlanNow(time.Now())
	n.weights = nil
	if x, err := n.planner.Explain(weighted); err == nil && len(x.Decisions) == 1 {
		n.weights, n.state = slices.Clone(x.Decisions[0].Cluster.Weights), *x.Pods
	}
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// await waits until the plan has these weights.
// await waits for weights with the ratio of two capacities, to one percent.
func (n *weightedNode) await(t *testing.T, state model.PodsState, first, second float64) {
	t.Helper()
	end := time.After(time.Minute)
	for {
		n.mu.Lock()
		got, is, log := n.weights, n.state, n.log.String()
		n.mu.Unlock()
		if len(got) == 2 && is == state && math.Abs(float64(got[0])*second/(float64(got[1])*first)-1) < 0.013 {
			return
		}
		select {
		case <-n.changed:
		case <-end:
			t.Fatalf("weights %v with Pods %s, want %g to %g with Pods %s\n%s", got, is, first, second, state, log)
		}
	}
}

// checkPods: values of Pods reach the plan, with the permission of deploy/kustomize/components/pods.
func checkPods(t *testing.T, c *testcluster.Cluster, kubeconfig string) {
	ctx := t.Context()
	service := testcluster.Service("shop", weighted.Name, netip.Addr{}, 80)
	service.Spec.Selector = map[string]string{"app": "weighted"}
	service.Spec.Ports[0].TargetPort.IntVal = 8080
	_, err := c.Client.CoreV1().Services("shop").Create(ctx, service, metav1.CreateOptions{})
	must(t, err)
	for i := range 2 {
		must(t, c.AddPod(ctx, testcluster.Pod{Namespace: "shop", Name: fmt.Sprint("weighted-", i), Labels: map[string]string{"app": "weighted"},
			Node: "n2", Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 2, 0, byte(i)})}, Ready: true}))
	}
	label := func(pod, weight string) {
		t.Helper()
		_, err := c.Client.CoreV1().Pods("shop").Patch(ctx, pod, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"weight":%q}}}`, weight), metav1.PatchOptions{})
		must(t, err)
	}
	label("weighted-0", "5")

	without := newWeightedNode(t, kubeconfig)
	without.await(t, model.PodsUnavailable, 1, 1)
	without.mu.Lock()
	if log := without.log.String(); !strings.Contains(log, "ClusterRole needs list and watch of pods") || !strings.Contains(log, `resource \"pods\" in API group`) {
		t.Errorf("the log does not name the permission:\n%s", log)
	}
	without.mu.Unlock()

	manifest, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "deploy", "kustomize", "components", "pods", "rbac.yaml"))
	must(t, err)
	must(t, c.Apply(ctx, strings.ReplaceAll(string(manifest), "namespace: sluice-system", "namespace: kube-system")))
	n := newWeightedNode(t, kubeconfig)
	n.await(t, model.PodsRead, 5, 1)
	var took []time.Duration
	for i := range 20 {
		w := float64(10 + i)
		begin := time.Now()
		label("weighted-1", fmt.Sprint(w))
		n.await(t, model.PodsRead, 5, w)
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	t.Logf("from the write of a label to the plan: median %s, maximum %s of %d", took[len(took)/2], took[len(took)-1], len(took))

	// What is no label of the Pod changes nothing, and a restart of the server neither.
	must(t, c.SetPodStatus(ctx, "shop", "weighted-0", func(s *corev1.PodStatus) { s.Message = "busy" }))
	must(t, c.RestartAPIServer(ctx))
	label("weighted-0", "7")
	n.await(t, model.PodsRead, 7, 29)
	requests, err := c.Requests()
	must(t, err)
	lists := map[string]int{}
	for _, q := range requests {
		if strings.Contains(q.URI, "/pods?") {
			if !strings.Contains(q.URI, "/namespaces/shop/pods?") || !strings.Contains(q.URI, "labelSelector=app%3Dweighted") {
				t.Errorf("reads more than the Pods of the Service: %s", q.URI)
			}
			lists[q.Verb]++
		}
	}
	if lists["watch"] == 0 {
		t.Errorf("requests for Pods %v", lists)
	}
}

// Package cluster runs the controller at a real API server.
package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/controller"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

func TestMain(m *testing.M) {
	if !testnet.Inside() { // in the namespace of the tests there is no network
		downloadGatewayAPI()
	}
	testcluster.Main(m)
}

const (
	namespace = "sluice-system"
	user      = "system:serviceaccount:" + namespace + ":sluice-controller"
)

// scene is a control plane with the kinds, the permissions of the component controller, and three Nodes whose reports the test
// writes.
type scene struct {
	*testing.T
	*testcluster.Cluster
	writers map[string]*kube.ReportWriter
	health  map[string]string // URLs, by the controller's identity
	log     testenv.Buffer
}

func (s *scene) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func newScene(t *testing.T) *scene {
	ctx := t.Context()
	s := &scene{T: t, writers: map[string]*kube.ReportWriter{}, health: map[string]string{}}
	lo, err := netlink.LinkByName("lo") // in the namespace that TestMain created
	s.must(err)
	s.must(netlink.LinkSetUp(lo))
	s.Cluster, err = testcluster.Start(ctx, testcluster.Options{Audit: []string{user}})
	s.must(err)
	t.Cleanup(s.Close)
	s.LogOnFailure(t)
	s.must(s.AddNamespace(ctx, namespace))
	s.must(s.AddNamespace(ctx, "shop"))
	dir, err := filepath.Abs("../../../deploy/kustomize")
	s.must(err)
	s.kubectl("apply", "--server-side", "-k", filepath.Join(dir, "crds"))
	s.kubectl("apply", "-f", filepath.Join(dir, "components/controller/rbac.yaml"), "-f", filepath.Join(dir, "base/serviceaccount.yaml"), "-f", filepath.Join(dir, "base/rbac.yaml"))
	s.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "-l", "app.kubernetes.io/name=sluice")
	for _, n := range []string{"n1", "n2", "n3"} {
		s.must(s.AddNode(ctx, testcluster.Node{Name: n}))
		kubeconfig, err := s.PodKubeconfig(ctx, namespace, "sluice", n)
		s.must(err)
		client, err := kube.Connect(kube.Connection{Kubeconfig: kubeconfig, Version: "test"})
		s.must(err)
		s.writers[n] = &kube.ReportWriter{Client: client, Node: n}
	}
	return s
}

func (s *scene) kubectl(args ...string) string {
	s.Helper()
	out, err := s.Kubectl(s.Context(), "", args...)
	s.must(err)
	return out
}

// controller runs a controller until stop.
func (s *scene) controller(identity string) (stop func()) {
	s.Helper()
	kubeconfig, err := s.ServiceAccountKubeconfig(s.Context(), namespace, "sluice-controller")
	s.must(err)
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	health := fmt.Sprint("127.0.0.1:", testenv.FreePort(s))
	s.health[identity] = "http://" + health
	go func() {
		ended <- controller.Run(ctx, controller.Options{Connection: kube.Connection{Kubeconfig: kubeconfig, Version: "test"}, Config: config.Default(),
			Namespace: namespace, Identity: identity, HealthAddress: health, Log: slog.New(slog.NewTextHandler(&s.log, nil))})
	}()
	return func() {
		s.Helper()
		cancel()
		s.must(<-ended)
	}
}

// apply applies a manifest, and returns the version of the kinds that nodes have to read.
func (s *scene) apply(manifest string) (version string) {
	s.Helper()
	s.must(s.Apply(s.Context(), manifest))
	list := &metav1.PartialObjectMetadataList{}
	s.must(s.Client.CoreV1().RESTClient().Get().AbsPath("/apis/sluice.dev/v1alpha1/servicepolicies").SetHeader("Accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").Do(s.Context()).Into(list))
	return list.ResourceVersion
}

// report writes the report of a node that has read everything up to a version, and has the plugin near.
func (s *scene) report(node, version string, policies ...v1alpha1.PolicyReport) {
	s.Helper()
	s.must(s.writers[node].WriteReport(s.Context(), &v1alpha1.Report{
		Observed: v1alpha1.Observed{ServicePlugins: version, ServicePolicies: version, ClusterServicePolicies: version}, PolicyCount: 1,
		Plugins: []v1alpha1.PluginReport{{Name: "near", Digest: "sha256:" + strings.Repeat("a", 64)}}, Policies: policies,
	}))
}

// writes returns how many times controllers have written a status.
func (s *scene) writes() (n int) {
	s.Helper()
	all, err := s.Requests()
	s.must(err)
	for _, r := range all {
		if r.User == user && r.Subresource == "status" {
			n++
		}
		if r.Code == 403 {
			s.Errorf("forbidden: %+v", r)
		}
	}
	return n
}

func (s *scene) eventually(what, jsonpath, want string) {
	s.Helper()
	got := ""
	testenv.Eventually(s, what, func() bool {
		got = s.kubectl("-n", "shop", "get", "spol", "mine", "-o", "jsonpath="+jsonpath)
		return strings.Contains(got, want)
	}, func() string { return got + "\n" + s.log.String() })
}

const policy = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: sluice.dev/v1alpha1
kind: ServicePlugin
metadata: {name: near}
spec: {source: {type: File, file: {path: /near.wasm}}, use: {settings: [factor]}}
---
apiVersion: sluice.dev/v1alpha1
kind: ServicePolicy
metadata: {name: mine, namespace: shop}
spec: {targetRefs: [{name: web}], plugins: [{name: near, settings: {factor: FACTOR}}]}
`

const programmed = `{.status.conditions[?(@.type=="Programmed")].reason}`

// TestStatusTellsTheTruth: of two controllers one writes; what nodes report becomes status, which stays while nothing changes,
// also when the leader goes; and when all are gone, only status stands still.
func TestStatusTellsTheTruth(t *testing.T) {
	s := newScene(t)
	stops := map[string]func(){"c1": s.controller("c1"), "c2": s.controller("c2")}
	version := s.apply(strings.ReplaceAll(policy, "FACTOR", "2"))
	s.eventually("no node has reported", programmed, "NoNodes")
	s.report("n1", version)
	s.report("n2", version, v1alpha1.PolicyReport{Namespace: "shop", Name: "mine", Reason: "Failing", Message: "out of fuel"})
	s.report("n3", "1")
	s.eventually("one of three", "{.status.programmedNodes} {.status.failures[*].node} {.status.failures[*].message}", "1/3 n2 out of fuel")
	s.report("n2", version)
	s.report("n3", version)
	reported := time.Now()
	s.kubectl("-n", "shop", "wait", "--for=condition=Programmed", "--timeout=60s", "spol/mine")
	took := time.Since(reported)
	t.Logf("Programmed %s after the last report", took.Round(time.Millisecond))
	s.kubectl("wait", "--for=condition=Programmed", "--timeout=60s", "spl/near")
	if out := strings.Join(strings.Fields(s.kubectl("-n", "shop", "get", "spol")), " "); !strings.Contains(out, "mine near Enforce True True 3/3 0") && !strings.Contains(out, "mine near Enforce True True 3/3") {
		t.Error(out)
	}

	// Nothing that changes here changes a status.
	before := s.writes()
	s.kubectl("-n", "shop", "annotate", "service", "web", "a=b")
	s.kubectl("annotate", "node", "n1", "a=b")
	s.report("n1", version)
	s.kubectl("-n", "shop", "label", "spol", "mine", "a=b")
	testenv.Always(t, 6*time.Second, "no status is written", func() bool { return s.writes() == before }, s.log.String)

	// The leader goes, the other one takes over and has nothing to write; then a change.
	leader := s.kubectl("-n", namespace, "get", "lease", "sluice-controller", "-o", "jsonpath={.spec.holderIdentity}")
	stops[leader]()
	delete(stops, leader)
	for other := range stops {
		testenv.Eventually(t, "the other one leads", func() bool { return strings.Contains(s.log.String(), "identity="+other) }, s.log.String)
	}
	testenv.Always(t, 4*time.Second, "the new leader writes nothing", func() bool { return s.writes() == before }, s.log.String)
	version = s.apply(strings.ReplaceAll(policy, "FACTOR", "3"))
	s.eventually("nodes have not read it", programmed, "Reconciling")
	for n := range s.writers {
		s.report(n, version)
	}
	s.eventually("all have", programmed, "Programmed")

	// None is left: nodes go on, and status stands still. The next one goes on from there.
	for _, stop := range stops {
		stop()
	}
	before = s.writes()
	s.report("n1", version, v1alpha1.PolicyReport{Namespace: "shop", Name: "mine", Reason: "FallenBack"})
	testenv.Always(t, 3*time.Second, "status stands still", func() bool { return s.writes() == before }, s.log.String)
	defer s.controller("c3")()
	s.eventually("fallen back on one", "{.status.programmedNodes} {.status.nodes.fallenBack}", "2/3 1")
	s.kubectl("delete", "node", "n1")
	s.eventually("a Node that is gone does not count", "{.status.programmedNodes}", "2/2")
}

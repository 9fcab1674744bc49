package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

const objectsOfTests = `
---
apiVersion: sluice.dev/v1alpha1
kind: ServicePlugin
metadata: {name: near}
spec: {source: {type: File, file: {path: PLUGIN}}}
---
apiVersion: sluice.dev/v1alpha1
kind: ClusterServicePolicy
metadata: {name: all}
spec: {plugins: [{name: near}]}
`

// TestStartDoesNotWaitForPluginsOfObjects: the first plan is in force while a module is still being compiled. It has the policies
// already, so that decisions of a checkpoint stay in force.
func TestStartDoesNotWaitForPluginsOfObjects(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector maps more memory than a compiling process may have")
	}
	r := newRig(t, noServers)
	plugin := filepath.Join(testenv.Plugins(t, "plugins/locality"), "locality.wasm")
	r.write("manifests/a.yaml", manifests+strings.ReplaceAll(objectsOfTests, "PLUGIN", plugin))
	if err := syscall.Mkfifo(r.path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.opts.PluginCompiler = []string{"sluice", "waiting-compiler", r.path("fifo")}
	stop := r.run()
	testenv.Eventually(t, "the first plan is in force", func() bool { return strings.Contains(r.log.String(), "synced all services") }, r.log.String)
	policy := func() string {
		x, err := stateclient.OnSocket(r.opts.Socket).Explain(t.Context(), api.Name{Namespace: "shop", Name: "web"}, false)
		if err != nil {
			return err.Error()
		}
		return x.Policy
	}
	if got := policy(); got != "ClusterServicePolicy/all" || strings.Contains(r.log.String(), "loaded plugin") {
		t.Errorf("policy %q while the module is being compiled\n%s", got, r.log)
	}
	if err := os.WriteFile(r.path("fifo"), nil, 0); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the plugin is loaded", func() bool { return strings.Contains(r.log.String(), "loaded plugin") }, r.log.String)
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestRestartKeepsDecisionsOfObjectsWhosePluginsAreNotLoaded: the first plan has the policies of objects, even if the plugins of
// the configuration, which it waits for, are loaded only just then. Otherwise it would drop the decisions of the checkpoint.
func TestRestartKeepsDecisionsOfObjectsWhosePluginsAreNotLoaded(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector maps more memory than a compiling process may have")
	}
	before := objectsWait
	defer func() { objectsWait = before }()
	objectsWait = 0
	dir, early := testenv.Plugins(t, "plugins/locality"), filepath.Join(t.TempDir(), "early.wasm")
	if err := os.WriteFile(early, testenv.WAT(t, hosts.Guest("good")), 0o600); err != nil { // compiled at once, each time
		t.Fatal(err)
	}
	r := newRig(t, noServers+"plugins: [{name: early, file: "+early+"}]\npolicies: [{name: early, plugins: [{name: early}]}]\n")
	r.opts.Checkpoint = r.path("checkpoint.json")
	r.write("manifests/a.yaml", manifests+strings.ReplaceAll(objectsOfTests, "PLUGIN", filepath.Join(dir, "locality.wasm"))+`
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 80, protocol: TCP}]
endpoints: [{addresses: [10.1.0.1], conditions: {ready: true}}]
`)
	decidedBy := func() string {
		x, err := stateclient.OnSocket(r.opts.Socket).Explain(t.Context(), api.Name{Namespace: "shop", Name: "web"}, false)
		if err != nil || len(x.Pools) == 0 {
			return ""
		}
		return x.Pools[0].DecidedBy
	}
	stop := r.run()
	testenv.Eventually(t, "the policy decides", func() bool { return decidedBy() == "policy" }, decidedBy, r.log.String)
	if err := errors.Join(stop(), os.RemoveAll(r.path("cache")), syscall.Mkfifo(r.path("fifo"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		*r.log = testnet.Log{}
		r.opts.PluginCompiler = []string{"sluice", "waiting-compiler", r.path("fifo")}
		stop = r.run()
		if err := os.WriteFile(r.path("fifo"), nil, 0); err != nil { // the plugin of the configuration
			t.Fatal(err)
		}
		testenv.Eventually(t, "the first plan is in force", func() bool { return strings.Contains(r.log.String(), "synced all services") }, r.log.String)
		if got := decidedBy(); got != "last good" {
			t.Errorf("decided by %q\n%s", got, r.log)
		}
		if err := errors.Join(stop(), os.RemoveAll(r.path("cache"))); err != nil {
			t.Fatal(err)
		}
	}
}

// TestObjectsOnANode: a plugin of type Bundled is that of the folder beside the program, and what is not in force is counted and
// reported by kind and reason.
func TestObjectsOnANode(t *testing.T) {
	before := config.BundledDir
	defer func() { config.BundledDir = before }()
	config.BundledDir = testenv.Plugins(t, "plugins/locality")
	r := newRig(t, "healthzBindAddress: ''\nmetricsBindAddress: "+freeAddress(t, 4)+"\n")
	r.write("manifests/a.yaml", manifests+`
---
apiVersion: sluice.dev/v1alpha1
kind: ServicePlugin
metadata: {name: near}
spec: {source: {type: Bundled, bundled: {name: locality}}, use: {namespaces: [lab]}}
---
apiVersion: sluice.dev/v1alpha1
kind: ServicePlugin
metadata: {name: gone}
spec: {source: {type: File, file: {path: gone.wasm}}}
---
apiVersion: sluice.dev/v1alpha1
kind: ClusterServicePolicy
metadata: {name: all}
spec: {plugins: [{name: near}]}
---
apiVersion: sluice.dev/v1alpha1
kind: ServicePolicy
metadata: {name: mine, namespace: shop}
spec: {targetRefs: [{name: web}], plugins: [{name: near}]}
`)
	a := New(r.opts)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	defer func() {
		cancel()
		if err := r.wait(ended); err != nil {
			t.Error(err)
		}
	}()
	at := "http://" + r.opts.Config.MetricsBindAddress + "/metrics"
	testenv.Eventually(t, "the bundled plugin is loaded", func() bool {
		return strings.Contains(r.log.String(), "loaded plugin") && strings.Contains(r.log.String(), "synced all services")
	}, r.log.String)
	text := page(t, at, 200)
	for _, want := range []string{
		`sluice_plugin_load_failed{plugin="near"} 0`, `sluice_objects_not_in_force{kind="ServicePlugin",reason="Invalid"} 1`,
		`sluice_objects_not_in_force{kind="ServicePolicy",reason="NotAllowed"} 1`, `sluice_objects_not_in_force{kind="ServicePolicy",reason="Invalid"} 0`,
		`sluice_objects_not_in_force{kind="ClusterServicePolicy",reason="Invalid"} 0`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics without %s", want)
		}
	}
	var report *v1alpha1.Report
	testenv.Eventually(t, "a report", func() bool { report = a.nodeReport(ctx); return report != nil })
	if len(report.Plugins) != 2 || report.Plugins[0].Name != "gone" || report.Plugins[0].Reason != v1alpha1.ReasonInvalid || !strings.HasPrefix(report.Plugins[1].Digest, "sha256:") || report.Plugins[1].Reason != "" {
		t.Errorf("plugins %+v", report.Plugins)
	}
	if len(report.Policies) != 1 || report.Policies[0].Name != "mine" || report.Policies[0].Reason != v1alpha1.ReasonNotAllowed || report.PolicyCount != 1 {
		t.Errorf("policies %+v of %d", report.Policies, report.PolicyCount)
	}
	if o := a.report(ctx).Objects; o == nil || o.Policies != 1 || len(o.NotInForce) != 1 || o.NotInForce[0].Kind != v1alpha1.ServicePolicyKind {
		t.Errorf("state API: %+v", o)
	}
}

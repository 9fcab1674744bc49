package agent

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/node/metrics"
	"github.com/sluice-proxy/sluice/sdk/fixture"
)

// TestHostileShadowsHaveNoEffect runs modules that misbehave as shadows of a policy whose plugin does not, with little CPU time.
// What is enforced must be as without a shadow, while the shadows fail, wait or are suspended, and a change must take effect.
func TestHostileShadowsHaveNoEffect(t *testing.T) {
	const services = 12
	modules := map[string]string{
		"good":    "(func $evil (param i32 i32 i64) (result i64) (local.get 2))",
		"trap":    "(func $evil (param i32 i32 i64) (result i64) (unreachable))",
		"endless": "(func $evil (param i32 i32 i64) (result i64) (loop $l (br $l)) (unreachable))",
		"grow":    "(func $evil (param i32 i32 i64) (result i64) (loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) (local.get 2))",
	}
	dir := t.TempDir()
	var plugins strings.Builder
	for name, text := range modules {
		file := dir + "/" + name + ".wasm"
		if err := os.WriteFile(file, evilModule(t, text), 0o644); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&plugins, "- {name: %s, file: %s}\n", name, file)
	}
	manifests := func(endpoints int) string {
		var out strings.Builder
		out.WriteString("apiVersion: v1\nkind: Node\nmetadata: {name: n0}\n")
		for i := range services {
			fmt.Fprintf(&out, `---
apiVersion: v1
kind: Service
metadata: {name: s%[1]d, namespace: shop}
spec: {clusterIP: 10.96.0.%[1]d, ports: [{port: 666}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s%[1]d-1, namespace: shop, labels: {kubernetes.io/service-name: s%[1]d}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
`, i)
			for n := range endpoints {
				fmt.Fprintf(&out, "- {addresses: [10.244.%d.%d], conditions: {ready: true}}\n", n, i)
			}
		}
		return out.String()
	}
	// run returns the plan in the kernel for two and for three endpoints of each Service.
	run := func(t *testing.T, shadow string) (plans [2]string) {
		r := newRig(t, fmt.Sprintf("%spluginLimits: {cpuPercent: 1}\nplugins:\n%spolicies:\n- {name: p, plugins: [{name: good}]%s}\ndefaultPolicy: p\n",
			noServers, &plugins, shadow))
		r.write("manifests/a.yaml", manifests(2))
		a := New(r.opts)
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { ended <- a.Run(ctx) }()
		settled := func(endpoints int) bool {
			for i := range services {
				x, err := stateclient.OnSocket(r.opts.Socket).Explain(ctx, api.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}, false)
				if err != nil || len(x.Pools) != 1 || len(x.Pools[0].Endpoints) != endpoints || x.Pools[0].DecidedBy != "policy" || x.Error != "" {
					return false
				}
				if s := x.Pools[0].Shadow; shadow != "" && (s == nil || s.Error == "" && s.Pending == nil && s.Divergence == nil) {
					return false
				}
			}
			return true
		}
		for i, endpoints := range []int{2, 3} {
			r.write("manifests/a.yaml", manifests(endpoints))
			testenv.Eventually(t, "the condition", func() bool { return settled(endpoints) })
			testenv.Eventually(t, "the condition", func() bool {
				p, _ := r.kernel.Table(fake.Name)
				plans[i] = plan.Format(p)
				return strings.Count(plans[i], "10.244.") == services*endpoints
			})
		}
		testenv.Eventually(t, "the condition", func() bool { // until the shadow was called, and failed if it does
			for _, s := range a.pluginStats() {
				if strings.HasSuffix(s.Plugin, "/shadow") {
					fails := s.Plugin == "trap/shadow" || s.Plugin == "endless/shadow"
					return s.Calls > 0 && (s.Failures > 0) == fails
				}
			}
			return shadow == ""
		})
		for _, s := range a.pluginStats() {
			if s.Plugin == "good" && (s.Failures > 0 || s.Suspended != (metrics.PluginSuspended{}) || s.Throttled > 0) {
				t.Errorf("the plugin that is enforced: %+v", s)
			}
		}
		cancel()
		if err := r.wait(ended); err != nil {
			t.Error(err)
		}
		return plans
	}
	want := run(t, "")
	for _, name := range []string{"trap", "endless", "grow", "good"} {
		t.Run(name, func(t *testing.T) {
			if got := run(t, fmt.Sprintf(", shadow: [{name: %s}]", name)); got != want {
				t.Errorf("with the shadow:\n%s\n%s\nwithout:\n%s\n%s", got[0], got[1], want[0], want[1])
			}
		})
	}
}

// TestSettingsThatShadowRefusesConcernOnlyTheShadow: both chains have the same plugin. The shadow's settings are refused when it
// is loaded.
func TestSettingsThatShadowRefusesConcernOnlyTheShadow(t *testing.T) {
	file := t.TempDir() + "/good.wasm"
	if err := os.WriteFile(file, evilModule(t, "(func $evil (param i32 i32 i64) (result i64) (local.get 2))"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, fmt.Sprintf(`%splugins: [{name: good, file: %s}]
policies: [{name: p, plugins: [{name: good}], shadow: [{name: good, settings: {none: accepted}}]}]
defaultPolicy: p
`, noServers, file))
	r.write("manifests/a.yaml", hostileManifests(1))
	a := New(r.opts)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- a.Run(ctx) }()
	testenv.Eventually(t, "the condition", func() bool {
		x, err := stateclient.OnSocket(r.opts.Socket).Explain(ctx, api.Name{Namespace: "good", Name: "s0"}, false)
		return err == nil && x.Error == "" && x.Pools[0].DecidedBy == "policy" && strings.Contains(x.Pools[0].Shadow.Error, "settings") && x.Shadow.Failing
	})
	x, err := stateclient.OnSocket(r.opts.Socket).Explain(ctx, api.Name{Namespace: "good", Name: "s0"}, true)
	if err != nil || len(x.Requests) != 1 {
		t.Fatalf("requests %+v, %v", x, err)
	}
	if f, err := fixture.Parse(x.Requests[0].Fixture); err != nil || f.Plugin != "good" || len(f.Request.Endpoints) == 0 {
		t.Errorf("request %s, %v", x.Requests[0].Fixture, err)
	}
	all := map[string]metrics.PluginStats{}
	for _, s := range a.pluginStats() {
		all[s.Plugin] = s
	}
	if s := all["good"]; s.Failures > 0 || s.Calls == 0 {
		t.Errorf("%+v", s)
	}
	cancel()
	if err := r.wait(ended); err != nil {
		t.Error(err)
	}
}

package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/ociregistry"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
)

// TestPluginFromARegistry: the first sync waits for no registry, a module is in force when the registry has it and gives it, a
// new digest replaces it, and a restart needs no registry.
func TestPluginFromARegistry(t *testing.T) {
	reg := ociregistry.Start(t, ociregistry.Options{Users: true})
	push := func(name, text string) string {
		return reg.Push(ociregistry.Image{Name: name, Module: evilModule(t, "(func $evil (param i32 i32 i64) (result i64) "+text+")")}).String()
	}
	first, second := push("acme/first", "(local.get 2)"), push("acme/second", "(i64.add (local.get 2) (i64.const 0))")
	reg.Stop()

	address := freeAddress(t, 9)
	fields := func(image string) string {
		return fmt.Sprintf("healthzBindAddress: ''\nmetricsBindAddress: %s\npluginImages: {dockerConfig: pull.json}\n"+
			"plugins: [{name: p, image: %q}]\npolicies: [{name: q, plugins: [{name: p}]}]\ndefaultPolicy: q\n", address, image)
	}
	r := newRig(t, fields(first))
	r.opts.Checkpoint = r.path("checkpoint")
	r.write("manifests/a.yaml", manifests+"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n"+
		"metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{port: 8080}]\n"+
		"endpoints: [{addresses: [10.244.0.1]}, {addresses: [10.244.0.2]}]\n")
	r.write("pull.json", reg.DockerConfig("a wrong password"))
	events := &nodeEvents{}
	start := func() (stop func()) {
		a := New(r.opts)
		a.nodeEvent = events.record
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.Run(ctx) }()
		return func() {
			t.Helper()
			cancel()
			if err := r.wait(ended); err != nil {
				t.Fatal(err)
			}
		}
	}
	// until waits until the plugin has an error with a text, or none and another module than before.
	until := func(what, problem, before string) (digest string) {
		t.Helper()
		t.Logf("until %s", what)
		testenv.Eventually(t, "the condition", func() bool {
			x, err := stateclient.OnSocket(r.opts.Socket).Explain(t.Context(), api.Name{Namespace: "shop", Name: "web"}, false)
			if err != nil || x.Node == nil || len(x.Node.Plugins) != 1 {
				return false
			}
			p := x.Node.Plugins[0]
			digest = p.Digest
			if (p.Digest == "") == strings.Contains(p.Image, "@sha256:") {
				t.Errorf("%s: %+v", what, p)
			}
			return problem != "" && strings.Contains(p.Error, problem) || problem == "" && p.Error == "" && digest != before
		})
		return digest
	}
	decidedBy := func(want string) {
		t.Helper()
		testenv.Eventually(t, "the condition", func() bool {
			x, err := stateclient.OnSocket(r.opts.Socket).Explain(t.Context(), api.Name{Namespace: "shop", Name: "web"}, false)
			return err == nil && len(x.Pools) == 1 && x.Pools[0].DecidedBy == want
		})
	}
	metrics := func() string { return page(t, "http://"+r.opts.Config.MetricsBindAddress+"/metrics", 200) }

	stop := start()
	until("the registry is down", "connection refused", "")
	decidedBy("default")
	testenv.Eventually(t, "the condition", func() bool {
		text := metrics()
		return strings.Contains(text, `kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`) &&
			strings.Contains(text, `sluice_plugin_load_failed{plugin="p"} 1`) && !strings.Contains(text, `sluice_plugin_image_pulls_total{result="failure"} 0`)
	})
	var all []string
	testenv.Eventually(t, "the condition", func() bool {
		all = append(all, events.take()...)
		return slices.ContainsFunc(all, func(e string) bool {
			return strings.HasPrefix(e, "PluginLoadFailed no revision is in force: plugin p: image "+first+": ")
		})
	})
	reg.Restart()
	until("the password is refused", "with the credentials in ", "")
	r.write("pull.json", reg.DockerConfig(ociregistry.Password)) // a new attempt at once, whatever the delay
	one := until("the first module", "", "")
	decidedBy("policy")
	r.configure(fields(second))
	two := until("the second module", "", one)
	testenv.Eventually(t, "the condition", func() bool { return strings.Contains(metrics(), `sluice_plugin_image_pulls_total{result="success"} 2`) })
	stop()

	reg.Stop()
	var err error
	if r.opts.Config, err = r.load(); err != nil {
		t.Fatal(err)
	}
	stop = start()
	if again := until("a restart without the registry", "", ""); again != two {
		t.Errorf("after a restart: %s, before: %s", again, two)
	}
	decidedBy("policy")
	stop()

	if err := os.RemoveAll(r.path("cache/modules")); err != nil {
		t.Fatal(err)
	}
	stop = start()
	until("a restart without registry and cache", "connection refused", "")
	decidedBy("last good") // of the checkpoint
	stop()
}

package agent

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
)

// evilModule assembles a plugin that keeps the default weights, except that it runs text, the function $evil, for port 666.
func evilModule(t *testing.T, text string) []byte {
	t.Helper()
	base, err := os.ReadFile("../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	return testenv.WAT(t, strings.Replace(string(base), ";; EVIL", text, 1), "--no-check")
}

// hostileManifests returns n Services in each of four namespaces, for three policies.
func hostileManifests(n int) string {
	var out strings.Builder
	out.WriteString("apiVersion: v1\nkind: Node\nmetadata: {name: n0}\n")
	for k, namespace := range []string{"busy", "busy2", "endless", "good"} {
		out.WriteString(tenantManifests(namespace, k, n, func(int) string { return "" }))
	}
	return out.String()
}

// TestHostilePluginsHurtOnlyTheirServices: one plugin uses most of its fuel on each call and one all of it. The limit of their
// CPU time is small, so that it is reached with some calls.
func TestHostilePluginsHurtOnlyTheirServices(t *testing.T) {
	const services, percent = 250, 1
	modules := map[string]string{
		"busy": `(func $evil (param i32 i32 i64) (result i64) (local $i i32)
			(loop $l (local.set $i (i32.add (local.get $i) (i32.const 1))) (br_if $l (i32.lt_u (local.get $i) (i32.const 1600000))))
			(local.get 2))`,
		"endless": "(func $evil (param i32 i32 i64) (result i64) (loop $l (br $l)) (unreachable))",
		"good":    "(func $evil (param i32 i32 i64) (result i64) (local.get 2))",
	}
	dir := t.TempDir()
	var plugins, policies, bindings strings.Builder
	for name, text := range modules {
		file := dir + "/" + name + ".wasm"
		if err := os.WriteFile(file, evilModule(t, text), 0o644); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&plugins, "- {name: %s, file: %s}\n", name, file)
		fmt.Fprintf(&policies, "- {name: %s, plugins: [{name: %[1]s}]}\n", name)
		fmt.Fprintf(&bindings, "- {namespaces: [%s, %[1]s2], policy: %[1]s}\n", name)
	}
	r := newRig(t, fmt.Sprintf("%spluginLimits: {cpuPercent: %d}\nplugins:\n%spolicies:\n%sbindings:\n%s", noServers, percent, &plugins, &policies, &bindings))
	r.write("manifests/a.yaml", hostileManifests(services))
	begin := time.Now()
	a := New(r.opts)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- a.Run(ctx) }()
	explain := func(namespace string, i int) *api.Explanation {
		x, err := stateclient.OnSocket(r.opts.Socket).Explain(ctx, api.Name{Namespace: namespace, Name: fmt.Sprint("s", i)}, false)
		if err != nil {
			return nil
		}
		return x
	}
	decided := func(namespace string) bool {
		for i := range services {
			if x := explain(namespace, i); x == nil || len(x.Pools) != 1 || x.Pools[0].DecidedBy != "policy" {
				return false
			}
		}
		return true
	}
	testenv.Eventually(t, "the condition", func() bool { return decided("good") })
	testenv.Eventually(t, "the condition", func() bool { s := a.calls.Stats()["busy"]; return s.Throttled > 0 && s.Queued > 0 })
	testenv.Eventually(t, "the condition", func() bool {
		for i := range services {
			if x := explain("busy2", i); x != nil && x.Pools[0].Pending != nil && x.Pools[0].Pending.ThrottledSince != nil {
				return true
			}
		}
		return false
	})
	r.write("manifests/b.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: late, namespace: none}\nspec: {clusterIP: 10.96.9.9, ports: [{port: 80}]}\n")
	testenv.Eventually(t, "the condition", func() bool { p, _ := r.kernel.Table(fake.Name); return len(p.Frontends) == 4*services+1 })
	stats, took := a.calls.Stats(), time.Since(begin)
	cpu := time.Duration(0)
	for _, s := range stats {
		cpu += s.CPU
	}
	if most := (time.Minute + took) * percent / 100; cpu > most {
		t.Errorf("plugins used %s of CPU time in %s, want at most %s", cpu, took, most)
	}
	if stats["good"].Throttled > 0 || stats["busy"].Throttled == 0 {
		t.Errorf("%+v", stats)
	}
	if n := strings.Count(r.log.String(), "has used up its share"); n < 1 || n > 2 {
		t.Errorf("throttling is logged %d times", n)
	}
	cancel()
	if err := r.wait(ended); err != nil {
		t.Error(err)
	}
	if strings.Contains(r.log.String(), "did not end") {
		t.Errorf("a call did not end:\n%s", r.log)
	}
}

package agent

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

// TestCallsForManyServicesShareMessages: at the start, and when another revision of their plugin decides for all of them. How
// many share one depends on how fast they are here; package dispatch has the bound.
func TestCallsForManyServicesShareMessages(t *testing.T) {
	if testenv.Race {
		t.Skip("processes of plugins need a build without race detector")
	}
	const namespaces, services = 8, 250
	file := t.TempDir() + "/good.wasm"
	module := evilModule(t, "(func $evil (param i32 i32 i64) (result i64) (local.get 2))")
	if err := os.WriteFile(file, module, 0o644); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, fmt.Sprintf("%splugins: [{name: good, file: %s}]\npolicies: [{name: p, plugins: [{name: good}]}]\ndefaultPolicy: p\n", noServers, file))
	r.opts.PluginProcess = []string{"agent.test", "plugin-process"}
	var manifests strings.Builder
	manifests.WriteString("apiVersion: v1\nkind: Node\nmetadata: {name: n0}\n")
	for n := range namespaces {
		manifests.WriteString(tenantManifests(fmt.Sprint("ns", n), n, services, func(int) string { return "" }))
	}
	r.write("manifests/a.yaml", manifests.String())
	a := New(r.opts)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	revision := ""
	for _, what := range []string{"start", "another revision"} {
		var stats wasm.Stats
		testenv.Eventually(t, "all Services are decided", func() bool {
			if a.plugins == nil {
				return false
			}
			p, err := a.plugins.Get("good")
			if err != nil || p.Revision() == revision {
				return false
			}
			stats = p.(interface{ Stats() wasm.Stats }).Stats()
			return stats.Calls >= namespaces*services
		})
		p, _ := a.plugins.Get("good")
		revision = p.Revision()
		t.Logf("%s: %d calls in %d messages", what, stats.Calls, stats.Messages)
		if stats.Messages > stats.Calls/2 {
			t.Errorf("%s: %d messages for %d calls", what, stats.Messages, stats.Calls)
		}
		if err := os.WriteFile(file, append(module, 0, 2, 1, 'x'), 0o644); err != nil { // a custom section
			t.Fatal(err)
		}
	}
	cancel()
	if err := r.wait(ended); err != nil {
		t.Error(err)
	}
}

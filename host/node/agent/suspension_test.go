package agent

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
)

// TestFailingServicesDoNotStarveAPolicyOfTheSameModule: those of one policy have failed for a while when Services with another
// policy come, and more Services with the first.
func TestFailingServicesDoNotStarveAPolicyOfTheSameModule(t *testing.T) {
	const failing, services = 4, 20
	base, err := os.ReadFile("../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	guest, err := os.ReadFile("../../plugin/wasm/testdata/settings.wat")
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/p.wasm"
	if err := os.WriteFile(file, testenv.WAT(t, strings.Replace(string(base), ";; EVIL", string(guest), 1), "--no-check"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, fmt.Sprintf(`%splugins: [{name: p, file: %s}]
policies:
- {name: bad, plugins: [{name: p, settings: {"c": "d"}}]}
- {name: good, plugins: [{name: p, settings: {"c": "5"}}]}
bindings: [{namespaces: [bad, worse], policy: bad}, {namespaces: [good], policy: good}]
`, noServers, file))
	none := func(int) string { return "" }
	r.write("manifests/a.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: n0}\n"+tenantManifests("bad", 0, failing, none))
	a := New(r.opts)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- a.Run(ctx) }()
	explain := func(namespace string, i int) *api.Explanation {
		x, err := stateclient.OnSocket(r.opts.Socket).Explain(ctx, api.Name{Namespace: namespace, Name: fmt.Sprint("s", i)}, false)
		if err != nil || len(x.Pools) != 1 {
			return nil
		}
		return x
	}
	testenv.Eventually(t, "the failing Services are suspended", func() bool {
		if explain("bad", failing-1) == nil { // it has not started
			return false
		}
		all := a.pluginStats()
		return len(all) == 1 && all[0].Suspended.Ports == failing
	})
	r.write("manifests/b.yaml", tenantManifests("worse", 1, 3, none)+tenantManifests("good", 2, services, none))
	testenv.Eventually(t, "the others are decided", func() bool {
		for i := range services {
			if x := explain("good", i); x == nil || x.Pools[0].DecidedBy != "policy" || x.Error != "" {
				return false
			}
		}
		return true
	})
	testenv.Eventually(t, "a Service with the settings of the failing ones is suspended", func() bool {
		x := explain("worse", 0)
		return x != nil && x.Error != ""
	})
	if x := explain("worse", 0); strings.Contains(x.Error, "bad/s") {
		t.Errorf("the error names a Service of another namespace: %s", x.Error)
	}
	for i := range services {
		if x := explain("good", i); x == nil || x.Error != "" {
			t.Errorf("%+v", x)
		}
	}
	cancel()
	if err := r.wait(ended); err != nil {
		t.Error(err)
	}
}

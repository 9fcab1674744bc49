package agent

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
)

// tenantManifests returns n Services in a namespace with settings. Those of the namespaces in order have IPs of their own.
func tenantManifests(namespace string, net, n int, settings func(i int) string) string {
	var out strings.Builder
	for i := range n {
		annotations := ""
		if text := settings(i); text != "" {
			annotations = fmt.Sprintf(", annotations: {sluice.dev/settings: '%s'}", text)
		}
		fmt.Fprintf(&out, `---
apiVersion: v1
kind: Service
metadata: {name: s%[2]d, namespace: %[1]s%[4]s}
spec: {clusterIP: 10.96.%[3]d.%[2]d, ports: [{port: 666}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s%[2]d-1, namespace: %[1]s, labels: {kubernetes.io/service-name: s%[2]d}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.%[3]d.%[2]d], conditions: {ready: true}}]
`, namespace, i, net, annotations)
	}
	return out.String()
}

// TestHostileSettingsHurtOnlyTheirServices: the Services of a namespace set different texts that trap, never end, or are refused.
// Those of another namespace have settings of their own, and those of a third those of the policy.
func TestHostileSettingsHurtOnlyTheirServices(t *testing.T) {
	const services = 40
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
	r := newRig(t, fmt.Sprintf(`%spluginLimits: {cpuPercent: 0}
plugins: [{name: p, file: %s}]
policies: [{name: q, plugins: [{name: p, settings: {"c": "2"}, serviceSettings: [c, "n"]}]}]
defaultPolicy: q
`, noServers, file))
	evil := func(i int) byte { // few that never end: they would use up the fuel of the namespace, and the others wait
		if i%10 == 0 {
			return 'l'
		}
		return "tns"[i%3]
	}
	text := func(char byte, n int) string { return fmt.Sprintf(`{"p": {"c": "%c", "n": %d}}`, char, n) }
	r.write("manifests/a.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: n0}\n"+
		tenantManifests("evil", 0, services, func(i int) string { return text(evil(i), i) })+
		tenantManifests("own", 1, services, func(i int) string { return text(byte('3'+i%5), i) })+
		tenantManifests("plain", 2, services, func(int) string { return "" }))
	a := New(r.opts)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { ended <- a.Run(ctx) }()
	explain := func(namespace string, i int) *api.Explanation {
		x, err := stateclient.OnSocket(r.opts.Socket).Explain(ctx, api.Name{Namespace: namespace, Name: fmt.Sprint("s", i)}, false)
		if err != nil || len(x.Pools) != 1 || len(x.Pools[0].Endpoints) != 1 {
			return nil
		}
		return x
	}
	decided := func(namespace string, share func(i int) int) { // in millionths
		t.Helper()
		testenv.Eventually(t, "the condition", func() bool {
			for i := range services {
				x := explain(namespace, i)
				if x == nil || x.Pools[0].DecidedBy != "policy" || math.Round(1e6**x.Pools[0].Endpoints[0].Steps[0].Share) != float64(share(i)) {
					return false
				}
			}
			return true
		})
	}
	decided("own", func(i int) int { return 3 + i%5 })
	decided("plain", func(int) int { return 2 })
	testenv.Eventually(t, "the condition", func() bool { // what is refused has the settings of the policy
		for i := range services {
			x := explain("evil", i)
			if evil(i) == 'l' {
				continue // out of fuel, or late on a busy machine, and then tried again later
			}
			if x == nil || x.Settings == nil || (x.Settings.Error == "") != (evil(i) == 's') || x.Pools[0].DecidedBy != "policy" {
				return false
			}
		}
		return true
	})
	decided("own", func(i int) int { return 3 + i%5 })
	decided("plain", func(int) int { return 2 })
	if s := a.plugins.Stats()[0]; s.Settings.Accepted < services || s.Settings.Refused < services/3 {
		t.Errorf("%+v", s)
	}
	p, _ := r.kernel.Table(fake.Name)
	if got := p.Frontends[plan.Key{Addr: p.Keys()[0].Addr, Port: 666, Protocol: model.TCP}]; got == nil || len(p.Frontends) != 3*services {
		t.Errorf("%d frontends", len(p.Frontends))
	}
	cancel()
	if err := r.wait(ended); err != nil {
		t.Error(err)
	}
}

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// TestRunRecordsAndReplayCompares records a node in a network namespace while an endpoint is added, and replays that while it
// runs, and after it was killed, with a policy and without.
func TestRunRecordsAndReplayCompares(t *testing.T) {
	module := filepath.Join(testenv.Plugins(t, "plugins/locality"), "locality.wasm")
	line := `mkdir m; cat > m/a.yaml <<EOF
apiVersion: v1
kind: Node
metadata: {name: n0, labels: {topology.kubernetes.io/zone: a}}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: b}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
- {addresses: [10.0.0.1], zone: a}
EOF
printf 'apiVersion: sluice.dev/v1alpha1\nkind: SluiceConfiguration\nmetricsBindAddress: ""\nhealthzBindAddress: ""\n' > c.yaml
{ cat c.yaml; printf 'plugins: [{name: z, file: %s}]\npolicies: [{name: p, plugins: [{name: z, settings: {minEndpointsPerZone: 1}}]}]\ndefaultPolicy: p\n' ` + module + `; } > policy.yaml
sluice run --source m --node n0 --checkpoint '' --socket "$PWD/s" --config c.yaml --record rec/node & pid=$!
wait_for() { n=0; until "$@"; do n=$((n+1)); [ $n -lt 1200 ] || { echo "waited in vain: $*"; kill $pid; exit 1; }; sleep 0.1; done; }
has() { zcat rec/node 2>/dev/null | grep -q "$1"; }
wait_for has 10.0.0.1
{ cat m/a.yaml; echo '- {addresses: [10.0.0.9], zone: b}'; } > new && mv new m/a.yaml
wait_for has 10.0.0.9
sluice status --socket "$PWD/s" | grep '^recording'
sluice replay rec/node --config policy.yaml --against policy.yaml | head -1
kill -9 $pid; wait $pid
sluice replay rec/node --config policy.yaml --against c.yaml --html page.html --fail-if 'max_divergence > 40%' || echo "exit code $?"
sluice replay rec/node --config policy.yaml --against c.yaml -n shop web --fail-if 'max_divergence(shop/*) > 40%' >of-web; echo "of the Service: exit code $?"
grep -c 'differs from c.yaml for 1 Service ports' of-web
sluice replay rec/node --config policy.yaml --against c.yaml -n other --fail-if 'weight_changes > 0'
grep -c 'up to 50.0 % of the new connections to one of them go elsewhere' page.html | sed 's/^/verdicts of the page: /'
sluice simulate --source m --demand rec/node 2>&1
ls -l rec | tail -1 | cut -c1-10`
	out, stderr, err := inNamespace(t, line)
	for _, want := range []string{
		"recording      rec/node, ", " 0 changes dropped\n", "No difference: policy.yaml and policy.yaml", "note: the recording has not been closed, or is still written",
		"policy.yaml differs from c.yaml for 1 Service ports: up to 50.0 %", "1 changes, 0 readings of outcomes; at the end 1 Services, 2 endpoints",
		"shop/web:80 (TCP, IPv4) differs for ", "10.0.0.9:8080", "0.0 %      50.0 %    zone b", "exit code 4\n", "of the Service: exit code 4\n1\n", "No difference: policy.yaml and c.yaml", "at the end 0 Services, 0 endpoints", "verdicts of the page: 1\n",
		"sluice: rec/node: the recording has no two readings of outcomes: no policy needed them when it was made\n", "-rw-------\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in (%v)\n%s\n%s", want, err, out, stderr)
		}
	}
	if want := "--fail-if max_divergence > 40%: max_divergence of the candidate is 50.0 %"; !strings.Contains(stderr, want) {
		t.Errorf("no %q in\n%s", want, stderr)
	}
}

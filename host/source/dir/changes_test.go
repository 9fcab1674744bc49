package dir

import (
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func TestTriggerTimeAloneEmitsNothing(t *testing.T) {
	slice := func(ready bool, second int) string {
		return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  namespace: shop
  labels: {kubernetes.io/service-name: web}
  annotations: {endpoints.kubernetes.io/last-change-trigger-time: "2026-01-02T03:04:%02dZ"}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.0.1], conditions: {ready: %t}}]
`, second, ready)
	}
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), slice(true, 1))
	r := start(t, root, Options{})
	r.write("a.yaml", slice(true, 2))
	r.write("z.yaml", node("n1", "z1"))
	r.waitForZones("n1=z1")
	r.write("a.yaml", slice(false, 3))
	at := model.Name{Namespace: "shop", Name: "web-1"}
	r.waitFor("not ready", func() bool { s := r.snap.Slice(at); return s != nil && !s.Endpoints[0].Ready })
	r.mu.Lock()
	defer r.mu.Unlock()
	emitted := 0
	for _, call := range r.calls {
		for _, c := range call {
			if c.Kind == model.SliceKind {
				emitted++
			}
		}
	}
	if got := r.snap.Slice(at); emitted != 2 || got.Trigger != 1767323043000 {
		t.Errorf("emitted %d times, want 2; trigger %d", emitted, got.Trigger)
	}
}

func TestCurrentProblemsAreCounted(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), "kind: [\n")
	var now atomic.Value
	r := start(t, root, Options{OnProblems: func(e, w int) { now.Store([2]int{e, w}) }})
	becomes := func(want [2]int) {
		t.Helper()
		testenv.Eventually(t, fmt.Sprintf("%v problems and warnings", want), func() bool { return now.Load() == any(want) }, func() string { return fmt.Sprint(now.Load()) })
	}
	becomes([2]int{1, 0})
	r.write("b.yaml", "also: [\n")
	becomes([2]int{2, 0})
	r.write("a.yaml", node("n1", "z1"))
	r.write("b.yaml", node("n2", "z1"))
	becomes([2]int{0, 0})
}

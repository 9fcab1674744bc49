package health_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/health"
)

// Test503HasAReasonAndStaleStateStaysHealthy checks rule 43: an unreachable API server does not make a node unhealthy.
func Test503HasAReasonAndStaleStateStaysHealthy(t *testing.T) {
	n := start(t)
	healthz := n.url + health.Healthz
	wantReason := func(what string, code int, want ...string) {
		t.Helper()
		var body struct{ Reason string }
		testenv.Eventually(t, fmt.Sprintf("%s: reason %q", what, want), func() bool {
			a := n.waitFor(what, healthz, code)
			body.Reason = ""
			if err := json.Unmarshal([]byte(a.body), &body); err != nil {
				t.Fatal(err)
			}
			ok := len(want) > 0 || body.Reason == ""
			for _, w := range want {
				ok = ok && strings.Contains(body.Reason, w)
			}
			return ok
		}, func() string { return body.Reason })
	}
	unreachable, reachable := "API server https://192.0.2.1: services not watched for 40s: connection refused", ""
	wantReason("at startup", 503, "the initial cluster state is not complete")
	n.staleReason.Store(&unreachable)
	wantReason("at startup without the API server", 503, "the initial cluster state is not complete; "+unreachable)
	n.staleReason.Store(&reachable)
	n.emit(service(0), synced)
	wantReason("no Node", 503, "the Node is absent")
	n.emit(present)
	wantReason("healthy", 200)
	n.staleReason.Store(&unreachable)
	wantReason("API server unreachable", 200)
	n.applyFails.Store(true)
	n.emit(model.Change{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "web"}})
	n.clockOffset.Store(int64(61 * time.Second))
	wantReason("programming fails", 503, "an update has been pending for 1m", unreachable)
	n.applyFails.Store(false)
	wantReason("programming succeeds again", 200)
}

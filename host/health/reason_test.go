package health_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/health"
	"github.com/sluice-proxy/sluice/host/model"
)

// TestA503SaysWhyAndAnAPIServerThatIsAwayMakesNobodyUnhealthy follows rule 43: forwarding nodes stay healthy.
func TestA503SaysWhyAndAnAPIServerThatIsAwayMakesNobodyUnhealthy(t *testing.T) {
	n := start(t)
	healthz := n.url + health.Healthz
	says := func(what string, code int, want ...string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			var body struct{ Reason string }
			a := n.becomes(what, healthz, code)
			if err := json.Unmarshal([]byte(a.body), &body); err != nil {
				t.Fatal(err)
			}
			ok := len(want) > 0 || body.Reason == ""
			for _, w := range want {
				ok = ok && strings.Contains(body.Reason, w)
			}
			if ok {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: reason %q, want %q", what, body.Reason, want)
			}
		}
	}
	away, there := "API server https://192.0.2.1: services not watched for 40s: connection refused", ""
	says("at the start", 503, "the cluster's state has not been read yet")
	n.away.Store(&away)
	says("at the start, with the API server away", 503, "the cluster's state has not been read yet; "+away)
	n.away.Store(&there)
	n.emit(service(0), synced)
	says("there is no Node", 503, "Node is not there")
	n.emit(present)
	says("all is well", 200)
	n.away.Store(&away)
	says("the API server is away: it forwards on", 200)
	n.broken.Store(true)
	n.emit(model.Change{Kind: model.ServiceKind, Name: model.Name{Namespace: "shop", Name: "web"}})
	n.late.Store(int64(61 * time.Second))
	says("nothing can be programmed", 503, "an update has waited for 1m", " to be programmed", away)
	n.broken.Store(false)
	says("it can again", 200)
}

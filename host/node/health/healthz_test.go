package health_test

import (
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/health"
)

func TestHealthzDependsOnNodeAndLivezDoesNot(t *testing.T) {
	n := start(t)
	healthz, livez := n.url+health.Healthz, n.url+health.Livez
	n.waitFor("before the initial state", healthz, 503)
	n.waitFor("before the initial state", livez, 200)
	n.emit(service(0), synced)
	n.always("no Node", healthz, 503)
	n.emit(present)
	n.waitFor("the Node", healthz, 200)
	n.emit(nodeIs(&model.Node{Name: "n0", Leaving: true}))
	a := n.waitFor("the Node is leaving", healthz, 503)
	var body struct {
		NodeEligible *bool
		Healthy      bool
		LastUpdated  time.Time
		CurrentTime  time.Time
		Status       map[string]struct{ Healthy bool }
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Fatal(err)
	}
	if body.NodeEligible == nil || *body.NodeEligible || !body.Healthy || !body.Status["IPv4"].Healthy ||
		time.Since(body.CurrentTime).Abs() > time.Minute || body.LastUpdated.IsZero() {
		t.Errorf("body %s", a.body)
	}
	a = n.waitFor("the proxy is alive", livez, 200)
	if strings.Contains(a.body, "nodeEligible") || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("livez: %v %s", a.header, a.body)
	}
	n.emit(nodeIs(nil))
	n.waitFor("the Node is gone", healthz, 503)
	n.emit(present)
	n.waitFor("the Node is back", healthz, 200)
	for len(n.codes) > 1 {
		<-n.codes
	}
	if got := <-n.codes; got != health.Healthz+" 200" {
		t.Errorf("counted %q last", got)
	}
}

func TestUpdatePendingForTwoSyncPeriodsIsUnhealthy(t *testing.T) {
	n, port := start(t), testenv.FreePort(t)
	healthz, livez := n.url+health.Healthz, n.url+health.Livez
	n.emit(service(port), endpoints("n0"), present, synced)
	n.waitFor("programmed", healthz, 200)
	n.waitFor("programmed", at(port), 200)

	n.clockOffset.Store(int64(time.Hour)) // no update is pending
	n.always("idle for 1 h", healthz, 200)

	n.clockOffset.Store(0)
	n.applyFails.Store(true)
	n.emit(endpoints("n0", "n0"))
	n.always("rejected just now", healthz, 200)
	n.clockOffset.Store(int64(20 * time.Second))
	n.always("rejected for 20 s", healthz, 200)
	n.clockOffset.Store(int64(61 * time.Second))
	n.waitFor("rejected for 61 s", healthz, 503)
	a := n.waitFor("rejected for 61 s", livez, 503)
	if !strings.Contains(a.body, `"healthy": false`) {
		t.Errorf("livez: %s", a.body)
	}
	a = n.waitFor("rejected for 61 s", at(port), 503)
	if !strings.Contains(a.body, `"serviceProxyHealthy": false`) || a.header.Get("X-Load-Balancing-Endpoint-Weight") != "1" {
		t.Errorf("health check port: %v %s", a.header, a.body)
	}
	n.applyFails.Store(false)
	n.waitFor("programmed after retries", healthz, 200)
	n.waitFor("programmed after retries", livez, 200)
	n.waitFor("programmed after retries", at(port), 200)
}

func TestNoUpdateIsPendingBeforeInitialSync(t *testing.T) {
	n := start(t)
	n.emit(service(0), present)
	n.clockOffset.Store(int64(time.Hour))
	n.always("incomplete initial state", n.url+health.Livez, 200)
}

func TestHangingEngineIsUnhealthy(t *testing.T) {
	h := health.New(health.Options{Now: func() time.Time { return time.Unix(1061, 0) }, Log: slog.New(slog.DiscardHandler), SyncPeriod: 30 * time.Second})
	defer h.Close()
	server := httptest.NewServer(h.Handler())
	defer server.Close()
	code := func() int {
		a, err := get(server.URL + health.Livez)
		if err != nil {
			t.Fatal(err)
		}
		return a.code
	}
	// A queued update is never dequeued.
	h.OnEnqueue([]model.Change{synced}, time.Unix(1000, 0))
	if c := code(); c != 503 {
		t.Errorf("update never dequeued: %d", c)
	}
	// An update that arrives later counts from its own arrival.
	h.OnDequeue()
	h.OnEnqueue([]model.Change{present}, time.Unix(1002, 0))
	if c := code(); c != 503 {
		t.Errorf("update never programmed: %d", c)
	}
	h.OnApply(&engine.ApplyResult{At: time.Unix(1055, 0), Synced: true})
	if c := code(); c != 200 {
		t.Errorf("later update, pending for 59 s: %d", c)
	}
}

package printer

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/node/agent/api"
)

func TestStatusIsOneScreen(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	earlier := func(d time.Duration) *time.Time { t := at.Add(-d); return &t }
	s := &api.Status{
		Version: "v1", Mode: "ipvs", Node: "n1", Zone: "a", Source: "https://192.0.2.1:6443", At: at, Started: *earlier(time.Hour), Synced: earlier(time.Hour - time.Second),
		Configuration: api.Configuration{Hash: "1234", Error: "mdoe: unknown field", Since: earlier(time.Minute), Loaded: earlier(time.Hour)},
		Plugins: []api.Plugin{{Name: "p", Digest: "sha256:00", Unconfined: []string{"no files (Landlock)"}}, {Name: "q", Error: "plugin q: no such file", Since: earlier(time.Minute)},
			{Name: "r", Error: "plugin r: image i: not pulled yet", Since: earlier(time.Minute), Loading: true}},
		Policies: []api.Policy{{Name: "x"}, {Name: "y", Revision: "12"}},
		Plan:     api.PlanSize{Services: 2, Frontends: 5, Endpoints: 7, Draining: 1},
		Kernel:   api.KernelState{InSync: true, LastSync: earlier(time.Minute), Frontends: 4, Unprogrammed: 1},
		API:      &api.API{Server: "https://192.0.2.1:6443", Stale: []api.StaleResource{{Resource: "services", Seconds: 90, Reason: "connection refused"}}},
		Repairs:  &api.Repairs{Changes: 2, Last: *earlier(time.Minute), Objects: "table ip sluice", Processes: "nft\x1b (12)"},
	}
	s.Assess()
	var out strings.Builder
	if err := Status(&out, s); err != nil {
		t.Fatal(err)
	}
	want := `sluice         v1, mode ipvs, running for 1h0m0s
node           n1, zone a
source         https://192.0.2.1:6443, not watched: services
synced         since 2026-01-01T11:00:01Z (first after 1s); last change 1m0s ago
plan           2 Services, 5 frontends, 7 endpoints
kernel         4 frontends, 1 rejected
drains         1 endpoint (see sluice drains)
configuration  hash 1234, loaded 2026-01-01T11:00:00Z; the file as it is now is rejected
plugins        1 of 3 loaded, 2 policies, 1 of them lacking a plugin; their processes are not confined by: no files (Landlock) (see sluice check)
repairs        2 changes by others, the last 1m0s ago: table ip sluice by nft\u001b (12)

FAILING  configuration rejected since 2026-01-01T11:59:00Z; the previous one, hash 1234, stays in force: mdoe: unknown field
  look at: sluice config check FILE

FAILING  loading failed since 2026-01-01T11:59:00Z; no revision is in force: plugin q: no such file
  look at: sluice config check FILE

FAILING  the kernel has rejected 1 frontends
  look at: sluice explain -n NAMESPACE SERVICE, of the Services in the log

DEGRADED  loading since 2026-01-01T11:59:00Z; no revision is in force: plugin r: image i: not pulled yet
  look at: sluice status

DEGRADED  services: not watched for 1m30s: connection refused
  look at: the API server https://192.0.2.1:6443

DEGRADED  another process changed what sluice programs, the last time at 2026-01-01T11:59:00Z (nft\u001b (12)); it was repaired
  look at: stop that process from changing table ip sluice
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestDrainsAreATable(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	since, reset, n := at.Add(-90*time.Second), at.Add(time.Minute), uint32(3)
	x := &api.Drains{Node: "n1", At: at, OmittedServices: 2, Drains: []api.Drain{
		{Service: "shop/web", Port: "http", Number: 80, Protocol: "TCP", Address: "10.0.0.1:8080", Pod: "web-0", Node: "n2", Since: &since, Stage: api.StageServing, Why: "terminating, still serving",
			Steps: []api.Step{{Plugin: "drain", Reason: "stage 1"}}, Weight: 5, Share: 0.05, ResetAt: &reset, Connections: &n},
		{Service: "shop/web", Number: 53, Protocol: "UDP", Address: "10.0.0.1:53", Stage: api.StageDraining, Why: "not ready"},
	}, ConnectionsError: "conntrack: no permission"}
	var out strings.Builder
	if err := Drains(&out, x); err != nil {
		t.Fatal(err)
	}
	want := `SERVICE   PORT    ENDPOINT       POD    NODE  FOR    STAGE     SHARE  CONNECTIONS  WHY
shop/web  http    10.0.0.1:8080  web-0  n2    1m30s  Serving   5.0 %  3            terminating, still serving; drain: stage 1; connections reset at 12:01:00 UTC
shop/web  53/UDP  10.0.0.1:53    -      -     -      Draining  0.0 %  unknown      not ready
connections are not known: conntrack: no permission
and the drains of 2 more Services
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	x.Filter("other", "")
	if len(x.Drains) != 0 {
		t.Errorf("%+v", x.Drains)
	}
}

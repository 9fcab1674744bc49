package health_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/planner/tally"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/health"
)

// TestOwnSocketsAreNeverInTheWay changes the addresses and ports of health checks while the old sockets are still open. Nothing
// may be left to a retry: there is none.
func TestOwnSocketsAreNeverInTheWay(t *testing.T) {
	requireIPv6(t)
	a, b := testenv.FreePort(t), testenv.FreePort(t)
	type state struct {
		addrs string
		ports map[string]uint16 // by Service
	}
	one := map[string]uint16{"web": a}
	for name, states := range map[string][]state{
		"all addresses and one":          {{"0.0.0.0", one}, {"127.0.0.1", one}},
		"all, others and several":        {{"0.0.0.0", one}, {"127.0.0.1", one}, {"127.0.0.2", one}, {"127.0.0.1 127.0.0.2", one}},
		"all and one of IPv6":            {{"::", one}, {"::1", one}},
		"both families, in turn":         {{"0.0.0.0 ::", one}, {"127.0.0.1 ::", one}, {"0.0.0.0 ::1", one}, {"127.0.0.1 ::1", one}, {"::", one}},
		"two Services swap their ports":  {{"0.0.0.0 ::", map[string]uint16{"web": a, "shop": b}}, {"0.0.0.0 ::", map[string]uint16{"web": b, "shop": a}}},
		"a swap and other addresses":     {{"0.0.0.0", map[string]uint16{"web": a, "shop": b}}, {"127.0.0.1", map[string]uint16{"web": b, "shop": a}}},
		"another name, all and one":      {{"0.0.0.0", one}, {"127.0.0.1", map[string]uint16{"another": a}}},
		"no Service, and other ones":     {{"0.0.0.0", one}, {"127.0.0.1", nil}, {"127.0.0.1", map[string]uint16{"another": a}}},
		"no address, for a moment":       {{"0.0.0.0", one}, {"", one}, {"127.0.0.1", one}},
		"one takes over from the others": {{"127.0.0.1", map[string]uint16{"web": a, "shop": b}}, {"0.0.0.0", map[string]uint16{"shop": a}}},
	} {
		t.Run(name, func(t *testing.T) {
			h := health.New(health.Options{
				Now: time.Now, After: func(time.Duration) <-chan time.Time { return nil }, Log: slog.New(slog.DiscardHandler), SyncPeriod: time.Minute,
				OnListenError: func(_ model.Name, err error) { t.Error(err) },
			})
			defer h.Close()
			last := map[string]uint16{}
			for i := range 60 * len(states) {
				s := states[i%len(states)]
				var result planner.Result
				for _, a := range strings.Fields(s.addrs) {
					result.NodeStatus.HealthAddrs = append(result.NodeStatus.HealthAddrs, netip.MustParseAddr(a))
				}
				for _, service := range []string{"another", "shop", "web"} {
					if last[service] != s.ports[service] {
						result.HealthChecks = append(result.HealthChecks, tally.HealthCheck{Service: model.Name{Namespace: "x", Name: service},
							Port: s.ports[service], Serves: tally.ByFamily[bool]{true, true}})
					}
				}
				last = s.ports
				h.OnPlan(&engine.PlannedStep{Result: &result})
				if i%60 >= 20 && i != 60*len(states)-1 {
					continue // the next change comes before the sockets are open
				}
				for _, a := range result.NodeStatus.HealthAddrs {
					for service, port := range s.ports {
						expectAnswer(t, netip.AddrPortFrom(a, port), service)
					}
				}
			}
		})
	}
}

// expectAnswer waits for an answer about a Service.
func expectAnswer(t *testing.T, at netip.AddrPort, service string) {
	t.Helper()
	var a answer
	testenv.Eventually(t, fmt.Sprintf("%s answers about %s", at, service), func() bool {
		a, _ = get("http://" + at.String())
		return strings.Contains(a.body, fmt.Sprintf("%q", service))
	}, func() string { return a.body })
}

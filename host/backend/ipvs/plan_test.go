package ipvs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/plan"
)

const globalSection = `global
  node-port-addresses  192.168.0.1 fd00:192::1
  pod-sources          10.244.0.0/16 fd00:10:244::/64
  masquerade-mark      0x4000

`

func parse(t testing.TB, text string) *plan.Plan {
	t.Helper()
	p, err := plan.Parse(globalSection + text)
	if err == nil {
		err = plan.Validate(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// web returns a plan of one ClusterIP frontend with endpoints of these weights at 10.244.0.1, 10.244.0.2, and so on; a
// negative weight leaves one out.
func web(t testing.TB, weights ...int) *plan.Plan {
	return frontend(t, "10.96.0.80:80/TCP  ClusterIP", "", weights)
}

func frontend(t testing.TB, what, more string, weights []int) *plan.Plan {
	t.Helper()
	sum, n := 0, 0
	var endpoints strings.Builder
	for _, w := range weights {
		sum += max(w, 0)
	}
	for i, w := range weights {
		if w < 0 {
			continue
		}
		n++
		phase := "active"
		if w == 0 {
			phase = "draining"
		}
		fmt.Fprintf(&endpoints, "      10.244.0.%d:9000  weight %d  %.1f %%  %s\n", i+1, w, 100*float64(w)/float64(max(sum, 1)), phase)
	}
	verdict := "forward"
	if sum == 0 {
		verdict = "reject"
	}
	return parse(t, fmt.Sprintf("service shop/web\n  port http  %s  masquerade=outside balance=random%s\n    %s %d %s, total %d\n%s",
		what, more, verdict, n, map[bool]string{true: "endpoint", false: "endpoints"}[n == 1], sum, endpoints.String()))
}

// hasAddr reports whether a pool of the frontend has an endpoint with the address of m.
func hasAddr(f *plan.Frontend, m plan.Endpoint) bool {
	same := func(o plan.Endpoint) bool { return o.Addr == m.Addr }
	return slices.ContainsFunc(f.Pool.Endpoints, same) || f.Outside != nil && slices.ContainsFunc(f.Outside.Endpoints, same)
}

func hasEndpoint(f *plan.Frontend, m plan.Endpoint) bool {
	return f != nil && slices.ContainsFunc(f.Pool.Endpoints, func(o plan.Endpoint) bool { return o.Addr == m.Addr && o.Weight == m.Weight })
}

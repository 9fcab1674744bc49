package eligibility

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// TestLaterEntryOfTheSamePodCounts: an entry is "pod conditions time version", where r, s and t stand for ready, serving and
// terminating, and 0 for a time or version that is missing or malformed. Each is in a slice of its own.
func TestLaterEntryOfTheSamePodCounts(t *testing.T) {
	for title, c := range map[string]struct{ entries, want string }{
		"moved and not ready":                  {"a rs 10 0, a st 20 0", "a st"},
		"moved and not ready, listed first":    {"a st 20 0, a rs 10 0", "a st"},
		"moved and ready":                      {"a st 10 0, a rs 20 0", "a rs"},
		"moved, no longer serving":             {"a rs 10 0, a - 20 0", "a -"},
		"moved, terminates and serves no more": {"a rs 10 0, a t 20 0", "a t"},
		"versions only":                        {"a rs 0 7, a t 0 9", "a t"},
		"versions, not digits":                 {"a rs 0 9, a t 0 10", "a t"},
		"versions before times":                {"a rs 20 7, a t 10 9", "a t"},
		"a version is missing":                 {"a rs 10 9, a t 20 0", "a t"},
		"the old time is missing":              {"a rs 0 0, a t 20 0", "a rs"},
		"the new time is missing":              {"a rs 10 0, a t 0 0", "a rs"},
		"neither has a time":                   {"a rs 0 0, a t 0 0", "a rs"},
		"times are equal":                      {"a rs 10 0, a t 10 0", "a rs"},
		"versions are equal":                   {"a rs 10 7, a t 20 7", "a rs"},
		"three slices":                         {"a rs 10 0, a s 30 0, a rs 20 0", "a s"},
		"three slices, one without a time":     {"a rs 10 0, a st 0 0, a t 30 0", "a st"},
		"another Pod is ready":                 {"a rs 10 0, b t 20 0", "a rs"},
		"another Pod is ready and newer":       {"a st 10 0, b rs 20 0", "b rs"},
		"another Pod beside an outdated one":   {"a rs 10 0, a t 20 0, b s 5 0", "b s"},
		"an outdated Pod beside another one":   {"b rs 5 0, a rs 10 0, a t 20 0", "b rs"},
		"no Pod":                               {"- rs 10 0, - t 20 0", "- rs"},
		"no Pod beside a Pod":                  {"- t 30 0, a rs 10 0", "a rs"},
	} {
		t.Run(title, func(t *testing.T) {
			var all []*model.EndpointSlice
			for i, text := range strings.Split(c.entries, ", ") {
				s := &model.EndpointSlice{Name: model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}, Service: name, Family: model.IPv4,
					Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
				e := model.SliceEndpoint{Addr: netip.MustParseAddr("10.0.0.1")}
				var conditions string
				if _, err := fmt.Sscan(text, &e.Pod, &conditions, &s.Trigger, &s.Version); err != nil {
					t.Fatal(err)
				}
				e.Pod = strings.Trim(e.Pod, "-")
				e.Ready, e.Serving, e.Terminating = strings.Contains(conditions, "r"), strings.Contains(conditions, "s"), strings.Contains(conditions, "t")
				other := e
				other.Addr = netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})
				s.Endpoints = []model.SliceEndpoint{other, e}
				all = append(all, s)
			}
			svc := &model.Service{Name: name, Ports: []model.ServicePort{{Protocol: model.TCP, Port: 80}}}
			for seed := range uint64(6) {
				rand.New(rand.NewPCG(seed, 1)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				eps := SelectEndpoints(svc, &svc.Ports[0], model.IPv4, all, NodeInfo{}).Endpoints
				if len(eps) != len(all)+1 {
					t.Fatalf("%d endpoints of %d slices", len(eps), len(all))
				}
				got := ""
				for _, is := range []struct {
					what string
					is   bool
				}{{"r", eps[0].Ready}, {"s", eps[0].Serving}, {"t", eps[0].Terminating}} {
					if is.is {
						got += is.what
					}
				}
				if got = orDash(eps[0].Pod) + " " + orDash(got); got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
			}
		})
	}
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

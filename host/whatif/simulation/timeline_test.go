package simulation

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/sdk/scenario"
)

// shop returns a cluster of nodes in zones a, b and c in turn, and the Service shop/web with a ready Pod on each of the first
// ones.
func shop(nodes, pods int) *model.Snapshot {
	c := model.NewSnapshot()
	for i := range nodes {
		n := &model.Node{Name: fmt.Sprintf("n%02d", i), Zone: []string{"a", "b", "c"}[i%3], Ready: true, MilliCPU: 4000}
		c.Apply(model.Change{Kind: model.NodeKind, Name: model.Name{Name: n.Name}, Node: n})
	}
	web := model.Name{Namespace: "shop", Name: "web"}
	c.Apply(model.Change{Kind: model.ServiceKind, Name: web, Service: &model.Service{
		Name: web, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
	}})
	s := &model.EndpointSlice{Name: model.Name{Namespace: "shop", Name: "web-x"}, Service: web, Family: model.IPv4, Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}}}
	for i := range pods {
		n := c.Nodes[fmt.Sprintf("n%02d", i%nodes)]
		name := model.Name{Namespace: "shop", Name: fmt.Sprint("web-", i)}
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(1 + i)}), Node: n.Name, Zone: n.Zone, Ready: true, Serving: true, Pod: name.Name})
		c.Apply(model.Change{Kind: model.PodKind, Name: name, Pod: &model.Pod{Name: name, MilliCPU: 500}})
	}
	c.Apply(model.Change{Kind: model.SliceKind, Name: s.Name, Slice: s})
	c.Apply(model.Change{Kind: model.Synced})
	return c
}

func worldOf(t *testing.T, c *model.Snapshot, timeline string) *world {
	t.Helper()
	f, err := scenario.Parse("test", []byte(timeline))
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWorld(&Input{Cluster: c, Timeline: f, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// counts are endpoints of shop/web.
type counts struct{ all, ready, serving, terminating int }

func countsAt(w *world, t time.Duration) (n counts) {
	versions := w.versionsOf(model.Name{Namespace: "shop", Name: "web"})
	v := versions[at(versions, t, func(v version) time.Duration { return v.at })]
	for _, s := range v.slices {
		for _, e := range s.Endpoints {
			n.all++
			for _, c := range []struct {
				is bool
				n  *int
			}{{e.Ready, &n.ready}, {e.Serving, &n.serving}, {e.Terminating, &n.terminating}} {
				if c.is {
					*c.n++
				}
			}
		}
	}
	return n
}

func checkCounts(t *testing.T, w *world, seconds int, want counts) {
	t.Helper()
	if got := countsAt(w, time.Duration(seconds)*time.Second); got != want {
		t.Errorf("%ds: %+v, want %+v", seconds, got, want)
	}
}

func TestLostZone(t *testing.T) {
	w := worldOf(t, shop(6, 6), "at 10s\nzone b lost detect=20s evict=1m startup=5s\nat 200s\nzone b back\nuntil 300s")
	checkCounts(t, w, 29, counts{6, 6, 6, 0}) // nobody knows yet
	checkCounts(t, w, 30, counts{6, 4, 4, 0})
	checkCounts(t, w, 89, counts{6, 4, 4, 0})
	checkCounts(t, w, 90, counts{8, 4, 4, 2}) // evicted; what replaces them starts
	checkCounts(t, w, 95, counts{8, 6, 6, 2})
	checkCounts(t, w, 200, counts{6, 6, 6, 0})
	silentAddr := netip.MustParseAddr("10.244.0.2") // on n01
	for s, want := range map[int]scenario.Response{9: scenario.Answers, 10: scenario.Silent, 150: scenario.Silent} {
		if got := w.answerAt(silentAddr, time.Duration(s)*time.Second).kind; got != want {
			t.Errorf("%ds: answer %d, want %d", s, got, want)
		}
	}
	for s, want := range map[int]bool{9: false, 10: true, 199: true, 200: false} {
		if got := isLost(w.fates["n04"], time.Duration(s)*time.Second); got != want {
			t.Errorf("%ds: lost %t", s, got)
		}
	}
	for s, want := range map[int]int{29: 6, 30: 4, 200: 6} {
		v := w.nodes[at(w.nodes, time.Duration(s)*time.Second, func(v nodesVersion) time.Duration { return v.at })]
		if len(v.ready) != want {
			t.Errorf("%ds: %d ready Nodes, want %d", s, len(v.ready), want)
		}
	}
	last := w.versionsOf(model.Name{Namespace: "shop", Name: "web"})
	for _, e := range last[len(last)-1].slices[0].Endpoints {
		if e.Zone == "b" || e.Node == "n01" || e.Node == "n04" {
			t.Errorf("endpoint %v is in the lost zone", e)
		}
		if w.pods[model.Name{Namespace: "shop", Name: e.Pod}].MilliCPU != 500 {
			t.Errorf("Pod %s has another size", e.Pod)
		}
	}
}

func TestNodeThatIsBackInTimeKeepsItsPods(t *testing.T) {
	w := worldOf(t, shop(6, 6), "node n00 lost detect=20s evict=1m\nat 50s\nnode n00 back\nuntil 200s")
	checkCounts(t, w, 40, counts{6, 5, 5, 0})
	checkCounts(t, w, 50, counts{6, 6, 6, 0})
	checkCounts(t, w, 200, counts{6, 6, 6, 0})
}

// A rollout never has more Pods than allowed, nor fewer that are ready, and replaces all.
func TestRolloutKeepsToItsLimits(t *testing.T) {
	for _, o := range []struct {
		options            string
		surge, unavailable int
	}{{"", 3, 2}, {"maxSurge=0 maxUnavailable=1", 0, 1}, {"maxSurge=1 maxUnavailable=0", 1, 0}, {"maxSurge=100% maxUnavailable=0", 10, 0}, {"maxSurge=0 maxUnavailable=0", 0, 1}} {
		w := worldOf(t, shop(4, 10), "at 5s\nrollout shop/web startup=4s grace=7s "+o.options+"\n")
		for s := range int(w.end.Seconds()) {
			if n := countsAt(w, time.Duration(s)*time.Second); n.ready < 10-o.unavailable || n.all-n.terminating > 10+o.surge {
				t.Errorf("%s: %ds: %+v", o.options, s, n)
			}
		}
		checkCounts(t, w, int(w.end.Seconds()), counts{10, 10, 10, 0})
		last := w.versionsOf(model.Name{Namespace: "shop", Name: "web"})
		for _, e := range last[len(last)-1].slices[0].Endpoints {
			if !strings.Contains(e.Pod, "-new-") {
				t.Errorf("%s: %s is not replaced", o.options, e.Pod)
			}
		}
	}
}

func TestDrainScaleAndFlap(t *testing.T) {
	w := worldOf(t, shop(4, 4), "drain shop/web pods=50% grace=10s\nat 20s\nscale shop/web 5 startup=3s\nat 40s\nscale shop/web 1 grace=5s\nuntil 60s")
	checkCounts(t, w, 0, counts{4, 2, 4, 2})
	checkCounts(t, w, 10, counts{2, 2, 2, 0})
	checkCounts(t, w, 20, counts{5, 2, 2, 0})
	checkCounts(t, w, 23, counts{5, 5, 5, 0})
	checkCounts(t, w, 40, counts{5, 1, 5, 4})
	checkCounts(t, w, 45, counts{1, 1, 1, 0})
	w = worldOf(t, shop(4, 4), "flap shop/web web-1 period=4s for=8s\nuntil 20s")
	for s, ready := range map[int]int{0: 3, 1: 3, 2: 4, 4: 3, 6: 4, 8: 4, 12: 4} {
		if got := countsAt(w, time.Duration(s)*time.Second).ready; got != ready {
			t.Errorf("%ds: %d ready, want %d", s, got, ready)
		}
	}
}

func TestEndpointsThatDoNotAnswer(t *testing.T) {
	w := worldOf(t, shop(4, 4), "silent shop/web 10.244.0.1\nrefuse shop/web web-1\nslow shop/web web-2 delay=2s\nat 10s\nanswer shop/web 100%\nuntil 20s")
	for i, want := range []answer{{kind: scenario.Silent}, {kind: scenario.Refuses}, {kind: scenario.Slow, delay: 2 * time.Second}, {}} {
		a := netip.AddrFrom4([4]byte{10, 244, 0, byte(1 + i)})
		if got := w.answerAt(a, 5*time.Second); got != want {
			t.Errorf("%s: %+v, want %+v", a, got, want)
		}
		if got := w.answerAt(a, 10*time.Second).kind; got != scenario.Answers {
			t.Errorf("%s: answer %d in the end", a, got)
		}
	}
}

func TestErrorsOfTimelines(t *testing.T) {
	for text, want := range map[string]string{
		"explode shop/web":                        "test:1: unknown verb explode",
		"\ndrain shop/web wait=3s":                "test:2: drain: unknown option wait=",
		"drain shop/wep":                          `test:1: drain: no Service "shop/wep" (did you mean "shop/web"?)`,
		"drain shop/web pods=200%":                `test:1: drain: pods=: "200%": want a number or a percentage`,
		"drain shop/web grace=-1s":                `test:1: drain: grace: "-1s" is not a duration`,
		"zone d lost":                             `test:1: zone: no Node is in zone "d"`,
		"zone a burnt":                            `test:1: zone: "burnt": want lost or back`,
		"node n0x lost":                           `test:1: node: no Node "n0x"`,
		"silent shop/web web-9":                   `test:1: silent: Service shop/web has no endpoint "web-9"`,
		"scale shop/web -1":                       `test:1: scale: "-1": want a number of Pods`,
		"scale shop/web 1000000":                  `test:1: scale: "1000000": want a number of Pods`,
		"flap shop/web 50%":                       "test:1: flap: without for= it never ends",
		"flap shop/web 50% period=1ms for=1s":     "test:1: flap: period=1ms: want at least 2ms",
		"flap shop/web 100% period=2ms\nuntil 1h": "test: more than 200000 steps",
		"until 1m\nzone a lost":                   "test:1: until: it must be the last statement",
		"until 25h":                               "test:1: until: 25h0m0s: more than 24h0m0s",
		"rollout shop/web maxSurge=x":             `test:1: rollout: maxSurge=: "x": want a number or a percentage`,
	} {
		f, err := scenario.Parse("test", []byte(text))
		if err == nil {
			_, err = newWorld(&Input{Cluster: shop(6, 6), Timeline: f, Seed: 1})
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestSamplesOfAPercentageFollowTheSeed(t *testing.T) {
	chosen := func(seed int64) (out []string) {
		f, err := scenario.Parse("test", []byte("silent shop/web 50%\nuntil 1s"))
		if err != nil {
			t.Fatal(err)
		}
		w, err := newWorld(&Input{Cluster: shop(6, 40), Timeline: f, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		for a := range w.answers {
			out = append(out, a.String())
		}
		slices.Sort(out)
		return out
	}
	if a, b := chosen(1), chosen(1); len(a) != 20 || !slices.Equal(a, b) {
		t.Errorf("%v and %v", a, b)
	}
	if slices.Equal(chosen(1), chosen(2)) {
		t.Error("another seed chooses the same")
	}
}

// The world begins at the time of day of the timeline, or when the input says, and never while Pods become ready.
func TestTheBeginningIsTold(t *testing.T) {
	c := shop(6, 6)
	early := Earliest(c)
	for text, want := range map[string]time.Time{"until 1s": early, "clock 01:00\nuntil 1s": time.Date(2026, 1, 2, 1, 0, 0, 0, time.UTC), "clock 02:00": early} {
		if got := worldOf(t, c, text).start; !got.Equal(want) {
			t.Errorf("%q begins at %s, want %s", text, got, want)
		}
	}
	later := early.Add(90 * time.Minute)
	if w, err := newWorld(&Input{Cluster: c, Start: later}); err != nil || !w.start.Equal(later) {
		t.Errorf("%v", err)
	}
	if _, err := newWorld(&Input{Cluster: c, Start: early.Add(-1)}); err == nil || !strings.Contains(err.Error(), "only from 2026-01-01T02:00:00Z on") {
		t.Errorf("%v", err)
	}
}

// A timeline that would take too much memory is refused.
func TestTimelineIsBounded(t *testing.T) {
	f, err := scenario.Parse("test", []byte("flap shop/web 1% period=2s\nuntil 24h"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = newWorld(&Input{Cluster: shop(6, 250), Timeline: f, Seed: 1}); err == nil || !strings.Contains(err.Error(), "the endpoints of changed EndpointSlices are more than 10000000") {
		t.Errorf("%v", err)
	}
}

// No timeline panics, and endpoints are where they belong: those of Pods that are gone are gone.
func FuzzTimeline(f *testing.F) {
	f.Add("zone a lost detect=1s evict=1s\nafter 5s\nzone a back\nrollout shop/web maxSurge=0\nscale shop/web 0\nuntil 1m")
	f.Add("drain shop/web startup=1s\nflap shop/web 50% for=10s\nslow shop/web 10%\nnode 50% lost\nafter 1s\nscale shop/web 9")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := scenario.Parse("test", []byte(text))
		if err != nil {
			return
		}
		w, err := newWorld(&Input{Cluster: shop(6, 6), Timeline: file, Seed: 1})
		if err != nil {
			return
		}
		for _, v := range w.services[model.Name{Namespace: "shop", Name: "web"}] {
			seen := map[netip.Addr]bool{}
			for _, e := range v.slices[0].Endpoints {
				if seen[e.Addr] || e.Ready && e.Terminating {
					t.Errorf("%s: %+v", v.at, e)
				}
				seen[e.Addr] = true
			}
		}
	})
}

package simulation

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
)

// recordedCluster has Services whose endpoints come and go, two of which share theirs.
type recordedCluster struct {
	*model.Snapshot
	endpoints map[string][]netip.Addr // by Service
}

func (c *recordedCluster) set(service string, addrs ...netip.Addr) model.Change {
	c.endpoints[service] = addrs
	s := &model.EndpointSlice{
		Name: model.Name{Namespace: "shop", Name: service + "-1"}, Service: model.Name{Namespace: "shop", Name: service}, Family: model.FamilyOf(addrs[0]),
		Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}},
	}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{Addr: a, Ready: true, Serving: true})
	}
	return model.Change{Kind: model.SliceKind, Name: s.Name, Slice: s}
}

// TestRecordedDemandIsWhatWasOpened records connections of a node at random, beside changes, restarts of the counters and times
// in which nothing counts, and compares the demand with the connections of the times that are counted.
func TestRecordedDemandIsWhatWasOpened(t *testing.T) {
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}) }
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		c := &recordedCluster{model.NewSnapshot(), map[string][]netip.Addr{}}
		for _, name := range []string{"a", "b", "c", "same-as-c"} {
			svc := &model.Service{Name: model.Name{Namespace: "shop", Name: name}, Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}}}
			c.Apply(model.Change{Kind: model.ServiceKind, Name: svc.Name, Service: svc})
		}
		for name, first := range map[string]int{"a": 10, "b": 20, "c": 30, "same-as-c": 30} {
			c.Apply(c.set(name, addr(first), addr(first+1)))
		}
		c.Apply(c.set("b", netip.MustParseAddr("fd00::1")))
		at := time.Unix(1_700_000_000, 0)
		var file bytes.Buffer
		e, err := recording.NewEncoder(&file, recording.Header{Node: "n1", Started: at}, at, c.Snapshot, recording.Keep{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		counters, want, counted := map[model.EndpointKey]outcomes.Counters{}, map[string]float64{}, 0.0
		counts := false // since the last record
		write := func(r *recording.Reading) {
			t.Helper()
			if err := e.Reading(at, r); err != nil {
				t.Fatal(err)
			}
		}
		for range 200 {
			switch step := random.IntN(20); step {
			case 0:
				clear(counters)
				write(&recording.Reading{Kind: recording.Begun})
				counts = true
			case 1:
				write(&recording.Reading{Kind: recording.Stopped})
				counts = false
			case 2:
				clear(counters)
				write(&recording.Reading{Kind: recording.Rebased})
				counts = false
			case 3:
				if err := e.Changes(at, []model.Change{c.set("a", addr(10), addr(11+random.IntN(3)))}); err != nil {
					t.Fatal(err)
				}
			default:
				took := time.Duration(1+random.IntN(5)) * time.Second
				at = at.Add(took)
				if counts {
					counted += took.Seconds()
				}
				for service, addrs := range c.endpoints {
					for _, a := range addrs {
						n := uint64(random.IntN(50))
						key := model.EndpointKey{Addr: netip.AddrPortFrom(a, 8080), Protocol: model.TCP}
						all := counters[key]
						all.Attempts += n
						counters[key] = all
						if !counts {
							continue
						}
						if strings.HasSuffix(service, "c") {
							want["c"], want["same-as-c"] = want["c"]+float64(n)/2, want["same-as-c"]+float64(n)/2
						} else {
							want[service] += float64(n)
						}
					}
				}
				write(&recording.Reading{Kind: recording.Read, Interval: time.Second, Counters: counters})
				counts = true
			}
		}
		if random.IntN(2) == 0 { // otherwise it is used as far as it goes
			err = e.Close(at)
		} else {
			err = e.Flush(at)
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := recording.NewReader(&file)
		if err != nil {
			t.Fatal(err)
		}
		d, err := RecordedDemand("n1.rec", r)
		if err != nil {
			t.Fatal(err)
		}
		of := newDemandOf(d, map[string]*model.Node{"x": {Name: "x"}, "y": {Name: "y"}})
		for service := range c.endpoints {
			port := model.PortName{Service: model.Name{Namespace: "shop", Name: service}, Port: "http", Protocol: model.TCP}
			if got := of.rate(&model.Node{Name: "y"}, port, 80); math.Abs(got-want[service]/counted) > 1e-9 {
				t.Errorf("seed %d: %s: %g connections/s, want %g", seed, service, got, want[service]/counted)
			}
		}
		if text := fmt.Sprintf("n1.rec: as many connections of each Node as node n1 opened in %s to 4 Service ports", time.Duration(counted*float64(time.Second))); d.Text != text {
			t.Errorf("seed %d: %q, want %q", seed, d.Text, text)
		}
		if unknown := of.unknown(c.Snapshot); unknown != nil {
			t.Errorf("seed %d: unknown: %v", seed, unknown)
		}
	}
}

// TestPortsOfEndpointsFollowRoutes: an endpoint of a backend with a weight is one of the parent too, and those of the parent are
// nobody's.
func TestPortsOfEndpointsFollowRoutes(t *testing.T) {
	for weight, want := range map[uint32]string{0: "[{shop web-v2 http}]", 10: "[{shop web http} {shop web-v2 http}]"} {
		c := canaryShop(90, weight)
		web := *c.Slices[model.Name{Namespace: "shop", Name: "web"}][0]
		web.Endpoints = slices.Clone(web.Endpoints[:1])
		web.Endpoints[0].Addr = netip.MustParseAddr("10.244.9.9")
		c.Apply(model.Change{Kind: model.SliceKind, Name: web.Name, Slice: &web})
		ports := portsOfEndpoints(c)
		of := func(addr string) string {
			list := ports[model.EndpointKey{Addr: netip.MustParseAddrPort(addr + ":8080"), Protocol: model.TCP}]
			slices.SortFunc(list, func(a, b target) int { return strings.Compare(a.service, b.service) })
			return fmt.Sprint(list)
		}
		if got := of("10.244.0.7"); got != want { // the first Pod of web-v2
			t.Errorf("weight %d: %s, want %s", weight, got, want)
		}
		if got := of("10.244.9.9"); got != "[]" {
			t.Errorf("weight %d: the parent's own endpoint is one of %s", weight, got)
		}
	}
}

func TestRecordingWithoutOutcomesHasNoDemand(t *testing.T) {
	var file bytes.Buffer
	at := time.Unix(1_700_000_000, 0)
	e, err := recording.NewEncoder(&file, recording.Header{Node: "n1", Started: at}, at, model.NewSnapshot(), recording.Keep{}, 0)
	if err == nil {
		err = e.Close(at.Add(time.Minute))
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := recording.NewReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := RecordedDemand("n1.rec", r); err == nil || !strings.Contains(err.Error(), "n1.rec: the recording has no two readings of outcomes") {
		t.Errorf("%v, %v", d, err)
	}
}

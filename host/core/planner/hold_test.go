package planner_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

func (failingSignals) OutcomesWindow(time.Time) (uint64, time.Duration) { return 1, time.Second }

// holding is a planner whose policy holds for a minute, with four endpoints that are ready, two of them on this node.
type holding struct {
	*planner.Planner
	t    *testing.T
	c    *holdCluster
	last planner.Result
}

func newHolding(t *testing.T, svc func(*model.Service)) *holding {
	c := newHoldCluster(1)
	clear(c.eps)
	c.svc.InternalLocal, c.svc.ExternalLocal = false, true
	c.svc.HealthCheckNodePort = 32000
	if svc != nil {
		svc(c.svc)
	}
	for i := range byte(4) {
		a := netip.AddrFrom4([4]byte{10, 244, 0, 1 + i})
		c.eps[a] = model.SliceEndpoint{Addr: a, Node: []string{"n0", "n1"}[i%2], Ready: true, Serving: true, Pod: fmt.Sprint("pod-", i)}
	}
	h := &holding{planner.New(holdSettings(&policy.Policy{Name: "hold", Panic: policy.Panic{Below: 50, Hold: time.Minute}}), nil), t, c, planner.Result{}}
	h.plan()
	return h
}

func (h *holding) plan() {
	h.Apply(h.c.changes())
	h.last = h.PlanNow(h.c.now)
}

// set sets which endpoints are ready, and plans.
func (h *holding) set(ready ...bool) {
	for i, r := range ready {
		a := netip.AddrFrom4([4]byte{10, 244, 0, byte(1 + i)})
		e := h.c.eps[a]
		e.Ready, e.Serving = r, r
		h.c.eps[a] = e
	}
	h.plan()
}

// expect compares the last bytes of the addresses that get connections, by flow.
func (h *holding) expect(what string, want ...[]byte) {
	h.t.Helper()
	for i, f := range holdFlows {
		var got []byte
		for _, e := range h.Current().Trace(f, h.NodeAddrs()).Candidates {
			got = append(got, e.Addr.Addr().As4()[3])
		}
		if w := want[min(i, len(want)-1)]; !slices.Equal(got, w) {
			h.t.Errorf("%s: %s → %s: endpoints %v, want %v", what, f.From, f.To, got, w)
		}
	}
}

func TestHoldBeginsBelowItsPercentageAndEndsInTime(t *testing.T) {
	h := newHolding(t, func(s *model.Service) { s.ExternalLocal = false })
	h.expect("all ready", []byte{1, 2, 3, 4})
	h.c.now = h.c.now.Add(time.Hour)
	h.set(true, true, false, false)
	h.expect("half of them ready is not below 50 percent", []byte{1, 2})
	lost := h.c.now
	h.c.now = lost.Add(20 * time.Second)
	h.set(true, false, false, false)
	h.expect("panic", []byte{1, 2, 3, 4})
	if c := h.last.Holds; len(c) != 1 || !c[0].Held || !c[0].Cluster || c[0].Service != h.c.svc.Name {
		t.Errorf("changes of holds %+v", c)
	}
	if want := lost.Truncate(time.Second).Add(time.Minute); !h.last.RequeueAt.Equal(want) {
		t.Fatalf("requeue at %s, want %s", h.last.RequeueAt, want)
	}
	h.c.now = h.last.RequeueAt.Add(-time.Millisecond)
	h.last = h.PlanNow(h.c.now)
	h.expect("until the first hold ends", []byte{1, 2, 3, 4})
	h.c.now = h.c.now.Add(time.Millisecond)
	h.last = h.PlanNow(h.c.now)
	h.expect("two holds have ended", []byte{1, 2})
	h.c.now = h.last.RequeueAt
	h.last = h.PlanNow(h.c.now)
	h.expect("all holds have ended", []byte{1})
	if c := h.last.Holds; len(c) != 1 || c[0].Held || !c[0].Cluster {
		t.Errorf("changes of holds %+v", c)
	}
	if !h.last.RequeueAt.IsZero() {
		t.Errorf("requeue at %s without a hold", h.last.RequeueAt)
	}
	h.set(true, true, true, true)
	h.c.now = h.c.now.Add(time.Minute)
	h.set(true, true, true, true)
	h.expect("ready again", []byte{1, 2, 3, 4})
}

func TestLocalPoolHasItsOwnHoldAndHealthCheckCountsReadyEndpoints(t *testing.T) {
	h := newHolding(t, nil)
	h.c.now = h.c.now.Add(time.Hour)
	h.set(false, true, false, true) // those of this node are no longer reported as ready
	h.expect("the local pool is held, the cluster pool is not", []byte{2, 4}, []byte{2, 4}, []byte{1, 3})
	if c := h.last.Holds; len(c) != 1 || c[0].Cluster {
		t.Errorf("changes of holds %+v", c)
	}
	if got := h.last.HealthChecks; len(got) != 1 || *got[0].Local.At(model.IPv4) != 0 {
		t.Errorf("the health check reports %+v, want no endpoint", got)
	}
	h.set(false, false, false, false)
	h.expect("both are held", []byte{1, 2, 3, 4}, []byte{1, 2, 3, 4}, []byte{1, 3})
	h.set(false, true, true, true)
	h.expect("half of the local endpoints are ready", []byte{2, 3, 4}, []byte{2, 3, 4}, []byte{3})
}

func TestLocalPoolHoldsNoEndpointsOfOtherNodes(t *testing.T) {
	h := newHolding(t, nil)
	h.Configure(holdSettings(&policy.Policy{Name: "hold", Panic: policy.Panic{Below: 20, Hold: time.Minute}}))
	h.set(true, true, true, true)
	h.set(false, false, false, true)
	h.expect("one of four is ready, none of two here", []byte{4}, []byte{4}, []byte{1, 3})
	if held := h.last.Totals.Held; held != 2 {
		t.Errorf("%d endpoints are held, want the two on this node", held)
	}
}

func TestWithoutPanicNothingIsHeldAndNothingIsStored(t *testing.T) {
	h := newHolding(t, nil)
	h.Configure(holdSettings(&policy.Policy{Name: "hold"}))
	h.set(true, true, true, true)
	h.set(false, false, false, false)
	h.expect("no hold", []byte{})
	saved, err := h.Save(policy.Epoch{})
	if err != nil || bytes.Contains(saved, []byte("readiness")) {
		t.Errorf("%v, checkpoint %s", err, saved)
	}
}

func TestPanicCountsOutcomesAndEndsTheHoldOfAnEndpointThatFails(t *testing.T) {
	h := newHolding(t, func(s *model.Service) { s.ExternalLocal = false })
	settings := holdSettings(&policy.Policy{Name: "hold", Panic: policy.Panic{Below: 50, Hold: time.Minute}})
	settings.OutcomeNeeds = abi.NeedOutcomes
	h.Configure(settings)
	failing := failingSignals{failing: map[netip.AddrPort]bool{}}
	h.UseSignals(failing)
	h.set(true, true, true, true)
	for _, f := range h.Current().Frontends {
		if !f.Outcomes {
			t.Errorf("outcomes of connections through %s are not counted", f.Key)
		}
	}
	h.set(true, false, false, false)
	h.expect("panic", []byte{1, 2, 3, 4})
	at := netip.MustParseAddrPort("10.244.0.3:8080")
	failing.failing[at] = true
	h.AddOutcomes(time.Unix(1000, 0), time.Second, []outcomes.Change{{Key: model.EndpointKey{Addr: at, Protocol: model.TCP}, Refused: 1, Failed: true}})
	h.last = h.PlanNow(h.c.now)
	h.expect("connections to one fail", []byte{1, 2, 4})
	delete(failing.failing, at)
	h.plan()
	h.expect("it is not tried again", []byte{1, 2, 4})
	h.set(true, false, true, false)
	h.set(true, false, false, false)
	h.expect("it was ready again", []byte{1, 2, 3, 4})
}

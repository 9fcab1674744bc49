package engine_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy/policytest"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// stagedDrain weights a terminating endpoint at 50 % for 10 s, then at 0, and resets its connections after 20 s.
type stagedDrain struct{ policytest.Plugin }

func (stagedDrain) Decide(req *abi.Request, resp *abi.Response) error {
	for i := range req.Endpoints {
		e := &req.Endpoints[i]
		resp.Results[i].Value = 2 * abi.One
		if e.Conditions&abi.Terminating != 0 {
			gone := req.Now - e.TerminatingSince
			resp.Results[i].ResetAfterMS = uint32(max(0, 20_000-gone))
			if gone < 10_000 {
				resp.Results[i].Value = abi.One
				resp.RequeueAfter = time.Duration(10_000-gone) * time.Millisecond
			} else {
				resp.Results[i].Value = 0
			}
		}
	}
	return nil
}

func TestDrainRunsItsStagesAndResetsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, fake.Options{}, stagedDrain{})
		r.emit(svc(), eps(1, 2), synced)
		r.expect("before", "1:1 2:1 forward")
		established := 0
		for port := range uint16(40) {
			from := netip.AddrPortFrom(netip.MustParseAddr("10.244.9.9"), 1000+port)
			if c := r.kernel.Connect(fake.Packet{From: from, To: netip.AddrPortFrom(key.Addr, key.Port), Protocol: model.TCP}); c.Endpoint.Addr().As4()[3] == 1 {
				established++
			}
		}
		if established == 0 {
			t.Fatal("no connection to the endpoint that leaves")
		}
		to1 := func() (n int) {
			for _, c := range r.kernel.Conns() {
				if c.Endpoint.Addr().As4()[3] == 1 {
					n++
				}
			}
			return n
		}
		r.emit(eps(-1, 2))
		r.expect("stage one", "1:1 2:2 forward")
		r.advance(9 * time.Second)
		r.expect("still stage one", "1:1 2:2 forward")
		r.advance(2 * time.Second)
		r.expect("the end", "1:0 2:1 forward")
		if to1() != established {
			t.Fatalf("%d of %d established connections are left before the reset", to1(), established)
		}
		r.advance(10 * time.Second)
		if to1() != 0 {
			t.Fatalf("%d connections are left after the reset\n%s", to1(), r.log)
		}
		if n := strings.Count(r.log.String(), "reset connections"); n != 1 {
			t.Fatalf("%d resets\n%s", n, r.log)
		}
	})
}

func TestStaleUDPFlowsAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		udp := func(c model.Change) model.Change {
			if c.Service != nil {
				c.Service.Ports[0].Protocol = model.UDP
			} else {
				c.Slice.Ports[0].Protocol = model.UDP
			}
			return c
		}
		r := start(t, fake.Options{}, nil)
		r.emit(udp(svc()), udp(eps(1, 2)), synced)
		for port := range uint16(40) {
			r.kernel.Connect(fake.Packet{
				From: netip.AddrPortFrom(netip.MustParseAddr("10.244.9.9"), 1000+port), To: netip.AddrPortFrom(key.Addr, key.Port), Protocol: model.UDP,
			})
		}
		to := func(last byte) (n int) {
			for _, c := range r.kernel.Conns() {
				if c.Endpoint.Addr().As4()[3] == last {
					n++
				}
			}
			return n
		}
		one, two := to(1), to(2)
		if one == 0 || two == 0 {
			t.Fatalf("%d and %d flows", one, two)
		}
		r.emit(udp(eps(-1, 2)))
		if to(1) != one {
			t.Fatalf("flows to an endpoint that terminates and still serves are gone: %d of %d", to(1), one)
		}
		r.emit(udp(eps(2)))
		if to(1) != 0 || to(2) != two {
			t.Fatalf("%d flows to the endpoint that is gone, %d of %d to the one that stays", to(1), to(2), two)
		}
	})
}

// TestUDPFlowsAreKeptUntilTheirEndpointIsGone where the Service asks for it; otherwise until it stops serving.
func TestUDPFlowsAreKeptUntilTheirEndpointIsGone(t *testing.T) {
	for _, keep := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			service, slice := svc(), func(ids ...int) model.Change {
				c := eps(ids...)
				c.Slice.Ports[0].Protocol = model.UDP
				for i := range c.Slice.Endpoints {
					e := &c.Slice.Endpoints[i]
					e.Serving = !e.Terminating // it fails its readiness probe once it terminates
				}
				return c
			}
			service.Service.Ports[0].Protocol, service.Service.KeepUDP = model.UDP, keep
			r := start(t, fake.Options{}, nil)
			r.emit(service, slice(1, 2), synced)
			for port := range uint16(40) {
				r.kernel.Connect(fake.Packet{
					From: netip.AddrPortFrom(netip.MustParseAddr("10.244.9.9"), 1000+port), To: netip.AddrPortFrom(key.Addr, key.Port), Protocol: model.UDP,
				})
			}
			to := func() (n int) {
				for _, c := range r.kernel.Conns() {
					if c.Endpoint.Addr().As4()[3] == 1 {
						n++
					}
				}
				return n
			}
			all := to()
			for _, step := range []struct {
				ids  []int
				kept bool
			}{{[]int{-1, 2}, keep}, {[]int{-1, 2, 3}, keep}, {[]int{2, 3}, false}} {
				r.emit(slice(step.ids...))
				if n := to(); all == 0 || (n == all) != step.kept || n != 0 && n != all {
					t.Errorf("keep %v, endpoints %v: %d of %d flows", keep, step.ids, n, all)
				}
			}
		})
	}
}

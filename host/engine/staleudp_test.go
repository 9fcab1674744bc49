package engine_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/engine"
)

const nodeAddr, otherAddr, lbAddr = "192.0.2.10", "192.0.2.11", "198.51.100.51"

// dns returns a Service with UDP port 53, at a cluster IP that ends with last, that is as old as last.
func dns(name string, last byte, changes ...func(*model.Service)) model.Change {
	s := &model.Service{
		Name: model.Name{Namespace: "shop", Name: name}, Created: int64(last), ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, last})},
		Ports: []model.ServicePort{{Name: "dns", Protocol: model.UDP, Port: 53}},
	}
	for _, change := range changes {
		change(s)
	}
	return model.Change{Kind: model.ServiceKind, Name: s.Name, Service: s}
}

// dnsEndpoints returns a slice of a Service, with all its ports.
func dnsEndpoints(name string, last ...int) model.Change {
	c := eps(last...)
	c.Name = model.Name{Namespace: "shop", Name: name}
	c.Slice.Name, c.Slice.Service = c.Name, c.Name
	c.Slice.Ports = []model.SlicePort{{Name: "dns", Protocol: model.UDP, Port: 5353}, {Name: "more", Protocol: model.UDP, Port: 5454}, {Name: "dns", Protocol: model.TCP, Port: 5353}}
	return c
}

func nodeWith(addrs ...string) model.Change {
	n := &model.Node{Name: "n0", Ready: true}
	for _, a := range addrs {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	return model.Change{Kind: model.NodeKind, Name: model.Name{Name: "n0"}, Node: n}
}

func external(addrs ...string) func(*model.Service) {
	return func(s *model.Service) { s.ExternalIPs = parseAddrs(addrs) }
}

func loadBalancer(addrs ...string) func(*model.Service) {
	return func(s *model.Service) { s.LoadBalancerIPs = parseAddrs(addrs) }
}

func reserved(addrs ...string) func(*model.Service) {
	return func(s *model.Service) { s.ReservedIPs = parseAddrs(addrs) }
}

func nodePort(s *model.Service) { s.Ports[0].NodePort = 30053 }

func secondPort(s *model.Service) {
	s.Ports = append(s.Ports, model.ServicePort{Name: "more", Protocol: model.UDP, Port: 54})
}

func overTCP(s *model.Service) { s.Ports[0].Protocol = model.TCP }

func ipv6(s *model.Service) {
	s.ClusterIPs = append(s.ClusterIPs, netip.MustParseAddr("fd00:10:96::1"))
}

// dnsEndpoints6 returns a slice of a Service with endpoint 1 of IPv6.
func dnsEndpoints6(name string) model.Change {
	c := dnsEndpoints(name)
	c.Name.Name += "-6"
	c.Slice.Name, c.Slice.Family = c.Name, model.IPv6
	c.Slice.Endpoints = []model.SliceEndpoint{{Addr: netip.MustParseAddr("fd00:10:244::1"), Ready: true, Serving: true}}
	return c
}

func parseAddrs(list []string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func without(c model.Change) model.Change { return model.Change{Kind: c.Kind, Name: c.Name} }

func packetTo(to string, port uint16) fake.Packet {
	from := netip.MustParseAddr("10.244.9.9")
	if to[0] == '[' {
		from = netip.MustParseAddr("fd00:10:244::9")
	}
	return fake.Packet{From: netip.AddrPortFrom(from, port), To: netip.MustParseAddrPort(to), Protocol: model.UDP}
}

// frontendChanges are the ways in which a frontend comes, and those in reverse are how it goes. Endpoint 1 is Service dns's.
var frontendChanges = map[string]struct {
	to      string
	without []model.Change
	with    []model.Change
}{
	"external IP":                   {lbAddr + ":53", []model.Change{dns("dns", 1)}, []model.Change{dns("dns", 1, external(lbAddr))}},
	"load balancer IP":              {lbAddr + ":53", []model.Change{dns("dns", 1)}, []model.Change{dns("dns", 1, loadBalancer(lbAddr))}},
	"ipMode VIP instead of Proxy":   {lbAddr + ":53", []model.Change{dns("dns", 1, reserved(lbAddr))}, []model.Change{dns("dns", 1, loadBalancer(lbAddr))}},
	"one of two external IPs":       {lbAddr + ":53", []model.Change{dns("dns", 1, external("198.51.100.9"))}, []model.Change{dns("dns", 1, external("198.51.100.9", lbAddr))}},
	"NodePort":                      {nodeAddr + ":30053", []model.Change{dns("dns", 1)}, []model.Change{dns("dns", 1, nodePort)}},
	"address that serves NodePorts": {otherAddr + ":30053", []model.Change{dns("dns", 1, nodePort), nodeWith(nodeAddr)}, []model.Change{nodeWith(otherAddr)}},
	"address before a Node's first": {nodeAddr + ":30053", []model.Change{dns("dns", 1, nodePort), nodeWith(otherAddr)}, []model.Change{nodeWith(nodeAddr, otherAddr)}},
	"second port":                   {"10.96.0.1:54", []model.Change{dns("dns", 1)}, []model.Change{dns("dns", 1, secondPort)}},
	"protocol":                      {"10.96.0.1:53", []model.Change{dns("dns", 1, overTCP)}, []model.Change{dns("dns", 1)}},
	"Service":                       {"10.96.0.1:53", []model.Change{without(dns("dns", 1))}, []model.Change{dns("dns", 1)}},
	"cluster IP":                    {"10.96.0.1:53", []model.Change{dns("dns", 2)}, []model.Change{dns("dns", 1)}},
	"cluster IP of IPv6":            {"[fd00:10:96::1]:53", []model.Change{dns("dns", 1), dnsEndpoints6("dns")}, []model.Change{dns("dns", 1, ipv6)}},
	"load balancer IP of IPv6":      {"[2001:db8::51]:53", []model.Change{dns("dns", 1, ipv6), dnsEndpoints6("dns")}, []model.Change{dns("dns", 1, ipv6, loadBalancer("2001:db8::51"))}},
	"address that a ClusterIP had":  {lbAddr + ":53", []model.Change{dns("dns", 3, external(lbAddr)), dns("owner", 9, secondPort, func(s *model.Service) { s.ClusterIPs, s.Ports = parseAddrs([]string{lbAddr}), s.Ports[1:] })}, []model.Change{without(dns("owner", 9))}},
}

// startUDP starts an engine with the endpoints of the Services in these tests.
func startUDP(t *testing.T, changes ...model.Change) *rig {
	r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now, NodeAddrs: parseAddrs([]string{nodeAddr, otherAddr})}))
	r.run(fake.Open(r.kernel), nil, false)
	t.Cleanup(r.end)
	r.emit(append([]model.Change{nodeWith(nodeAddr), dnsEndpoints("dns", 1)}, append(changes, synced)...)...)
	return r
}

func TestFlowsToALateFrontendAreTranslated(t *testing.T) {
	for title, c := range frontendChanges {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startUDP(t, c.without...)
				flow := packetTo(c.to, 4000)
				if got := r.kernel.Connect(flow); got.Endpoint.IsValid() {
					t.Fatalf("there is a frontend already: %+v", got)
				}
				r.emit(c.with...)
				if got := r.kernel.Connect(flow); !got.Endpoint.IsValid() || got.Endpoint.Addr().As16()[15] != 1 {
					t.Errorf("the flow is not translated: %+v\n%s", got, r.log)
				}
			})
		})
	}
}

func TestFlowsOfAFrontendThatIsGoneEnd(t *testing.T) {
	for title, c := range frontendChanges {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startUDP(t, append(c.without, c.with...)...)
				r.emit(dns("stays", 77, secondPort), dnsEndpoints("stays", 1))
				flow, stays, host := packetTo(c.to, 4000), packetTo("10.96.0.77:53", 4000), packetTo("203.0.113.9:53", 4000)
				for _, p := range []fake.Packet{flow, stays, host} {
					r.kernel.Connect(p)
				}
				if n := len(r.kernel.Conns()); n != 3 || !r.kernel.Connect(flow).Established {
					t.Fatalf("%d flows", n)
				}
				r.emit(c.without...)
				if got := r.kernel.Connect(flow); got.Established {
					t.Errorf("the flow goes on to %v\n%s", got.Endpoint, r.log)
				}
				for _, p := range []fake.Packet{stays, host} {
					if !slices.ContainsFunc(r.kernel.Conns(), func(c fake.Conn) bool { return c.Packet == p }) {
						t.Errorf("the flow to %v is deleted", p.To)
					}
				}
			})
		})
	}
}

// TestFlowsOfAContestedAddressFollowIt: the owner's flows to 10.244.0.2 have had an answer.
func TestFlowsOfAContestedAddressFollowIt(t *testing.T) {
	at := lbAddr + ":53"
	wanted, older := dns("dns", 5, external(lbAddr)), func(change ...func(*model.Service)) model.Change { return dns("older", 1, change...) }
	for title, c := range map[string]struct {
		before, after model.Change
		want          byte
	}{
		"given up":                    {older(external(lbAddr)), older(), 1},
		"its owner is deleted":        {older(external(lbAddr)), without(older()), 1},
		"its owner uses another port": {older(external(lbAddr)), older(external(lbAddr), func(s *model.Service) { s.Ports[0].Port = 99 }), 1},
		"taken by an older Service":   {older(), older(external(lbAddr)), 2},
		"taken by a load balancer IP": {dns("older", 9), dns("older", 9, loadBalancer(lbAddr)), 2},
	} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startUDP(t, wanted, dnsEndpoints("older", 2), c.before)
				flow := packetTo(at, 4000)
				if got := r.kernel.Connect(flow); got.Endpoint.Addr().As4()[3] != 3-c.want {
					t.Fatalf("before: %+v", got)
				}
				r.emit(c.after)
				if got := r.kernel.Connect(flow); !got.Endpoint.IsValid() || got.Endpoint.Addr().As4()[3] != c.want {
					t.Errorf("the flow meets %+v\n%s", got, r.log)
				}
			})
		})
	}
}

// TestFlowsOfTheOwnerSurviveAChangeOfAnotherClaimant: a Service that wants an address and does not get it loses an endpoint.
func TestFlowsOfTheOwnerSurviveAChangeOfAnotherClaimant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startUDP(t, dns("older", 1, external(lbAddr)), dnsEndpoints("older", 2), dns("dns", 5, external(lbAddr)))
		flow := packetTo(lbAddr+":53", 4000)
		r.kernel.Connect(flow)
		r.emit(dnsEndpoints("dns", 3))
		if got := r.kernel.Connect(flow); !got.Established || got.Endpoint.Addr().As4()[3] != 2 {
			t.Errorf("the flow meets %+v", got)
		}
	})
}

func TestFlowsThatSluiceDidNotTranslateAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startUDP(t, dns("dns", 1, external(lbAddr)))
		r.emit(dns("dns", 1))
		flow := packetTo(lbAddr+":53", 4000) // to who has the address now
		r.kernel.Connect(flow)
		r.emit(dns("dns", 1), dnsEndpoints("dns", 2))
		if n := len(r.kernel.Conns()); n != 1 {
			t.Errorf("%d flows", n)
		}
	})
}

// TestFlowsOfFrontendsThatWentMeanwhileEnd: sluice finds them in the data plane at its start, and not in the cluster.
func TestFlowsOfFrontendsThatWentMeanwhileEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, newUDPTable(), dns("dns", 1, external(lbAddr), nodePort), dns("stays", 2), dnsEndpoints("stays", 1))
		flows := []fake.Packet{packetTo(lbAddr+":53", 4000), packetTo("10.96.0.1:53", 4000), packetTo(nodeAddr+":30053", 4000)}
		stays := packetTo("10.96.0.2:53", 4000)
		for _, p := range append(flows, stays) {
			r.kernel.Connect(p)
		}
		r.end()
		r = newRig(t, r.kernel)
		r.run(fake.Open(r.kernel), nil, false)
		t.Cleanup(r.end)
		r.emit(nodeWith(nodeAddr), dns("stays", 2), dnsEndpoints("stays", 1), synced)
		for _, p := range flows {
			if got := r.kernel.Connect(p); got.Established {
				t.Errorf("the flow to %v goes on", p.To)
			}
		}
		if !r.kernel.Connect(stays).Established {
			t.Error("the flow to a frontend that stays is deleted")
		}
	})
}

// udpTable is a connection table whose deletions of stale flows wait, fail and are counted.
type udpTable struct {
	*fake.Kernel
	fails     atomic.Bool
	calls     atomic.Int64
	takes     atomic.Int64       // time.Duration
	frontends atomic.Int64       // of the last deletion
	begun     chan chan struct{} // if not nil, a deletion sends what it waits for
}

func (u *udpTable) DeleteStaleUDP(ctx context.Context, f model.Family, frontends []plan.Key, stale func(to, endpoint netip.AddrPort) bool) (int, error) {
	u.calls.Add(1)
	u.frontends.Store(int64(len(frontends)))
	time.Sleep(time.Duration(u.takes.Load()))
	if u.begun != nil {
		wait := make(chan struct{})
		u.begun <- wait
		select {
		case <-wait:
		case <-ctx.Done():
		}
	}
	if u.fails.Load() {
		return 0, errors.New("no memory")
	}
	return u.Kernel.DeleteStaleUDP(ctx, f, frontends, stale)
}

func startWith(t *testing.T, table *udpTable, changes ...model.Change) *rig {
	r := newRig(t, table.Kernel)
	r.connTable = table
	r.run(fake.Open(r.kernel), nil, false)
	r.emit(append([]model.Change{nodeWith(nodeAddr), dnsEndpoints("dns", 1)}, append(changes, synced)...)...)
	return r
}

func newUDPTable() *udpTable {
	return &udpTable{Kernel: fake.NewKernel(fake.Options{Now: time.Now, NodeAddrs: parseAddrs([]string{nodeAddr})})}
}

// TestAChangeDoesNotWaitForTheDeletionOfStaleFlows, and a flow that begins meanwhile is spared by it.
func TestAChangeDoesNotWaitForTheDeletionOfStaleFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newUDPTable()
		r := startWith(t, table, dns("dns", 1))
		defer r.end()
		old := packetTo("10.96.0.1:53", 4000)
		r.kernel.Connect(old)
		table.begun = make(chan chan struct{})
		r.emit(dnsEndpoints("dns", 2))
		release := <-table.begun
		r.emit(svc(), eps(7), dnsEndpoints("dns", 2, 3))
		r.expect("another Service during the deletion", "7:1 forward")
		var fresh []fake.Packet
		for port := range uint16(20) {
			p := packetTo("10.96.0.1:53", 5000+port)
			r.kernel.Connect(p)
			fresh = append(fresh, p)
		}
		r.emit(dns("dns", 1, external(lbAddr)))
		late := packetTo(lbAddr+":53", 4000)
		r.kernel.Connect(late)
		close(release)
		close(<-table.begun) // what has come meanwhile
		synctest.Wait()
		for _, p := range append(fresh, late) {
			if !r.kernel.Connect(p).Established {
				t.Errorf("the flow from %v, which began during the deletion, is deleted", p.From)
			}
		}
		if r.kernel.Connect(old).Established {
			t.Error("the stale flow is not deleted")
		}
		table.begun = nil
	})
}

// TestDeletionOfStaleFlowsIsNotLost over failures of it and of the data plane, and a change of the backend.
func TestDeletionOfStaleFlowsIsNotLost(t *testing.T) {
	gone, late := packetTo("10.96.0.1:53", 4000), packetTo(lbAddr+":53", 4000)
	for title, meanwhile := range map[string]func(*rig, *udpTable, func()){
		"the deletion fails": func(r *rig, table *udpTable, change func()) {
			table.fails.Store(true)
			change()
			r.advance(25 * time.Second)
			table.fails.Store(false)
			r.advance(11 * time.Second)
		},
		"the data plane fails": func(r *rig, _ *udpTable, change func()) {
			for range 5 {
				r.kernel.Inject(fake.Fault{At: 1, Err: errors.New("busy")})
				change()
				r.advance(time.Second)
			}
			r.advance(time.Minute)
		},
		"the frontend cannot be programmed": func(r *rig, _ *udpTable, change func()) {
			k := plan.Key{Addr: netip.MustParseAddr(lbAddr), Port: 53, Protocol: model.UDP}
			r.kernel.Reject(k, errors.New("no"))
			change()
			r.advance(time.Minute)
			if r.kernel.Connect(late).Endpoint.IsValid() {
				r.t.Error("a flow is deleted before its frontend is programmed")
			}
			r.kernel.Reject(k, nil)
			r.advance(time.Minute)
		},
		"the backend is replaced": func(r *rig, table *udpTable, change func()) {
			table.fails.Store(true)
			change()
			if _, err := r.engine.Swap(context.Background(), fake.Open(r.kernel)); err != nil {
				r.t.Fatal(err)
			}
			table.fails.Store(false)
			r.advance(11 * time.Second)
		},
		"the deletion takes long": func(r *rig, table *udpTable, change func()) {
			table.takes.Store(int64(10 * time.Second))
			change()
			r.advance(15 * time.Minute)
		},
	} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := newUDPTable()
				r := startWith(t, table, dns("dns", 1), dns("stays", 2), dnsEndpoints("stays", 1))
				defer r.end()
				r.kernel.Connect(gone)
				r.kernel.Connect(late)
				meanwhile(r, table, func() { r.emit(without(dns("dns", 1)), dns("stays", 2, external(lbAddr))) })
				if r.kernel.Connect(gone).Established {
					t.Errorf("the flow of the Service that is gone goes on\n%s", r.log)
				}
				if !r.kernel.Connect(late).Endpoint.IsValid() {
					t.Errorf("the flow to the late frontend is not translated\n%s", r.log)
				}
			})
		})
	}
}

// TestStopDeletesFlowsOfFrontendsThatAreGone: another process does not know them.
func TestStopDeletesFlowsOfFrontendsThatAreGone(t *testing.T) {
	for title, change := range map[string]func(*rig, *udpTable){
		"after a failure": func(r *rig, table *udpTable) {
			table.fails.Store(true)
			r.emit(without(dns("dns", 1)))
			table.fails.Store(false)
		},
		"during a deletion": func(r *rig, table *udpTable) {
			table.begun = make(chan chan struct{})
			r.emit(without(dns("dns", 1)))
			<-table.begun
			table.begun = nil
		},
	} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := newUDPTable()
				r := startWith(t, table, dns("dns", 1))
				flow := packetTo("10.96.0.1:53", 4000)
				r.kernel.Connect(flow)
				change(r, table)
				if !r.kernel.Connect(flow).Established {
					t.Fatal("the deletion has neither failed nor waited")
				}
				r.end()
				if r.kernel.Connect(flow).Established {
					t.Error("the flow goes on")
				}
			})
		})
	}
}

// TestDeletionsOfStaleFlowsAreCoalesced: they take a twentieth of a processor at most.
func TestDeletionsOfStaleFlowsAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newUDPTable()
		r := startWith(t, table, dns("dns", 1))
		defer r.end()
		table.takes.Store(int64(50 * time.Millisecond))
		table.calls.Store(0)
		for i := range 400 {
			r.emit(dnsEndpoints("dns", 1+i%2))
			r.advance(50 * time.Millisecond)
		}
		r.advance(5 * time.Second)
		if n := table.calls.Load(); n < 10 || n > 26 {
			t.Errorf("%d deletions for 400 changes in 20 s", n)
		}
		flow := packetTo("10.96.0.1:53", 4000)
		r.kernel.Connect(flow)
		r.emit(dnsEndpoints("dns", 9))
		r.advance(2 * time.Second)
		if got := r.kernel.Connect(flow); got.Endpoint.Addr().As4()[3] != 9 {
			t.Errorf("the flow meets %v", got.Endpoint)
		}
	})
}

// TestALongDeletionDelaysTheNextByFiveSeconds, whatever its CPU time: somebody else's flows wait for it.
func TestALongDeletionDelaysTheNextByFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newUDPTable()
		r := startWith(t, table, dns("dns", 1), dns("hostile", 2), dnsEndpoints("hostile", 1))
		defer r.end()
		flow := packetTo("10.96.0.1:53", 4000)
		r.kernel.Connect(flow)
		table.takes.Store(int64(20 * time.Second))
		r.emit(dnsEndpoints("hostile", 2))
		table.takes.Store(0)
		r.emit(dnsEndpoints("dns", 9))
		r.advance(25 * time.Second)
		if got := r.kernel.Connect(flow); got.Endpoint.Addr().As4()[3] != 9 {
			t.Errorf("the flow meets %v", got.Endpoint)
		}
	})
}

// TestKeptFlowsAreNotListedWithEachDeletion: counting them lists the whole table.
func TestKeptFlowsAreNotListedWithEachDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, seen := newUDPTable(), &udpObserver{}
		r := newRig(t, table.Kernel)
		r.connTable, r.observer = table, seen
		r.run(fake.Open(r.kernel), nil, false)
		defer r.end()
		keep := func(s *model.Service) { s.KeepUDP = true }
		r.emit(nodeWith(nodeAddr), dns("dns", 1, keep, secondPort), dnsEndpoints("dns", 1), dns("other", 2), dnsEndpoints("other", 1), synced)
		r.kernel.Connect(packetTo("10.96.0.1:53", 4000))
		leaving := dnsEndpoints("dns", -1, 2)
		leaving.Slice.Endpoints[0].Serving = false
		r.emit(leaving)
		for i := range 20 {
			r.emit(dnsEndpoints("other", 2+i%2))
			if n := table.frontends.Load(); n != 1 {
				t.Fatalf("change %d: a deletion asks for the flows to %d frontends", i, n)
			}
			if seen.counts().kept != 1 {
				t.Fatalf("change %d: %d flows are kept", i, seen.counts().kept)
			}
		}
		r.advance(31 * time.Second)
		if n := table.frontends.Load(); n != 2 {
			t.Errorf("the count asks for the flows to %d frontends", n)
		}
	})
}

// TestFormerNodePortAddressesWaitForFrontendsThatFail: their flows are found with them.
func TestFormerNodePortAddressesWaitForFrontendsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newUDPTable()
		r := startWith(t, table, dns("dns", 1, nodePort), dns("other", 2), dnsEndpoints("other", 1))
		defer r.end()
		flow := packetTo(nodeAddr+":30053", 4000)
		if got := r.kernel.Connect(flow); !got.Endpoint.IsValid() {
			t.Fatal("no NodePort")
		}
		k := plan.Key{Addr: netip.IPv4Unspecified(), Port: 30053, Protocol: model.UDP}
		r.kernel.Reject(k, errors.New("no"))
		r.emit(nodeWith(otherAddr), dnsEndpoints("dns", 1, 2))
		r.emit(dnsEndpoints("other", 2)) // whose flows are deleted meanwhile
		r.advance(time.Minute)
		r.kernel.Reject(k, nil)
		r.advance(time.Minute)
		if got := r.kernel.Connect(flow); got.Established {
			t.Errorf("the flow to the former address goes on to %v\n%s", got.Endpoint, r.log)
		}
	})
}

// TestARejectedFrontendDoesNotWakeTheLoop more often than it is retried.
func TestARejectedFrontendDoesNotWakeTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, seen := newUDPTable(), &udpObserver{}
		r := newRig(t, table.Kernel)
		r.connTable, r.observer = table, seen
		r.kernel.Reject(plan.Key{Addr: netip.MustParseAddr("10.96.0.1"), Port: 53, Protocol: model.UDP}, errors.New("no"))
		r.run(fake.Open(r.kernel), nil, false)
		defer r.end()
		r.emit(nodeWith(nodeAddr), dns("dns", 1), dnsEndpoints("dns", 1), synced)
		r.advance(time.Minute)
		before := seen.counts().steps
		r.advance(10 * time.Minute)
		if n := seen.counts().steps - before; n > 300 {
			t.Errorf("%d steps in 10 minutes", n)
		}
	})
}

// TestOnceDeletesStaleFlows before it returns.
func TestOnceDeletesStaleFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newUDPTable()
		startWith(t, table).end()
		flow := packetTo("10.96.0.1:53", 4000)
		r := newRig(t, table.Kernel)
		r.connTable = table
		r.kernel.Connect(flow)
		r.run(fake.Open(r.kernel), nil, true)
		r.emit(nodeWith(nodeAddr), dns("dns", 1), dnsEndpoints("dns", 1), synced)
		if err := <-r.ended; err != nil {
			t.Fatal(err)
		}
		r.ended <- nil
		if n := len(r.kernel.Conns()); n != 0 {
			t.Errorf("%d flows are left", n)
		}
	})
}

// removing is a backend that has removed UDP frontends.
type removing struct {
	*fake.Backend
	removed []plan.Key
}

func (b *removing) RemovedUDP() []plan.Key {
	removed := b.removed
	b.removed = nil
	return removed
}

// TestFrontendsThatAreGoneAreBounded, and the others counted.
func TestFrontendsThatAreGoneAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen, b := &udpObserver{}, &removing{}
		r := newRig(t, fake.NewKernel(fake.Options{Now: time.Now}))
		b.Backend, r.observer = fake.Open(r.kernel), seen
		for i := range 100_020 {
			b.removed = append(b.removed, plan.Key{Addr: netip.AddrFrom4([4]byte{198, byte(i >> 16), byte(i >> 8), byte(i)}), Port: 53, Protocol: model.UDP})
		}
		r.run(b, nil, false)
		defer r.end()
		r.emit(synced)
		if seen.counts().omitted != 20 {
			t.Errorf("%d omitted", seen.counts().omitted)
		}
	})
}

// udpObserver records events about UDP flows.
type udpObserver struct {
	engine.Observers
	mu sync.Mutex
	udpCounts
}

type udpCounts struct {
	omitted, kept, steps int
	drains               planner.UDPDrains
}

func (o *udpObserver) counts() udpCounts {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.udpCounts
}

func (o *udpObserver) OnPlan(p *engine.PlannedStep) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.steps++
	o.drains.Kept += p.Result.UDPDrains.Kept
	o.drains.Expired += p.Result.UDPDrains.Expired
}

func (o *udpObserver) OnEvent(e engine.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch e.Kind {
	case engine.StaleFlowsDeleted:
		o.omitted += e.Omitted
	case engine.UDPFlowsKept:
		o.kept = e.Count
	}
}

// TestPreservedFlowsEndAfterSixMinutes, or when their endpoint is gone, or the Service does not ask for it any more (KEP-5989).
func TestPreservedFlowsEndAfterSixMinutes(t *testing.T) {
	preserve := func(s *model.Service) { s.KeepUDP, s.MaxKeepUDP = true, 6*time.Minute }
	keep := func(s *model.Service) { s.KeepUDP = true }
	leaving := func(serving bool) model.Change {
		c := dnsEndpoints("dns", -1, 2)
		c.Slice.Endpoints[0].Serving = serving
		return c
	}
	for title, c := range map[string]struct {
		asks    func(*model.Service)
		then    func(*rig)
		kept    bool
		drains  planner.UDPDrains
		counted int
	}{
		"at once":                {preserve, func(*rig) {}, true, planner.UDPDrains{Kept: 1}, 1},
		"after 359 s":            {preserve, func(r *rig) { r.advance(359 * time.Second) }, true, planner.UDPDrains{Kept: 1}, 1},
		"after 360 s":            {preserve, func(r *rig) { r.advance(360 * time.Second) }, false, planner.UDPDrains{Kept: 1, Expired: 1}, 0},
		"and changes afterwards": {preserve, func(r *rig) { r.advance(360 * time.Second); r.emit(dns("dns", 1, preserve, external(lbAddr))) }, false, planner.UDPDrains{Kept: 1, Expired: 1}, 0},
		"changes do not extend it": {preserve, func(r *rig) {
			r.advance(200 * time.Second)
			r.emit(dns("dns", 1, preserve, external(lbAddr)))
			r.advance(161 * time.Second)
		}, false, planner.UDPDrains{Kept: 1, Expired: 1}, 0},
		"the endpoint is gone":         {preserve, func(r *rig) { r.emit(dnsEndpoints("dns", 2)) }, false, planner.UDPDrains{Kept: 1}, 0},
		"the Service asks no more":     {preserve, func(r *rig) { r.emit(dns("dns", 1)) }, false, planner.UDPDrains{Kept: 1}, 0},
		"the Service is gone":          {preserve, func(r *rig) { r.emit(without(dns("dns", 1))) }, false, planner.UDPDrains{Kept: 1}, 0},
		"with sluice's own annotation": {keep, func(r *rig) { r.advance(time.Hour) }, true, planner.UDPDrains{Kept: 1}, 1},
		"by default":                   {func(*model.Service) {}, func(*rig) {}, false, planner.UDPDrains{}, 0},
	} {
		t.Run(title, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := newUDPTable()
				seen := &udpObserver{}
				r := newRig(t, table.Kernel)
				r.connTable, r.observer = table, seen
				r.run(fake.Open(r.kernel), nil, false)
				defer r.end()
				r.emit(nodeWith(nodeAddr), dns("dns", 1, c.asks), dnsEndpoints("dns", 1), synced)
				flow := packetTo("10.96.0.1:53", 4000)
				r.kernel.Connect(flow)
				r.emit(leaving(true))
				r.advance(10 * time.Minute) // it serves: nothing is preserved yet
				r.emit(leaving(false))
				c.then(r)
				if got := r.kernel.Connect(flow); got.Established != c.kept {
					t.Errorf("the flow meets %+v, want it kept: %v\n%s", got, c.kept, r.log)
				}
				if seen.counts().drains != c.drains || seen.counts().kept != c.counted {
					t.Errorf("counted %+v and %d flows, want %+v and %d", seen.counts().drains, seen.counts().kept, c.drains, c.counted)
				}
				if title == "after 360 s" && !strings.Contains(fmt.Sprint(r.log), "deleted stale UDP flows") {
					t.Errorf("the deletion is not logged\n%s", r.log)
				}
			})
		})
	}
}

package conntrack

import (
	"context"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

func TestStaleUDPFlowsOfEachKind(t *testing.T) {
	const udp, tcp = unix.IPPROTO_UDP, unix.IPPROTO_TCP
	type flows map[string]plan.UDPFrontend // by frontend
	serving := func(list ...string) (f plan.UDPFrontend) {
		for _, a := range list {
			f.Serving = append(f.Serving, netip.MustParseAddrPort(a))
		}
		return f
	}
	gone := plan.UDPFrontend{Gone: true}
	for title, c := range map[string]struct {
		frontends flows
		flow      flow
		stale     bool
	}{
		"serving":                            {flows{"10.96.0.10:53": serving("10.244.1.1:5353")}, flow{udp, "10.96.0.10:53", "10.244.1.1:5353"}, false},
		"an endpoint that left":              {flows{"10.96.0.10:53": serving("10.244.1.1:5353")}, flow{udp, "10.96.0.10:53", "10.244.1.2:5353"}, true},
		"never translated":                   {flows{"10.96.0.10:53": serving("10.244.1.1:5353")}, flow{udp, "10.96.0.10:53", "10.96.0.10:53"}, true},
		"another port":                       {flows{"10.96.0.10:53": serving("10.244.1.1:5353")}, flow{udp, "10.96.0.10:54", "10.244.1.2:5353"}, false},
		"another Service":                    {flows{"10.96.0.10:53": serving("10.244.1.1:5353")}, flow{udp, "10.96.0.11:53", "10.244.1.2:5353"}, false},
		"TCP":                                {flows{"10.96.0.10:53": serving("10.244.1.1:5353")}, flow{tcp, "10.96.0.10:53", "10.244.1.2:5353"}, false},
		"another port of a serving address":  {flows{"10.96.0.10:53": serving("10.244.1.1:5353")}, flow{udp, "10.96.0.10:53", "10.244.1.1:5354"}, true},
		"no endpoint":                        {flows{"10.96.0.10:53": serving()}, flow{udp, "10.96.0.10:53", "10.244.1.1:5353"}, true},
		"NodePort, serving":                  {flows{"0.0.0.0:30053": serving("10.244.1.1:5353")}, flow{udp, "192.0.2.1:30053", "10.244.1.1:5353"}, false},
		"NodePort, an endpoint that left":    {flows{"0.0.0.0:30053": serving("10.244.1.1:5353")}, flow{udp, "192.0.2.1:30053", "10.244.1.2:5353"}, true},
		"NodePort, never translated":         {flows{"0.0.0.0:30053": serving("10.244.1.1:5353")}, flow{udp, "192.0.2.1:30053", "192.0.2.1:30053"}, true},
		"the same port of another host":      {flows{"0.0.0.0:30053": serving("10.244.1.1:5353")}, flow{udp, "198.51.100.7:30053", "198.51.100.7:30053"}, false},
		"a former address of NodePorts":      {flows{"0.0.0.0:30053": serving("10.244.1.1:5353")}, flow{udp, "192.0.2.2:30053", "10.244.1.1:5353"}, true},
		"the node itself at such an address": {flows{"0.0.0.0:30053": serving("10.244.1.1:5353")}, flow{udp, "192.0.2.2:30053", "192.0.2.2:30053"}, false},
		"gone":                               {flows{"10.96.0.10:53": gone}, flow{udp, "10.96.0.10:53", "10.244.1.1:5353"}, true},
		"gone, never translated":             {flows{"10.96.0.10:53": gone}, flow{udp, "10.96.0.10:53", "10.96.0.10:53"}, false},
		"gone, another port":                 {flows{"10.96.0.10:53": gone}, flow{udp, "10.96.0.10:54", "10.244.1.1:5353"}, false},
		"gone, TCP":                          {flows{"10.96.0.10:53": gone}, flow{tcp, "10.96.0.10:53", "10.244.1.1:5353"}, false},
		"a NodePort that is gone":            {flows{"0.0.0.0:30053": gone}, flow{udp, "192.0.2.1:30053", "10.244.1.1:5353"}, true},
		"a NodePort that is gone, a host":    {flows{"0.0.0.0:30053": gone}, flow{udp, "192.0.2.1:30053", "192.0.2.1:30053"}, false},
		"IPv6, serving":                      {flows{"[fd00:10:96::a]:53": serving("[fd00:10:244::1]:5353")}, flow{udp, "[fd00:10:96::a]:53", "[fd00:10:244::1]:5353"}, false},
		"IPv6, an endpoint that left":        {flows{"[fd00:10:96::a]:53": serving("[fd00:10:244::1]:5353")}, flow{udp, "[fd00:10:96::a]:53", "[fd00:10:244::2]:5353"}, true},
		"IPv6 NodePort":                      {flows{"[::]:30053": serving()}, flow{udp, "[2001:db8::1]:30053", "[fd00:10:244::2]:5353"}, true},
	} {
		t.Run(title, func(t *testing.T) {
			for _, others := range []int{0, maxExactDumps} { // the kernel filters by frontend, or by protocol only
				flush(t)
				add(t, 0, c.flow)
				all := plan.UDPFlows{Frontends: map[plan.Key]plan.UDPFrontend{}, Former: []netip.Addr{netip.MustParseAddr("192.0.2.2")},
					NodePorts: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
				var keys []plan.Key
				for at, f := range c.frontends {
					all.Frontends[key(at, model.UDP)] = f
					keys = append(keys, key(at, model.UDP))
				}
				for range others {
					keys = append(keys, key("192.0.2.77:1", model.UDP))
				}
				stale := func(to, endpoint netip.AddrPort) bool { is, _ := all.Find(to, endpoint); return is }
				n, err := (&Table{}).DeleteStaleUDP(context.Background(), keys[0].Family(), keys, stale)
				if left := len(remaining(t)); err != nil || (n == 1) != c.stale || left != 1-n {
					t.Errorf("%d frontends: %d deleted, %d left, %v", len(keys), n, left, err)
				}
			}
		})
	}
}

// TestKernelListsOnlyTheFlowsInQuestion: of UDP, and to a frontend's port and address (of IPv6: port).
func TestKernelListsOnlyTheFlowsInQuestion(t *testing.T) {
	flush(t)
	for n, f := range []flow{
		{unix.IPPROTO_UDP, "10.96.0.10:53", "10.244.1.1:53"}, {unix.IPPROTO_UDP, "10.96.0.10:54", "10.244.1.1:53"},
		{unix.IPPROTO_UDP, "10.96.0.11:53", "10.244.1.1:53"}, {unix.IPPROTO_TCP, "10.96.0.10:53", "10.244.1.1:53"},
		{unix.IPPROTO_UDP, "[fd00::a]:53", "[fd00::1]:53"}, {unix.IPPROTO_UDP, "[fd00::b]:53", "[fd00::1]:53"}, {unix.IPPROTO_TCP, "[fd00::a]:53", "[fd00::1]:53"},
	} {
		add(t, uint16(n), f)
	}
	for to, want := range map[string][]int{"": {0, 1, 2}, "10.96.0.10:53": {0}, "0.0.0.0:53": {0, 2}, "[fd00::a]:53": {4, 5}, "[::]:53": {4, 5}} {
		f, at := model.IPv4, (*plan.Key)(nil)
		if to != "" {
			k := key(to, model.UDP)
			f, at = k.Family(), &k
		}
		var got []int
		if err := listMatching(t.Context(), udpRequest(f, at), func(c *flowEntry) { got = append(got, int(c.client.Port()-client.Port())) }); err != nil {
			t.Fatal(err)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("to %q: entries %v, want %v", to, got, want)
		}
	}
}

func TestDeletionOfStaleUDPFlowsEndsWithItsContext(t *testing.T) {
	flush(t)
	add(t, 0, flow{unix.IPPROTO_UDP, "10.96.0.10:53", "10.244.1.1:53"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n, err := (&Table{}).DeleteStaleUDP(ctx, model.IPv4, []plan.Key{key("10.96.0.10:53", model.UDP)}, func(_, _ netip.AddrPort) bool { return true })
	if n != 0 || err == nil || len(remaining(t)) != 1 {
		t.Errorf("%d deleted, %v", n, err)
	}
}

// BenchmarkFindStaleUDP looks for flows to one frontend, and to many, in a table of 100,000 UDP flows to others.
func BenchmarkFindStaleUDP(b *testing.B) {
	const n = 100_000
	if limit := conntrackMax(b); limit < n {
		b.Skipf("net.netfilter.nf_conntrack_max is %d", limit)
	}
	flush(b)
	fill(b, unix.IPPROTO_UDP, n)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for title, frontends := range map[string]int{"one": 1, "many": maxExactDumps + 1} {
		keys := slices.Repeat([]plan.Key{key("10.96.0.11:53", model.UDP)}, frontends)
		all := plan.UDPFlows{Frontends: map[plan.Key]plan.UDPFrontend{keys[0]: {}}}
		b.Run(title, func(b *testing.B) {
			b.ReportAllocs()
			cpu := time.Duration(0)
			for b.Loop() {
				before := threadCPU(b)
				if n, err := (&Table{}).DeleteStaleUDP(b.Context(), model.IPv4, keys, func(to, endpoint netip.AddrPort) bool {
					stale, _ := all.Find(to, endpoint)
					return stale
				}); n != 0 || err != nil {
					b.Fatal(n, err)
				}
				cpu += threadCPU(b) - before
			}
			b.ReportMetric(float64(cpu.Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

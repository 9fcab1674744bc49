package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// TestDataPlaneIsToldBeforeEntriesAreDeleted, of the TCP connections whose clients may still send. If it cannot be told, they are
// deleted nevertheless.
func TestDataPlaneIsToldBeforeEntriesAreDeleted(t *testing.T) {
	resets := []plan.Reset{
		{Frontend: key("10.96.0.10:80", model.TCP), Endpoint: shedEndpoint}, {Frontend: key("10.96.0.10:80", model.UDP), Endpoint: shedEndpoint},
	}
	failure := errors.New("no room")
	for _, fails := range []error{nil, failure} {
		flush(t)
		var want []netip.AddrPort
		const n = endedPerCall + endedPerCall/2
		for i := range n {
			c := conn{shedClient(i), shedFrontend, shedEndpoint, unix.IPPROTO_TCP, uint8(1 + i%8)}
			if i%10 == 0 {
				c.protocol = unix.IPPROTO_UDP
			} else if c.state >= 2 && c.state <= 5 { // SYN_RECV, ESTABLISHED, FIN_WAIT, CLOSE_WAIT
				want = append(want, c.client)
			}
			createConns(t, c)
		}
		var told []netip.AddrPort
		remember := resetter(func(list []plan.Connection) (int, error) {
			left := clients(t)
			for _, c := range list {
				if told = append(told, c.Client); !left[c.Client] || c.Frontend != shedFrontend {
					t.Fatalf("told of %+v too late", c)
				}
			}
			if len(list) > endedPerCall {
				t.Errorf("told of %d connections in one call", len(list))
			}
			return 1, fails
		})
		got, err := (&Table{}).Reset(t.Context(), resets, remember)
		if got != (plan.ResetCount{Connections: n, Uncertain: 2}) || !errors.Is(err, fails) || len(clients(t)) != 0 {
			t.Errorf("%+v, %v; %d are left", got, err, len(clients(t)))
		}
		slices.SortFunc(told, netip.AddrPort.Compare)
		slices.SortFunc(want, netip.AddrPort.Compare)
		if !slices.Equal(told, want) {
			t.Errorf("told of %d connections, want %d", len(told), len(want))
		}
	}
}

// resetter is a data plane that is told of connections.
type resetter func(list []plan.Connection) (left int, err error)

func (r resetter) ResetTCP(_ context.Context, list []plan.Connection) (int, error) { return r(list) }

// TestPortUsedAgainForAnotherEndpoint: an entry that was listed is deleted, but not the entry that the client's port has got for
// another endpoint since, though the kernel gives some of these the same id: the memory of the first.
func TestPortUsedAgainForAnotherEndpoint(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		sameID := 0
		for i := 0; i < 2000 && sameID < 3; i++ {
			flush(t)
			c := conn{shedClient(i), shedFrontend, shedEndpoint, protocol, tcpEstablished}
			createConns(t, c)
			list, id := picksOf(t)
			flush(t)
			c.endpoint = otherOne
			createConns(t, c)
			if idOfConn(t, c) != id {
				continue
			}
			sameID++
			if n, done, err := (&Table{}).end(t.Context(), model.IPv4, list, nil); n.Connections != 0 || done != 1 || err != nil {
				t.Fatalf("protocol %d: %d connections to another endpoint were ended, %d done: %v", protocol, n.Connections, done, err)
			}
			if !clients(t)[c.client] {
				t.Fatalf("protocol %d: the connection to another endpoint is gone", protocol)
			}
		}
		if sameID == 0 {
			t.Errorf("protocol %d: of 2,000 pairs of entries none had the same id: the test shows nothing", protocol)
		}
	}
}

// picksOf returns the only entry of the table, as one to end, and its id.
func picksOf(t *testing.T) (list []picked, id uint32) {
	t.Helper()
	if err := listFlows(t.Context(), model.IPv4, 0, 0, func(c *flowEntry) { list, id = append(list, pickEntry(c, 0)), c.id }); err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	return list, id
}

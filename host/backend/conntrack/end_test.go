package conntrack

import (
	"context"
	"errors"
	"net/netip"
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

package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/conntrack"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// Resets are connections through a frontend of which some are reset: those to Pod p1.
type Resets struct {
	Node, Client *testnet.Host
	Plan         *plan.Plan
	To           netip.AddrPort
	Table        *conntrack.Table
	TCP          backend.Resetter // nil: the data plane resets all connections that conntrack does not know
	// All: all connections to p1 are reset, as after ResetAfter of an endpoint. Otherwise half of them are shed.
	All bool
	// Then is called when they have been reset and none of them has sent a packet yet. It may be nil.
	Then func()
}

// resetsLeast is how many connections there are at least of each kind.
const resetsLeast = 4

type resetConn struct {
	net.Conn
	selected bool
}

// Check opens connections, resets some, and sends on all of them: those that were reset must be answered with RST, all others go
// on.
func (r *Resets) Check(t *testing.T) {
	t.Helper()
	all, selected := r.open(t)
	n, err := r.reset(t.Context())
	// Reset also deletes the entries of connections that both sides have closed.
	if n.Connections < selected || n.Connections > selected && !r.All || n.Uncertain > 0 || err != nil {
		t.Errorf("%+v, %v, want %d", n, err, selected)
	}
	if r.Then != nil {
		r.Then()
	}
	for _, c := range all {
		_ = c.SetDeadline(time.Now().Add(testnet.AnswerTimeout))
		_, err := c.Write([]byte("still there\n"))
		if err == nil {
			_, err = c.Read(make([]byte, 12))
		}
		if c.selected && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s → %s: got %v, want a reset", c.LocalAddr(), r.To, err)
		} else if !c.selected && err != nil {
			t.Errorf("%s → %s: %v; it was not selected", c.LocalAddr(), r.To, err)
		}
	}
}

// endpoint is p1.
func (r *Resets) endpoint() netip.AddrPort {
	if r.To.Addr().Is6() {
		return netip.MustParseAddrPort("[fd00:10:244::1]:9000")
	}
	return netip.MustParseAddrPort("10.244.0.1:9000")
}

func (r *Resets) shed() plan.Shed {
	s := plan.Shed{Endpoint: r.endpoint(), Seed: 1, To: plan.ShedSpace / 2, Until: plan.ShedSpace / 2}
	for _, k := range r.Plan.Keys() {
		if k.Family() == model.FamilyOf(r.To.Addr()) && k.Protocol == model.TCP {
			s.Frontends = append(s.Frontends, k)
		}
	}
	return s
}

// reset resets the connections that are selected.
func (r *Resets) reset(ctx context.Context) (n plan.ResetCount, err error) {
	shed := r.shed()
	derr := r.Node.Do(func() error {
		if !r.All {
			n, _, err = r.Table.Shed(ctx, []plan.Shed{shed}, r.TCP)
			return err
		}
		var resets []plan.Reset
		for _, k := range shed.Frontends {
			resets = append(resets, plan.Reset{Frontend: k, Endpoint: shed.Endpoint})
		}
		n, err = r.Table.Reset(ctx, resets, r.TCP)
		return err
	})
	return n, derr
}

// open opens connections until there are enough that are selected, enough others to p1, unless all are selected, and enough to
// others.
func (r *Resets) open(t *testing.T) (all []resetConn, selected int) {
	t.Helper()
	shed := r.shed()
	const selectedOnes, spared, others = 0, 1, 2
	var n [3]int
	for enough := false; !enough; {
		if len(all) == 300 {
			t.Fatalf("%s: %d connections are selected, %d spared, %d to others", r.To, n[selectedOnes], n[spared], n[others])
		}
		c, a, err := r.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		local := netip.MustParseAddrPort(c.LocalAddr().String())
		hit := r.All || uint64(plan.ShedHash(shed.Seed, local, r.To)) < shed.To
		kind := selectedOnes
		switch {
		case a.Server != "p1":
			kind = others
		case !hit:
			kind = spared
		}
		n[kind]++
		all = append(all, resetConn{c, kind == selectedOnes})
		enough = slices.Min([]int{n[selectedOnes], n[others]}) >= resetsLeast && (r.All || n[spared] >= resetsLeast)
	}
	return all, n[selectedOnes]
}

func (r *Resets) dial(ctx context.Context) (net.Conn, testnet.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, testnet.AnswerTimeout)
	defer cancel()
	c, err := r.Client.Dial(ctx, "tcp", r.To)
	if err != nil {
		return nil, testnet.Answer{}, err
	}
	_ = c.SetDeadline(time.Now().Add(testnet.AnswerTimeout))
	a, err := testnet.Greeting(c)
	if err != nil {
		return nil, a, fmt.Errorf("greeting of %s: %w", r.To, errors.Join(err, c.Close()))
	}
	return c, a, nil
}

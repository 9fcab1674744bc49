package nftables

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/conformance"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testbed"
	"github.com/sluice-proxy/sluice/host/util/nfnl/nfnltest"
)

func TestConformance(t *testing.T) { conformance.Run(t, fixture) }

// foreignTables are tables of another program that resemble ours.
const foreignTables = `table inet sluice {
	comment "not sluice's"
	map slots {
		type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
		elements = { 10.96.4.1 . tcp . 80 : 10.9.9.9 . 80 }
	}
	chain services {
		type filter hook forward priority 50; policy accept;
		ct state established counter
	}
}
table ip sluice2 {
	set frontends { type ipv4_addr . inet_proto . inet_service; elements = { 10.96.4.1 . tcp . 80 comment "shop/web ClusterIP" } }
}
`

func fixture(t *testing.T) conformance.Fixture {
	d := newTestEnv(t, 5)
	var open *Backend
	s := conformance.Fixture{
		Open: func() (backend.Backend, error) {
			var err error
			open, err = Open(Options{Netns: d.lab.Node.Fd(), Now: d.clock.Now})
			return open, err
		},
		Cleanup: func(ctx context.Context) error {
			_, err := Cleanup(ctx, d.lab.Node.Fd())
			return err
		},
		Advance: func(by time.Duration) { d.clock.t = d.clock.t.Add(by) },
		InjectFault: func(k int, lost bool) func() bool {
			f := &nfnltest.Fault{Transport: open.conn.Transport}
			open.conn.Transport = f
			disarm := f.Arm(k, lost)
			return func() bool {
				open.conn.Transport = f.Transport
				return disarm()
			}
		},
		Reject: func(k plan.Key) func() {
			f := &nfnltest.Fault{Transport: open.conn.Transport}
			open.conn.Transport = f
			undo := f.Reject(k.Addr, uint8(k.Protocol), k.Port)
			return func() {
				open.conn.Transport = f.Transport
				undo()
			}
		},
		AddForeign: func() (func() error, error) {
			if out, err := d.nft(foreignTables, "-f", "-"); err != nil {
				return nil, fmt.Errorf("%s: %w", out, err)
			}
			list := func() string {
				a, err := d.nft("", "list", "table", "inet", "sluice")
				b, berr := d.nft("", "list", "table", "ip", "sluice2")
				return fmt.Sprint(a, b, err, berr)
			}
			before := list()
			return func() error {
				if now := list(); now != before {
					return fmt.Errorf("was %s\nis %s", before, now)
				}
				return nil
			}, nil
		},
		Corrupt: func(k plan.Key) error {
			table := "ip"
			if k.Family() == model.IPv6 {
				table = "ip6"
			}
			proto := strings.ToLower(k.Protocol.String())
			elem := fmt.Sprintf("nodeports { %s . %d }", proto, k.Port)
			if !k.IsNodePort() {
				elem = fmt.Sprintf("frontends { %s . %s . %d }", k.Addr, proto, k.Port)
			}
			out, err := d.nft(fmt.Sprintf("delete element %s sluice %s\n", table, elem), "-f", "-")
			if err != nil {
				return fmt.Errorf("%s: %w", out, err)
			}
			return nil
		},
		Leftovers: func() ([]string, error) {
			out, err := d.nft("", "list", "ruleset")
			if strings.TrimSpace(out) == "" {
				return nil, err
			}
			return []string{out}, err
		},
	}
	s.Traffic = (&testbed.Bed{Lab: d.lab, Pods: d.pods, Client: d.client}).Traffic(t)
	return s
}

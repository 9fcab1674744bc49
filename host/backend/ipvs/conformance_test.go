package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/conformance"
	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func TestConformance(t *testing.T) {
	requireIPVS(t)
	conformance.Run(t, newFixture)
}

func TestConformanceInMemory(t *testing.T) {
	testenv.OnceForAllKernels(t)
	conformance.Run(t, func(t *testing.T) conformance.Fixture {
		d := newMemEnv(t)
		var f *faultInjector
		foreignKey := addrKey(netip.MustParseAddr("192.0.2.80"), 80, 6)
		return conformance.Fixture{
			Open: func() (backend.Backend, error) {
				b, err := d.tryOpen()
				if err == nil {
					f = inject(b)
				}
				return b, err
			},
			Cleanup: func(ctx context.Context) error {
				maps.DeleteFunc(d.virtualServers, func(_ serverKey, s *fakeServer) bool { return s.flags&flagOwned != 0 })
				clear(d.bound)
				_, err := nftables.Cleanup(ctx, d.Lab.Node.Fd())
				return err
			},
			Advance: func(by time.Duration) { d.now = d.now.Add(by) },
			InjectFault: func(k int, lost bool) func() bool {
				now := &fault{after: k, lost: lost}
				f.fault = now
				return func() bool { f.fault = nil; return now.fired }
			},
			Reject: func(k plan.Key) func() { return f.netlink.Reject(k.Addr, uint8(k.Protocol), k.Port) },
			AddForeign: func() (func() error, error) {
				m := destinationState{destination: destination{addr: netip.MustParseAddrPort("10.9.9.9:80"), weight: 7, modified: true}}
				d.virtualServers[foreignKey] = &fakeServer{serverConfig: serverConfig{"rr", 0}, destinations: map[netip.AddrPort]destinationState{m.addr: m}}
				before := fmt.Sprint(*d.virtualServers[foreignKey])
				return func() error {
					if now := fmt.Sprint(*d.virtualServers[foreignKey]); now != before {
						return fmt.Errorf("was %s\nis %s", before, now)
					}
					return nil
				}, nil
			},
			Corrupt: func(k plan.Key) error {
				if k.IsNodePort() {
					table := map[bool]string{false: "ip", true: "ip6"}[k.Addr.Is6()]
					_, err := d.run(fmt.Sprintf("delete element %s sluice nodeports { %s . %d }\n", table, strings.ToLower(k.Protocol.String()), k.Port), "nft", "-f", "-")
					return err
				}
				delete(d.bound, k.Addr)
				return nil
			},
			Unsupported: map[string]string{
				"Traffic":   "fakeKernel forwards no packets; TestConformance does, in make test-vm",
				"Leftovers": "the test itself clears fakeKernel",
			},
		}
	})
}

// foreignTable resembles the tables of sluice as closely as possible, but is not one of them.
const foreignTable = `table inet sluice {
	comment "not sluice's"
	map fwmarks {
		type ipv4_addr . inet_proto . inet_service : mark
		elements = { 10.96.4.1 . tcp . 80 : 0x5ce00001 }
	}
	chain services {
		type filter hook forward priority 50; policy accept;
		ct state established counter
	}
}
`

const foreignServers = `-A -t 192.0.2.80:80 -s rr
-a -t 192.0.2.80:80 -r 10.9.9.9:80 -m -w 7 -x 1
-A -f 7 -s wlc -p 300
-a -f 7 -r 10.9.9.9:0 -g -w 0
`

func newFixture(t *testing.T) conformance.Fixture {
	d := newEnv(t)
	var f *faultInjector
	s := conformance.Fixture{
		Open: func() (backend.Backend, error) {
			b, err := Open(d.options())
			if err == nil {
				f = inject(b)
			}
			return b, err
		},
		Cleanup: func(ctx context.Context) error {
			_, err := Cleanup(ctx, d.options())
			return err
		},
		Advance: func(by time.Duration) { d.now = d.now.Add(by); time.Sleep(min(by, 10*time.Millisecond)) }, // time passes
		InjectFault: func(k int, lost bool) func() bool {
			now := &fault{after: k, lost: lost}
			f.fault = now
			return func() bool { f.fault = nil; return now.fired }
		},
		Reject: func(k plan.Key) func() { return f.netlink.Reject(k.Addr, uint8(k.Protocol), k.Port) },
		AddForeign: func() (func() error, error) {
			if _, err := d.run(foreignTable, "nft", "-f", "-"); err != nil {
				return nil, err
			}
			if _, err := d.run(foreignServers, "ipvsadm", "-R"); err != nil {
				return nil, err
			}
			for _, args := range []string{"link add dummy7 type dummy", "addr add 10.96.200.1/32 dev dummy7", "addr add 10.96.200.2/32 dev lo"} {
				if _, err := d.run("", "ip", strings.Fields(args)...); err != nil {
					return nil, err
				}
			}
			list := func() string {
				a, err := d.run("", "nft", "list", "table", "inet", "sluice")
				b, berr := d.run("", "ipvsadm", "-Sn")
				var theirs []string
				for _, line := range strings.Split(b, "\n") {
					if strings.Contains(line, "192.0.2.80") || strings.Contains(line, "-f 7 ") {
						theirs = append(theirs, line)
					}
				}
				c, cerr := d.run("", "ip", "-br", "addr", "show", "dev", "dummy7")
				e, eerr := d.run("", "ip", "addr", "show", "dev", "lo")
				return fmt.Sprint(a, theirs, c, e, err, berr, cerr, eerr)
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
			proto := map[model.Protocol]string{model.TCP: "-t", model.UDP: "-u", model.SCTP: "--sctp-service"}[k.Protocol]
			if !k.IsNodePort() {
				if _, err := d.run("", "ipvsadm", "-D", proto, netip.AddrPortFrom(k.Addr, k.Port).String()); err == nil {
					return nil // otherwise the frontend has no virtual server
				}
			}
			table, elem := "ip", fmt.Sprintf("nodeports { %s . %d }", strings.ToLower(k.Protocol.String()), k.Port)
			if k.Family() == model.IPv6 {
				table = "ip6"
			}
			if !k.IsNodePort() {
				elem = fmt.Sprintf("frontends { %s . %s . %d }", k.Addr, strings.ToLower(k.Protocol.String()), k.Port)
			}
			_, err := d.run(fmt.Sprintf("delete element %s sluice %s\n", table, elem), "nft", "-f", "-")
			return err
		},
		Leftovers: func() ([]string, error) {
			var left []string
			for _, args := range []string{"nft list ruleset", "ipvsadm -Sn", "ip -o link show type dummy"} {
				words := strings.Fields(args)
				out, err := d.run("", words[0], words[1:]...)
				if err != nil {
					return nil, err
				}
				if strings.TrimSpace(out) != "" {
					left = append(left, out)
				}
			}
			return left, nil
		},
	}
	s.Traffic = d.Traffic(t)
	s.Traffic.Parallel, s.Traffic.RoundRobin = 8, true
	s.Traffic.NodeOwns = func(a netip.Addr) bool {
		l, err := openLink(d.Lab.Node.Fd(), DefaultLink)
		if err != nil {
			t.Error(err)
			return false
		}
		defer l.close()
		p, err := l.listAddrs()
		if err != nil {
			t.Error(err)
		}
		return p.bound[a]
	}
	return s
}

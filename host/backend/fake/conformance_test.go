package fake_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/conformance"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

var errInjected = errors.New("injected")

func TestConformance(t *testing.T) {
	everything := fake.Everything()
	slots := plan.Caps{
		Name: "slots", Ratios: true, MaxTotal: 1000, Balances: everything.Balances[:1],
		CoarseAffinity: true, Outcomes: true,
	}
	for name, o := range map[string]fake.Options{
		"holding everything":               {},
		"holding ratios":                   {Caps: slots},
		"leaving things behind":            {Linger: 5 * time.Millisecond},
		"holding weights without outcomes": {Caps: plan.Caps{Name: "weights", ZeroWeight: true, Balances: everything.Balances[1:]}},
	} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, func(t *testing.T) conformance.Fixture { return subject(o) })
		})
	}
}

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func subject(o fake.Options) conformance.Fixture {
	o.NodeAddrs = addrs("192.168.0.1", "192.168.0.2", "fd00:192::1")
	o.Seed = 1
	k := fake.NewKernel(o)
	wire := &conformance.Traffic{
		Global: plan.Global{
			NodePortAddrs:  addrs("192.168.0.1", "fd00:192::1"),
			PodSources:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/64")},
			MasqueradeMark: 0x4000,
		},
		Node:      o.NodeAddrs,
		Protocols: []model.Protocol{model.TCP, model.UDP},
		Listen:    func(netip.AddrPort, model.Protocol) (func(), error) { return func() {}, nil },
	}
	for i := range 5 {
		wire.Servers = append(wire.Servers,
			netip.MustParseAddrPort(fmt.Sprintf("10.244.1.%d:8080", i+1)), netip.MustParseAddrPort(fmt.Sprintf("[fd00:10:244::%d]:8080", i+1)))
	}
	for name, from := range map[string]string{
		"a Pod": "10.244.1.99", "a Pod that serves": "10.244.1.1", "the node": "192.168.0.1", "outside": "172.16.0.9",
		"a Pod by IPv6": "fd00:10:244::99", "a Pod that serves by IPv6": "fd00:10:244::1", "the node by IPv6": "fd00:192::1", "outside by IPv6": "2001:db8:ffff::9",
	} {
		wire.Clients = append(wire.Clients, conformance.Client{Name: name, From: netip.MustParseAddr(from)})
	}
	port := uint16(1024)
	wire.Connect = func(c conformance.Client, to netip.AddrPort, proto model.Protocol) (conformance.Outcome, error) {
		if port++; port == 0 {
			port = 1024
		}
		p := fake.Packet{From: netip.AddrPortFrom(c.From, port), Interface: c.Interface, To: to, Protocol: proto}
		r := k.Connect(p)
		seen := conformance.Outcome{NotProxied: !r.Ours, Verdict: r.Verdict, Server: r.Endpoint, Source: c.From}
		if r.Masqueraded {
			seen.Source = o.NodeAddrs[0]
		}
		seen.Reuse = func() (netip.AddrPort, error) {
			again := k.Connect(p)
			if !again.Established {
				return again.Endpoint, errors.New("the connection was gone")
			}
			return again.Endpoint, nil
		}
		seen.Close = func() { k.Disconnect(p) }
		return seen, nil
	}
	return conformance.Fixture{
		Open:    func() (backend.Backend, error) { return fake.Open(k), nil },
		Cleanup: func(ctx context.Context) error { return fake.Cleanup(ctx, k) },
		Advance: k.Advance,
		InjectFault: func(n int, lost bool) func() bool {
			return k.Inject(fake.Fault{At: n, Err: errInjected, Lost: lost})
		},
		Reject: func(key plan.Key) func() {
			k.Reject(key, errors.New("injected"))
			return func() { k.Reject(key, nil) }
		},
		AddForeign: func() (func() error, error) {
			other := &plan.Frontend{
				Key:   plan.Key{Addr: netip.MustParseAddr("10.96.4.1"), Port: 80, Protocol: model.TCP},
				Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: "svc-0"}, Protocol: model.TCP},
				Pool:  plan.Pool{Verdict: plan.Drop},
			}
			k.Edit("other", func(p *plan.Plan) { p.Frontends[other.Key] = other })
			return func() error {
				if p, ok := k.Table("other"); !ok || len(p.Frontends) != 1 || p.Frontends[other.Key] != other {
					return fmt.Errorf("the other table is there: %v:\n%s", ok, plan.Format(p))
				}
				return nil
			}, nil
		},
		Corrupt: func(key plan.Key) error {
			k.Edit(fake.Name, func(p *plan.Plan) { delete(p.Frontends, key) })
			return nil
		},
		Leftovers: func() ([]string, error) {
			if p, ok := k.Table(fake.Name); ok || k.Leftovers() > 0 {
				return []string{plan.Format(p)}, nil
			}
			return nil, nil
		},
		Traffic: wire,
	}
}

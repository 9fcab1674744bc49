package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/backend/slots"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/netns"
	"golang.org/x/sys/unix"
)

// Caps returns what IPVS with all schedulers can represent. IPVS accepts weights up to 65535, but wrr walks them from the highest
// down: of 65535, 65535 and 21845, the third destination got no connection among the first 87,380. So weights are reduced to
// lowest terms, with a sum of slots.Max as in the nftables backend, and a round of wrr takes at most a thousand connections. The
// schedulers mh and sh fill a table of a fixed size (4093 and 256 slots by default) in rounds of as many slots as the sum: with
// a sum of 1000, destinations in the unfinished last round of mh would have a fifth more than their share.
func Caps() plan.Caps {
	return capsOf(map[string]bool{"wrr": true, "wlc": true, "mh": true})
}

// capsOf returns what IPVS with the given schedulers can represent.
func capsOf(have map[string]bool) plan.Caps {
	c := plan.Caps{
		Name: "ipvs", Ratios: true, MaxTotal: slots.Max, MaxHashTotal: 100, Step: slots.Step, ZeroWeight: true,
		Balances: []plan.Balance{plan.Random},

		MaxEndpoints: nftables.Slots{}.Caps().MaxEndpoints, MaxName: nftables.MaxName, CoarseAffinity: true, Outcomes: true,
	}
	if have["wrr"] {
		c.Balances = append(c.Balances, plan.RoundRobin)
	}
	if have["mh"] || have["sh"] {
		c.Balances = append(c.Balances, plan.SourceHash)
	}
	if have["wlc"] {
		c.Balances = append(c.Balances, plan.LeastConnections)
	}
	return c
}

// serverConfig returns the scheduler and flags of a frontend's virtual servers.
func (b *Backend) serverConfig(f *plan.Frontend) serverConfig {
	c := serverConfig{scheduler: b.o.Scheduler, flags: flagOwned}
	switch f.Balance {
	case plan.Random:
		if c.scheduler == "mh" {
			c.flags |= flagPort // as kube-proxy does
		}
	case plan.RoundRobin:
		c.scheduler = "wrr"
	case plan.SourceHash:
		c.scheduler = b.hashScheduler
	case plan.LeastConnections:
		c.scheduler = "wlc"
	}
	return c
}

// standardSchedulers are those that plans use.
var standardSchedulers = []string{"wrr", "wlc", "mh", "sh"}

// probeSchedulers returns which of the standard schedulers and of others the kernel has, by using them in a temporary
// network namespace. If the caller may not create one, all are assumed to exist. A missing one of others is an error.
func probeSchedulers(others ...string) (map[string]bool, error) {
	if err := checkIPVS(); err != nil {
		return nil, err
	}
	have := map[string]bool{}
	names := append(slices.Clone(standardSchedulers), others...)
	err := netns.DoInNew(func() error {
		h, err := openIPVS(0)
		if err != nil {
			return err
		}
		defer h.close()
		for i, name := range names {
			err := h.do(op{kind: opAddServer, key: testKey(i+1, model.TCP), serverConfig: serverConfig{scheduler: name}})
			switch {
			case err == nil:
				have[name] = true
			case !errors.Is(err, unix.ENOENT):
				return fmt.Errorf("try scheduler %s: %w", name, withHint(err))
			}
		}
		return nil
	})
	if errors.Is(err, unix.EPERM) {
		for _, name := range names {
			have[name] = true
		}
		return have, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ipvs: %w", err)
	}
	for _, name := range others {
		if !have[name] {
			return nil, fmt.Errorf("ipvs: the kernel has no scheduler %s (ipvs.scheduler; modprobe ip_vs_%s)", name, name)
		}
	}
	return have, nil
}

// testKey is a virtual server for probing, at an address of TEST-NET-1.
func testKey(host int, proto model.Protocol) serverKey {
	return addrKey(netip.AddrFrom4([4]byte{192, 0, 2, byte(host)}), 80, proto)
}

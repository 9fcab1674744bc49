package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend"
)

// Watch implements backend.Watcher. It reports changes of the nftables rules. IPVS sends no notifications: see Drifted.
func (b *Backend) Watch(onChange func(backend.ExternalChange)) (stop func(), err error) {
	return b.rules.Watch(onChange)
}

// scanBatch bounds how many virtual servers one Drifted reads destinations of.
const scanBatch = 256

// destinationScan is the position of Drifted among the virtual servers.
type destinationScan struct {
	keys []serverKey
	at   int
}

// Drifted implements backend.Watcher. It compares the nftables rules, all virtual servers and addresses, and the
// destinations of scanBatch virtual servers, so that repeated calls cover all. With 10,000 Services one call takes some
// 50 ms. It repairs sysctls itself; if a required one cannot be set, Apply returns the error.
func (b *Backend) Drifted(ctx context.Context) (bool, error) {
	if err := b.applySysctls(false); err != nil {
		return true, nil
	}
	drifted, err := b.rules.Drifted(ctx)
	if err != nil || drifted || !b.stateTrusted {
		return drifted, err
	}
	all, err := b.ipvs.listServers()
	if err != nil {
		return false, fmt.Errorf("ipvs: list virtual servers: %w", withHint(err))
	}
	for k, c := range all {
		if s := b.state.servers[k]; s != nil && c != s.serverConfig || s == nil && c.flags&flagOwned != 0 {
			return true, nil
		}
	}
	for k := range b.state.servers {
		if _, ok := all[k]; !ok {
			return true, nil
		}
	}
	p, err := b.links.listAddrs()
	if err != nil || !maps.Equal(p.bound, b.state.bound) || !maps.Equal(p.otherLinks, b.state.otherLinks) {
		return err == nil, err
	}
	if drifted, err := b.localAddrsChanged(p.nodeLocal); drifted || err != nil {
		return drifted, err
	}
	return b.scanDestinations()
}

// localAddrsChanged reports whether a VIP has become, or is no longer, local to the node independently of sluice.
func (b *Backend) localAddrsChanged(nodeLocal map[netip.Addr]bool) (bool, error) {
	for a := range b.state.frontendsAt {
		if nodeLocal[a] != b.state.localOnLinks[a] {
			return true, nil
		}
		if nodeLocal[a] || !b.state.nodeLocal[a] {
			continue
		}
		if at, err := b.links.locate(a); err != nil || at != onNode { // it was local by a route
			return err == nil, err
		}
	}
	return false, nil
}

// scanDestinations compares the destinations of the next scanBatch virtual servers.
func (b *Backend) scanDestinations() (bool, error) {
	scan := &b.scan
	if scan.at >= len(scan.keys) {
		scan.keys, scan.at = slices.SortedFunc(maps.Keys(b.state.servers), compareKeys), 0
	}
	for n := 0; n < scanBatch && scan.at < len(scan.keys); n++ {
		k := scan.keys[scan.at]
		scan.at++
		s := b.state.servers[k]
		if s == nil {
			continue
		}
		destinations, err := b.readDestinations(k)
		if err != nil {
			return false, fmt.Errorf("ipvs: %w", err)
		}
		if !slices.Equal(destinations, s.destinations) {
			return true, nil
		}
	}
	return false, nil
}

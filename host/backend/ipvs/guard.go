package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// addGuards makes the nftables rules reject packets to VIPs that are about to become local, until their frontends are
// programmed: such packets would reach the node's own sockets, or IPVS without the rules. Addresses for which the
// tables of another mode or kube-proxy still forward are guarded when these stop.
func (b *Backend) addGuards(ctx context.Context, updates []*frontendUpdate) error {
	var add []netip.Addr
	for _, u := range updates {
		a := u.key.Addr
		if !u.failed && u.next != nil && !u.key.IsNodePort() && !b.state.nodeLocal[a] && !b.state.kubeProxyOwned[a] && !b.state.guarded[a] {
			b.state.guarded[a] = true
			if !b.state.guardsRead[a] {
				add = append(add, a)
			}
		}
	}
	if len(add) == 0 || b.state.switchingMode { // the new tables contain the guards
		return nil
	}
	if err := b.updateGuards(ctx, add, nil); err != nil {
		for _, u := range updates {
			if !u.failed && u.next != nil && slices.Contains(add, u.key.Addr) {
				u.fail(err)
			}
		}
	}
	return nil
}

// releaseGuards removes the guards of addresses that are no longer local because of sluice.
func (b *Backend) releaseGuards(ctx context.Context) error {
	if len(b.state.guarded) == len(b.state.bound) {
		return nil
	}
	var del []netip.Addr
	for a := range b.state.guarded {
		if !b.state.bound[a] && !b.state.otherLinks[a] && (b.state.frontendsAt[a] == 0 || b.state.nodeLocal[a]) {
			del = append(del, a)
		}
	}
	if len(del) == 0 {
		return nil
	}
	slices.SortFunc(del, netip.Addr.Compare)
	for _, a := range del {
		delete(b.state.guarded, a)
		delete(b.state.guardsRead, a) // a frontend that comes back must add it again
	}
	if err := b.updateGuards(ctx, nil, del); err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	return nil
}

// updateGuards adds and deletes guards in the nftables rules, and tries once more if that fails.
func (b *Backend) updateGuards(ctx context.Context, add, del []netip.Addr) error {
	r, err := b.rules.Guard(ctx, add, del)
	b.stats.addReport(r)
	if err != nil && ctx.Err() == nil {
		b.log.Debug("guarding addresses failed, trying once more", "err", err)
		r, err = b.rules.Guard(ctx, add, del)
		b.stats.addReport(r)
	}
	if err != nil {
		b.stateSuspect = true
		return fmt.Errorf("guard addresses in nftables: %w", err)
	}
	return nil
}

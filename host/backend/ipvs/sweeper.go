package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"golang.org/x/sys/unix"
)

// sweeper removes the virtual servers and addresses of sluice, for Cleanup and DrainAll.
type sweeper struct {
	o         Options // with defaults
	operation string  // for errors
	removed   int     // number of virtual servers removed
	remaining []serverKey
}

// sweep removes the virtual servers of sluice, except those for which remove returns true, then the addresses that no
// remaining one needs, from any link, and DefaultLink with its last address. It returns what was removed from links,
// human-readable.
func (w *sweeper) sweep(ctx context.Context, remove func(ipvsAPI, serverKey) (remains bool, err error)) (links []string, err error) {
	if err := w.sweepServers(ctx, remove); err != nil {
		return nil, err
	}
	return w.sweepLinks()
}

func (w *sweeper) sweepServers(ctx context.Context, remove func(ipvsAPI, serverKey) (remains bool, err error)) error {
	if err := checkIPVSLoaded(); err != nil {
		return err
	}
	h, err := openIPVS(w.o.Netns)
	if err != nil {
		return err
	}
	defer h.close()
	all, err := h.listServers()
	if err != nil {
		return fmt.Errorf("ipvs: list virtual servers: %w", withHint(err))
	}
	for _, k := range slices.SortedFunc(maps.Keys(all), compareKeys) {
		if all[k].flags&flagOwned == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("ipvs: %s: %w", w.operation, err)
		}
		remains, err := remove(h, k)
		if err != nil {
			return fmt.Errorf("ipvs: %s: %w", w.operation, err)
		}
		if remains {
			w.remaining = append(w.remaining, k)
		} else {
			w.removed++
		}
	}
	return nil
}

// needsAddr reports whether a remaining virtual server needs an address. The VIP of a fwmark service is unknown here:
// it may be any address of the family.
func (w *sweeper) needsAddr(a netip.Addr) bool {
	return slices.ContainsFunc(w.remaining, func(k serverKey) bool {
		return k.addr == a || k.mark != 0 && k.v6 == a.Is6()
	})
}

// sweepLinks removes the addresses that no remaining virtual server needs, and DefaultLink if nothing else uses it.
func (w *sweeper) sweepLinks() (removed []string, err error) {
	l, err := openLink(w.o.Netns, w.o.Link)
	if err != nil {
		return nil, err
	}
	defer l.close()
	if _, err := l.listAddrs(); err != nil {
		return nil, err
	}
	index, ours, err := l.findLink(DefaultLink)
	if err != nil {
		return nil, err
	}
	deleteLink := ours && len(w.remaining) == 0 && !l.usedByOthers[index]
	count := map[int]int{}
	for _, a := range l.owned {
		if deleteLink && a.link == index || w.needsAddr(a.Addr) {
			continue
		}
		if err := l.addrs.del(a.Addr, a.link); err != nil {
			return removed, fmt.Errorf("ipvs: %s: delete address %s of link %s: %w", w.operation, a, l.linkName(a.link), withHint(err))
		}
		count[a.link]++
	}
	for _, i := range slices.Sorted(maps.Keys(count)) {
		removed = append(removed, fmt.Sprintf("%d addresses of link %s", count[i], l.linkName(i)))
	}
	if deleteLink {
		if err := l.deleteLink(index); err != nil {
			return removed, fmt.Errorf("ipvs: %s: %w", w.operation, err)
		}
		removed = append(removed, "link "+DefaultLink)
	}
	return removed, nil
}

// rejectNew makes the VIPs that are still local reject new connections other than those of IPVS.
func (w *sweeper) rejectNew() error {
	l, err := openLink(w.o.Netns, w.o.Link)
	if err != nil {
		return err
	}
	defer l.close()
	p, err := l.listAddrs()
	if err != nil {
		return err
	}
	if err := nftables.SetRejected(w.o.Netns, slices.Collect(maps.Keys(p.vips()))); err != nil {
		return fmt.Errorf("ipvs: %w", err)
	}
	return nil
}

// deleteIgnoringMissing sends a deletion. That the object does not exist is not an error.
func deleteIgnoringMissing(h ipvsAPI, o op) error {
	if err := h.do(o); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%s: %w", o, withHint(err))
	}
	return nil
}

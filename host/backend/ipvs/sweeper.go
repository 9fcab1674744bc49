package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// sweeper are what sluice has in the kernel beside tables, when it is to go.
type sweeper struct {
	o         Options
	operation string // for errors: what is done
	// removed is how many virtual servers went; left are those that stay, as they have connections.
	removed   int
	remaining []serverKey
}

// sweep lets each virtual server of sluice's go by a function that tells whether it stays, then the addresses that none
// needs any more, from whatever link, and the link that sluice made with the last one. It names what it took off.
func (r *sweeper) sweep(ctx context.Context, each func(ipvsAPI, serverKey) (stays bool, err error)) (link []string, err error) {
	if r.o.Link == "" {
		r.o.Link = DefaultLink
	}
	if err := r.sweepServers(ctx, each); err != nil {
		return nil, err
	}
	return r.sweepLinks()
}

func (r *sweeper) sweepServers(ctx context.Context, each func(ipvsAPI, serverKey) (stays bool, err error)) error {
	if err := checkIPVSLoaded(); err != nil {
		return err
	}
	h, err := openIPVS(r.o.Netns)
	if err != nil {
		return err
	}
	defer h.close()
	all, err := h.listServers()
	if err != nil {
		return fmt.Errorf("ipvs: list virtual servers: %w", withHint(err))
	}
	for _, k := range slices.SortedFunc(maps.Keys(all), compareKeys) {
		if all[k].flags&flagOurs == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("ipvs: %s: %w", r.operation, err)
		}
		stays, err := each(h, k)
		if err != nil {
			return fmt.Errorf("ipvs: %s: %w", r.operation, err)
		}
		if stays {
			r.remaining = append(r.remaining, k)
		} else {
			r.removed++
		}
	}
	return nil
}

// needsAddr tells whether a virtual server that is left has its connections at an address. Of those by mark it is not
// known where: any address of the family may be it.
func (r *sweeper) needsAddr(a netip.Addr) bool {
	return slices.ContainsFunc(r.remaining, func(k serverKey) bool {
		return k.addr == a || k.mark != 0 && k.v6 == a.Is6()
	})
}

func (r *sweeper) sweepLinks() (removed []string, err error) {
	l, err := openLink(r.o.Netns, r.o.Link)
	if err != nil {
		return nil, err
	}
	defer l.close()
	if _, err := l.listAddrs(); err != nil {
		return nil, err
	}
	index, made, err := l.findLink(DefaultLink)
	if err != nil {
		return nil, err
	}
	whole := made && len(r.remaining) == 0 && !l.usedByOthers[index]
	count := map[int]int{}
	for _, a := range l.owned {
		if whole && a.link == index || r.needsAddr(a.Addr) {
			continue
		}
		if err := l.addrs.del(a.Addr, a.link); err != nil {
			return removed, fmt.Errorf("ipvs: %s: delete address %s of link %s: %w", r.operation, a, l.linkName(a.link), withHint(err))
		}
		count[a.link]++
	}
	for _, i := range slices.Sorted(maps.Keys(count)) {
		removed = append(removed, fmt.Sprintf("%d addresses of link %s", count[i], l.linkName(i)))
	}
	if whole {
		if err := l.deleteLink(index); err != nil {
			return removed, fmt.Errorf("ipvs: %s: %w", r.operation, err)
		}
		removed = append(removed, "link "+DefaultLink)
	}
	return removed, nil
}

// rejectNew has the addresses that are here refuse what is not for IPVS.
func (r *sweeper) rejectNew() error {
	l, err := openLink(r.o.Netns, r.o.Link)
	if err != nil {
		return err
	}
	defer l.close()
	p, err := l.listAddrs()
	if err != nil {
		return err
	}
	var here []netip.Addr
	for _, a := range l.owned {
		if !p.nodeLocal[a.Addr] {
			here = append(here, a.Addr)
		}
	}
	_, err = setRejected(r.o.Netns, here)
	return err
}

// deleteIgnoringMissing sends a message that takes something away; it may be gone already.
func deleteIgnoringMissing(h ipvsAPI, o op) error {
	if err := h.do(o); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%s: %w", o, withHint(err))
	}
	return nil
}

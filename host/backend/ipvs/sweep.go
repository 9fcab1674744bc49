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

// remains are what sluice has in the kernel beside tables, when it is to go.
type remains struct {
	o    Options
	what string // for errors: what is done
	// removed is how many virtual servers went; left are those that stay, as they have connections.
	removed int
	left    []serverKey
}

// sweep lets each virtual server of sluice's go by a function that tells whether it stays, then the addresses that none
// needs any more, from whatever link, and the link that sluice made with the last one. It names what it took off.
func (r *remains) sweep(ctx context.Context, each func(virtual, serverKey) (stays bool, err error)) (link []string, err error) {
	if r.o.Link == "" {
		r.o.Link = DefaultLink
	}
	if err := r.servers(ctx, each); err != nil {
		return nil, err
	}
	return r.link()
}

func (r *remains) servers(ctx context.Context, each func(virtual, serverKey) (stays bool, err error)) error {
	if err := inUse(); err != nil {
		return err
	}
	h, err := openHandle(r.o.Netns)
	if err != nil {
		return err
	}
	defer h.close()
	all, err := h.servers()
	if err != nil {
		return fmt.Errorf("ipvs: list virtual servers: %w", hint(err))
	}
	for _, k := range slices.SortedFunc(maps.Keys(all), compareServers) {
		if all[k].flags&flagOurs == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("ipvs: %s: %w", r.what, err)
		}
		stays, err := each(h, k)
		if err != nil {
			return fmt.Errorf("ipvs: %s: %w", r.what, err)
		}
		if stays {
			r.left = append(r.left, k)
		} else {
			r.removed++
		}
	}
	return nil
}

// needed tells whether a virtual server that is left has its connections at an address. Of those by mark it is not
// known where: any address of the family may be it.
func (r *remains) needed(a netip.Addr) bool {
	return slices.ContainsFunc(r.left, func(k serverKey) bool {
		return k.addr == a || k.mark != 0 && k.v6 == a.Is6()
	})
}

func (r *remains) link() (removed []string, err error) {
	l, err := openLink(r.o.Netns, r.o.Link)
	if err != nil {
		return nil, err
	}
	defer l.close()
	if _, err := l.list(); err != nil {
		return nil, err
	}
	index, made, err := l.lookUp(DefaultLink)
	if err != nil {
		return nil, err
	}
	whole := made && len(r.left) == 0 && !l.shared[index]
	count := map[int]int{}
	for _, a := range l.ours {
		if whole && a.link == index || r.needed(a.Addr) {
			continue
		}
		if err := l.route.del(a.Addr, a.link); err != nil {
			return removed, fmt.Errorf("ipvs: %s: delete address %s of link %s: %w", r.what, a, l.nameOf(a.link), hint(err))
		}
		count[a.link]++
	}
	for _, i := range slices.Sorted(maps.Keys(count)) {
		removed = append(removed, fmt.Sprintf("%d addresses of link %s", count[i], l.nameOf(i)))
	}
	if whole {
		if err := l.delete(index); err != nil {
			return removed, fmt.Errorf("ipvs: %s: %w", r.what, err)
		}
		removed = append(removed, "link "+DefaultLink)
	}
	return removed, nil
}

// guard has the addresses that are here refuse what is not for IPVS.
func (r *remains) guard() error {
	l, err := openLink(r.o.Netns, r.o.Link)
	if err != nil {
		return err
	}
	defer l.close()
	p, err := l.list()
	if err != nil {
		return err
	}
	var here []netip.Addr
	for _, a := range l.ours {
		if !p.own[a.Addr] {
			here = append(here, a.Addr)
		}
	}
	_, err = leaving(r.o.Netns, here)
	return err
}

// gone sends a message that takes something away; it may be gone already.
func gone(h virtual, o op) error {
	if err := h.do(o); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%s: %w", o, hint(err))
	}
	return nil
}

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
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
// needs any more, and the link with the last one if sluice made it. It names what it took off the link.
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

func (r *remains) link() ([]string, error) {
	l, err := openLink(r.o.Netns, r.o.Link)
	if err != nil {
		return nil, err
	}
	defer l.close()
	if l.dummy && len(r.left) == 0 {
		if err := l.nl.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: l.name, Index: l.index}}); err != nil {
			return nil, fmt.Errorf("ipvs: %s: delete link %s: %w", r.what, l.name, hint(err))
		}
		return []string{"link " + l.name}, nil
	}
	bound, _, err := l.list()
	if err != nil {
		return nil, err
	}
	n := 0
	for _, a := range slices.SortedFunc(maps.Keys(bound), netip.Addr.Compare) {
		if r.needed(a) {
			continue
		}
		if err := l.del(a); err != nil {
			return nil, fmt.Errorf("ipvs: %s: delete address %s of link %s: %w", r.what, a, l.name, hint(err))
		}
		n++
	}
	if n == 0 {
		return nil, nil
	}
	return []string{fmt.Sprintf("%d addresses of link %s", n, l.name)}, nil
}

// gone sends a message that takes something away; it may be gone already.
func gone(h virtual, o op) error {
	if err := h.do(o); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%s: %w", o, hint(err))
	}
	return nil
}

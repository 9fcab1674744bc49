package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Cleanup removes the virtual servers, the addresses, the link if sluice made it, and the companion's tables; nothing
// else. It names what was there. Where the kernel has no IPVS there is nothing of it.
func Cleanup(ctx context.Context, o Options) (removed []string, err error) {
	if o.Link == "" {
		o.Link = DefaultLink
	}
	removed, err = nftables.Cleanup(ctx, nftables.Options{Netns: o.Netns, Now: o.Now})
	if err != nil {
		return removed, err
	}
	servers, err := cleanServers(ctx, o)
	if servers > 0 {
		removed = append(removed, fmt.Sprintf("%d IPVS virtual servers", servers))
	}
	if err != nil && !errors.Is(err, ErrNoIPVS) {
		return removed, err
	}
	link, err := cleanLink(o)
	return append(removed, link...), err
}

func cleanServers(ctx context.Context, o Options) (n int, err error) {
	if err := inUse(); err != nil {
		return 0, err
	}
	h, err := openHandle(o.Netns)
	if err != nil {
		return 0, err
	}
	defer h.close()
	all, err := h.servers()
	if err != nil {
		return 0, fmt.Errorf("ipvs: list virtual servers: %w", hint(err))
	}
	for _, k := range slices.SortedFunc(maps.Keys(all), compareServers) {
		if all[k].flags&flagOurs == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return n, fmt.Errorf("ipvs: clean up: %w", err)
		}
		o := op{kind: delServer, key: k}
		if err := h.do(o); err != nil && !errors.Is(err, unix.ESRCH) {
			return n, fmt.Errorf("ipvs: %s: %w", o, hint(err))
		}
		n++
	}
	return n, nil
}

func cleanLink(o Options) (removed []string, err error) {
	l, err := openLink(o.Netns, o.Link)
	if err != nil {
		return nil, err
	}
	defer l.close()
	if l.dummy {
		if err := l.nl.LinkDel(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: l.name, Index: l.index}}); err != nil {
			return nil, fmt.Errorf("ipvs: delete link %s: %w", l.name, hint(err))
		}
		return []string{"link " + l.name}, nil
	}
	bound, _, err := l.list()
	if err != nil || len(bound) == 0 {
		return nil, err
	}
	for _, a := range slices.SortedFunc(maps.Keys(bound), netip.Addr.Compare) {
		if err := l.del(a); err != nil {
			return nil, fmt.Errorf("ipvs: delete address %s of link %s: %w", a, o.Link, hint(err))
		}
	}
	return []string{fmt.Sprintf("%d addresses of link %s", len(bound), o.Link)}, nil
}

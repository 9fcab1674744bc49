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

// Retire lets what this backend has programmed run out, when another backend has taken its place: members get no new
// connections, and go with their virtual servers and addresses once they have none. It tells how many virtual servers
// are left; call it from time to time until there are none. With force those that have connections go too. The
// companion's tables are not looked at: the nftables backend replaces them.
func Retire(ctx context.Context, o Options, force bool) (left int, err error) {
	if o.Link == "" {
		o.Link = DefaultLink
	}
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
	busy := map[netip.Addr]bool{}
	for _, k := range slices.SortedFunc(maps.Keys(all), compareServers) {
		if all[k].flags&flagOurs == 0 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return left, fmt.Errorf("ipvs: retire: %w", err)
		}
		some, err := retire(h, k, force)
		if err != nil {
			return left, fmt.Errorf("ipvs: retire: %w", err)
		}
		if some {
			left++
			busy[k.addr] = true
		}
	}
	if left == 0 {
		_, err = cleanLink(o)
		return 0, err
	}
	return left, retireAddresses(o, busy)
}

// retire is for one virtual server; it tells whether that still has connections.
func retire(h virtual, k serverKey, force bool) (bool, error) {
	list, err := h.members(k)
	if err != nil {
		return false, err
	}
	left := false
	for _, m := range list {
		o := op{kind: delMember, key: k, member: member{addr: m.addr, lingering: true}}
		if m.active > 0 && !force {
			left = true
			if m.lingering {
				continue
			}
			o.kind = setMember
		}
		if err := h.do(o); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) {
			return left, fmt.Errorf("%s: %w", o, hint(err))
		}
	}
	if left {
		return true, nil
	}
	o := op{kind: delServer, key: k}
	if err := h.do(o); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("%s: %w", o, hint(err))
	}
	return false, nil
}

// retireAddresses takes those away that no virtual server needs.
func retireAddresses(o Options, busy map[netip.Addr]bool) error {
	l, err := openLink(o.Netns, o.Link)
	if err != nil {
		return err
	}
	defer l.close()
	bound, _, err := l.list()
	if err != nil {
		return err
	}
	for _, a := range slices.SortedFunc(maps.Keys(bound), netip.Addr.Compare) {
		if busy[a] {
			continue
		}
		if err := l.del(a); err != nil {
			return fmt.Errorf("ipvs: retire: delete address %s of link %s: %w", a, o.Link, hint(err))
		}
	}
	return nil
}

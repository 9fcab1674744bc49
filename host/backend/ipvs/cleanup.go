package ipvs

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/backend/nftables/rules"
)

// Cleanup removes the virtual servers, the addresses, the link if sluice made it, and the companion's tables; nothing
// else. It names what was there. Where the kernel has no IPVS there is nothing of it.
func Cleanup(ctx context.Context, o Options) (removed []string, err error) {
	removed, err = rules.Cleanup(ctx, o.Netns)
	if err != nil {
		return removed, err
	}
	leaving, err := setRejected(o.Netns, nil)
	if removed = append(removed, leaving...); err != nil {
		return removed, err
	}
	r := &sweeper{o: o, operation: "clean up"}
	link, err := r.sweep(ctx, func(h ipvsAPI, k serverKey) (bool, error) {
		return false, deleteIgnoringMissing(h, op{kind: opDelServer, key: k})
	})
	if errors.Is(err, ErrNoIPVS) {
		link, err = r.sweepLinks()
	}
	if r.removed > 0 {
		removed = append(removed, fmt.Sprintf("%d IPVS virtual servers", r.removed))
	}
	return append(removed, link...), err
}

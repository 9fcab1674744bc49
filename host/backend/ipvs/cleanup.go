package ipvs

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
)

// Cleanup removes the nftables tables, virtual servers and addresses of sluice, and DefaultLink if sluice created it
// and nothing else uses it. It returns what it removed, human-readable. A kernel without IPVS is not an error.
func Cleanup(ctx context.Context, o Options) (removed []string, err error) {
	removed, err = nftables.Cleanup(ctx, o.Netns)
	if err != nil {
		return removed, err
	}
	w := &sweeper{o: o.withDefaults(), operation: "clean up"}
	links, err := w.sweep(ctx, func(h ipvsAPI, k serverKey) (bool, error) {
		return false, deleteIgnoringMissing(h, op{kind: opDelServer, key: k})
	})
	if errors.Is(err, ErrNoIPVS) {
		links, err = w.sweepLinks()
	}
	if w.removed > 0 {
		removed = append(removed, fmt.Sprintf("%d IPVS virtual servers", w.removed))
	}
	return append(removed, links...), err
}

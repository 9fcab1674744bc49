package ipvs

import (
	"fmt"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// heldAtOnce bounds how long a hold takes: each change of a scheduler waits for a grace period, some 10 to 30 ms.
const heldAtOnce = 8

// holdNew holds new connections to virtual servers until release is called. After an error, nothing is held.
func (b *Backend) holdNew(keys []serverKey) (release func(), err error) {
	if len(keys) == 0 {
		return func() {}, nil
	}
	var held []nftables.Held
	for _, k := range keys {
		held = append(held, nftables.Held{V6: k.v6, Mark: k.mark, At: plan.Key{Addr: k.addr, Port: k.port, Protocol: k.proto}})
	}
	if err := nftables.Hold(b.o.Netns, held, b.o.MarkMask); err != nil {
		return func() {}, fmt.Errorf("ipvs: %w", err)
	}
	return func() {
		if err := nftables.Release(b.o.Netns); err != nil {
			b.log.Warn("the hold of new connections ends by itself", "after", nftables.HoldTimeout, "err", err)
		}
	}, nil
}

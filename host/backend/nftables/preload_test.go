package nftables

import (
	"context"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"github.com/sluice-proxy/sluice/host/util/nfnl/nfnltest"
)

// dumps is a transport that counts the dumps of elements.
type dumps struct {
	nfnl.Transport
	n int
}

func (d *dumps) Send(b []byte) error {
	offsets, _ := nfnltest.Messages(b)
	for _, at := range offsets {
		if binary.NativeEndian.Uint16(b[at+4:])&0xff == unix.NFT_MSG_GETSETELEM {
			d.n++
		}
	}
	return d.Transport.Send(b)
}

// TestPreloadedStateIsUsedOnceAndOnlyIfItIsCurrent checks both with a change by another process between Preload and Apply.
func TestPreloadedStateIsUsedOnceAndOnlyIfItIsCurrent(t *testing.T) {
	d, ctx := newTestEnv(t, 2), context.Background()
	p := d.apply(shopPlan())
	for name, change := range map[string]string{"nothing changes": "", "another process changes the table": "flush set ip sluice frontends\n"} {
		d.b.Close()
		count := &dumps{}
		d.b = d.openWith(Options{Transport: func(t nfnl.Transport) nfnl.Transport { count.Transport = t; return count }})
		if err := d.b.Preload(ctx); err != nil {
			t.Fatal(err)
		}
		if count.n == 0 {
			t.Fatalf("%s: Preload has read nothing", name)
		}
		if change != "" {
			if out, err := d.nft(change, "-f", "-"); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
		}
		count.n = 0
		r, err := d.b.Apply(ctx, p, nil)
		if changed := change != ""; err != nil || (r != backend.Report{}) != changed || (count.n > 0) != changed {
			t.Errorf("%s: Apply read %d sets, wrote %+v, %v", name, count.n, r, err)
		}
		d.expectPlan(p)
		count.n = 0
		if _, err := d.b.Apply(ctx, p, nil); err != nil || count.n == 0 {
			t.Errorf("%s: a second Apply read %d sets, %v", name, count.n, err)
		}
	}
}

package ipvs

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/plan"
)

// Caps are what an IPVS with all its schedulers can hold.
func Caps() plan.Caps {
	return capsOf(map[string]bool{"wrr": true, "wlc": true, "mh": true})
}

// Read decodes the kernel's state into a plan, and changes nothing. Where the tables are not a companion's, or there is
// nothing, the error of rules.IsForeignTable or an empty plan tells.
func Read(ctx context.Context, o Options) (*plan.Plan, error) {
	if o.Link == "" {
		o.Link = DefaultLink
	}
	if o.Scheduler == "" {
		o.Scheduler = "wrr"
	}
	if o.Now == nil {
		o.Now = func() time.Time { return time.Time{} }
	}
	b := &Backend{o: o, log: slog.New(slog.DiscardHandler), caps: Caps(), hashScheduler: "mh"}
	if err := b.connect(); err != nil {
		return nil, err
	}
	p, err := b.Read(ctx)
	_ = b.Close()
	return p, err
}

// BoundVIPs gives the addresses that sluice has put on links and that the node has for no other reason; "" is DefaultLink.
func BoundVIPs(name string) (map[netip.Addr]bool, error) {
	if name == "" {
		name = DefaultLink
	}
	l, err := openLink(0, name)
	if err != nil {
		return nil, err
	}
	defer l.close()
	p, err := l.listAddrs()
	maps.Copy(p.bound, p.otherLinks)
	maps.DeleteFunc(p.bound, func(a netip.Addr, _ bool) bool { return p.nodeLocal[a] })
	return p.bound, err
}

package ipvs

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
)

// DefaultLink is the dummy link to which VIPs are added by default. It is created if missing.
const DefaultLink = "sluice-ipvs0"

// DefaultMarkMask has bits that few programs of a node use: see COMPATIBILITY.md.
const DefaultMarkMask = 0x1f7f

// DefaultDrainTimeout is as long as conntrack keeps an idle connection.
const DefaultDrainTimeout = 24 * time.Hour

// Options configure a Backend.
type Options struct {
	// Netns is a file descriptor of the network namespace to work in; 0 is the current one. It may be closed after Open.
	Netns int
	// Now is the clock. Required by Open.
	Now func() time.Time
	// Log receives what an operator should know. If nil, nothing is logged.
	Log *slog.Logger
	// Link is the link to which VIPs are added; "" is DefaultLink. Any other link must exist.
	Link string
	// Scheduler is the IPVS scheduler for plan.Random; "" is wrr. Schedulers other than wrr, wlc, sed, sh and mh ignore
	// weights, except that a destination of weight 0 gets no new connections.
	Scheduler string
	// StrictARP makes the node answer ARP requests only for addresses of the link that received them.
	StrictARP bool
	// ExcludeCIDRs are ranges in which virtual servers of other programs are never taken over.
	ExcludeCIDRs []netip.Prefix
	// MarkMask are the bits of the packet mark that the backend uses, at least two; 0 is DefaultMarkMask.
	MarkMask uint32
	// Affinity bounds the clients with session affinity; zero means the defaults.
	Affinity nftables.AffinityLimits
	// Timeouts of the IPVS connection table; 0 keeps the kernel's.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
	// DrainTimeout bounds how long a destination that is no longer in the plan is kept for its connections; 0 is
	// DefaultDrainTimeout.
	DrainTimeout time.Duration
}

// withDefaults fills in the defaults of fields that are not set, except for Now.
func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Link == "" {
		o.Link = DefaultLink
	}
	if o.Scheduler == "" {
		o.Scheduler = "wrr"
	}
	if o.MarkMask == 0 {
		o.MarkMask = DefaultMarkMask
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = DefaultDrainTimeout
	}
	return o
}

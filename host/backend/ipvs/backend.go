package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// rulesBackend is the part of nftables.Backend that this package uses: it programs everything but the destinations.
type rulesBackend interface {
	Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error)
	ReadMarks(ctx context.Context) (p *plan.Plan, marks nftables.Marks, guarded map[netip.Addr]bool, err error)
	ReadPools(ctx context.Context) (map[plan.Key]nftables.Pools, error)
	ReadOutcomes(ctx context.Context) (map[model.EndpointKey]backend.OutcomeCounters, error)
	UncountedEndpoints() int
	Guard(ctx context.Context, add, del []netip.Addr) (backend.Report, error)
	Watch(onChange func(backend.ExternalChange)) (stop func(), err error)
	Drifted(ctx context.Context) (bool, error)
	Close() error
}

// Backend programs plans into IPVS and nftables.
type Backend struct {
	o             Options
	log           *slog.Logger
	ipvs          ipvsAPI
	links         linkAPI
	sysctls       sysctlStore
	rules         rulesBackend
	caps          plan.Caps
	hashScheduler string // for plan.SourceHash

	state        state // copy of the kernel's state
	stateTrusted bool  // state is known to match the kernel
	stateSuspect bool  // a failure of the current Apply may have made state differ from the kernel
	unprogrammed unprogrammed
	// declines counts the Applies that left the tables of another mode in force because a frontend failed.
	declines int
	// rejectTablesDeleted is set once the reject tables of an earlier DrainAll, and the hold tables of a killed sluice, are
	// deleted.
	rejectTablesDeleted bool
	failedSysctls       map[string]bool // those that could not be set; logged once
	drains              drainTracker
	idleSince           map[netip.Addr]time.Time // VIPs on the link that may be unused
	notYetLocal         map[netip.Addr]bool      // VIPs that were added to the link and may not have a local route yet
	scan                destinationScan
	stats               applyStats
}

var (
	_ backend.Backend = (*Backend)(nil)
	_ backend.Watcher = (*Backend)(nil)

	_ backend.OutcomeCounter = (*Backend)(nil)
)

// Open connects to IPVS and nftables and sets the sysctls that IPVS needs in this network namespace. It programs
// nothing else.
func Open(o Options) (*Backend, error) {
	if o.Now == nil {
		return nil, errors.New("ipvs: open: Options.Now is not set")
	}
	o = o.withDefaults()
	have, err := probeSchedulers(o.Scheduler)
	if err != nil {
		return nil, err
	}
	b := newBackend(o, have)
	if err := b.connect(); err != nil {
		return nil, err
	}
	if err := b.initialize(); err != nil {
		_ = b.Close()
		return nil, err
	}
	return b, nil
}

// openReadOnly returns a Backend that is good for reading only: it changes and probes nothing.
func openReadOnly(o Options) (*Backend, error) {
	if o.Now == nil {
		o.Now = func() time.Time { return time.Time{} }
	}
	o = o.withDefaults()
	o.MarkMask = 0 // whatever the tables have
	b := &Backend{o: o, log: o.Log, caps: Caps(), hashScheduler: "mh"}
	if err := b.connect(); err != nil {
		return nil, err
	}
	return b, nil
}

func newBackend(o Options, have map[string]bool) *Backend {
	b := &Backend{
		o: o, log: o.Log, sysctls: procSysctls(o.Netns), caps: capsOf(have), hashScheduler: "mh",
		unprogrammed: unprogrammed{}, failedSysctls: map[string]bool{}, idleSince: map[netip.Addr]time.Time{}, notYetLocal: map[netip.Addr]bool{},
	}
	if !have["mh"] {
		b.hashScheduler = "sh"
	}
	return b
}

func (b *Backend) connect() error {
	h, err := openIPVS(b.o.Netns)
	if err != nil {
		return err
	}
	b.ipvs = h
	l, err := openLink(b.o.Netns, b.o.Link)
	if err != nil {
		h.close()
		return err
	}
	b.links = l
	if l.index == 0 && l.name != DefaultLink {
		h.close()
		l.close()
		return errNoLink(l.name)
	}
	if err := b.openRules(nil); err != nil {
		h.close()
		l.close()
		return err
	}
	return nil
}

// openRules connects to nftables. If wrap is not nil, it wraps the netlink transport.
func (b *Backend) openRules(wrap func(nfnl.Transport) nfnl.Transport) error {
	r, err := nftables.Open(nftables.Options{Netns: b.o.Netns, Now: b.o.Now, Log: b.o.Log, Affinity: b.o.Affinity, Transport: wrap, Balancing: &nftables.HandOff{
		Capabilities: b.caps, MarkMask: b.o.MarkMask, PoolMark: b.poolMark, GuardedVIPs: func() map[netip.Addr]bool { return b.state.guarded },
	}})
	if err != nil {
		return fmt.Errorf("ipvs: open nftables: %w", err)
	}
	b.rules = r
	return nil
}

// initialize checks that the caller may program IPVS, and sets sysctls and timeouts.
func (b *Backend) initialize() error {
	_, err := b.ipvs.listServers()
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("ipvs: list virtual servers: %w: IPVS requires CAP_NET_ADMIN in the initial user namespace, whichever network namespace it is used in", err)
	case err != nil:
		return fmt.Errorf("ipvs: list virtual servers: %w", err)
	}
	if err := b.applySysctls(true); err != nil {
		return err
	}
	if o := &b.o; o.TCPTimeout|o.TCPFinTimeout|o.UDPTimeout != 0 {
		if err := b.ipvs.setTimeouts(o.TCPTimeout, o.TCPFinTimeout, o.UDPTimeout); err != nil {
			return fmt.Errorf("ipvs: set timeouts: %w", withHint(err))
		}
	}
	return nil
}

// Caps implements backend.Backend.
func (b *Backend) Caps() plan.Caps { return b.caps }

// ReadOutcomes implements backend.OutcomeCounter. The nftables rules count, as in mode nftables: see the README.
func (b *Backend) ReadOutcomes(ctx context.Context) (map[model.EndpointKey]backend.OutcomeCounters, error) {
	return b.rules.ReadOutcomes(ctx)
}

// UncountedEndpoints implements backend.OutcomeCounter.
func (b *Backend) UncountedEndpoints() int { return b.rules.UncountedEndpoints() }

// Close implements backend.Backend.
func (b *Backend) Close() error {
	b.ipvs.close()
	b.links.close()
	return b.rules.Close()
}

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/nftables/rules"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"golang.org/x/sys/unix"
)

// Options are what Open needs to know.
type Options struct {
	// Netns is a file descriptor of the network namespace to work in; 0: the current one. It may be closed after Open.
	Netns int
	// Now is the clock.
	Now func() time.Time
	// Log takes what a person should know; nil: nothing is said.
	Log *slog.Logger
	// Link is the link for the addresses of frontends. DefaultLink, which "" means, is made when it is missing.
	Link string
	// Scheduler is the kernel's scheduler for plan.Random; "" is wrr. Others than wrr, wlc, sed, sh and mh do not look
	// at weights, except whether they are 0.
	Scheduler string
	// StrictARP makes the node answer ARP for the addresses of the link that asks only.
	StrictARP bool
	// ExcludeCIDRs are ranges in which a virtual server that is not sluice's is never taken over.
	ExcludeCIDRs []netip.Prefix
	// Time-outs of IPVS's own table of connections; 0 leaves the kernel's.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
	// DrainTimeout is how long a member that is in no plan any more is kept for its connections at most; 0:
	// DefaultDrainTimeout.
	DrainTimeout time.Duration
}

// DefaultDrainTimeout is as long as conntrack keeps an idle connection.
const DefaultDrainTimeout = 24 * time.Hour

// rulesBackend is what rules.Backend is to this package.
type rulesBackend interface {
	Apply(ctx context.Context, next *plan.Plan, d *plan.Delta) (backend.Report, error)
	ReadMarks(ctx context.Context) (p *plan.Plan, marks rules.Marks, guarded map[netip.Addr]bool, err error)
	ReadPools(ctx context.Context) (map[plan.Key]rules.Pools, error)
	Guard(ctx context.Context, add, del []netip.Addr) (backend.Report, error)
	Watch(heard func(backend.ExternalChange)) (stop func(), err error)
	Drifted(ctx context.Context) (bool, error)
	Close() error
}

// Backend holds plans in IPVS.
type Backend struct {
	o             Options
	log           *slog.Logger
	ipvs          ipvsAPI
	links         linkAPI
	sysctls       sysctlStore
	rules         rulesBackend
	caps          plan.Caps
	hashScheduler string // the scheduler for plan.SourceHash

	stateTrusted  bool  // the mirror is what the kernel has
	stateSuspect  bool  // it cannot be, after what failed in this Apply
	state         state // the mirror
	unprogrammed  unprogrammed
	failedSysctls map[string]bool // settings that cannot be set
	// declines is how often this backend has not taken the place of another mode's tables.
	declines int
	// rejectTablesDeleted: what guarded the addresses while another mode was in force is gone.
	rejectTablesDeleted bool
	drains              drainTracker
	idleSince           map[netip.Addr]time.Time // addresses that may be needed by nobody, since when
	scan                destinationScan
	stats               applyStats
}

var _ backend.Backend = (*Backend)(nil)
var _ backend.Watcher = (*Backend)(nil)

// Open connects to IPVS and to nf_tables, and sets what IPVS needs to be set in this network namespace. It programs
// nothing yet.
func Open(o Options) (*Backend, error) {
	if o.Now == nil {
		return nil, errors.New("ipvs: open: no clock given")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Link == "" {
		o.Link = DefaultLink
	}
	if o.Scheduler == "" {
		o.Scheduler = "wrr"
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = DefaultDrainTimeout
	}
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

// initialize finds out whether the kernel takes orders from here, and sets what it needs to be set.
func (b *Backend) initialize() error {
	_, err := b.ipvs.listServers()
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("ipvs: list virtual servers: %w: IPVS needs CAP_NET_ADMIN in the initial user namespace, whatever namespaces this is in", err)
	case err != nil:
		return fmt.Errorf("ipvs: list virtual servers: %w", err)
	}
	if err := b.applySysctls(true); err != nil {
		return err
	}
	if o := &b.o; o.TCPTimeout|o.TCPFinTimeout|o.UDPTimeout != 0 {
		if err := b.ipvs.setTimeouts(o.TCPTimeout, o.TCPFinTimeout, o.UDPTimeout); err != nil {
			return fmt.Errorf("ipvs: set time-outs: %w", withHint(err))
		}
	}
	return nil
}

func newBackend(o Options, have map[string]bool) *Backend {
	b := &Backend{
		o: o, log: o.Log, sysctls: procSysctls(o.Netns), caps: capsOf(have), hashScheduler: "mh",
		unprogrammed: unprogrammed{}, failedSysctls: map[string]bool{}, idleSince: map[netip.Addr]time.Time{},
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
	if err := b.openRules(); err != nil {
		h.close()
		l.close()
		return err
	}
	return nil
}

func (b *Backend) openRules() error {
	c, err := rules.Open(rules.Options{Netns: b.o.Netns, Now: b.o.Now, Log: b.o.Log, Companion: &rules.Companion{
		Caps: b.caps, Mark: b.poolMark, Guarded: func() map[netip.Addr]bool { return b.state.guarded },
	}})
	if err != nil {
		return fmt.Errorf("ipvs: the companion: %w", err)
	}
	b.rules = c
	return nil
}

// maxTotal is what the weights of a pool sum up to at most, as in the nftables backend. IPVS would hold weights up to
// 65535 each, but wrr goes through them from the highest down: of 65535, 65535 and 21845 the third gets nothing for
// the first 87,380 connections. So weights are in lowest terms, and a round is over after a thousand connections.
const maxTotal = 1000

// capsOf tells what can be held with these schedulers.
func capsOf(have map[string]bool) plan.Caps {
	c := plan.Caps{
		Name: "ipvs", Ratios: true, MaxTotal: maxTotal, Idle: true,
		Balances:  []plan.Balance{plan.Random},
		Protocols: []model.Protocol{model.TCP, model.UDP, model.SCTP},
	}
	if have["wrr"] {
		c.Balances = append(c.Balances, plan.RoundRobin)
	}
	if have["mh"] || have["sh"] {
		c.Balances = append(c.Balances, plan.SourceHash)
	}
	if have["wlc"] {
		c.Balances = append(c.Balances, plan.LeastConnections)
	}
	return c
}

// serverConfig is how a virtual server for a frontend works.
func (b *Backend) serverConfig(f *plan.Frontend) serverConfig {
	s := serverConfig{scheduler: b.o.Scheduler, flags: flagOurs}
	switch f.Balance {
	case plan.Random:
		if s.scheduler == "mh" {
			s.flags |= flagPort // as kube-proxy has it
		}
	case plan.RoundRobin:
		s.scheduler = "wrr"
	case plan.SourceHash:
		s.scheduler = b.hashScheduler
	case plan.LeastConnections:
		s.scheduler = "wlc"
	}
	return s
}

// Caps tells what can be held.
func (b *Backend) Caps() plan.Caps { return b.caps }

// Close lets go of the sockets. Everything stays and goes on forwarding.
func (b *Backend) Close() error {
	b.ipvs.close()
	b.links.close()
	return b.rules.Close()
}

package rules

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"

	"github.com/sluice-proxy/sluice/host/backend"
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
	// SendBuffer is how many bytes one transaction may have; 0: a good default. What the kernel grants may be less.
	SendBuffer int
	// Balancing is how the tables balance; nil: Slots.
	Balancing Balancing
	// Transport wraps the way to the kernel; nil: it is used as it is.
	Transport func(nfnl.Transport) nfnl.Transport
}

// Backend holds plans in nf_tables.
type Backend struct {
	conn    *nfnl.Conn
	now     func() time.Time
	log     *slog.Logger
	tables  [2]*table
	inSync  bool // the mirror is what the kernel has
	cleanup affinityCleanup

	balancing Balancing

	netns           int           // as in Options, but its own; 0: the current one
	listener        *watcher      // nil: nobody listens
	externalCommits atomic.Uint32 // transactions of others that Watch has heard
	gen             genTracker
}

var _ backend.Backend = (*Backend)(nil)

// Bounds of a transaction. The kernel works on one without letting go of its lock, some 4 µs an element; pace makes
// them smaller where that takes longer.
const (
	// softTxBytes is when a transaction is committed though there is more to write: some 10 ms. Larger ones are no faster.
	softTxBytes = 256 << 10
	// structureRoom is kept free for the rules, which may have to be written in the same transaction.
	structureRoom = 160 << 10
)

// Open connects to nf_tables. It reads and writes nothing yet.
func Open(o Options) (*Backend, error) {
	if o.Now == nil {
		return nil, errors.New("nftables: open: no clock given")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.SendBuffer == 0 {
		o.SendBuffer = nfnl.DefaultSendBuffer
	}
	if o.Balancing == nil {
		o.Balancing = Slots{}
	}
	conn, err := nfnl.Open(o.Netns, o.SendBuffer)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", nfnl.Hint(err))
	}
	conn.Pacer.Now = o.Now
	if o.Transport != nil {
		conn.Transport = o.Transport(conn.Transport)
	}
	b := &Backend{conn: conn, now: o.Now, log: o.Log, balancing: o.Balancing}
	if o.Netns != 0 {
		if b.netns, err = unix.FcntlInt(uintptr(o.Netns), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("nftables: keep the network namespace: %w", err)
		}
	}
	b.tables = [2]*table{newTable(model.IPv4, conn, b.balancing), newTable(model.IPv6, conn, b.balancing)}
	if _, err := conn.Generation(); err != nil {
		_ = b.Close()
		if err == unix.EINVAL {
			// nfnetlink knows of no subsystem of this number.
			err = unix.EOPNOTSUPP
		}
		return nil, fmt.Errorf("nftables: read the generation: %w", nfnl.Hint(err))
	}
	return b, nil
}

// Caps implements backend.Backend.
func (b *Backend) Caps() plan.Caps { return b.balancing.Caps() }

// Close lets go of the socket. The tables stay and go on forwarding.
func (b *Backend) Close() error {
	err := b.conn.Close()
	if b.netns != 0 {
		err = errors.Join(err, unix.Close(b.netns))
		b.netns = 0
	}
	return err
}

// Generation is the number of the kernel's ruleset, which every change by anybody raises, except what packets do
// (client affinity). It costs some 30 µs.
func (b *Backend) Generation(context.Context) (uint32, error) {
	gen, err := b.conn.Generation()
	if err != nil {
		return 0, fmt.Errorf("nftables: read the generation: %w", nfnl.Hint(err))
	}
	return gen, nil
}

// Read decodes the kernel's state into a plan: that of the tables that forward.
func (b *Backend) Read(ctx context.Context) (*plan.Plan, error) {
	tables, err := b.read(ctx)
	if err != nil {
		return nil, err
	}
	return decodePlan(tables), nil
}

func (b *Backend) read(ctx context.Context) (tables [2]*table, err error) {
	err = b.readConsistent(ctx, func() error {
		for i, t := range b.tables {
			tables[i] = newTable(t.family, b.conn, b.balancing)
			if foreign, err := tables[i].loadForwarding(); err != nil {
				return err
			} else if foreign != nil {
				return fmt.Errorf("nftables: read table %s: not one of this version: %w", t.label(), foreign)
			}
		}
		return nil
	})
	return tables, err
}

// maxReads is how often a read is begun again because somebody wrote to nf_tables meanwhile. Mostly that was to other
// tables than ours, so after that what was read counts: should it be wrong, a message fails and the next read tells.
const maxReads = 5

// readConsistent runs f until nothing was written meanwhile, or often enough.
func (b *Backend) readConsistent(ctx context.Context, f func() error) error {
	defer func() { b.conn.AllowInconsistent = false }()
	for try := 1; ; try++ {
		b.conn.AllowInconsistent = try == maxReads
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("nftables: read: %w", err)
		}
		before, err := b.Generation(ctx)
		if err != nil {
			return err
		}
		ferr := f()
		after, err := b.Generation(ctx)
		if err != nil {
			return err
		}
		if before == after && !errors.Is(ferr, nfnl.ErrInterrupted) || b.conn.AllowInconsistent {
			return ferr
		}
	}
}

// decodePlan puts the two families together.
func decodePlan(tables [2]*table) *plan.Plan {
	p := &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}}
	for _, t := range tables {
		g := &t.globals
		p.Global.NodePortAddrs = append(p.Global.NodePortAddrs, g.nodePortAddrs...)
		p.Global.PodSources = append(p.Global.PodSources, g.podSources...)
		p.Global.ServiceCIDRs = append(p.Global.ServiceCIDRs, g.serviceCIDRs...)
		if p.Global.PodInterfaces == nil {
			p.Global.PodInterfaces = interfaceNames(g.interfaces)
		}
		if p.Global.MasqueradeMark == 0 {
			p.Global.MasqueradeMark = t.masqueradeBit
		}
		for k, h := range t.frontends {
			if h.listed {
				p.Frontends[k] = h.decode(k)
			}
		}
	}
	return p
}

package rules

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/nftables/nfnl"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"golang.org/x/sys/unix"
)

// Options configure Open.
type Options struct {
	// Netns is a file descriptor of the network namespace to work in. Zero is the current one. It may be closed after
	// Open.
	Netns int
	// Now is the clock.
	Now func() time.Time
	// Log receives warnings. Nil discards them.
	Log *slog.Logger
	// SendBuffer bounds a transaction, in bytes. Zero is nfnl.DefaultSendBuffer. The kernel may grant less.
	SendBuffer int
	// Balancing is how the tables balance. Nil is Slots.
	Balancing Balancing
	// Affinity bounds the clients with session affinity. If it is not zero, tables with other bounds are replaced.
	Affinity AffinityLimits
	// Transport wraps the transport to the kernel, if it is not nil. It is for tests.
	Transport func(nfnl.Transport) nfnl.Transport
}

// Backend programs plans into nf_tables.
type Backend struct {
	conn *nfnl.Conn
	now  func() time.Time
	log  *slog.Logger
	// mu protects conn, tables and inSync while ReadOutcomes or ResetTCP runs beside another call.
	mu     sync.Mutex
	tables [2]*table
	inSync bool // the tables represent the kernel's state
	failed bool // the last Apply failed

	balancing Balancing
	limits    AffinityLimits

	uncounted    bool                                          // there are endpoints beyond MaxCountedEndpoints
	outcomes     map[model.EndpointKey]backend.OutcomeCounters // of the last ReadOutcomes
	unprogrammed unprogrammed
	removedUDP   []plan.Key      // see backend.UDPRemover
	normalized   []plan.Endpoint // reused by writeFrontend
	isolating    bool            // each frontend gets its own transaction: see isolate

	netns           int           // a duplicate of Options.Netns, or 0
	watcher         *watcher      // nil: not watching
	externalCommits atomic.Uint32 // commits of other processes that were received
	gen             genTracker
}

var _ backend.Backend = (*Backend)(nil)

// Bounds of a transaction. The kernel processes one under a lock, in some 4 µs per element. nfnl.Pacer reduces them
// where that takes longer.
const (
	// softTxBytes is the size at which a transaction is committed even if there is more to write. It takes some 5 ms.
	// Larger ones are no faster.
	softTxBytes = 128 << 10
	// structureRoom is reserved for rules that may have to be written in the same transaction.
	structureRoom = 160 << 10
)

// Open connects to nf_tables. It neither reads nor writes any table.
func Open(o Options) (*Backend, error) {
	if o.Now == nil {
		return nil, errors.New("nftables: open: no clock: Options.Now is nil")
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
	b := &Backend{conn: conn, now: o.Now, log: o.Log, balancing: o.Balancing, limits: o.Affinity}
	if o.Netns != 0 {
		if b.netns, err = unix.FcntlInt(uintptr(o.Netns), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("nftables: duplicate the network namespace: %w", err)
		}
	}
	b.tables = [2]*table{newTable(model.IPv4, conn, b.balancing, b.limits), newTable(model.IPv6, conn, b.balancing, b.limits)}
	for _, t := range b.tables {
		t.fixedSizes = o.Affinity != AffinityLimits{}
	}
	if _, err := conn.Generation(); err != nil {
		_ = b.Close()
		if err == unix.EINVAL {
			// nfnetlink has no subsystem of this number.
			err = unix.EOPNOTSUPP
		}
		return nil, fmt.Errorf("nftables: read the generation: %w", nfnl.Hint(err))
	}
	return b, nil
}

// Caps implements backend.Backend.
func (b *Backend) Caps() plan.Caps { return b.balancing.Caps() }

// Close closes the socket. The tables stay and keep forwarding.
func (b *Backend) Close() error {
	err := b.conn.Close()
	if b.netns != 0 {
		err = errors.Join(err, unix.Close(b.netns))
		b.netns = 0
	}
	return err
}

// generation returns the number of the kernel's ruleset. Every commit raises it; what packets change (client affinity)
// does not. It takes some 30 µs.
func (b *Backend) generation(context.Context) (uint32, error) {
	gen, err := b.conn.Generation()
	if err != nil {
		return 0, fmt.Errorf("nftables: read the generation: %w", nfnl.Hint(err))
	}
	return gen, nil
}

// Read decodes the tables that forward into a plan.
func (b *Backend) Read(ctx context.Context) (*plan.Plan, error) {
	tables, err := b.read(ctx)
	if err != nil {
		return nil, err
	}
	return decodePlan(tables), nil
}

func (b *Backend) read(ctx context.Context) (tables [2]*table, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	err = b.readConsistent(ctx, func() error {
		for i, t := range b.tables {
			tables[i] = newTable(t.family, b.conn, b.balancing, b.limits)
			if mismatch, err := tables[i].loadForwarding(); err != nil {
				return err
			} else if mismatch != nil {
				return fmt.Errorf("nftables: read table %s: it is another version's or another program's: %w", t.label(), mismatch)
			}
		}
		return nil
	})
	return tables, err
}

// maxReads is how often a read is tried if the ruleset changes during it. Usually another table changed, so the last
// result is used. If it is wrong, a message fails and the next read corrects it.
const maxReads = 5

// readConsistent calls f until the ruleset does not change during the call, or maxReads times.
func (b *Backend) readConsistent(ctx context.Context, f func() error) error {
	defer func() { b.conn.AllowInconsistent = false }()
	for try := 1; ; try++ {
		b.conn.AllowInconsistent = try == maxReads
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("nftables: read: %w", err)
		}
		before, err := b.generation(ctx)
		if err != nil {
			return err
		}
		ferr := f()
		after, err := b.generation(ctx)
		if err != nil {
			return err
		}
		if before == after && !errors.Is(ferr, nfnl.ErrInterrupted) || b.conn.AllowInconsistent {
			return ferr
		}
	}
}

// decodePlan merges the tables of both families.
func decodePlan(tables [2]*table) *plan.Plan {
	p := &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}}
	for _, t := range tables {
		g := &t.globals
		p.Global.NodePortAddrs = append(p.Global.NodePortAddrs, g.nodePortAddrs...)
		p.Global.LocalhostAddrs = append(p.Global.LocalhostAddrs, g.localhostAddrs...)
		p.Global.PodSources = append(p.Global.PodSources, g.podSources...)
		p.Global.ServiceCIDRs = append(p.Global.ServiceCIDRs, g.serviceCIDRs...)
		p.Global.NoMasquerade = append(p.Global.NoMasquerade, g.noMasquerade...)
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

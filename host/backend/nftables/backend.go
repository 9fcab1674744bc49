package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
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
	closed bool
	// preloaded: the tables represent the kernel's state at the generation of gen, and no Apply has used that.
	preloaded bool
	failed    bool // the last Apply failed

	offload backend.Offload // of the last SyncOffload

	balancing Balancing
	limits    AffinityLimits

	uncounted    bool                                          // there are endpoints beyond MaxCountedEndpoints
	outcomes     map[model.EndpointKey]backend.OutcomeCounters // of the last ReadOutcomes
	unprogrammed unprogrammed
	removedUDP   []plan.Key      // see backend.UDPRemover
	stripped     []plan.Endpoint // reused by writeFrontend
	isolating    bool            // each frontend gets its own transaction: see isolate

	netns           int           // a duplicate of Options.Netns, or 0
	watcher         *watcher      // nil: not watching
	externalCommits atomic.Uint32 // commits of other processes that were received
	gen             genTracker
}

var _ backend.Backend = (*Backend)(nil)

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
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
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

package nftables

import (
	"context"
	"fmt"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/util/nfnl"
)

var _ backend.Watcher = (*Backend)(nil)

// Watch implements backend.Watcher. Changes of other tables are ignored, except for those before Watch: the generation tells only
// that there were some.
func (b *Backend) Watch(onChange func(backend.ExternalChange)) (stop func(), err error) {
	conn, err := nfnl.Listen(b.netns, b.conn)
	if err != nil {
		return nil, fmt.Errorf("nftables: watch: %w", nfnl.Hint(err))
	}
	distance, err := b.distance(context.Background())
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	if b.gen.started && b.gen.grown(distance) {
		b.gen = genTracker{started: true, distance: distance}
		onChange(backend.ExternalChange{Object: "unknown object", Count: 1})
	}
	l := &watcher{conn: conn, onChange: onChange, objects: map[string]int{}, commits: &b.externalCommits}
	b.watcher = l
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := conn.Run(l.datagram, l.overflow); !l.stopped.Load() {
			b.log.Warn("stopped watching nf_tables for external changes", "err", err)
		}
	}()
	return func() {
		l.stopped.Store(true)
		if conn.Stop() == nil {
			<-done
		}
		go conn.Close() // nobody waits for the kernel
		b.watcher = nil
	}, nil
}

// maxObjects bounds the objects that are counted, maxNamed those that are named.
const (
	maxObjects = 1000
	maxNamed   = 4
)

// Drifted implements backend.Watcher. Each commit raises the generation by one, and is either one of ours or one that
// was received. One that is just being received looks like an unknown one, so it takes two checks in a row.
func (b *Backend) Drifted(ctx context.Context) (bool, error) {
	distance, err := b.distance(ctx)
	if err != nil {
		return false, err
	}
	r := &b.gen
	switch {
	case !r.started || !r.grown(distance):
		*r = genTracker{started: true, distance: distance}
		return false, nil
	case !r.suspicious:
		r.suspicious = true
		return false, nil
	}
	*r = genTracker{started: true, distance: distance}
	return true, nil
}

// distance returns how far the generation is from the commits that are known.
func (b *Backend) distance(ctx context.Context) (uint32, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.knownCommits()
	gen, err := b.generation(ctx)
	return gen - known, err
}

func (b *Backend) knownCommits() uint32 { return b.conn.Commits + b.externalCommits.Load() }

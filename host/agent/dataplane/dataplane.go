package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/config"
)

// Plane is the data plane in use: an open backend, and the draining of what other modes have left.
type Plane struct {
	modes Modes
	log   *slog.Logger

	mu        sync.Mutex
	backend   backend.Backend
	cfg       *config.Config
	stopDrain func() // stops draining the other modes and waits until it has ended; nil: not draining
}

// Open opens the backend of the configuration's mode.
func Open(modes Modes, cfg *config.Config, log *slog.Logger) (*Plane, error) {
	b, err := modes.Get(cfg.Mode).Open(cfg, log)
	if err != nil {
		return nil, err
	}
	return &Plane{modes: modes, backend: b, cfg: cfg, log: log}, nil
}

// Backend returns the backend in use.
func (p *Plane) Backend() backend.Backend {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backend
}

// Swapper programs the current plan into another backend, and returns the one before.
type Swapper interface {
	Swap(ctx context.Context, to backend.Backend) (from backend.Backend, err error)
}

// Swap replaces the backend in use by that of cfg. What the old one has programmed goes once the new one has the plan:
// its tables forward until their successor does, and virtual servers stay for their connections. After an error the old
// one is still in use.
func (p *Plane) Swap(ctx context.Context, engine Swapper, cfg *config.Config) error {
	p.stopDraining() // what is left of the new mode may be in use again
	defer p.DrainOthers()
	to, err := p.modes.Get(cfg.Mode).Open(cfg, p.log)
	if err != nil {
		return err
	}
	from, err := engine.Swap(ctx, to)
	if err != nil {
		return errors.Join(err, to.Close())
	}
	if err := from.Close(); err != nil {
		p.log.Warn("closing the data plane before", "err", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backend, p.cfg = to, cfg
	return nil
}

// Close stops draining and closes the backend. The kernel goes on forwarding.
func (p *Plane) Close() error {
	p.stopDraining()
	return p.backend.Close()
}

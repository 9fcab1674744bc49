package dataplane

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/node/config"
)

// Plane is the open backend, and drains the virtual servers of other modes. Its methods may be called concurrently.
type Plane struct {
	modes Modes
	log   *slog.Logger

	mu      sync.Mutex
	backend backend.Backend
	cfg     *config.Config

	draining  sync.Mutex // while draining begins or ends, which may wait for the kernel; the engine does not need it
	stopDrain func()     // cancels draining and waits for its end; nil: not draining
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
	b, _ := p.inUse()
	return b
}

// inUse returns the backend in use and its configuration.
func (p *Plane) inUse() (backend.Backend, *config.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backend, p.cfg
}

// Swapper is the engine.
type Swapper interface {
	// Swap programs the current plan with another backend, and returns the previous one.
	Swap(ctx context.Context, to backend.Backend) (from backend.Backend, err error)
}

// Swap replaces the backend with that of cfg. The old tables forward until the new backend has programmed the plan; then
// virtual servers of the old mode are drained. After an error the old backend is still in use.
func (p *Plane) Swap(ctx context.Context, engine Swapper, cfg *config.Config) error {
	p.stopDraining() // the new mode may use what is being drained
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
		p.log.Warn("closing the previous backend failed", "err", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backend, p.cfg = to, cfg
	return nil
}

// Close stops draining and closes the backend. The kernel keeps forwarding.
func (p *Plane) Close() error {
	p.stopDraining()
	return p.Backend().Close()
}

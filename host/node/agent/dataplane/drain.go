package dataplane

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/node/config"
)

// Virtual servers that get no new connections are checked every DrainInterval, and removed when they have none, or after
// DrainTimeout.
const (
	DrainInterval = time.Minute
	DrainTimeout  = ipvs.DefaultDrainTimeout
)

// DrainOthers starts draining the virtual servers of other modes in the background.
func (p *Plane) DrainOthers() {
	p.draining.Lock()
	defer p.draining.Unlock()
	if p.stopDrain != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	_, cfg := p.inUse()
	for i := range p.modes {
		if m := &p.modes[i]; m.Name != cfg.Mode && m.Drain != nil {
			wg.Go(func() { p.drain(ctx, m, cfg) })
		}
	}
	p.stopDrain = func() { cancel(); wg.Wait() }
}

// DrainOnce removes the virtual servers of other modes that have no connections.
func (p *Plane) DrainOnce(ctx context.Context) error {
	for i := range p.modes {
		if m := &p.modes[i]; m.Name != p.cfg.Mode && m.Drain != nil {
			if _, err := m.Drain(ctx, p.cfg, p.log, false); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Plane) stopDraining() {
	p.draining.Lock()
	defer p.draining.Unlock()
	if p.stopDrain != nil {
		p.stopDrain()
		p.stopDrain = nil
	}
}

// drain removes the virtual servers of a mode as their connections end, and all of them after DrainTimeout.
func (p *Plane) drain(ctx context.Context, m *Mode, cfg *config.Config) {
	start, logged := time.Now(), false
	for {
		remaining, err := m.Drain(ctx, cfg, p.log, time.Since(start) > DrainTimeout)
		switch {
		case err != nil && ctx.Err() == nil:
			p.log.Warn("draining virtual servers of the previous mode failed", "mode", m.Name, "err", err)
		case err == nil && remaining == 0:
			if logged {
				p.log.Info("drained all virtual servers of the previous mode", "mode", m.Name)
			}
			return
		case !logged:
			p.log.Info("draining virtual servers of the previous mode", "mode", m.Name, "virtual_servers", remaining, "deadline", start.Add(DrainTimeout))
			logged = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(DrainInterval):
		}
	}
}

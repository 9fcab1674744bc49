package dataplane

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/config"
)

// DrainInterval is how often virtual servers that take no new connections are checked for open ones, DrainTimeout how
// long they may last.
const (
	DrainInterval = time.Minute
	DrainTimeout  = ipvs.DefaultDrainTimeout
)

// DrainOthers removes in the background what earlier runs in other modes have programmed, as its connections end.
func (p *Plane) DrainOthers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopDrain != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	cfg := p.cfg
	for i := range p.modes {
		if m := &p.modes[i]; m.Name != p.cfg.Mode && m.Drain != nil {
			wg.Go(func() { p.drain(ctx, m, cfg) })
		}
	}
	p.stopDrain = func() { cancel(); wg.Wait() }
}

// DrainOnce removes what earlier runs in other modes have programmed and no connection uses.
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
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopDrain != nil {
		p.stopDrain()
		p.stopDrain = nil
	}
}

// drain removes what mode m has programmed: once its connections have ended, or after DrainTimeout.
func (p *Plane) drain(ctx context.Context, m *Mode, cfg *config.Config) {
	start, logged := time.Now(), false
	for {
		remaining, err := m.Drain(ctx, cfg, p.log, time.Since(start) > DrainTimeout)
		switch {
		case err != nil && ctx.Err() == nil:
			p.log.Warn("what mode ipvs has left", "err", err)
		case err == nil && remaining == 0:
			if logged {
				p.log.Info("the last of the IPVS virtual servers is gone")
			}
			return
		case !logged:
			p.log.Info("IPVS virtual servers from before stay for their connections, and get no new ones", "servers", remaining, "until", start.Add(DrainTimeout))
			logged = true
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(DrainInterval):
		}
	}
}

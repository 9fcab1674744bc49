package wasm

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"
)

// instanceKey identifies an instance of a plugin.
type instanceKey struct {
	namespace string // of the Services that it decides about; "" for all
	second    bool   // it only repeats decisions
	trial     bool   // it only tries settings of Services
}

// spare reports whether an instance makes room for others first.
func (k instanceKey) spare() bool { return k.second || k.trial }

// pool contains the guests of a plugin that answer or repeat decisions, or try settings. When there is no room for another one,
// the least recently used one is closed.
type pool struct {
	limit   int
	guests  map[instanceKey]*guest
	uses    uint64
	evicted uint64
}

// instance makes the guest with a key the current one, and instantiates it if necessary.
func (p *Plugin) instance(key instanceKey) (*guest, error) {
	in := &p.pool
	in.uses++
	g := p.guest
	if g == nil || g.key != key {
		g = in.guests[key]
	}
	if g != nil && (g.encoder.Full() || !g.in.alive()) {
		p.drop(g)
		g = nil
	}
	if g != nil {
		p.guest, g.lastUse = g, in.uses
		return g, nil
	}
	for len(in.guests) >= in.limit {
		p.evict()
	}
	for !key.second && len(in.guests) > 0 && p.memoryIsScarce() {
		p.evict()
	}
	key.namespace = strings.Clone(key.namespace) // it may be part of a large string
	g, err := p.newGuest(key)
	if err != nil {
		return nil, err
	}
	if in.guests == nil {
		in.guests = map[instanceKey]*guest{}
	}
	g.lastUse = in.uses
	in.guests[key] = g
	return g, nil
}

// memoryIsScarce reports whether another instance would take memory that has to remain for the first instance of each plugin.
func (p *Plugin) memoryIsScarce() bool {
	m := &p.host.memory
	return m.inUse()+int64(p.report.MemoryBytes) > m.limit-m.limit/8
}

// leave returns how much of the memory of all plugins has to stay free for others.
func (p *Plugin) leave() int64 {
	if p.options.Spare {
		return p.host.memory.limit / 8
	}
	return 0
}

// keepWait is how long reserveForCompiler waits for running calls. Those of a process that hangs take seconds.
const keepWait = 100 * time.Millisecond

// reserveForCompiler reserves the memory that compiling takes. If there is not enough, each plugin keeps one instance, or none if
// it is spare.
func (h *Host) reserveForCompiler(ctx context.Context) error {
	err := h.memory.reserve("compiler", h.limits.Compile.resident())
	if err == nil {
		return nil
	}
	h.mu.Lock()
	all := slices.Collect(maps.Keys(h.plugins))
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, keepWait)
	defer cancel()
	kept := make(chan struct{}, len(all))
	for _, p := range all {
		go func() {
			p.keepFew()
			kept <- struct{}{}
		}()
	}
	for range all {
		select {
		case <-kept:
		case <-ctx.Done():
		}
	}
	return h.memory.reserve("compiler", h.limits.Compile.resident())
}

// keepFew closes all instances but the one that was used last, and that too if the plugin is spare.
func (p *Plugin) keepFew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.pool.guests) > 1 || p.options.Spare && len(p.pool.guests) > 0 {
		p.evict()
	}
}

// ReleaseIdle frees memory of plugins that have not been called since the last call of ReleaseIdle: instances that answer no
// decisions, and the resident pages of their code. It does not wait for a running call.
func (h *Host) ReleaseIdle() {
	h.mu.Lock()
	all := slices.Collect(maps.Keys(h.plugins))
	h.mu.Unlock()
	for _, p := range all {
		if p.mu.TryLock() {
			p.releaseIdle()
			p.mu.Unlock()
		}
	}
}

func (p *Plugin) releaseIdle() {
	idle := p.calls == p.callsAtRelease
	p.callsAtRelease = p.calls
	if !idle || p.closed {
		return
	}
	for key, g := range p.pool.guests {
		if !key.spare() {
			continue
		}
		if key.second { // starting another one is no cost of the plugin's
			p.repeats.refund(p.report.InitFuel)
		}
		p.drop(g)
	}
	p.triedAt = 0
	p.code.engine.forget()
}

// evict closes the least recently used instance, if there is one. Those that answer no decisions come first.
func (p *Plugin) evict() {
	var last *guest
	for _, g := range p.pool.guests {
		if spare := g.key.spare(); last == nil || spare != last.key.spare() && spare || spare == last.key.spare() && g.lastUse < last.lastUse {
			last = g
		}
	}
	if last != nil {
		p.drop(last)
		p.pool.evicted++
	}
}

// drop closes a guest.
func (p *Plugin) drop(g *guest) {
	if p.pool.guests[g.key] == g {
		delete(p.pool.guests, g.key)
	}
	if p.guest == g {
		p.guest = nil
	}
	g.close()
}

// dropAll closes all guests.
func (p *Plugin) dropAll() {
	for _, g := range p.pool.guests {
		p.drop(g)
	}
	p.discard()
}

// memoryBytes returns the host memory of all instances.
func (in *pool) memoryBytes() uint64 {
	total := uint64(0)
	for _, g := range in.guests {
		total += uint64(g.in.hostBytes())
	}
	return total
}

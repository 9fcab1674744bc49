package wasm

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
)

// codeKey identifies compiled code. The limit on the linear memory is part of the code.
type codeKey struct {
	revision    string // digest of the module as its author built it
	memoryPages uint32
}

// code is a compiled module. The plugins with the same module share it, whatever their settings: the code of a Go module
// takes some 20 MiB.
type code struct {
	key       codeKey
	info      *meter.Info
	engine    engine
	reserved  int64 // bytes of the host's budget
	fromCache bool  // or precompiled

	precompiled bool
	metering    time.Duration // 0 from the cache
	compiling   time.Duration
	users       int // guarded by Host.mu

	// alone is locked by a decision that is made while its process makes no other.
	alone sync.RWMutex
}

// acquire returns the code of a module with a key, which release gives back.
func (h *Host) acquire(ctx context.Context, log *slog.Logger, wasm []byte, key codeKey) (*code, error) {
	if c := h.shared(key, nil); c != nil {
		return c, nil
	}
	c := &code{key: key}
	begin := h.now()
	if err := h.compile(ctx, c, log, wasm); err != nil {
		return nil, err
	}
	c.compiling = h.now().Sub(begin) - c.metering
	first := h.shared(key, c)
	if first != c { // another Load was faster
		return first, c.close(&h.memory)
	}
	return c, nil
}

// shared returns the code with a key for another user. If there is none it is c, unless c is nil.
func (h *Host) shared(key codeKey, c *code) *code {
	h.mu.Lock()
	defer h.mu.Unlock()
	if old := h.codes[key]; old != nil {
		c = old
	} else if c != nil {
		h.codes[key] = c
	}
	if c != nil {
		c.users++
	}
	return c
}

// release closes code that has no user any more.
func (h *Host) release(c *code) error {
	h.mu.Lock()
	c.users--
	unused := c.users == 0
	if unused {
		delete(h.codes, c.key)
	}
	h.mu.Unlock()
	if !unused {
		return nil
	}
	return c.close(&h.memory)
}

// shares reports whether another plugin has the same code.
func (h *Host) shares(c *code) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return c.users > 1
}

// codeBytes returns the share of one user in the memory of code; nil has none.
func (h *Host) codeBytes(c *code) uint64 {
	if c == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	users := uint64(max(1, c.users))
	return (uint64(c.reserved) + users - 1) / users
}

func (c *code) close(memory *budget) error {
	var err error
	if c.engine != nil {
		err = c.engine.close()
		c.engine = nil
	}
	memory.release(c.reserved)
	c.reserved = 0
	return err
}

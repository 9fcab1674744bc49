package wasm

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/tetratelabs/wazero/experimental"
)

// DefaultMemory is the host memory of all plugins together, in bytes.
const DefaultMemory = 256 << 20

// budget is the host memory of all plugins: compiled code, tables, linear memories, and that of a compiling process.
type budget struct {
	limit int64 // bytes

	mu   sync.Mutex
	used int64
}

// MemoryError is the error of a plugin that needs more memory than is left for all plugins.
type MemoryError struct {
	What   string // what it is for
	Bytes  int64  // that are missing for it
	Others int64  // in use
	Limit  int64
}

// Error implements error.
func (e *MemoryError) Error() string {
	return fmt.Sprintf("%s: %s, with the %s in use, exceed the limit of %s for all plugins (pluginLimits.memoryMiB)",
		e.What, mebibytes(e.Bytes), mebibytes(e.Others), mebibytes(e.Limit))
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// reserve takes n bytes, or returns a *MemoryError.
func (b *budget) reserve(what string, n int64) error { return b.reserveLeaving(what, n, 0) }

// reserveLeaving takes n bytes if as many as leave are free afterwards, or returns a *MemoryError.
func (b *budget) reserveLeaving(what string, n, leave int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+n > b.limit-leave {
		return &MemoryError{what, n, b.used, b.limit}
	}
	b.used += n
	return nil
}

func (b *budget) release(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
}

func (b *budget) setLimit(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit = n
}

func (b *budget) inUse() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// linearMemory is the memory of one guest: a range of addresses of which a part is accessible. It grows in place, within
// the budget of all plugins, and leaves nothing to the garbage collector. It is also the allocator of its guest.
type linearMemory struct {
	budget *budget
	image  *image // of a new memory
	leave  int64  // bytes of the budget that are not for this memory
	region []byte // as large as the memory may become
	size   int64  // accessible and reserved, in bytes
	// refused reports that the memory has not grown because other plugins take up the budget.
	refused bool
}

// Allocate implements experimental.MemoryAllocator.
func (m *linearMemory) Allocate(_, limit uint64) experimental.LinearMemory {
	if limit > 0 {
		region, err := syscall.Mmap(-1, 0, int(limit), syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
		if err != nil {
			panic(fmt.Errorf("memory of the guest: %w", err))
		}
		m.region = region
	}
	return m
}

// Reallocate implements experimental.LinearMemory. For a guest that grows beyond the budget it returns nil, and memory.grow
// returns -1. For one that starts, wazero expects no failure.
func (m *linearMemory) Reallocate(size uint64) []byte {
	err := m.grow(int64(size))
	if err != nil && m.size == 0 {
		panic(err)
	}
	if err != nil {
		m.refused = true
		return nil
	}
	return m.region[:size:size]
}

func (m *linearMemory) grow(size int64) error {
	more := size - m.size
	if more <= 0 {
		return nil
	}
	if err := m.budget.reserveLeaving("memory of the guest", more, m.leave); err != nil {
		return err
	}
	if err := syscall.Mprotect(m.region[:size], syscall.PROT_READ|syscall.PROT_WRITE); err != nil {
		m.budget.release(more)
		return fmt.Errorf("memory of the guest: %w", err)
	}
	if m.size == 0 {
		if err := m.image.fill(m.region[:size]); err != nil {
			m.budget.release(more)
			return fmt.Errorf("memory of the guest: %w", err)
		}
	}
	m.size = size
	return nil
}

// Free implements experimental.LinearMemory. It may be called again.
func (m *linearMemory) Free() {
	if m.region == nil {
		return
	}
	_ = syscall.Munmap(m.region)
	m.budget.release(m.size)
	m.region, m.size = nil, 0
}

var _ experimental.MemoryAllocator = (*linearMemory)(nil)

// MemoryInUse returns the host memory of all plugins, in bytes: what is in use, with that of a compiling child process,
// and the limit.
func (h *Host) MemoryInUse() (used, limit int64) { return h.memory.inUse(), h.memory.limit }

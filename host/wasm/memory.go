package wasm

import (
	"golang.org/x/sys/unix"

	"github.com/tetratelabs/wazero/experimental"
)

// linearMemory is the memory of one instance, outside of Go's heap: growing it copies nothing, and closing the instance
// returns it to the kernel at once. Only what has been grown is accessible, and only what the guest touches takes memory.
type linearMemory struct{ reserved []byte }

func allocateMemory(_, limit uint64) experimental.LinearMemory {
	m := &linearMemory{}
	if limit > 0 {
		// On failure Reallocate returns nil, and the instance fails.
		m.reserved, _ = unix.Mmap(-1, 0, int(limit), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	}
	return m
}

// Reallocate implements experimental.LinearMemory.
func (m *linearMemory) Reallocate(size uint64) []byte {
	if size == 0 {
		return []byte{}
	}
	if size > uint64(len(m.reserved)) || unix.Mprotect(m.reserved[:size], unix.PROT_READ|unix.PROT_WRITE) != nil {
		return nil
	}
	return m.reserved[:size:size]
}

// Free implements experimental.LinearMemory.
func (m *linearMemory) Free() {
	if m.reserved != nil {
		_ = unix.Munmap(m.reserved) // cannot fail for a whole mapping
		m.reserved = nil
	}
}

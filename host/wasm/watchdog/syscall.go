//go:build !race

package watchdog

import (
	"syscall"
	_ "unsafe" // for go:linkname
)

// Independent reports whether the watchdog works while the Go scheduler does not. With the race detector it does not.
const Independent = true

// enter lets the thread run without a P until exit. The runtime exports both functions for such users.
//
//go:linkname enter runtime.entersyscall
func enter()

//go:linkname exit runtime.exitsyscall
func exit()

// block makes a system call that may block, in the state between enter and exit. In another state it must not block.
//
//go:nosplit
func block(trap, a, b, c uintptr) { _, _, _ = syscall.RawSyscall6(trap, a, b, c, 0, 0, 0) }

// Package watchdog ends calls of native code that take too much CPU time. It knows neither wazero nor plugins: each Timer
// has the address of a number, and when a call has used its time, the watchdog stores another value there, once. Native code
// that compares with that number ends by itself.
//
// CPU time is that of the calling thread: a call that waits for a processor is not late.
//
// Native code cannot be preempted by the Go scheduler. While it runs, it occupies a P, and a stop of the world (each garbage
// collection has two) waits for it. A watchdog that is an ordinary goroutine would then wait, too: for the world to
// be started, or for a P. So this one runs in the state of a system call, in which a thread needs neither: between
// runtime.entersyscall and runtime.exitsyscall it reads clocks, stores numbers, and sleeps in the kernel. It does not allocate,
// write pointers, or call a function that may grow its stack.
package watchdog

package confine

import (
	"errors"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Rule allows a system call if all these arguments are as they must be.
type Rule struct {
	Call uint32
	Args []Arg
}

// Arg is an argument whose low half, with a mask, has a value.
type Arg struct{ Number, Mask, Value uint32 }

// Memory of a process is its own, so that RLIMIT_DATA counts it: that of mappings that are shared or grow down does not count.
var private = Arg{3, unix.MAP_TYPE | unix.MAP_GROWSDOWN, unix.MAP_PRIVATE}

// Runtime are the calls of Go's runtime in a process that has all its threads, computes, and reads and writes descriptors that it
// has: memory that does not become executable, and signals of this process. The most frequent ones are first.
func Runtime() []Rule {
	const wakeOrPrivate = 1 | 128
	rules := []Rule{{unix.SYS_FUTEX, []Arg{{1, ^uint32(wakeOrPrivate), 0}}}} // threads wait for each other, and lanes for messages: nothing with priorities
	for _, call := range []uint32{
		unix.SYS_NANOSLEEP, unix.SYS_SCHED_YIELD, // the scheduler's monitor, contended locks
		unix.SYS_EPOLL_PWAIT,                   // threads without work wait for timers
		unix.SYS_MUNMAP,                        // memory that is returned
		unix.SYS_RT_SIGRETURN, unix.SYS_GETPID, // preemption by signals
		unix.SYS_RT_SIGPROCMASK, unix.SYS_SIGALTSTACK, unix.SYS_GETTID, unix.SYS_SCHED_GETAFFINITY, unix.SYS_EXIT, // threads begin, if those of Prepare have not yet, and end
		unix.SYS_RT_SIGACTION,    // a fatal signal is reset before it is raised
		unix.SYS_CLOCK_GETTIME,   // where the vDSO has no clock, and CPU time
		unix.SYS_RESTART_SYSCALL, // a stopped process continues
		unix.SYS_READ, unix.SYS_WRITE,
		unix.SYS_EXIT_GROUP,
	} {
		rules = append(rules, Rule{Call: call})
	}
	for _, advice := range []uint32{unix.MADV_DONTNEED, unix.MADV_FREE, unix.MADV_HUGEPAGE, unix.MADV_NOHUGEPAGE, unix.MADV_COLLAPSE} {
		rules = append(rules, Rule{unix.SYS_MADVISE, []Arg{{2, ^uint32(0), advice}}}) // memory that is returned: none of sluice's pages to the swap
	}
	return append(rules,
		Rule{unix.SYS_MMAP, []Arg{{2, unix.PROT_EXEC, 0}, private}},
		Rule{unix.SYS_MPROTECT, []Arg{{2, unix.PROT_EXEC, 0}}},
		Rule{unix.SYS_TGKILL, []Arg{{0, ^uint32(0), uint32(os.Getpid())}}})
}

// threads is far more than a process needs at once: one for each of GOMAXPROCS, each blocking call and the runtime's own tasks.
const threads = 16

// makeThreads makes all threads that Go's runtime will need, as it keeps those that are idle, so that no more need be allowed: a
// container and a node have a limited number, and sluice itself ends if it gets none. They have no rights that the thread has not
// that makes them.
func makeThreads() {
	var made, kept sync.WaitGroup
	kept.Add(1)
	var all sync.WaitGroup
	for range threads {
		made.Add(1)
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			made.Done()
			kept.Wait()
		})
	}
	made.Wait()
	kept.Done()
	all.Wait()
}

// Code are the calls that make memory executable.
func Code() []Rule { return []Rule{{unix.SYS_MMAP, []Arg{private}}, {Call: unix.SYS_MPROTECT}} }

// Files are the calls of package os for files, and folders that there are.
func Files() []Rule {
	var rules []Rule
	for _, call := range append([]uint32{
		unix.SYS_OPENAT, unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_LSEEK, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_FTRUNCATE, unix.SYS_FSYNC, unix.SYS_FCNTL,
		unix.SYS_GETDENTS64, unix.SYS_UNLINKAT, unix.SYS_FCHMODAT, unix.SYS_FCHMOD, unix.SYS_GETCWD,
		unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_CREATE1, unix.SYS_EVENTFD2, unix.SYS_GETRANDOM, unix.SYS_FLOCK,
	}, otherFiles()...) {
		rules = append(rules, Rule{Call: call})
	}
	return rules
}

var errArchitecture = errors.New("not for this processor")

// filterCalls installs the policy's filter in all threads.
func filterCalls(p *Policy) error {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return errArchitecture
	}
	if err := allThreads(unix.SYS_GETPID, 0, 0); err != nil {
		return err
	}
	program := compile(arch, p.Calls, p.Kill)
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, pointer(&prog))
	if errno != 0 {
		return errno
	}
	return nil
}

// compile returns a program that allows the calls of the rules: struct seccomp_data has the number of the call at 0, the
// architecture at 4, and arguments of 8 bytes from 16. Another architecture's calls, and those of the x32 ABI, whose numbers have
// bit 30, are not in the list.
func compile(arch uint32, rules []Rule, kill bool) []unix.SockFilter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	equal := func(k uint32, then, otherwise uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: then, Jf: otherwise}
	}
	ret := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	refuse := ret(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM))
	if kill {
		refuse = ret(unix.SECCOMP_RET_KILL_PROCESS)
	}
	allow := ret(unix.SECCOMP_RET_ALLOW)
	program := []unix.SockFilter{load(4), equal(arch, 1, 0), refuse, load(0)}
	for _, r := range rules {
		if len(r.Args) == 0 {
			program = append(program, equal(r.Call, 0, 1), allow)
			continue
		}
		end := uint8(3*len(r.Args) + 1) // from the check of the call to the load after the rule
		program = append(program, equal(r.Call, 0, end+1))
		for _, a := range r.Args {
			end -= 3
			program = append(program, load(16+8*a.Number), // little endian
				unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: a.Mask}, equal(a.Value, 0, end))
		}
		program = append(program, allow, load(0))
	}
	return append(program, refuse)
}

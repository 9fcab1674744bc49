package wasm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/plugin/confine"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// evilPort is the port of requests for which the modules of type slow do what they are for.
const evilPort = 666

// System calls that arm64 does not have.
const amd64Open, amd64Fork = 2, 57

// native returns a module and the code of an entry in which its sluice_decide is machine code of the test.
func native(t *testing.T, code []byte) (dir string, module []byte) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("machine code for amd64")
	}
	const mark = 0x1122334455667788
	body := strings.Repeat(fmt.Sprintf("(global.set $x (i64.const %d))", mark), 60) + "(local.get 2)"
	module = slow{"", "(global $x (mut i64) (i64.const 0))", body}.module(t)
	dir = filepath.Join(t.TempDir(), "cache")
	h := newHost(t, Options{CacheDir: dir})
	p, err := h.Open(t.Context(), "native", module, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	file := onlyFile(t, dir, enginePrefix+"*")
	text := []byte(mustRead(t, file))
	for _, name := range []string{codeName, restName} {
		if part, err := os.ReadFile(filepath.Join(filepath.Dir(file), name)); err == nil {
			text = append(text, part...)
			_ = os.Remove(filepath.Join(filepath.Dir(file), name))
		}
	}
	from, to := codeOf(text)
	at := from + bytes.Index(text[from:to], binary.LittleEndian.AppendUint64(nil, mark)) - 2 // after the instruction's two bytes
	if at < from || at+len(code) > to {
		t.Fatal("the function is not in the code")
	}
	copy(text[at:], code)
	binary.LittleEndian.PutUint32(text[to:], crc32.Checksum(text[from:to], crc32.MakeTable(crc32.Castagnoli)))
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	e := &cacheEntry{dir: filepath.Dir(file), check: safefile.CheckPrivate}
	if err := e.writeManifest(); err != nil {
		t.Fatal(err)
	}
	return dir, module
}

// codeOf returns where the machine code is in a file of the engine, before its checksum.
func codeOf(file []byte) (from, to int) {
	at := len("WAZEVO")
	at += 1 + int(file[at])                                // version
	at += 4 + 8*int(binary.LittleEndian.Uint32(file[at:])) // offsets of functions
	return at + 8, at + 8 + int(binary.LittleEndian.Uint64(file[at:]))
}

// machine returns code that makes a system call, and then executes an instruction that is not valid.
func machine(nr uint32, args ...uint64) []byte {
	b := []byte{}
	for i, a := range args {
		b = binary.LittleEndian.AppendUint64(append(b, [][]byte{{0x48, 0xbf}, {0x48, 0xbe}, {0x48, 0xba}, {0x49, 0xba}, {0x49, 0xb8}, {0x49, 0xb9}}[i]...), a)
	}
	b = binary.LittleEndian.AppendUint32(append(b, 0xb8), nr)
	return append(b, 0x0f, 0x05, 0x0f, 0x0b)
}

func openNative(t *testing.T, code []byte) *Plugin {
	t.Helper()
	dir, module := native(t, code)
	p, err := newHost(t, Options{CacheDir: dir, Process: childCommand("plugin"), Limits: Limits{DecideTime: 20 * time.Millisecond}}).Open(t.Context(), "native", module, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !p.Report().FromCache {
		t.Fatal("compiled again")
	}
	return p
}

// TestMachineCodeOfAnAttackerFindsNothing is the escape drill: a plugin whose code is not that of the compiler, but of somebody
// who has taken over the process.
func TestMachineCodeOfAnAttackerFindsNothing(t *testing.T) {
	requireConfinement(t)
	agent := uint64(os.Getpid())
	h := newHost(t, Options{Process: childCommand("plugin")})
	other := load(t, h, goodWAT(t), "")
	for _, c := range []struct {
		name string
		code []byte
	}{
		{"open a file", machine(unix.SYS_OPENAT, 0, 0, unix.O_RDWR)},
		{"open a file, the old way", machine(amd64Open, 0, 0)},
		{"open a file, the new way", machine(unix.SYS_OPENAT2, 0, 0)},
		{"list a folder", machine(unix.SYS_GETDENTS64, 0, 0)},
		{"another descriptor", machine(unix.SYS_DUP, 0)},
		{"close the control socket", machine(unix.SYS_CLOSE, 0)},
		{"shut the control socket down", machine(unix.SYS_SHUTDOWN, 0, 2)},
		{"shrink the shared memory", machine(unix.SYS_FTRUNCATE, 1, 0)},
		{"grow the shared memory", machine(unix.SYS_FTRUNCATE, 1, 1<<40)},
		{"a hole in the shared memory", machine(unix.SYS_FALLOCATE, 1, 3, 0, 4096)},
		{"a hole in the shared memory, as advice", machine(unix.SYS_MADVISE, 0, 4096, unix.MADV_REMOVE)},
		{"the shared memory to the swap", machine(unix.SYS_MADVISE, 0, 4096, unix.MADV_PAGEOUT)},
		{"seal the shared memory", machine(unix.SYS_FCNTL, 1, unix.F_ADD_SEALS, unix.F_SEAL_WRITE)},
		{"get descriptors of messages", machine(unix.SYS_RECVMSG, 0, 0)},
		{"send a descriptor", machine(unix.SYS_SENDMSG, 0, 0)},
		{"make a socket", machine(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0)},
		{"netlink", machine(unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)},
		{"connect", machine(unix.SYS_CONNECT, 0, 0, 0)},
		{"signal sluice", machine(unix.SYS_KILL, agent, 9)},
		{"signal everybody", machine(unix.SYS_KILL, ^uint64(0), 9)},
		{"signal a thread of sluice", machine(unix.SYS_TGKILL, agent, agent, 9)},
		{"signal a thread", machine(unix.SYS_TKILL, agent, 9)},
		{"trace sluice", machine(unix.SYS_PTRACE, unix.PTRACE_ATTACH, agent)},
		{"read sluice's memory", machine(unix.SYS_PROCESS_VM_READV, agent)},
		{"write sluice's memory", machine(unix.SYS_PROCESS_VM_WRITEV, agent)},
		{"sluice's descriptors", machine(unix.SYS_PIDFD_OPEN, agent)},
		{"run a program", machine(unix.SYS_EXECVE, 0, 0, 0)},
		{"a new process", machine(amd64Fork)},
		{"a thread", machine(unix.SYS_CLONE, 0xd0f00, 0)},
		{"a new process, by clone", machine(unix.SYS_CLONE, uint64(unix.SIGCHLD))},
		{"a namespace, by clone", machine(unix.SYS_CLONE, unix.CLONE_NEWUSER|uint64(unix.SIGCHLD))},
		{"clone3", machine(unix.SYS_CLONE3, 0, 0)},
		{"executable memory", machine(unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON, ^uint64(0), 0)},
		{"memory beyond the limit, shared", machine(unix.SYS_MMAP, 0, 1<<40, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON, ^uint64(0), 0)},
		{"memory beyond the limit, as a stack", machine(unix.SYS_MMAP, 0, 1<<40, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_GROWSDOWN, ^uint64(0), 0)},
		{"make memory executable", machine(unix.SYS_MPROTECT, 0, 4096, unix.PROT_READ|unix.PROT_EXEC)},
		{"a futex with priorities", machine(unix.SYS_FUTEX, 0, 6)},
		{"io_uring", machine(unix.SYS_IO_URING_SETUP, 1, 0)},
		{"bpf", machine(unix.SYS_BPF, 0, 0, 0)},
		{"a looser filter", machine(unix.SYS_SECCOMP, 0, 0, 0)},
		{"prctl", machine(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1)},
		{"priority", machine(unix.SYS_SETPRIORITY, 0, 0, ^uint64(19))},
		{"limits", machine(unix.SYS_PRLIMIT64, agent, 0, 0, 0)},
		{"keys of the kernel", machine(unix.SYS_KEYCTL, 0)},
		{"32-bit calls", append(binary.LittleEndian.AppendUint32([]byte{0xb8}, 20), 0xcd, 0x80, 0x0f, 0x0b)}, // int 0x80: getpid
		{"calls of x32", machine(1<<30 | unix.SYS_GETPID)},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := openNative(t, c.code)
			for _, l := range processOf(t, p).hello.Layers {
				if l.Name == confine.Filter && l.Err != "" {
					t.Skip("a kernel without filters")
				}
			}
			err := decide(p, evilPort, sampleNow)
			if err == nil || !strings.Contains(err.Error(), "it has made a system call that no plugin needs") || !errors.Is(err, errProcess) {
				t.Errorf("%v", err)
			}
			checkGood(t, other, sampleNow) // in another process
		})
	}
	if err := decide(openNative(t, machine(unix.SYS_GETPID)), evilPort, sampleNow); err == nil || strings.Contains(err.Error(), "system call") || !errors.Is(err, errProcess) {
		t.Errorf("a call that is allowed, and then a crash: %v", err)
	}
}

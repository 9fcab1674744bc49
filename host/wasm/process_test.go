package wasm

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/confine"
	"github.com/sluice-proxy/sluice/host/wasm/lane"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// TestProcessesBehaveAsThisProcess runs the tests of what plugins may expect with each plugin in a process of its own.
func TestProcessesBehaveAsThisProcess(t *testing.T) {
	requireChildren(t)
	inProcesses = true
	defer func() { inProcesses = false }()
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"cache", TestCompileCache}, {"code of a module", TestPluginsOfAModuleShareItsCode}, {"concurrent loads", TestConcurrentLoadsShareCode},
		{"precompiled", TestPrecompiledCodeIsNotCompiled}, {"precompiled, verified", TestPrecompiledCodeIsVerified},
		{"another processor", TestCodeForAnotherProcessorIsCompiledAgain},
		{"hostile modules", TestHostileModulesFailWithinBoundsAndNameTheReason}, {"misbehaving guest", TestMisbehavingGoGuestIsReplacedAndTheErrorNamesTheReason},
		{"logs", TestLogIsLimitedPerCallAndPerSecond}, {"failures", TestRepeatedFailuresDoubleTheSuspension},
		{"host calls", TestHostCallsAreChargedByTheirWork}, {"host calls without fuel", TestHostCallsEndAGuestWithoutFuel},
		{"inputs", TestEveryInputArrivesInEveryLanguage}, {"missing inputs", TestInputsThatTheHostCannotGiveAreRefusedWithTheReason},
		{"versions", TestMinorVersions}, {"settings", TestSettings}, {"sizes", TestRequestsOfAllSizesFit}, {"closed", TestClosedPluginReturnsAnError},
		{"memory", TestMemoryOfAllPlugins}, {"growth", TestGrowthBeyondTheMemoryOfAllPlugins}, {"rate of instances", TestInstancesHaveARate},
		{"memory for others", TestInstancesLeaveMemoryForOtherPlugins}, {"spare", TestSparePluginsLeaveMemoryForOthers}, {"idle", TestIdlePluginsReleaseMemory},
		{"memory for repeats", TestRepeatsNeedMemory}, {"memory of settings", TestSettingsTakeMemoryOfAllPlugins},
		{"purity", TestSelfTestFindsImpurePlugins}, {"repeats", TestRepeatsFindImpurePlugins}, {"failed repeats", TestFailedRepeatsInARowSuspend},
		{"namespaces", TestNothingIsCarriedBetweenNamespacesWithInstancesOfTheirOwn}, {"eviction", TestLeastRecentlyUsedInstanceMakesRoom},
		{"suspended namespaces", TestFailuresSuspendTheNamespaceOnly}, {"registers", TestGuestsReadNoRegistersOfOthers},
		{"metered, unmetered, native", TestGuestsDecideTheSameMeteredUnmeteredAndNatively}, {"fuel", TestFuelIsTheSameOnEveryMachine},
		{"handles", TestOneInstanceHasAnyNumberOfSettings}, {"random settings", TestRandomSettingsOfManyNamespaces},
		{"refused settings", TestRefusedSettingsOfAServiceHurtNoOther}, {"used instance", TestSettingsThatFailInAUsedInstanceAreTriedInANewOne},
		{"failing settings", TestSettingsOfAServiceThatMakeThePluginFailSuspendTheirNamespaceOnly},
		{"impure settings", TestSettingsOfAServiceThatMakeThePluginImpureAreRefused}, {"many settings", TestInstanceWithTooManySettingsIsReplaced},
		{"trials", TestTrialsOfManyNamespacesAreBounded}, {"idle trials", TestInstanceForTrialsIsClosedWhenItIsIdle},
	} {
		t.Run(test.name, test.run)
	}
}

// processOf returns the running process of a plugin.
func processOf(t *testing.T, p *Plugin) *run {
	t.Helper()
	r, err := p.code.engine.(*process).running()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A process has no rights, and no descriptors but its control socket, the memory of lanes, standard error and the image of the
// module's memory.
func TestProcessHasNoRights(t *testing.T) {
	requireChildren(t)
	p := load(t, newHost(t, Options{Process: childCommand("plugin")}), goodWAT(t), "")
	checkGood(t, p, sampleNow)
	r := processOf(t, p)
	for _, l := range r.hello.Layers {
		if l.Err != "" {
			t.Logf("not in force here: %s: %s", l.Name, l.Err)
		}
	}
	dir := fmt.Sprintf("/proc/%d/", r.cmd.Process.Pid)
	status, err := os.ReadFile(dir + "status")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(string(status), want+"\n") {
			t.Errorf("no %q in\n%s", want, status)
		}
	}
	for file, want := range map[string]string{"oom_score_adj": "1000\n", "environ": "GODEBUG=containermaxprocs=0,decoratemappings=0\x00"} {
		if got, err := os.ReadFile(dir + file); string(got) != want {
			t.Errorf("%s: %q, %v", file, got, err)
		}
	}
	tasks, _ := os.ReadDir(dir + "task")
	for _, task := range tasks { // capabilities and filters are those of a thread
		status, _ := os.ReadFile(dir + "task/" + task.Name() + "/status")
		if !strings.Contains(string(status), "CapPrm:\t0000000000000000\n") || !strings.Contains(string(status), "Seccomp:\t2\n") {
			t.Errorf("thread %s:\n%s", task.Name(), status)
		}
	}
	fds, err := os.ReadDir(dir + "fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		path, _ := os.Readlink(dir + "fd/" + fd.Name())
		known := false
		for _, prefix := range []string{"socket:", "/memfd:sluice-plugin", "pipe:", "anon_inode:"} {
			known = known || strings.HasPrefix(path, prefix)
		}
		if !known && filepath.Base(strings.TrimSuffix(path, " (deleted)")) != memoryName {
			t.Errorf("descriptor %s: %s", fd.Name(), path)
		}
	}
}

// evilPort is the port of requests for which the modules of type slow do what they are for.
const evilPort = 666

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
	files, err := filepath.Glob(filepath.Join(dir, "*", codeName))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(text, binary.LittleEndian.AppendUint64(nil, mark)) - 2 // after the instruction's two bytes
	if at < 0 || at+len(code) > len(text) {
		t.Fatal("the function is not in the code")
	}
	copy(text[at:], code)
	if err := os.Chmod(files[0], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], text, 0o600); err != nil {
		t.Fatal(err)
	}
	e := &cacheEntry{dir: filepath.Dir(files[0]), check: checkPrivate}
	if err := e.writeManifest(); err != nil {
		t.Fatal(err)
	}
	return dir, module
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

// TestMachineCodeOfAnAttackerFindsNothing is the escape drill: a plugin whose code is not that of the compiler, but of somebody who has taken over
// the process.
func TestMachineCodeOfAnAttackerFindsNothing(t *testing.T) {
	requireChildren(t)
	agent := uint64(os.Getpid())
	h := newHost(t, Options{Process: childCommand("plugin")})
	other := load(t, h, goodWAT(t), "")
	for _, c := range []struct {
		name string
		code []byte
	}{
		{"open a file", machine(unix.SYS_OPENAT, 0, 0, unix.O_RDWR)},
		{"open a file, the old way", machine(unix.SYS_OPEN, 0, 0)},
		{"open a file, the new way", machine(unix.SYS_OPENAT2, 0, 0)},
		{"list a folder", machine(unix.SYS_GETDENTS64, 0, 0)},
		{"another descriptor", machine(unix.SYS_DUP, 0)},
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
		{"a new process", machine(unix.SYS_FORK)},
		{"a thread", machine(unix.SYS_CLONE, 0xd0f00, 0)},
		{"a new process, by clone", machine(unix.SYS_CLONE, uint64(unix.SIGCHLD))},
		{"a namespace, by clone", machine(unix.SYS_CLONE, unix.CLONE_NEWUSER|uint64(unix.SIGCHLD))},
		{"clone3", machine(unix.SYS_CLONE3, 0, 0)},
		{"executable memory", machine(unix.SYS_MMAP, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON, ^uint64(0), 0)},
		{"make memory executable", machine(unix.SYS_MPROTECT, 0, 4096, unix.PROT_READ|unix.PROT_EXEC)},
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

// Code that never ends, with or without CPU time, is killed, and other plugins answer meanwhile.
func TestProcessThatDoesNotAnswerIsKilled(t *testing.T) {
	requireChildren(t)
	read := machine(unix.SYS_READ, 0)                                                                // of the control socket, on which nothing arrives
	sleep := append([]byte{0x48, 0x89, 0xe6, 0xba, 1, 0, 0, 0}, read[:len(read)-len("\x0f\x0b")]...) // one byte, to the stack
	for name, code := range map[string][]byte{"computes": {0xeb, 0xfe}, "sleeps": append(sleep, 0x0f, 0x0b)} {
		t.Run(name, func(t *testing.T) {
			p := openNative(t, code)
			other := load(t, p.host, goodWAT(t), "")
			r := processOf(t, p)
			done := make(chan error)
			go func() { done <- decide(p, evilPort, sampleNow) }()
			for n := 0; ; n++ {
				select {
				case err := <-done:
					if !errors.Is(err, errLate) || !IsLate(err) || n == 0 {
						t.Errorf("after %d decisions of another plugin: %v", n, err)
					}
					if <-r.ended; p.Stats().Late != 1 {
						t.Errorf("%+v", p.Stats())
					}
					return
				default:
					checkGood(t, other, sampleNow)
				}
			}
		})
	}
}

// A process that computes without having been asked is killed: here, the call returns, and another lane does not.
func TestProcessThatComputesWithoutACallIsKilled(t *testing.T) {
	requireChildren(t)
	h := newHost(t, Options{Process: childCommand("idler")})
	var p *Plugin
	for p == nil {
		var err error
		if p, err = h.Open(t.Context(), "idler", goodWAT(t), LoadOptions{}); err != nil && !errors.Is(err, errProcess) { // a slow start
			t.Fatal(err)
		}
	}
	r := processOf(t, p)
	<-r.ended
	if err := r.why("call"); !errors.Is(err, errProcess) || !strings.Contains(err.Error(), "CPU time without a call") {
		t.Error(err)
	}
}

// idler is a process that computes at all times.
func idler(args []string) int {
	go func() {
		for {
			runtime.Gosched()
		}
	}()
	return ProcessMain(args, os.Stderr)
}

// TestKillAtRandomTimesUnderLoad: decisions go on after each kill; other plugins do not notice.
func TestKillAtRandomTimesUnderLoad(t *testing.T) {
	requireChildren(t)
	const seed, kills = 1, 40
	random := rand.New(rand.NewPCG(seed, seed))
	h := newHost(t, Options{Process: childCommand("plugin"), Limits: Limits{Failures: 1000}})
	victim := loadWith(t, h, goGuest(t, "testdata/goguest"), LoadOptions{PerNamespace: true})
	other := load(t, h, goodWAT(t), "")
	var stop atomic.Bool
	var wg sync.WaitGroup
	var failed, answered atomic.Int64
	var now atomic.Int64
	now.Store(sampleNow)
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			req := SampleRequest(3)
			req.Namespace, req.Now = fmt.Sprint("ns", i%4), now.Add(100)
			var resp abi.Response
			resp.Reset(3)
			if err := victim.Decide(req, &resp); errors.Is(err, errProcess) || err != nil && strings.Contains(err.Error(), "suspended") {
				failed.Add(1)
			} else if err != nil {
				t.Error(err)
				return
			} else {
				answered.Add(1)
			}
		}
	})
	wg.Go(func() {
		for !stop.Load() {
			checkGood(t, other, sampleNow)
		}
	})
	for range kills {
		for before := answered.Load(); answered.Load() < before+1+int64(random.IntN(300)) && !t.Failed(); {
			runtime.Gosched()
		}
		r := processOf(t, victim)
		_ = r.cmd.Process.Kill()
		<-r.ended
	}
	stop.Store(true)
	wg.Wait()
	if n := failed.Load(); n > 2*kills {
		t.Errorf("%d calls failed with %d kills", n, kills)
	}
	if used, _ := h.MemoryInUse(); used < 0 {
		t.Errorf("memory %d", used)
	}
	t.Logf("%d decisions, %d failed, %d kills", answered.Load(), failed.Load(), kills)
}

// liar is a process that an attacker has taken over: of the answers of the module, every other one is changed, a little or much, before sluice
// reads it or while it does.
func liar(args []string) int {
	s := &server{instances: map[uint32]*served{}}
	hello, lanes, err := s.start(args)
	text, jsonErr := json.Marshal(hello)
	if _, writeErr := unix.Write(0, append(text, '\n')); errors.Join(err, jsonErr, writeErr) != nil {
		return 1
	}
	for i, l := range lanes {
		go func() {
			runtime.LockOSThread()
			random := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(i)))
			var watch lane.Stopwatch
			for {
				l.Receive()
				s.answer(l, &watch)
				kind := op(binary.LittleEndian.Uint32(l.Request()))
				lies, late := random.IntN(2) == 0 && (kind == opDecide || kind == opConfigure || random.IntN(8) == 0), random.IntN(2) == 0
				if lies && !late {
					tamper(random, l)
				}
				l.Reply()
				if lies && late { // after sluice has begun to read
					tamper(random, l)
				}
			}
		}()
	}
	_, _ = unix.Read(0, make([]byte, 1))
	return 0
}

// tamper changes an answer.
func tamper(random *rand.Rand, l *lane.Lane) {
	out, length := l.Answer(), max(1, min(l.Number(numberAnswer).Load(), lane.Answer))
	for range 1 + random.IntN(3) {
		switch at := random.IntN(int(length)); random.IntN(4) {
		case 0:
			out[at] = byte(random.Uint32())
		case 1: // a number of the head
			binary.LittleEndian.PutUint32(out[random.IntN(resultHead)&^3:], random.Uint32())
		case 2:
			binary.LittleEndian.PutUint32(out[random.IntN(resultHead)&^3:], uint32(random.IntN(100)))
		case 3:
			out[at] ^= 1 << random.IntN(8)
		}
	}
	if random.IntN(8) == 0 {
		l.Number(numberAnswer).Store(int64(random.Uint64()))
	}
	if random.IntN(2) == 0 {
		l.Number(numberMemory).Store(int64(random.Uint64()))
	}
}

// TestProcessThatLiesIsBelievedNothing: no answer makes sluice fail, use memory without bound, or accept more than a decision may contain.
func TestProcessThatLiesIsBelievedNothing(t *testing.T) {
	requireChildren(t)
	var log bytes.Buffer
	module := goodWAT(t)
	dir := filepath.Join(t.TempDir(), "cache")
	h := newHost(t, Options{CacheDir: dir, Process: childCommand("liar"), Log: slog.New(slog.NewTextHandler(&log, nil)), Limits: Limits{Failures: 1 << 20}})
	var p *Plugin
	for range 100 {
		var err error
		if p, err = h.Open(t.Context(), "liar", module, LoadOptions{}); err == nil {
			break
		}
	}
	if p == nil {
		t.Fatal("no process started")
	}
	good, failed := 0, 0
	for i := range 300 {
		req := SampleRequest(1 + i%7)
		req.Now = sampleNow + int64(i)*400_000
		var resp abi.Response
		resp.Reset(len(req.Endpoints))
		if err := p.Decide(req, &resp); err != nil {
			failed++
			if len(err.Error()) > 8<<10 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			continue
		}
		good++
		if len(resp.Results) != len(req.Endpoints) || len(resp.State) > abi.MaxStateLen {
			t.Fatalf("%d results for %d endpoints, %d bytes of state", len(resp.Results), len(req.Endpoints), len(resp.State))
		}
		if used, limit := h.MemoryInUse(); used < 0 || used > 2*limit {
			t.Fatalf("memory %d of %d", used, limit)
		}
	}
	if s := p.Stats(); s.Fuel > uint64(good+failed)*uint64(DefaultLimits().ConfigureFuel+DefaultLimits().DecideFuel*2+DefaultLimits().InitFuel) {
		t.Errorf("fuel %d", s.Fuel)
	}
	if failed == 0 || good == 0 {
		t.Errorf("%d answers accepted, %d refused", good, failed)
	}
	t.Logf("%d valid answers, %d failures, %d bytes of log", good, failed, log.Len())
}

// FuzzResult parses what a process may have written as an answer to each operation.
func FuzzResult(f *testing.F) {
	for o := range lastOp {
		c := call{op: o, room: 100, fuel: 1000, used: 10, size: 65536, lines: []line{{abi.LogError, "text"}}, loggedError: "text"}
		switch o {
		case opDecide, opRead:
			c.out, c.value = make([]byte, 100), 100
		case opConfigure:
			c.out, c.stage = []byte("podLabel:app"), stageDone
		}
		f.Add(uint32(o), appendResult(nil, lane.Answer, &c, 0))
		c.err = &callError{errNoFuel, "sluice_decide: out of fuel"}
		f.Add(uint32(o), appendResult(nil, lane.Answer, &c, 0))
		c.err = &MemoryError{What: "memory of the guest", Bytes: 1 << 20}
		f.Add(uint32(o), appendResult(nil, lane.Answer, &c, 5))
	}
	f.Fuzz(func(t *testing.T, o uint32, answer []byte) {
		c := call{op: op(o), room: 100, fuel: 1000}
		overhead, rest, err := parseResult(bytes.Clone(answer), &c)
		if err != nil {
			return
		}
		logged := 0
		for _, l := range c.lines {
			logged += len(l.text)
		}
		switch {
		case len(rest) > len(answer)-resultHead || len(rest) > 0 && (len(answer)-len(rest))%8 != 0:
			t.Errorf("%d bytes left of %d", len(rest), len(answer))
		case c.used < 0 || c.used > c.fuel:
			t.Errorf("fuel %d of %d", c.used, c.fuel)
		case c.size < 0 || overhead < 0:
			t.Errorf("size %d, overhead %d", c.size, overhead)
		case len(c.lines) > maxLines || logged > 3*len(answer) || len(c.loggedError) > 3*maxLineText:
			t.Errorf("%d lines, %d bytes", len(c.lines), logged)
		case c.err == nil && len(c.out) > max(c.room, abi.MaxKeysLen):
			t.Errorf("output of %d bytes", len(c.out))
		case c.op == opDecide && c.err == nil && c.value >= 0 && c.value <= int64(c.room) && int(c.value) != len(c.out):
			t.Errorf("value %d, output %d", c.value, len(c.out))
		case c.err != nil && len(c.err.Error()) > 16*maxErrorText:
			t.Errorf("error of %d bytes", len(c.err.Error()))
		}
	})
}

// TestCallsArriveAsTheyAre: what sluice writes is what the process reads, and back.
func TestCallsArriveAsTheyAre(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	var message []byte
	var sent []call
	for i := range messageCalls {
		c := call{op: op(random.IntN(int(lastOp))), handle: random.Uint32(), given: i%2 == 0, room: random.IntN(1000), fuel: random.Int64(), limit: time.Duration(random.Int64()),
			addresses: [4]uint32{random.Uint32(), random.Uint32(), random.Uint32(), random.Uint32()}, input: make([]byte, random.IntN(50))}
		for k := range c.input {
			c.input[k] = byte(random.Uint32())
		}
		sent = append(sent, c)
		message = appendCall(message, uint32(i), int64(i)*7, &c)
	}
	var answer []byte
	for i := range sent {
		var c call
		instance, leave, rest, err := parseCall(message, &c)
		if err != nil || instance != uint32(i) || leave != int64(i)*7 || fmt.Sprint(c) != fmt.Sprint(sent[i]) {
			t.Fatalf("call %d: instance %d, leave %d, %v\n%v\n%v", i, instance, leave, err, c, sent[i])
		}
		message = rest
		c.used, c.needs, c.stage, c.refused, c.size, c.dropped, c.loggedError = 1, 2, stageDone, true, 3, 4, "a"
		c.lines, c.value = []line{{1, "b"}, {2, ""}}, 7
		c.op = opRead
		c.out = make([]byte, c.room)
		sent[i] = c
		answer = appendResult(answer, lane.Answer, &c, int64(i))
	}
	for i, want := range sent {
		got := call{op: opRead, room: want.room, fuel: want.fuel}
		overhead, rest, err := parseResult(answer, &got)
		want.input, want.handle, want.given, want.addresses, want.limit = got.input, got.handle, got.given, got.addresses, got.limit
		if err != nil || overhead != int64(i) || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("result %d: overhead %d, %v\n%v\n%v", i, overhead, err, got, want)
		}
		answer = rest
	}
	if len(message) != 0 || len(answer) != 0 {
		t.Errorf("left: %d, %d", len(message), len(answer))
	}
}

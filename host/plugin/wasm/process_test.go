package wasm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
		{"versions", TestVersionsOfTheABI}, {"settings", TestSettings}, {"sizes", TestRequestsOfAllSizesFit}, {"closed", TestClosedPluginReturnsAnError},
		{"memory", TestMemoryOfAllPlugins}, {"growth", TestGrowthBeyondTheMemoryOfAllPlugins}, {"rate of instances", TestInstancesHaveARate},
		{"memory for others", TestInstancesLeaveMemoryForOtherPlugins}, {"spare", TestSparePluginsLeaveMemoryForOthers}, {"idle", TestIdlePluginsReleaseMemory},
		{"memory for repeats", TestRepeatsNeedMemory}, {"memory of settings", TestSettingsTakeMemoryOfAllPlugins},
		{"purity", TestSelfTestFindsImpurePlugins}, {"repeats", TestRepeatsFindImpurePlugins}, {"failed repeats", TestFailedRepeatsInARowSuspend},
		{"namespaces", TestNothingIsCarriedBetweenNamespacesWithInstancesOfTheirOwn}, {"eviction", TestLeastRecentlyUsedInstanceMakesRoom},
		{"suspended namespaces", TestFailuresSuspendTheNamespaceOnly}, {"registers", TestGuestsReadNoRegistersOfOthers},
		{"fuel", TestFuelIsTheSameOnEveryMachine},
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
	requireConfinement(t)
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

// sleep returns machine code that never ends: it reads from the control socket, on which nothing arrives.
func sleep() []byte {
	oneByteToTheStack := []byte{0x48, 0x89, 0xe6, 0xba, 1, 0, 0, 0}
	return append(oneByteToTheStack, machine(unix.SYS_READ, 0)...)
}

// stop returns machine code that sends SIGSTOP to its own process.
func stop() []byte {
	code := binary.LittleEndian.AppendUint32([]byte{0xb8}, unix.SYS_GETPID)
	code = append(code, 0x0f, 0x05, 0x89, 0xc7, 0x89, 0xc6, 0xba, byte(unix.SIGSTOP), 0, 0, 0) // for the first two arguments
	return append(code, machine(unix.SYS_TGKILL)...)
}

// TestStatsDoNotWaitForACallThatHangs: they are those from before the call.
func TestStatsDoNotWaitForACallThatHangs(t *testing.T) {
	requireChildren(t)
	p := openNative(t, sleep())
	if err := decide(p, 80, sampleNow); err != nil || p.Stats().Calls != 1 {
		t.Fatalf("%v, %+v", err, p.Stats())
	}
	done := make(chan error)
	go func() { done <- decide(p, evilPort, sampleNow) }()
	for p.mu.TryLock() {
		p.mu.Unlock()
		runtime.Gosched()
	}
	before := p.Stats()
	processOf(t, p).kill(nil)
	if err := <-done; !errors.Is(err, errProcess) || before.Calls != 1 || before.Open != 1 || p.Stats().Failures != 1 {
		t.Errorf("%v; %+v before, then %+v", err, before, p.Stats())
	}
}

// TestLoadDoesNotWaitForACallThatHangs: it needs memory, and gets that of the other plugins.
func TestLoadDoesNotWaitForACallThatHangs(t *testing.T) {
	requireChildren(t)
	p := openNative(t, sleep())
	other := loadWith(t, p.host, goodWAT(t), LoadOptions{Spare: true})
	checkGood(t, other, sampleNow)
	h := p.host
	before, done := h.memory.inUse(), make(chan error)
	go func() { done <- decide(p, evilPort, sampleNow) }()
	for h.memory.inUse() == before { // until the guest has its memory, which belongs to a call
		runtime.Gosched()
	}
	h.memory.setLimit(h.memory.inUse())
	if err := h.reserveForCompiler(t.Context()); err == nil || other.Stats().Open != 0 {
		t.Errorf("%v with %d instances", err, other.Stats().Open)
	}
	select {
	case err := <-done:
		t.Fatalf("waited for the call: %v", err)
	default:
	}
	processOf(t, p).kill(nil)
	<-done
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

// TestKillAtRandomTimesUnderLoad: decisions go on after each kill; other plugins do not notice. SLUICE_KILL_SECONDS is how long
// it lasts.
func TestKillAtRandomTimesUnderLoad(t *testing.T) {
	requireChildren(t)
	const seed, enough = 1, 40
	seconds, _ := strconv.Atoi(os.Getenv("SLUICE_KILL_SECONDS"))
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	random := rand.New(rand.NewPCG(seed, seed))
	h := newHost(t, Options{Process: childCommand("plugin"), Limits: Limits{Failures: 1000}})
	victim := loadWith(t, h, goGuest(t, "testdata/goguest"), LoadOptions{PerNamespace: true})
	other := load(t, h, goodWAT(t), "")
	var stop atomic.Bool
	var wg sync.WaitGroup
	var failed, answered atomic.Int64
	var now atomic.Int64
	now.Store(sampleNow)
	var killed atomic.Pointer[time.Time] // nil: there was an answer since
	var back []time.Duration             // from a kill to the next answer
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
				if at := killed.Swap(nil); at != nil {
					back = append(back, time.Since(*at))
				}
			}
		}
	})
	wg.Go(func() {
		for !stop.Load() {
			checkGood(t, other, sampleNow)
			time.Sleep(time.Millisecond) // pace of its calls
		}
	})
	kills := 0
	for ; kills < enough || time.Now().Before(end); kills++ {
		for before := answered.Load(); answered.Load() < before+1+int64(random.IntN(300)) && !t.Failed(); {
			time.Sleep(100 * time.Microsecond) // pace of the kills
		}
		r, at := processOf(t, victim), time.Now()
		_ = r.cmd.Process.Kill()
		<-r.ended
		killed.Store(&at)
	}
	stop.Store(true)
	wg.Wait()
	if n := failed.Load(); n > int64(2*kills) {
		t.Errorf("%d calls failed with %d kills", n, kills)
	}
	if used, _ := h.MemoryInUse(); used < 0 {
		t.Errorf("memory %d", used)
	}
	slices.Sort(back)
	t.Logf("%d decisions, %d failed, %d kills; from a kill to the next decision: median %s, 99 %% %s, most %s", answered.Load(), failed.Load(), kills,
		back[len(back)/2], back[len(back)*99/100], back[len(back)-1])
}

package wasm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/lane"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

// generous is a process that gives every endpoint the largest value, whatever the module has answered.
func generous(args []string) int {
	return misbehave(args, func(s *server, _ int) func(*lane.Lane, *lane.Stopwatch) {
		return func(l *lane.Lane, watch *lane.Stopwatch) {
			s.answer(l, watch)
			le, out := binary.LittleEndian, l.Answer()
			if op(le.Uint32(l.Request())) == opDecide {
				length := le.Uint32(out[36:]) // of the output, which is the end of the answer
				response := out[(l.Number(numberAnswer).Load()-int64(align(int(length))))&^7:]
				at := le.Uint32(response[abi.RespResultsOffset:])
				for range le.Uint32(response[abi.RespResultsCount:]) {
					le.PutUint32(response[at+abi.ResultValue:], math.MaxUint32)
					at += le.Uint32(response[abi.RespResultsStride:])
				}
			}
			l.Reply()
		}
	})
}

// TestProcessThatLiesGivesNoPartToIneligibleEndpoints: the answer is valid, and what is not the plugin's to decide is taken out
// of it.
func TestProcessThatLiesGivesNoPartToIneligibleEndpoints(t *testing.T) {
	requireChildren(t)
	for _, role := range []abi.Role{abi.RoleReduce, abi.RoleShare} {
		processThatLies(t, role)
	}
}

func processThatLies(t *testing.T, role abi.Role) {
	t.Helper()
	module := wat(t, hosts.Complete(fmt.Sprintf(";; role: %s\n(func $evil (param i32 i32 i64) (result i64) (local.get 2))", role)))
	p, err := newHost(t, Options{Process: childCommand("generous")}).Open(t.Context(), "generous", module, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := callsOf(sampleNow, 80)[0]
	c.Plugin = p
	c.Request.Endpoints[0].Conditions |= abi.Eligible
	c.Request.Endpoints[1].Conditions = abi.Serving
	c.Request.Endpoints[2].Conditions = abi.Serving
	c.Request.Begin()
	policy.DoAll([]*policy.Call{c})
	if c.Err != nil || c.Response.Results[1].Value != math.MaxUint32 {
		t.Fatalf("the process has not lied: %v, %+v", c.Err, c.Response.Results)
	}
	if err := c.Check(p.Role()); err != nil {
		t.Fatal(err)
	}
	c.Request.Apply(p.Role(), abi.AnswerOf(&c.Response))
	if got := c.Request.Parts(nil); p.Role() != role || !slices.Equal(got, []float64{1, 0, 0}) {
		t.Errorf("role %s: the parts are %v, want 1, 0, 0", p.Role(), got)
	}
}

// staller is a process that computes for seconds instead of answering a message of several calls, and writes progress wherever it
// can.
func staller(args []string) int {
	return misbehave(args, func(s *server, _ int) func(*lane.Lane, *lane.Stopwatch) {
		return func(l *lane.Lane, watch *lane.Stopwatch) {
			for done := int64(1); done < messageCalls && l.Number(numberCalls).Load() > 1; done++ {
				for begin := time.Now(); time.Since(begin) < 60*time.Millisecond; {
					continue
				}
				for number := numberMemory; number < 16; number++ {
					l.Number(number).Store(done)
				}
			}
			s.answer(l, watch)
			l.Reply()
		}
	})
}

// TestProgressOfAMessageGivesNoMoreTime: a message has the time of one call, whatever the process says of its progress.
func TestProgressOfAMessageGivesNoMoreTime(t *testing.T) {
	requireChildren(t)
	h := newHost(t, Options{Process: childCommand("staller"), Limits: Limits{DecideTime: 20 * time.Millisecond}})
	p, err := h.Open(t.Context(), "staller", goodWAT(t), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	checkGood(t, p, sampleNow) // alone
	r := processOf(t, p)
	p.DecideAll(callsOf(sampleNow, ports(messageCalls, 80)...))
	<-r.ended
	if err := r.why("message"); !errors.Is(err, errLate) || r.cmd.ProcessState.UserTime() > 2*time.Second {
		t.Errorf("%v after %s of CPU time", err, r.cmd.ProcessState.UserTime())
	}
}

// TestModuleThatEndsItsProcessIsSuspended: longer and longer, and a process starts for each call that reaches it only; others do
// not notice.
func TestModuleThatEndsItsProcessIsSuspended(t *testing.T) {
	requireChildren(t)
	p := openNative(t, []byte{0x0f, 0x0b}) // not an instruction
	other := load(t, p.host, goodWAT(t), "")
	var before *run
	starts := 0
	var waits []time.Duration
	for now := int64(sampleNow); len(waits) < 5; now += 100 {
		err := decide(p, evilPort, now)
		var e *DecideError
		if !errors.As(err, &e) {
			t.Fatal(err)
		}
		if r := p.code.engine.(*process).current; r != before {
			before = r
			starts++
		}
		if !e.Suspended {
			waits = append(waits, e.RetryAfter)
		}
		checkGood(t, other, sampleNow)
	}
	if starts != len(waits) || waits[4] < 2*waits[2] {
		t.Errorf("%d processes for %d calls, then a wait of %v", starts, len(waits), waits)
	}
}

// BenchmarkRestart measures the time until three plugins whose processes were killed decide again.
func BenchmarkRestart(b *testing.B) {
	h := newHost(b, Options{CacheDir: b.TempDir() + "/cache", Compiler: childCommand("compile"), Process: childCommand("plugin")})
	var all []*Plugin
	for _, path := range []string{"../../../plugins/locality", "../../../plugins/lifecycle", "../../lab/bench/guest"} {
		all = append(all, load(b, h, goGuest(b, path), ""))
	}
	for b.Loop() {
		b.StopTimer()
		for _, p := range all {
			r := p.code.engine.(*process).current
			_ = r.cmd.Process.Signal(os.Kill)
			<-r.ended
		}
		b.StartTimer()
		done := make(chan error)
		for _, p := range all {
			go func() { done <- decide(p, 80, sampleNow) }()
		}
		for range all {
			if err := <-done; err != nil {
				b.Fatal(err)
			}
		}
	}
}

// greedy is a process that claims to have all memory of all plugins.
func greedy(args []string) int {
	return misbehave(args, func(s *server, _ int) func(*lane.Lane, *lane.Stopwatch) {
		return func(l *lane.Lane, watch *lane.Stopwatch) {
			s.answer(l, watch)
			l.Number(numberMemory).Store(math.MaxInt64)
			l.Reply()
		}
	})
}

// TestProcessThatClaimsAllMemoryLeavesIt: it is believed no more than its instances may have.
func TestProcessThatClaimsAllMemoryLeavesIt(t *testing.T) {
	requireChildren(t)
	const pages = 64
	h := newHost(t, Options{Process: childCommand("greedy")})
	for n := range 3 {
		p, err := h.Open(t.Context(), "greedy", goodWAT(t), LoadOptions{MemoryPages: pages})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkGood(t, p, sampleNow)
		if used, _ := h.MemoryInUse(); used > int64(n+1)*pages<<16+1<<20 {
			t.Errorf("%d bytes in use with %d plugins", used, n+1)
		}
	}
	h.process = childCommand("plugin")
	checkGood(t, load(t, h, goGuest(t, "testdata/goguest"), ""), sampleNow)
}

// hoarder is a process that writes to all of a lane with each answer.
func hoarder(args []string) int {
	return misbehave(args, func(s *server, _ int) func(*lane.Lane, *lane.Stopwatch) {
		return func(l *lane.Lane, watch *lane.Stopwatch) {
			s.answer(l, watch)
			clear(l.Request())
			clear(l.Answer()[l.Number(numberAnswer).Load():])
			l.Reply()
		}
	})
}

// TestProcessThatUsesAllSharedMemoryIsKilled: what is touched stays, and no limit of the kernel counts it.
func TestProcessThatUsesAllSharedMemoryIsKilled(t *testing.T) {
	requireChildren(t)
	h := newHost(t, Options{Process: childCommand("hoarder")})
	p, err := h.Open(t.Context(), "hoarder", goodWAT(t), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := processOf(t, p)
	<-r.ended
	if err := r.why("call"); !errors.Is(err, errProcess) || !strings.Contains(err.Error(), "MiB of shared memory") {
		t.Error(err)
	}
}

// collector is a process that fills memory of which it says nothing.
func collector(args []string) int {
	return misbehave(args, func(s *server, _ int) func(*lane.Lane, *lane.Stopwatch) {
		return func(l *lane.Lane, watch *lane.Stopwatch) {
			s.answer(l, watch)
			if op(binary.LittleEndian.Uint32(l.Request())) == opDecide {
				if memory, err := unix.Mmap(-1, 0, 2*ownMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err == nil {
					for at := 0; at < len(memory); at += os.Getpagesize() {
						memory[at] = 1
					}
				}
			}
			l.Reply()
		}
	})
}

// TestProcessWithMemoryThatIsNotCountedIsKilled: the kernel's limit is that of all plugins.
func TestProcessWithMemoryThatIsNotCountedIsKilled(t *testing.T) {
	requireChildren(t)
	p, err := newHost(t, Options{Process: childCommand("collector")}).Open(t.Context(), "collector", goodWAT(t), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := processOf(t, p)
	checkGood(t, p, sampleNow)
	<-r.ended
	if err := r.why("call"); !errors.Is(err, errProcess) || !strings.Contains(err.Error(), "are counted") {
		t.Error(err)
	}
}

// mapper is a process that reads from as many addresses as it can map: the tables of pages take memory that is nobody's data.
func mapper(args []string) int {
	return misbehave(args, func(s *server, _ int) func(*lane.Lane, *lane.Stopwatch) {
		return func(l *lane.Lane, watch *lane.Stopwatch) {
			s.answer(l, watch)
			if op(binary.LittleEndian.Uint32(l.Request())) == opDecide {
				sum := byte(0)
				for size := 1 << 40; size >= 1<<30; size /= 2 { // what there is
					if memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE); err == nil {
						_ = unix.Madvise(memory, unix.MADV_NOHUGEPAGE) // which need fewer tables
						for at := 0; at < len(memory); at += 2 << 20 {
							sum += memory[at]
						}
					}
				}
				l.Number(numberMemory).Add(int64(sum))
			}
			l.Reply()
		}
	})
}

// TestTablesOfPagesAreBounded: of memory that is only read, they are not data.
func TestTablesOfPagesAreBounded(t *testing.T) {
	requireChildren(t)
	p, err := newHost(t, Options{Process: childCommand("mapper"), Limits: Limits{DecideTime: time.Minute}}).Open(t.Context(), "mapper", goodWAT(t), LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r := processOf(t, p)
	checkGood(t, p, sampleNow)
	_, tables, _ := strings.Cut(mustRead(t, fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid)), "VmPTE:")
	var kib int
	if _, err := fmt.Sscan(tables, &kib); err != nil || kib > 160<<10 {
		t.Errorf("%d KiB of tables: %v", kib, err)
	}
}

// windbag is a process whose answers to decisions are as long as a lane allows.
func windbag(args []string) int {
	return misbehave(args, func(s *server, _ int) func(*lane.Lane, *lane.Stopwatch) {
		return func(l *lane.Lane, watch *lane.Stopwatch) {
			s.answer(l, watch)
			if op(binary.LittleEndian.Uint32(l.Request())) == opDecide {
				l.Number(numberAnswer).Store(lane.Answer)
			}
			l.Reply()
		}
	})
}

// TestLongAnswersAreNotKept: sluice copies what a call may have as an answer, not what there is.
func TestLongAnswersAreNotKept(t *testing.T) {
	requireChildren(t)
	const namespaces = 12
	h := newHost(t, Options{Process: childCommand("windbag")})
	p, err := h.Open(t.Context(), "windbag", goodWAT(t), LoadOptions{PerNamespace: true, Instances: namespaces})
	if err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	for n := range namespaces {
		req := SampleRequest(3)
		req.Namespace, req.Now = fmt.Sprint("ns", n), sampleNow+int64(n)*1000
		var resp abi.Response
		resp.Reset(3)
		if err := p.Decide(req, &resp); !errors.Is(err, errMessage) {
			t.Errorf("an answer of %d bytes: %v", lane.Answer, err)
		}
	}
	if more := heap() - before; more > lane.Answer {
		t.Errorf("%d bytes are kept", more)
	}
	runtime.KeepAlive(p)
}

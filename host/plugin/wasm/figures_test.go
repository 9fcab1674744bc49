package wasm

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestInnocentCallsAreAnsweredSoonAgain, of the message and the module whose call hangs, crashes or leaves the sandbox. Other
// modules answer meanwhile. With -v it prints the figures of README.md.
func TestInnocentCallsAreAnsweredSoonAgain(t *testing.T) {
	requireConfinement(t)
	for name, code := range map[string][]byte{
		"computes and never ends": {0xeb, 0xfe}, "waits and never ends": sleep(), "stops its process and never ends": stop(),
		"crashes": {0x0f, 0x0b}, "opens a file": machine(unix.SYS_OPENAT, 0, 0, unix.O_RDWR),
	} {
		t.Run(name, func(t *testing.T) {
			p := openNative(t, code)
			other := load(t, p.host, goodWAT(t), "")
			for _, port := range []uint16{80, 80} {
				if err := decide(p, port, sampleNow); err != nil {
					t.Fatal(err)
				}
			}
			done := make(chan struct{})
			var wg sync.WaitGroup
			answers, slowest := 0, time.Duration(0)
			wg.Go(func() {
				for running := true; running; answers++ {
					begin := time.Now()
					checkGood(t, other, sampleNow)
					slowest = max(slowest, time.Since(begin))
					select {
					case <-done:
						running = false
					case <-time.After(time.Millisecond): // pace of its calls
					}
				}
			})
			list := ports(messageCalls, 80)
			list[messageCalls/2] = evilPort
			calls := callsOf(sampleNow, list...)
			begin := time.Now()
			askAll(p, calls)
			took := time.Since(begin)
			close(done)
			wg.Wait()
			for i, c := range calls {
				if (c.Err != nil) != (i == messageCalls/2) {
					t.Errorf("call %d: %v", i, c.Err)
				}
			}
			if guilty := calls[messageCalls/2].Err; answers == 0 || strings.HasSuffix(name, "never ends") != IsLate(guilty) || !IsTemporary(guilty) {
				t.Errorf("%v, with %d answers of another module", guilty, answers)
			}
			t.Logf("the other %d calls are answered within %s; meanwhile %d answers of another module, the slowest after %s; %v",
				messageCalls-1, took.Round(time.Millisecond), answers, slowest.Round(100*time.Microsecond), calls[messageCalls/2].Err)
		})
	}
}

// TestModuleThatTakesAllMemoryItCanGet: it answers, and has what a plugin may have. With -v it prints the figures of README.md.
func TestModuleThatTakesAllMemoryItCanGet(t *testing.T) {
	requireChildren(t)
	h := newHost(t, Options{Process: childCommand("plugin"), Limits: Limits{DecideTime: time.Minute}})
	p := load(t, h, slow{"", "", `(loop $l (br_if $l (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
		(memory.fill (i32.const 1048576) (i32.const 7) (i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 1048576))) (local.get 2)`}.module(t), "")
	before, _ := h.MemoryInUse()
	if err := decide(p, evilPort, sampleNow); err != nil {
		t.Fatal(err)
	}
	used, limit := h.MemoryInUse()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", processOf(t, p).cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rss, _ := strings.Cut(string(status), "RssAnon:")
	rss, _, _ = strings.Cut(rss, "\n")
	t.Logf("%d MiB of %d in use, %d before; anonymous memory of the process: %s", used>>20, limit>>20, before>>20, strings.TrimSpace(rss))
	if most := int64(DefaultLimits().MemoryPages) << 16; used-before > most || used-before < most/2 {
		t.Errorf("%d bytes more, want at most %d", used-before, most)
	}
	checkGood(t, load(t, h, goodWAT(t), ""), sampleNow)
}

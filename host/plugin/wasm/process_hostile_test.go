package wasm

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/plugin/wasm/lane"
)

// forged is what an attacker writes where it may reach a log or a terminal.
const forged = "\x1b]0;owned\x07\rlevel=ERROR msg=forged\n{\"level\":\"ERROR\",\"msg\":\"forged\"}\n\u202e\xff"

// mischief is what processes that an attacker has taken over do with each decision, besides or instead of answering it: what is
// written to the lane is for the next call.
var mischief = map[string]struct {
	do  func(s *server, l *lane.Lane, watch *lane.Stopwatch)
	err string // of the calls, "": they are answered
}{
	"floods standard error": {func(*server, *lane.Lane, *lane.Stopwatch) {
		for {
			_, _ = unix.Write(2, bytes.Repeat([]byte(forged), 1000))
		}
	}, "of CPU time"},
	"ends with a line for the log": {func(*server, *lane.Lane, *lane.Stopwatch) {
		_, _ = unix.Write(2, []byte(forged))
		os.Exit(1)
	}, `\x1b]0;owned`},
	"fills its control socket": {func(s *server, l *lane.Lane, watch *lane.Stopwatch) {
		fill.Do(func() {
			go func() {
				for {
					_, _ = unix.Write(0, bytes.Repeat([]byte(forged), 1000))
				}
			}()
		})
		s.answer(l, watch)
		l.Reply()
	}, ""},
	"wakes sluice without an answer": {func(_ *server, l *lane.Lane, _ *lane.Stopwatch) {
		for ; ; time.Sleep(time.Millisecond) { // pace of an attacker
			wake(l)
		}
	}, "killed after"},
	"says that it has answered, again and again": {func(s *server, l *lane.Lane, watch *lane.Stopwatch) {
		s.answer(l, watch)
		for range 1000 {
			l.Reply()
		}
	}, ""},
	"answers with zeros": {func(s *server, l *lane.Lane, watch *lane.Stopwatch) {
		s.answer(l, watch)
		clear(l.Answer()[:1<<10])
		l.Reply()
	}, "shorter than the header"},
}

var fill sync.Once

// wake wakes who waits for an answer.
func wake(l *lane.Lane) {
	const futexWake, answerWord, header = 1, 128, 4096
	word := unsafe.Add(unsafe.Pointer(unsafe.SliceData(l.Request())), answerWord-header)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(word), futexWake, 1, 0, 0, 0)
}

// mischievous is a process that does what an argument names.
func mischievous(args []string) int {
	return misbehave(args[1:], func(s *server, _ int) func(*lane.Lane, *lane.Stopwatch) {
		return func(l *lane.Lane, watch *lane.Stopwatch) {
			if op(l.Request()[0]) == opDecide {
				mischief[args[0]].do(s, l, watch)
				return
			}
			s.answer(l, watch)
			l.Reply()
		}
	})
}

// TestMischiefOfAProcessHurtsItselfOnly: calls end with an answer or an error, other plugins answer meanwhile, and neither errors
// nor log lines are many, long, or anything but printable text.
func TestMischiefOfAProcessHurtsItselfOnly(t *testing.T) {
	requireChildren(t)
	for name, m := range mischief {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			h := newHost(t, Options{Process: append(childCommand("mischievous"), name), Limits: Limits{DecideTime: 20 * time.Millisecond},
				Log: slog.New(slog.NewTextHandler(&log, nil))})
			p, err := h.Open(t.Context(), "mischief", goodWAT(t), LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			other := load(t, newHost(t, Options{Process: childCommand("plugin")}), goodWAT(t), "")
			before := log.Len()
			for n := range 3 {
				r := processOf(t, p)
				done := make(chan error)
				go func() { done <- decide(p, 80, sampleNow+int64(n)) }()
				for waits := true; waits; {
					select {
					case err = <-done:
						waits = false
					case <-time.After(time.Millisecond): // pace of its calls
						checkGood(t, other, sampleNow)
					}
				}
				if (err == nil) != (m.err == "") || err != nil && (!strings.Contains(err.Error(), m.err) || len(err.Error()) > 2*maxErrorText) {
					t.Errorf("%v", err)
				}
				if err != nil && strings.ContainsFunc(err.Error(), func(c rune) bool { return !unicode.IsPrint(c) }) {
					t.Errorf("%q", err)
				}
				if r.dead() && len(r.stderr.head) > 4<<10 {
					t.Errorf("%d bytes of standard error are kept", len(r.stderr.head))
				}
				if IsLate(err) {
					break // it takes seconds
				}
			}
			lines := log.String()[before:]
			if strings.Count(lines, "\n") > 1 || len(lines) > 4*maxErrorText {
				t.Errorf("logged: %q", lines)
			}
		})
	}
}

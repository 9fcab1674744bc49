package dispatch

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
)

// pluginProcess is the argument with which the test binary is a process of a plugin.
const pluginProcess = "plugin-process"

// TestProcessesThatDoNotAnswerDelayOnlyTheirPlugins: they have been stopped, so they use no CPU time. The other plugin answers
// calls before they are killed for their silence: few, as a busy machine may take a while for each.
func TestProcessesThatDoNotAnswerDelayOnlyTheirPlugins(t *testing.T) {
	if testenv.Race {
		t.Skip("processes of plugins need a build without race detector")
	}
	base, err := os.ReadFile("../../../../sdk/tck/hosts/guests/base.wat")
	if err != nil {
		t.Fatal(err)
	}
	h, err := wasm.New(t.Context(), wasm.Options{Process: []string{"dispatch.test", pluginProcess}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close(t.Context()) })
	load := func(n int) *wasm.Plugin {
		text := fmt.Sprintf("(func $evil (param i32 i32 i64) (result i64) (drop (i32.const %d)) (local.get 2))", n)
		p, err := h.Load(t.Context(), fmt.Sprint(n), testenv.WAT(t, strings.Replace(string(base), ";; EVIL", text, 1), "--no-check"), nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	good := load(0)
	others := testenv.Children(t)
	const hung = 3
	var calls []*policy.Call
	for n := range hung {
		calls = append(calls, call(load(n+1), fmt.Sprint("hung", n), "a", "x", 80))
	}
	stopped := slices.DeleteFunc(testenv.Children(t), func(pid int) bool { return slices.Contains(others, pid) })
	for _, pid := range stopped {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	if len(stopped) != hung {
		t.Fatalf("processes %v for %d plugins", stopped, hung)
	}
	d := New(Options{workers: 1})
	d.Call(calls, 0)
	for n := range 10 {
		answers := d.Call([]*policy.Call{call(good, "good", "a", "x", n)}, 0)
		for len(answers) == 0 {
			<-d.Ready()
			answers = d.Call(nil, 0)
		}
		if len(answers) != 1 || answers[0].Name != "good" || answers[0].Err != nil {
			t.Fatalf("after %d answers: %s: %v", n, answers[0].Name, answers[0].Err)
		}
	}
	for _, pid := range stopped {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if !d.Stop(time.Minute) {
		t.Error("not stopped")
	}
}

package benchutil_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
)

func TestSpliceReplacesTextBetweenItsMarkersOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "README.md")
	before := "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n<!-- y: begin -->\nstays\n<!-- y: end -->\n"
	if err := os.WriteFile(path, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := benchutil.Published(path, "x"); err != nil || text != "old\n" {
		t.Errorf("published is %q, %v", text, err)
	}
	if err := benchutil.Splice(path, "x", []byte("new\n")); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(path)
	if want := strings.Replace(before, "old", "new", 1); string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := benchutil.Splice(path, "z", nil); err == nil || !strings.Contains(err.Error(), "z: begin") {
		t.Errorf("a file without the markers: %v", err)
	}
	if again, _ := os.ReadFile(path); string(again) != string(got) {
		t.Errorf("a file without the markers was changed")
	}
	if _, err := benchutil.Published(path, "z"); err == nil {
		t.Error("a file without the markers: no error")
	}
	if text, err := benchutil.Published("", "x"); err != nil || text != "" {
		t.Errorf("no file: %q, %v", text, err)
	}
}

// TestMeasureAnotherProcess has a shell and its child work for a while: the time of both shows, and where.
func TestMeasureAnotherProcess(t *testing.T) {
	cmd := exec.Command("sh", "-c", `sh -c 'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo; read x`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := benchutil.Process(cmd.Process.Pid)
	children := p.MonitorChildren()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	own, err := p.CPU()
	if err != nil || own < time.Millisecond {
		t.Errorf("own CPU time: %v, %v", own, err)
	}
	waited, err := p.ChildrenCPU()
	if err != nil || waited == 0 {
		t.Errorf("children's CPU time: %v, %v", waited, err)
	}
	if all, err := p.TotalCPU(); err != nil || all < own+waited {
		t.Errorf("all CPU time: %v of %v and %v, %v", all, own, waited, err)
	}
	if now, peak := p.RSS(), p.PeakRSS(); now <= 0 || peak < now {
		t.Errorf("resident %v, peak %v", now, peak)
	}
	if peak := children.Stop(); peak <= 0 {
		t.Errorf("the child's peak: %v", peak)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Log(err) // read at the end of the input
	}
	if _, err := p.CPU(); err == nil {
		t.Error("CPU time of a process that is gone")
	}
}

func TestCPUUtilizationIsAFraction(t *testing.T) {
	if got, err := benchutil.CPUUtilization(50 * time.Millisecond); err != nil || got < 0 || got > 1 {
		t.Errorf("%v, %v", got, err)
	}
}

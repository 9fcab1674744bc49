package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

// eachKernel runs a test with every User-Mode Linux that has been built.
func eachKernel(t *testing.T, f func(t *testing.T, kernel string)) { eachOf(t, Series(), f) }

func eachOf(t *testing.T, all []string, f func(t *testing.T, kernel string)) {
	if Inside() != "" {
		t.Skip("this is a guest")
	}
	for _, series := range all {
		t.Run(series, func(t *testing.T) {
			path, err := Cached(series)
			if err != nil {
				t.Fatal(err)
			}
			if path == "" {
				if os.Getenv("CI") != "" {
					t.Fatal("the kernel is not built: make vm-kernels vm-arm64")
				}
				t.Skip("the kernel is not built: make vm-kernels vm-arm64")
			}
			f(t, path)
		})
	}
}

// run runs a program that has to end by itself.
func run(t *testing.T, job Job) (int, string) {
	t.Helper()
	var out bytes.Buffer
	job.Out = &out
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code, err := Run(ctx, job)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.Bytes())
	}
	return code, out.String()
}

func sh(kernel, script string) Job { return Job{Kernel: kernel, Args: []string{"sh", "-c", script}} }

func TestRunReturnsExitCodeFromRequestedKernel(t *testing.T) {
	eachKernel(t, func(t *testing.T, kernel string) {
		here, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		job := sh(kernel, `read a b release c </proc/version; echo $release; pwd; echo $GREETING $SLUICE_VM; echo oops >&2; exit 7`)
		job.Env = append(os.Environ(), "GREETING=hello")
		code, out := run(t, job)
		key := filepath.Base(filepath.Dir(kernel))
		series := strings.Split(strings.TrimPrefix(key, "linux-"), "_")[0]
		if want := fmt.Sprintf("\n%s\nhello %s\noops\n", here, key); code != 7 || !strings.HasPrefix(out, series+".") || !strings.HasSuffix(out, want) {
			t.Errorf("%d, %q", code, out)
		}
	})
}

func TestRunReportsSignal(t *testing.T) {
	eachKernel(t, func(t *testing.T, kernel string) {
		if code, out := run(t, sh(kernel, `kill -KILL $$`)); code != 128+9 || !strings.Contains(out, "was ended by killed") {
			t.Errorf("%d, %q", code, out)
		}
	})
}

func TestRunReportsThatMemoryRanOut(t *testing.T) {
	eachKernel(t, func(t *testing.T, kernel string) {
		job := sh(kernel, `tail /dev/zero`) // looks for the last line, of a file without any
		job.Memory = 128
		if code, out := run(t, job); code != 128+9 || !strings.Contains(out, "vm: kernel: Out of memory: Killed process") {
			t.Errorf("%d, %q", code, out)
		}
	})
}

// TestRunLosesNoOutput writes more than any buffer between the program and here has room for.
func TestRunLosesNoOutput(t *testing.T) {
	eachKernel(t, func(t *testing.T, kernel string) {
		code, out := run(t, sh(kernel, `i=0; while [ $i -lt 20000 ]; do echo "line $i of many"; i=$((i+1)); done`))
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		if code != 0 || len(lines) != 20000 || lines[19999] != "line 19999 of many" {
			t.Errorf("%d: %d lines, the last %q", code, len(lines), lines[len(lines)-1])
		}
	})
}

// TestGuestCannotWriteHostFiles: its files cannot be written, deleted or mounted over for writing.
func TestGuestCannotWriteHostFiles(t *testing.T) {
	eachKernel(t, func(t *testing.T, kernel string) {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		if err := os.WriteFile(file, []byte("before"), 0o644); err != nil {
			t.Fatal(err)
		}
		code, out := run(t, sh(kernel, fmt.Sprintf(
			`for f in %[1]s /run/host%[1]s; do echo after >$f; rm -f $f; done 2>&1; echo x >/tmp/mine && cat /tmp/mine`, file)))
		if text, err := os.ReadFile(file); err != nil || string(text) != "before" || code != 0 || !strings.HasSuffix(out, "\nx\n") {
			t.Errorf("%q, %v; %d, %q", text, err, code, out)
		}
		if _, err := os.Stat("/tmp/mine"); err == nil {
			t.Error("the guest's /tmp is the machine's")
		}
	})
}

func TestPowerOffIsAnError(t *testing.T) {
	eachKernel(t, func(t *testing.T, kernel string) {
		var out bytes.Buffer
		job := Job{Kernel: kernel, Args: []string{self(t), "-test.run", "^TestGuestPowersOff$"}, Env: append(os.Environ(), "POWEROFF=1"), Out: &out}
		_, err := Run(t.Context(), job)
		if !errors.Is(err, ErrDied) || !strings.Contains(out.String(), "going down") {
			t.Errorf("%v, %q", err, out.String())
		}
	})
}

// TestGuestPowersOff is what the test above runs.
func TestGuestPowersOff(t *testing.T) {
	if Inside() == "" || os.Getenv("POWEROFF") == "" {
		t.Skip("for another test")
	}
	fmt.Println("PASS, and going down")
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func TestTooLittleMemoryIsAnError(t *testing.T) {
	eachKernel(t, func(t *testing.T, kernel string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		job := sh(kernel, "exit 0")
		job.Memory = 8
		code, err := Run(ctx, job)
		if err == nil {
			t.Errorf("exit code %d with 8 MiB", code)
		}
	})
}

func TestTimeoutKillsAllProcesses(t *testing.T) {
	// A folder of its own, short enough for the kernel's socket: other tests' virtual machines run beside this one.
	dir, err := os.MkdirTemp("", "vm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("TMPDIR", dir)
	eachKernel(t, func(t *testing.T, kernel string) {
		for name, script := range map[string]string{"idle": "sleep 1000", "busy": "while :; do :; done & while :; do :; done"} {
			t.Run(name, func(t *testing.T) {
				before := processes(t, kernel)
				late := errors.New("too late")
				ctx, cancel := context.WithTimeoutCause(t.Context(), 1500*time.Millisecond, late)
				defer cancel()
				begin := time.Now()
				_, err := Run(ctx, sh(kernel, script))
				if !errors.Is(err, late) || time.Since(begin) > time.Minute {
					t.Errorf("%v after %s", err, time.Since(begin))
				}
				testenv.Eventually(t, fmt.Sprintf("no more than %d processes of the kernel", before), func() bool { return processes(t, kernel) <= before })
			})
		}
	})
}

// processes counts the processes that run a kernel's program and are ours.
func processes(t *testing.T, kernel string) int {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	mine := fmt.Sprintf("uml_dir=%s/", os.TempDir())
	n := 0
	for _, exe := range found {
		if to, err := os.Readlink(exe); err == nil && to == kernel {
			if cmd, err := os.ReadFile(filepath.Join(filepath.Dir(exe), "cmdline")); err == nil && bytes.Contains(cmd, []byte(mine)) {
				n++
			}
		}
	}
	return n
}

func TestTwoGuestsRunConcurrently(t *testing.T) {
	eachKernel(t, func(t *testing.T, kernel string) {
		var all sync.WaitGroup
		for i := range 2 {
			all.Go(func() {
				if code, out := run(t, sh(kernel, fmt.Sprintf("echo %d; exit %d", i, 10+i))); code != 10+i || out != fmt.Sprintln(i) {
					t.Errorf("%d: %d, %q", i, code, out)
				}
			})
		}
		all.Wait()
	})
}

func TestInvalidJobIsAnError(t *testing.T) {
	for name, job := range map[string]Job{
		"no kernel":  {Args: []string{"true"}},
		"a bad path": {Kernel: "/no/such/kernel", Args: []string{"true"}},
		"no program": {Kernel: self(t)},
		"no such":    {Kernel: self(t), Args: []string{"/no/such/program"}},
	} {
		if _, err := Run(t.Context(), job); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Cached("5.4"); err == nil || !strings.Contains(err.Error(), "6.12") {
		t.Errorf("an unknown kernel: %v", err)
	}
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestGoTestExecRunsInGuest is the way that the Makefile goes, with a test that fails and one that passes, from a
// module whose path has a space, in /tmp, which the guest has one of its own of. On arm64 too.
func TestGoTestExecRunsInGuest(t *testing.T) {
	eachOf(t, append(Series(), Arm64), func(t *testing.T, kernel string) {
		dir := filepath.Join(t.TempDir(), "a clone")
		runner, arch := filepath.Join(dir, "run"), runtime.GOARCH
		if onArm64(kernel) {
			arch = Arm64
		}
		for name, arch := range map[string]string{runner: runtime.GOARCH, runner + "-" + Arm64: Arm64} {
			build := exec.Command("go", "build", "-o", name, "./run")
			build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		mod := filepath.Join(dir, "mod")
		for name, text := range map[string]string{
			"go.mod":     "module example.com/m\n\ngo 1.26\n",
			"root.txt":   "data",
			"p/p.go":     "package p\n",
			"p/data.txt": "data",
			"p/p_test.go": `package p

import ("os"; "testing")

func TestGood(t *testing.T) {
	for _, name := range []string{"data.txt", "../root.txt", os.Getenv("SHARED")+"/file"} {
		if d, err := os.ReadFile(name); err != nil || string(d) != "data" { t.Error(string(d), err) }
	}
	if err := os.WriteFile(t.TempDir()+"/f", nil, 0o644); err != nil { t.Error(err) }
}

func TestBad(t *testing.T) { t.Error("bad on " + os.Getenv("SLUICE_VM")) }
`,
		} {
			write(t, filepath.Join(mod, name), text)
		}
		shared := filepath.Join(dir, "shared")
		write(t, filepath.Join(shared, "file"), "data")
		key := filepath.Base(filepath.Dir(kernel))
		series := strings.Split(strings.TrimPrefix(key, "linux-"), "_")[0]
		for _, c := range []struct {
			test, want string
			good       bool
		}{{"TestGood", "ok  \texample.com/m/p", true}, {"Test", "bad on " + key, false}} {
			cmd := exec.Command("go", "test", "-count=1", "-exec", fmt.Sprintf("'%s' exec -share '%s' -kernel %s", runner, shared, series), "-run", c.test, "./p")
			cmd.Dir, cmd.Env = mod, append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch, "GOFLAGS=-mod=mod", "GOWORK=off", "SHARED="+shared)
			out, err := cmd.CombinedOutput()
			if (err == nil) != c.good || !strings.Contains(string(out), c.want) {
				t.Errorf("%s: %v\n%s", c.test, err, out)
			}
		}
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestGuestSurvivesProcessesThatAreKilledWhileTheyFork: kubelets and tests of theirs kill shells all the time.
func TestGuestSurvivesProcessesThatAreKilledWhileTheyFork(t *testing.T) {
	eachKernel(t, func(t *testing.T, kernel string) {
		code, out := run(t, sh(kernel, `
			for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
				sh -c 'while :; do (:); done' & p=$!
				sleep 0.0$((i % 9 + 1))
				kill -9 $p
				wait $p 2>/dev/null
			done
			echo survived`))
		if code != 0 || !strings.HasSuffix(out, "survived\n") {
			t.Errorf("%d, %q", code, out)
		}
	})
}

package wasm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/meter"
	"github.com/sluice-proxy/sluice/host/plugin/wasm/turns"
)

// childCommands are what the test binary does as a child process, by its first argument.
func childCommands() map[string]func(args []string) int {
	return map[string]func(args []string) int{
		"compile":      func(args []string) int { return CompileMain(args, os.Stdin, os.Stderr) },
		"plugin":       func(args []string) int { return ProcessMain(args, os.Stderr) },
		"liar":         liar,
		"generous":     generous,
		"staller":      staller,
		"greedy":       greedy,
		"mischievous":  mischievous,
		"idler":        idler,
		"hoarder":      hoarder,
		"windbag":      windbag,
		"collector":    collector,
		"mapper":       mapper,
		"hanging":      hangingChild,
		"forging":      forgingChild,
		"filling":      fillingChild,
		"threads":      threadsChild,
		"flooding":     floodingChild,
		"mute":         func([]string) int { _, _ = io.ReadAll(os.Stdin); return 0 },
		"inspect":      inspectChild,
		"limited":      limitedChild,
		"crash":        func([]string) int { panic("a bug of the compiler") },
		"none":         func([]string) int { return 0 },
		"load":         loadChild,
		"orphan":       orphanChild,
		"noexec":       noexecChild,
		"unexecutable": unexecutableChild,
	}
}

func childCommand(name string) []string { return []string{"wasm.test", name} }

// childrenWork reports whether the limits of child processes work.
const childrenWork = runtime.GOOS == "linux" && !testenv.Race

// requireChildren skips a test of child processes where their limits do not work.
func requireChildren(t testing.TB) {
	t.Helper()
	if !childrenWork {
		t.Skip("compiling in a child process needs Linux, and no race detector")
	}
}

// requireConfinement skips a test in a build in which processes cannot give up all their rights. CI has another one.
func requireConfinement(t *testing.T) {
	t.Helper()
	requireChildren(t)
	layers, err := CheckConfinement(t.Context(), childCommand("compile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		if strings.Contains(l.Err, "CGO_ENABLED=0") {
			testenv.Require(t, fmt.Errorf("%s: %s", l.Name, l.Err))
		}
	}
}

func TestCompileInAChildProcess(t *testing.T) {
	requireChildren(t)
	dir := filepath.Join(t.TempDir(), "cache")
	module := goodWAT(t)
	p := load(t, newHost(t, Options{CacheDir: dir, Compiler: childCommand("compile")}), module, "")
	checkGood(t, p, sampleNow)
	if p.Report().FromCache {
		t.Error("from the cache")
	}
	// A child would fail.
	p = load(t, newHost(t, Options{CacheDir: dir, Compiler: childCommand("crash")}), module, "")
	checkGood(t, p, sampleNow)
	if !p.Report().FromCache {
		t.Error("compiled twice")
	}
}

// hangs are what children do instead of compiling a module that exports the name.
func hangs() map[string]func() {
	return map[string]func(){
		"sleeps": func() {},
		"stops":  func() { _ = unix.Kill(os.Getpid(), unix.SIGSTOP) },
		"computes": func() {
			for {
				_ = sha256.Sum256(nil)
			}
		},
	}
}

func hangingChild(args []string) int {
	module, err := io.ReadAll(os.Stdin)
	if err != nil {
		return exitStorage
	}
	for name, hang := range hangs() {
		if bytes.Contains(module, []byte(name)) {
			go hang()
			time.Sleep(time.Hour) // nothing happens
		}
	}
	return CompileMain(args, bytes.NewReader(module), os.Stderr)
}

// TestModuleThatHangsInTheCompilerDelaysOthersForAMoment: they take its turn, and it has another one when they have had theirs.
func TestModuleThatHangsInTheCompilerDelaysOthersForAMoment(t *testing.T) {
	requireChildren(t)
	for name := range hangs() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, Options{CacheDir: noCache, Compiler: childCommand("hanging")})
			h.compiler.turns.Least = 100 * time.Millisecond
			module := slow{"", fmt.Sprintf(`(func (export %q))`, name), "(local.get 2)"}.module(t)
			ctx, cancel := context.WithCancel(t.Context())
			hung := make(chan error, 1)
			go func() {
				_, err := h.Load(ctx, "hangs", module, nil)
				hung <- err
			}()
			for lost := range 2 {
				testenv.Eventually(t, "the child", func() bool { return h.compiler.turns.Lost() >= lost })
				checkGood(t, load(t, h, goodWAT(t), ""), sampleNow)
			}
			cancel()
			if err := <-hung; !errors.Is(err, context.Canceled) {
				t.Errorf("the module that hangs: %v", err)
			}
		})
	}
}

// forgingChild compiles, and writes what sluice has written for the entry.
func forgingChild(args []string) int {
	code := CompileMain(args, os.Stdin, os.Stderr)
	for _, name := range []string{infoName, outlineName, memoryName, manifestName} {
		if err := os.WriteFile(filepath.Join(args[0], name), []byte(`{"Types": null, "TableMax": -1000000000000}`), 0o600); err != nil {
			return exitUsage
		}
	}
	return code
}

// TestCompilerWritesTheCodeOnly: what the meter has found out is none of what a module that has taken over its compiler can
// change.
func TestCompilerWritesTheCodeOnly(t *testing.T) {
	requireChildren(t)
	dir := filepath.Join(t.TempDir(), "cache")
	module := goodWAT(t)
	for _, cached := range []bool{false, true} {
		p := load(t, newHost(t, Options{CacheDir: dir, Compiler: childCommand("forging")}), module, "")
		checkGood(t, p, sampleNow)
		if r := p.Report(); r.Module.TableMax < 0 || r.FromCache != cached {
			t.Errorf("%+v", r)
		}
	}
}

// fillingChild makes many files, or large ones, and waits.
func fillingChild(args []string) int {
	module, err := io.ReadAll(os.Stdin)
	if err != nil {
		return exitStorage
	}
	many, size := 200, int64(0)
	if !bytes.Contains(module, []byte("many")) {
		many, size = 4, maxCode
	}
	if _, err := confineSelf(args[0], 10, 256<<20); err != nil {
		return exitUsage
	}
	for n := range many {
		f, err := os.Create(filepath.Join(args[0], fmt.Sprint("file-", n)))
		if err == nil {
			err = errors.Join(f.Truncate(size), f.Close())
		}
		if err != nil {
			return exitStorage
		}
	}
	time.Sleep(time.Hour) // nothing happens
	return 0
}

// TestCompilerDoesNotFillTheDisk with files, of which the kernel limits each.
func TestCompilerDoesNotFillTheDisk(t *testing.T) {
	requireChildren(t)
	for _, name := range []string{"many", "large"} {
		dir := filepath.Join(t.TempDir(), "cache")
		h := newHost(t, Options{CacheDir: dir, Compiler: childCommand("filling")})
		_, err := h.Load(t.Context(), "test", slow{"", fmt.Sprintf(`(func (export %q))`, name), "(local.get 2)"}.module(t), nil)
		if err == nil || err.Error() != "module refused: compile: more than the limit of 32 files and 272 MiB for the code" {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: left: %v", name, left)
		}
	}
}

// threadsChild makes threads.
func threadsChild(args []string) int {
	const many = 100
	if _, err := confineSelf(args[0], 10, 256<<20); err != nil {
		return exitUsage
	}
	var all sync.WaitGroup
	all.Add(many)
	for range many {
		go func() {
			runtime.LockOSThread()
			all.Done()
			select {}
		}()
	}
	all.Wait()
	fmt.Fprintf(os.Stderr, "%d threads", many)
	return exitRefused
}

// TestCompilerMakesNoThreads: a node, a container and sluice share their number, and Go's runtime ends the program that gets
// none.
func TestCompilerMakesNoThreads(t *testing.T) {
	requireConfinement(t)
	_, err := newHost(t, Options{CacheDir: noCache, Compiler: childCommand("threads")}).Load(t.Context(), "test", goodWAT(t), nil)
	if err == nil || strings.Contains(err.Error(), "100 threads") {
		t.Error(err)
	}
}

// TestCompileWithoutCacheFolder: the code passes through a temporary folder that does not remain.
func TestCompileWithoutCacheFolder(t *testing.T) {
	requireChildren(t)
	for _, tmp := range []string{t.TempDir(), "/nonexistent"} { // without the latter: /dev/shm
		t.Setenv("TMPDIR", tmp)
		checkGood(t, load(t, newHost(t, Options{CacheDir: noCache, Compiler: childCommand("compile")}), goodWAT(t), ""), sampleNow)
		for _, dir := range []string{tmp, "/dev/shm"} {
			if left, _ := filepath.Glob(filepath.Join(dir, tempPrefix+"*")); len(left) > 0 && dir == tmp {
				t.Errorf("left: %v", left)
			}
		}
	}
}

// TestProcessThatDoesNotBeginIsNotWaitedFor, by whoever does not want its plugin any more.
func TestProcessThatDoesNotBeginIsNotWaitedFor(t *testing.T) {
	requireChildren(t)
	ctx, cancel := context.WithCancel(t.Context())
	h := newHost(t, Options{Process: childCommand("mute")})
	module, others := goodWAT(t), testenv.Children(t)
	started := func() []int {
		return slices.DeleteFunc(testenv.Children(t), func(pid int) bool { return slices.Contains(others, pid) })
	}
	opened := make(chan error, 1)
	go func() {
		_, err := h.Open(ctx, "test", module, LoadOptions{})
		opened <- err
	}()
	testenv.Eventually(t, "the process", func() bool { return len(started()) > 0 || len(opened) > 0 })
	cancel()
	if err := <-opened; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if pids := started(); len(pids) > 0 {
		t.Errorf("processes %v are left", pids)
	}
}

// TestChildProcessIsConfined: low priority, no environment, no network, no programs, no files of the parent.
func TestChildProcessIsConfined(t *testing.T) {
	requireConfinement(t)
	t.Setenv("SECRET", "x")
	secret, err := os.Open("compiler_test.go")
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	_, err = newHost(t, Options{CacheDir: noCache, Compiler: childCommand("inspect")}).Load(t.Context(), "test", goodWAT(t), nil)
	want := "env 1, nice 5, privileges 1 0000000000000000, allowed: own, files 0 1 2, cpu 10, data 134217728, oom 1000, cwd /"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v\nwant  %s", err, want)
	}
}

// A process that has a lower priority and lower limits than a compiler gets, and may not raise them, compiles with what it has.
func TestChildProcessRaisesNeitherPriorityNorLimits(t *testing.T) {
	requireConfinement(t)
	_, err := newHost(t, Options{CacheDir: noCache, Compiler: childCommand("limited")}).Load(t.Context(), "test", goodWAT(t), nil)
	want := "nice 10, privileges 1 0000000000000000, allowed: own, files 0 1 2, cpu 7, data 125829120, oom 1000, cwd /"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v\nwant  %s", err, want)
	}
}

// limitedChild is inspectChild without the right to raise what it has.
func limitedChild(args []string) int {
	runtime.LockOSThread() // capabilities are those of a thread
	err := unix.Setpriority(unix.PRIO_PGRP, 0, 10)
	for resource, limit := range map[int]unix.Rlimit{unix.RLIMIT_CPU: {Cur: 7, Max: 8}, unix.RLIMIT_DATA: {Cur: 120 << 20, Max: 120 << 20},
		unix.RLIMIT_FSIZE: {Cur: 1 << 20, Max: 1 << 20}, unix.RLIMIT_NOFILE: {Cur: 20, Max: 20}} {
		err = errors.Join(err, unix.Setrlimit(resource, &limit))
	}
	none := [2]unix.CapUserData{}
	err = errors.Join(err, unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitRefused
	}
	return inspectChild(args)
}

func inspectChild(args []string) int {
	// What the kernel says of this process is read through descriptors, as there are no files later.
	var files []string
	for fd := range 32 {
		// The runtime opens an epoll descriptor and files of its own.
		if path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && !strings.HasPrefix(path, "anon_inode") && (fd < 3 || strings.HasSuffix(path, ".go")) {
			files = append(files, fmt.Sprint(fd))
		}
	}
	cwd, _ := os.Getwd()
	status, _ := os.Open("/proc/self/status")
	limits, _ := os.Open("/proc/self/limits")
	oom, _ := os.Open("/proc/self/oom_score_adj")
	stat, _ := os.Open("/proc/self/stat")
	dir := args[0]
	if _, err := confineSelf(dir, 10, 128<<20); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return exitRefused
	}
	read := func(f *os.File, pattern string) string {
		text, err := io.ReadAll(f)
		if m := regexp.MustCompile(pattern).FindSubmatch(text); m != nil {
			return string(m[1])
		}
		return fmt.Sprint(err)
	}
	text := read(status, `(?s)(.*)`) + read(limits, `(?s)(.*)`)
	field := func(name string) string { return regexp.MustCompile(name + `:?\s+(\w+)`).FindStringSubmatch(text)[1] }
	allowed := ""
	for _, try := range []struct {
		name string
		run  func() error
	}{
		{"own", func() error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "x"), nil, 0o600), os.Remove(filepath.Join(dir, "x")))
		}},
		{"file", func() error { _, err := os.ReadFile("/etc/passwd"); return err }},
		{"folder", func() error { _, err := os.ReadDir("/"); return err }},
		{"parent", func() error { _, err := os.ReadDir(filepath.Dir(dir)); return err }},
		{"proc", func() error { _, err := os.ReadFile("/proc/1/status"); return err }},
		{"socket", func() error { _, err := net.Listen("unix", "@sluice-test"); return err }},
		{"tcp", func() error { _, err := net.Listen("tcp", "127.0.0.1:0"); return err }},
		{"exec", func() error { return unix.Exec("/proc/self/exe", []string{"wasm.test", "none"}, nil) }},
		{"fork", func() error { return exec.Command("/proc/self/exe", "none").Run() }},
		{"kill", func() error { return unix.Kill(os.Getppid(), 0) }},
		{"trace", func() error { return unix.PtraceSeize(os.Getppid()) }},
		{"raise", func() error {
			return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 1024})
		}},
	} {
		if try.run() == nil {
			allowed += " " + try.name
		}
	}
	fmt.Fprintf(os.Stderr, "env %d, nice %s, privileges %s %s, allowed:%s, files %s, cpu %s, data %s, oom %s, cwd %s",
		len(os.Environ()), read(stat, `\) \S+(?: \S+){15} (\S+)`), field("NoNewPrivs"), field("CapPrm"), allowed,
		strings.Join(files, " "), field("Max cpu time"), field("Max data size"), read(oom, `(\d+)`), cwd)
	return exitRefused
}

// TestChildProcessLimits: a module that the limits of package meter do not catch costs a bounded amount of CPU time and
// memory, and other modules load.
func TestChildProcessLimits(t *testing.T) {
	requireChildren(t)
	unlimited := meter.DefaultLimits()
	unlimited.Work, unlimited.FunctionWork = 1<<60, 1<<60
	var slow, large []byte
	for _, b := range bombs() {
		switch b.name {
		case "nested loops/1700":
			slow = abiModule(t, b.module(15_000, 1))
		case "calls with globals":
			large = abiModule(t, b.module(60_000, 1))
		}
	}
	for _, c := range []struct {
		name   string
		module []byte
		limits CompileLimits
		want   string
	}{
		{"CPU time", slow, CompileLimits{CPU: time.Second, Memory: 256 << 20}, "module refused: compile: more than the limit of 1s of CPU time (pluginLimits.compileTime)"},
		{"memory", large, CompileLimits{CPU: 20 * time.Second, Memory: 160 << 20}, "module refused: compile: more than the limit of 160 MiB of memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cache")
			h := newHost(t, Options{CacheDir: dir, Compiler: childCommand("compile"), Memory: 512 << 20, Limits: Limits{Module: unlimited, Compile: c.limits}})
			_, err := h.Load(t.Context(), "test", c.module, nil)
			if err == nil || err.Error() != c.want {
				t.Errorf("%v, want %s", err, c.want)
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("left in the cache: %v", left)
			}
			checkGood(t, load(t, h, goodWAT(t), ""), sampleNow)
		})
	}
	// The limits of package meter do catch them.
	for _, module := range [][]byte{slow, large} {
		if _, err := newHost(t, Options{}).Load(t.Context(), "test", module, nil); err == nil || !strings.Contains(err.Error(), "too expensive to compile") {
			t.Error(err)
		}
	}
}

// abiModule adds the exports of the plugin ABI to a module of bombs: only imports and exports are checked before it is
// compiled.
func abiModule(t *testing.T, module []byte) []byte {
	t.Helper()
	const at = 9 // the export section comes before the element section
	pos := 8
	for module[pos] != at {
		size, n := binary.Uvarint(module[pos+1:])
		pos += 1 + n + int(size)
	}
	exports := []byte{byte(len(bombExports()))}
	for _, e := range bombExports() {
		exports = append(append(append(exports, byte(len(e.name))), e.name...), e.kind, byte(e.index))
	}
	out := append([]byte{}, module[:pos]...)
	out = binary.AppendUvarint(append(out, 7), uint64(len(exports)))
	return append(append(out, exports...), module[pos:]...)
}

func TestChildProcessThatFails(t *testing.T) {
	requireChildren(t)
	for _, c := range []struct{ command, want string }{
		{"crash", `module refused: compile: the compiler failed \(exit status 2\): "panic: a bug of the compiler"`},
		{"none", `module refused: compile: the code is missing`},
	} {
		_, err := newHost(t, Options{CacheDir: noCache, Compiler: childCommand(c.command)}).Load(t.Context(), "test", goodWAT(t), nil)
		if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
			t.Errorf("%s: %v, want %s", c.command, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := newHost(t, Options{CacheDir: noCache, Compiler: childCommand("compile")}).Load(ctx, "test", goodWAT(t), nil)
	if err == nil || strings.Contains(err.Error(), "refused") {
		t.Errorf("the module is blamed for the end of the process: %v", err)
	}
}

// TestCacheOfManyProcesses: each finds no entry or a complete one.
func TestCacheOfManyProcesses(t *testing.T) {
	testenv.RequireProgram(t, "wat2wasm", "wabt")
	dir := t.TempDir()
	cache := filepath.Join(dir, "cache")
	var files []string
	for i := range 3 {
		text := strings.Replace(mustRead(t, "../../../sdk/tck/hosts/guests/base.wat"), ";; EVIL",
			fmt.Sprintf("(func $evil (param i32 i32 i64) (result i64) (i64.const %d))", i), 1)
		files = append(files, filepath.Join(dir, fmt.Sprint(i, ".wasm")))
		if err := os.WriteFile(files[i], wat(t, text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			cmd := exec.Command(os.Args[0], append([]string{"load", cache}, files...)...)
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	if list, err := os.ReadDir(cache); err != nil || len(list) != len(files) {
		t.Errorf("entries: %v, %v", list, err)
	}
}

// loadChild loads files with several hosts at once, and prints what they log.
func loadChild(args []string) int {
	var wg sync.WaitGroup
	var out lockedBuffer
	for range 2 {
		wg.Go(func() {
			h, err := New(context.Background(), Options{CacheDir: args[0], Log: textLog(&out)})
			if err != nil {
				fmt.Fprintln(&out, err)
				return
			}
			defer h.Close(context.Background())
			for _, file := range args[1:] {
				module, err := os.ReadFile(file)
				if err == nil {
					_, err = h.Load(context.Background(), file, module, nil)
				}
				if err != nil {
					fmt.Fprintln(&out, err)
				}
			}
		})
	}
	wg.Wait()
	_, _ = io.Copy(os.Stdout, &out.Buffer)
	return 0
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// TestCacheDeletesWhatProcessesLeft: folders of processes that were killed, but none in use.
func TestCacheDeletesWhatProcessesLeft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	h := newHost(t, Options{CacheDir: dir})
	used, err := h.cache.newEntry(dir)
	if err != nil {
		t.Fatal(err)
	}
	left, err := h.cache.newEntry(dir)
	if err != nil {
		t.Fatal(err)
	}
	left.close()
	load(t, h, goodWAT(t), "")
	if _, err := os.Stat(left.dir); err == nil {
		t.Error("it is still there")
	}
	if _, err := os.Stat(used.dir); err != nil {
		t.Error(err)
	}
}

// orphanChild starts a process that keeps standard error open after this one is killed, and writes its ID into the folder.
func orphanChild(args []string) int {
	cmd := exec.Command("/bin/sleep", "600")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return 1
	}
	temp := filepath.Join(args[0], "temp")
	if os.WriteFile(temp, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600) != nil || os.Rename(temp, filepath.Join(args[0], "pid")) != nil {
		return 1
	}
	time.Sleep(time.Hour) // nothing happens
	return 0
}

// compileInOrphan starts a compilation whose child is orphanChild, and waits for it. end ends the context of the compilation.
func compileInOrphan(t *testing.T) (end func(), ended <-chan error) {
	t.Helper()
	requireChildren(t)
	ctx, cancel := context.WithCancel(t.Context())
	dir, result := t.TempDir(), make(chan error, 1)
	go func() {
		c := newCompiler(childCommand("orphan"), DefaultCompileLimits(), 1)
		result <- c.compile(ctx, &turns.Turn{}, c.limits.timeout(), dir, nil)
	}()
	var id []byte
	testenv.Eventually(t, "the child starts", func() bool { id, _ = os.ReadFile(filepath.Join(dir, "pid")); return id != nil })
	pid, err := strconv.Atoi(string(id))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
	return cancel, result
}

// TestCompilingKeepsThePriorityOfThreads: the Go runtime waits for all threads when it stops the world.
func TestCompilingKeepsThePriorityOfThreads(t *testing.T) {
	end, ended := compileInOrphan(t)
	want, err := unix.Getpriority(unix.PRIO_PROCESS, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := unix.Getpriority(unix.PRIO_PROCESS, id); err == nil && got != want {
			t.Errorf("thread %d has nice value %d, the process %d", id, 20-got, 20-want)
		}
	}
	end()
	<-ended
}

// TestEndDoesNotWaitForTheCompiler, which may take long to end after it is killed.
func TestEndDoesNotWaitForTheCompiler(t *testing.T) {
	end, ended := compileInOrphan(t)
	end()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("waits for the child")
	}
}

func TestNothingIsLoadedAfterTheEnd(t *testing.T) {
	h := newHost(t, Options{CacheDir: noCache})
	p := load(t, h, goodWAT(t), "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if other, err := h.Open(ctx, "other", goodWAT(t), LoadOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Open: %v, %v", other, err)
	}
	if _, err := p.Check(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("Check: %v", err)
	}
	if err := p.Start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Start: %v", err)
	}
}

// TestOutputOfAChildIsCut: io.Copy, which package exec uses, finds no other way to write it.
func TestOutputOfAChildIsCut(t *testing.T) {
	b := &headBuffer{limit: 100}
	if n, err := io.Copy(b, strings.NewReader(strings.Repeat("x", 1<<20))); len(b.String()) != 100 || n > 1<<10 || err == nil {
		t.Errorf("%d bytes kept of %d: %v", len(b.String()), n, err)
	}
}

// floodingChild writes to standard error for ever.
func floodingChild([]string) int {
	for {
		_, _ = os.Stderr.WriteString(strings.Repeat(forged, 1000))
	}
}

// TestFloodOfACompilerIsNotRead: reading it would take as much CPU time of sluice as writing it takes of the child.
func TestFloodOfACompilerIsNotRead(t *testing.T) {
	requireChildren(t)
	_, err := newHost(t, Options{CacheDir: noCache, Compiler: childCommand("flooding")}).Load(t.Context(), "test", goodWAT(t), nil)
	if err == nil || !strings.Contains(err.Error(), "broken pipe") || len(err.Error()) > 2*maxErrorText || strings.ContainsFunc(err.Error(), func(c rune) bool { return !unicode.IsPrint(c) }) {
		t.Errorf("%v", err)
	}
}

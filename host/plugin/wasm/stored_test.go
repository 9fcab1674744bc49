package wasm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// TestCodeIsMappedFromItsFile: in the process of a plugin the machine code is that of the file, most of it is not resident, and
// another process starts although the folder is deleted.
func TestCodeIsMappedFromItsFile(t *testing.T) {
	requireChildren(t)
	for _, compiler := range [][]string{nil, childCommand("compile")} {
		dir := filepath.Join(t.TempDir(), "cache")
		p := load(t, newHost(t, Options{CacheDir: dir, Compiler: compiler, Process: childCommand("plugin")}), goGuest(t, "testdata/goguest"), "")
		if err := decide(p, 80, sampleNow); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{codeName, memoryName} {
			file := onlyFile(t, dir, name)
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			mapped, resident, private := mappingsOf(t, processOf(t, p).cmd.Process.Pid, file)
			if mapped < info.Size() || private > mapped/2 {
				t.Errorf("%s: %d bytes, of which %d are mapped, %d resident and %d changed", name, info.Size(), mapped, resident, private)
			}
			if name == codeName && (info.Size() < 1<<20 || private > 0 || resident > mapped*3/4) {
				t.Errorf("code of %d bytes: %d are resident, %d changed", mapped, resident, private)
			}
			t.Logf("%s: %d KiB, %d resident, %d of its own", name, mapped>>10, resident>>10, private>>10)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			r := processOf(t, p)
			r.kill(nil)
			<-r.ended
			_ = decide(p, 80, sampleNow) // notices
			if err := decide(p, 80, sampleNow); err != nil {
				t.Errorf("after the folder was deleted: %v", err)
			}
		}
	}
}

// TestCodeIsInAnEntryOnce: the image has an entry for each bundled plugin and processor.
func TestCodeIsInAnEntryOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	load(t, newHost(t, Options{CacheDir: dir}), goGuest(t, "testdata/goguest"), "")
	code := mustRead(t, onlyFile(t, dir, codeName))
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	found, others := 0, 0
	for _, file := range files {
		text := mustRead(t, file)
		found += strings.Count(text, code[len(code)/2:][:4096])
		if filepath.Base(file) != codeName {
			others += len(text)
		}
	}
	if t.Logf("code: %d KiB, the other %d files: %d KiB", len(code)>>10, len(files)-1, others>>10); found != 1 {
		t.Errorf("the code is in the entry %d times", found)
	}
}

// skipLongCompile skips a test that compiles a Go module and not only loads one, which takes a minute with the race detector.
func skipLongCompile(t *testing.T) {
	t.Helper()
	if testenv.Race {
		t.Skip("without the race detector only")
	}
}

// onlyFile returns the path of the only file with a name in the entries of a cache. A * in it matches anything.
func onlyFile(t testing.TB, dir, name string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", name))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s in %s: %v, %v, want one file", name, dir, files, err)
	}
	return files[0]
}

// mappingsOf returns how many bytes of a file a process has mapped, how many of them are resident, and how many are copies of its
// own.
func mappingsOf(t testing.TB, pid int, file string) (mapped, resident, private int64) {
	t.Helper()
	header := regexp.MustCompile(`^[0-9a-f]+-[0-9a-f]+ `)
	in := false
	for line := range strings.Lines(mustRead(t, fmt.Sprintf("/proc/%d/smaps", pid))) {
		if header.MatchString(line) {
			in = strings.HasSuffix(line, " "+file+"\n")
		}
		f := strings.Fields(line)
		if !in || len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "Size:":
			mapped += n << 10
		case "Rss:":
			resident += n << 10
		case "Anonymous:":
			private += n << 10
		}
	}
	return mapped, resident, private
}

// TestCodeIsReadWhereFilesCannotBeExecuted: in a file system that is mounted with noexec.
func TestCodeIsReadWhereFilesCannotBeExecuted(t *testing.T) {
	dir := t.TempDir()
	module := filepath.Join(dir, "module.wasm")
	if err := os.WriteFile(module, goodWAT(t), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "noexec", module, filepath.Join(dir, "mounted"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
		testenv.Require(t, fmt.Errorf("user namespaces: %w", err))
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// noexecChild loads a module with a cache where files cannot be executed, from there when it is filled.
func noexecChild(args []string) int {
	err := func() error {
		dir := args[1]
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := unix.Mount("none", dir, "tmpfs", unix.MS_NOEXEC, "mode=0700"); err != nil {
			return err
		}
		module, err := os.ReadFile(args[0])
		if err != nil {
			return err
		}
		ctx := context.Background()
		h, err := New(ctx, Options{CacheDir: dir, Limits: OfflineLimits(), Process: childCommand("plugin")})
		if err != nil {
			return err
		}
		for _, cached := range []bool{false, true} {
			p, err := h.Load(ctx, "test", module, nil)
			if err != nil {
				return err
			}
			maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.code.engine.(*process).current.cmd.Process.Pid))
			if mapped := bytes.Contains(maps, []byte("/"+codeName+"\n")); err != nil || mapped || p.Report().FromCache != cached {
				return fmt.Errorf("from the cache: %v; mapped: %v, %w", p.Report().FromCache, mapped, err)
			}
			if err := errors.Join(decide(p, 80, sampleNow), p.Close()); err != nil {
				return err
			}
		}
		return h.Close(ctx)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// TestCodeForAnotherProcessorIsCompiledAgain: the engine's key depends on the processor.
func TestCodeForAnotherProcessorIsCompiledAgain(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := filepath.Join(t.TempDir(), "cache")
	load(t, newHost(t, Options{CacheDir: dir}), goodWAT(t), "")
	file := onlyFile(t, dir, enginePrefix+"*")
	if err := os.Rename(file, filepath.Join(filepath.Dir(file), enginePrefix+strings.Repeat("0", 64))); err != nil {
		t.Fatal(err)
	}
	if err := (&cacheEntry{dir: filepath.Dir(file), check: safefile.CheckPrivate}).writeManifest(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p := load(t, newHost(t, Options{CacheDir: dir, Log: textLog(&log)}), goodWAT(t), "")
	if p.Report().FromCache || !strings.Contains(log.String(), "another processor") {
		t.Errorf("from the cache: %v; log: %s", p.Report().FromCache, log.String())
	}
	if again := onlyFile(t, dir, enginePrefix+"*"); again != file {
		t.Errorf("%s instead of %s", again, file)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

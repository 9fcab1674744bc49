package wasm

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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
)

// TestCodeIsMappedFromItsFile: the machine code is not copied, most of it is not resident, and it stays when the folder is deleted.
func TestCodeIsMappedFromItsFile(t *testing.T) {
	skipLongCompile(t)
	dir := filepath.Join(t.TempDir(), "cache")
	p := load(t, newHost(t, Options{CacheDir: dir}), goGuest(t, "testdata/goguest"), "")
	if err := decide(p, 80, sampleNow); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{codeName, memoryName} {
		file := onlyFile(t, dir, name)
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		mapped, resident, private := mappingsOf(t, file)
		if mapped < info.Size() || private > mapped/2 {
			t.Errorf("%s: %d bytes, of which %d are mapped, %d resident and %d changed", name, info.Size(), mapped, resident, private)
		}
		if name == codeName && (private > 0 || resident > mapped*3/4) {
			t.Errorf("code of %d bytes: %d are resident, %d changed", mapped, resident, private)
		}
		t.Logf("%s: %d KiB, %d resident, %d of its own", name, mapped>>10, resident>>10, private>>10)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p.dropAll() // so that another instance is made
		if err := decide(p, 80, sampleNow); err != nil {
			t.Errorf("after the folder was deleted: %v", err)
		}
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

// mappingsOf returns how many bytes of a file this process has mapped, how many of them are resident, and how many are copies of its own.
func mappingsOf(t testing.TB, file string) (mapped, resident, private int64) {
	t.Helper()
	header := regexp.MustCompile(`^[0-9a-f]+-[0-9a-f]+ `)
	in := false
	for line := range strings.Lines(mustRead(t, "/proc/self/smaps")) {
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
		h, err := New(ctx, Options{CacheDir: dir, Limits: OfflineLimits()})
		if err != nil {
			return err
		}
		for _, cached := range []bool{false, true} {
			p, err := h.Load(ctx, "test", module, nil)
			if err != nil {
				return err
			}
			if p.Report().FromCache != cached || p.code.engine.(*local).stored.target != nil {
				return fmt.Errorf("from the cache: %v; mapped: %v", p.Report().FromCache, p.code.engine.(*local).stored.target != nil)
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

// TestCodeForAnotherProcessorIsCompiledAgain: the engine's key of the frame depends on the processor.
func TestCodeForAnotherProcessorIsCompiledAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	load(t, newHost(t, Options{CacheDir: dir}), goodWAT(t), "")
	frame := onlyFile(t, dir, framePrefix+"-*")
	if err := os.Rename(frame, filepath.Join(filepath.Dir(frame), framePrefix+"-"+strings.Repeat("0", 64))); err != nil {
		t.Fatal(err)
	}
	if err := (&cacheEntry{dir: filepath.Dir(frame), check: checkPrivate}).writeManifest(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p := load(t, newHost(t, Options{CacheDir: dir, Log: textLog(&log)}), goodWAT(t), "")
	if p.Report().FromCache || !strings.Contains(log.String(), "another processor") {
		t.Errorf("from the cache: %v; log: %s", p.Report().FromCache, log.String())
	}
	if again := onlyFile(t, dir, framePrefix+"-*"); again != frame {
		t.Errorf("%s instead of %s", again, frame)
	}
}

// engineFile returns what the engine writes: a header for some functions, code, and what follows it.
func engineFile(functions uint32, code, tail string) []byte {
	b := append([]byte(engineHeader), 2, 'v', '1')
	b = binary.LittleEndian.AppendUint32(b, functions)
	b = append(b, make([]byte, 8*min(functions, 100))...)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(code)))
	return append(append(b, code...), tail...)
}

// FuzzEngineFile: a file of the engine is split into frame and code, from which it can be put together again, or it is refused.
func FuzzEngineFile(f *testing.F) {
	f.Add(engineFile(3, "code", "sum.tail"))
	f.Add(engineFile(0, "", ""))
	f.Add(engineFile(1<<31, "code", ""))
	f.Add(engineFile(1, "code", "")[:20])
	f.Add([]byte("WAZEVO"))
	f.Fuzz(func(t *testing.T, file []byte) {
		from, to := filepath.Join(t.TempDir(), "engine"), filepath.Join(t.TempDir(), codeName)
		if err := os.WriteFile(from, file, 0o600); err != nil {
			t.Fatal(err)
		}
		frame, err := splitCode(from, to)
		if err != nil {
			return
		}
		head, size, err := readHead(bytes.NewReader(frame))
		if err != nil {
			t.Fatalf("the frame cannot be read: %v", err)
		}
		code, err := os.ReadFile(to)
		if err != nil || int64(len(code)) != size {
			t.Fatalf("%d bytes of code, want %d: %v", len(code), size, err)
		}
		if again := append(append(bytes.Clone(head), code...), frame[len(head):]...); !bytes.Equal(again, file) {
			t.Errorf("%q becomes %q", file, again)
		}
		dir := filepath.Dir(to)
		for name, content := range map[string][]byte{framePrefix: frame, outlineName: nil, infoName: nil} {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if files, err := openEntry(dir); err != nil {
			t.Fatal(err)
		} else {
			defer files.close()
			s := &storedCode{files: files}
			content, ok, err := s.Get([32]byte{})
			if !ok {
				return // too short for a checksum
			}
			if err != nil {
				t.Fatal(err)
			}
			defer content.Close()
			got := make([]byte, len(head))
			if _, err := io.ReadFull(content, got); err != nil || !bytes.Equal(got, head) {
				t.Errorf("the engine reads %q, %v, want %q", got, err, head)
			}
		}
	})
}

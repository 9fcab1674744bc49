package mapping

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// executable returns n bytes in executable memory, on pages after others.
func executable(t *testing.T, n int) []byte {
	t.Helper()
	page := os.Getpagesize()
	memory, err := unix.Mmap(-1, 0, page+(n+page-1)&^(page-1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	code, random := memory[page:][:n], rand.New(rand.NewPCG(1, uint64(n)))
	for i := range code {
		code[i] = byte(1 + random.IntN(255))
	}
	if err := unix.Mprotect(memory, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		t.Skip(err)
	}
	return code
}

func TestFileTakesThePlaceOfTheSameCode(t *testing.T) {
	maps, err := OpenMaps()
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	for _, n := range []int{4096, 3*4096 + 100} {
		code := executable(t, n)
		whole := n &^ 4095
		before := bytes.Clone(code)
		engine, saved, rest := filepath.Join(t.TempDir(), "engine"), filepath.Join(t.TempDir(), "code"), filepath.Join(t.TempDir(), "rest")
		if err := os.WriteFile(engine, bytes.Join([][]byte{[]byte("header"), code, []byte("trailer")}, nil), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := maps.Split(engine, saved, rest); err != nil {
			t.Fatal(err)
		}
		for file, want := range map[string][]byte{engine: []byte("header"), saved: before[:whole], rest: append(bytes.Clone(before[whole:]), "trailer"...)} {
			if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s: %d bytes, want %d: %v", filepath.Base(file), len(got), len(want), err)
			}
		}
		f, err := os.Open(saved)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		at, err := maps.Replace(f)
		if err != nil || len(at) != whole || &at[0] != &code[0] || !bytes.Equal(code, before) {
			t.Fatalf("%d bytes, want the %d of the code: %v", len(at), whole, err)
		}
		if list, _ := os.ReadFile("/proc/self/maps"); !strings.Contains(string(list), " "+saved+"\n") {
			t.Errorf("%s is not mapped:\n%s", saved, list)
		}
		if Forget(at); !bytes.Equal(code, before) {
			t.Error("the code has changed")
		}
	}
}

func TestOtherCodeIsLeftAlone(t *testing.T) {
	maps, err := OpenMaps()
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	code := executable(t, 8192)
	other := bytes.Clone(code)
	other[8191]++
	file := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(file, other, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if at, err := maps.Replace(f); at != nil || err != nil {
		t.Errorf("%d bytes, %v", len(at), err)
	}
	nothing := filepath.Join(t.TempDir(), "nothing")
	if err := os.WriteFile(file, []byte("of an engine that compiles to something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := maps.Split(file, nothing, nothing); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(nothing); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// TestCodeThatSomebodyUnmapsIsNoneOfOurs: the list may be old.
func TestCodeThatSomebodyUnmapsIsNoneOfOurs(t *testing.T) {
	memory, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	if from, to := within([]byte("content"), memory); from != to {
		t.Errorf("%d to %d", from, to)
	}
}

// TestCodeIsFoundWhileOthersUnmapTheirs: the kernel lists neighboring memory as one.
func TestCodeIsFoundWhileOthersUnmapTheirs(t *testing.T) {
	maps, err := OpenMaps()
	if err != nil {
		t.Fatal(err)
	}
	defer maps.Close()
	const others = 1 << 20
	memory := executable(t, others+64<<10)
	code := memory[others:]
	stop, done := make(chan bool), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			err := errors.Join(unix.Mprotect(memory[:others], unix.PROT_NONE), unix.Mprotect(memory[:others], unix.PROT_READ|unix.PROT_EXEC))
			if err != nil {
				done <- err
				return
			}
		}
	}()
	for i := range 200 {
		dir := t.TempDir()
		file, saved := filepath.Join(dir, "engine"), filepath.Join(dir, "code")
		if err := os.WriteFile(file, bytes.Clone(code), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := maps.Split(file, saved, filepath.Join(dir, "rest")); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(saved); err != nil || !bytes.Equal(got, code) {
			t.Errorf("%d: %d bytes: %v", i, len(got), err)
			break
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFillIsACopy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "memory")
	if err := os.WriteFile(file, []byte("image"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	memory, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	if err := Fill(memory, f, 5); err != nil || string(memory[:6]) != "image\x00" {
		t.Fatalf("%q, %v", memory[:6], err)
	}
	memory[0] = 'I'
	if text, err := os.ReadFile(file); err != nil || string(text) != "image" {
		t.Errorf("%q, %v", text, err)
	}
	if Fill(memory[:4], f, 5) == nil {
		t.Error("more than the memory")
	}
}

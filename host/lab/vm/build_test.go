package vm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestBuildUsesCachedKernel(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("PATH", "") // nothing could be built
	if _, err := Build(t.Context(), "6.12", false, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "apt-get install") || !strings.Contains(err.Error(), "binutils") {
		t.Errorf("an empty cache: %v", err)
	}
	at := time.Unix(1_700_000_000, 0)
	for i, version := range []string{"6.12.1-1", "6.12.10-1", "6.12.9-1"} {
		dir := filepath.Join(cache, "sluice", "vm", keyOf("6.12", version))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "linux")
		if err := os.WriteFile(file, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at.Add(time.Duration(i%2)*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Build(t.Context(), "6.12", false, &bytes.Buffer{})
	if want := filepath.Join(cache, "sluice", "vm", keyOf("6.12", "6.12.10-1"), "linux"); err != nil || got != want {
		t.Errorf("got %s, %v, want the newest, %s", got, err, want)
	}
	if got, err := Cached("6.1"); got != "" || err != nil {
		t.Errorf("6.1 is %q, %v: that is another series", got, err)
	}
}

func TestBuildLockIsExclusive(t *testing.T) {
	var out bytes.Buffer
	b := &builder{out: &out}
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := b.lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	impatient, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := b.lock(impatient, path); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(out.String(), "another process") {
		t.Errorf("%v, %q", err, out.String())
	}
	unlock()
	again, err := b.lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestOnlyTheNewestKernelIsANodes(t *testing.T) {
	if older, newest := options("6.1"), options("6.12"); slices.Contains(older, "CONFIG_OVERLAY_FS=y") || !slices.Contains(newest, "CONFIG_OVERLAY_FS=y") {
		t.Errorf("6.1: %v\n6.12: %v", older, newest)
	}
}

func TestRejectedOptionIsAnError(t *testing.T) {
	all := options("6.12")
	if !slices.Contains(all, "CONFIG_IP_VS=y") || slices.ContainsFunc(all, func(o string) bool { return !strings.HasPrefix(o, "CONFIG_") }) {
		t.Fatalf("options: %v", all)
	}
	if err := checkOptions("6.12", []byte("# more\n"+strings.Join(all, "\n")+"\nCONFIG_MORE=y\n")); err != nil {
		t.Error(err)
	}
	without := slices.DeleteFunc(slices.Clone(all), func(o string) bool { return o == "CONFIG_IP_VS=y" })
	if err := checkOptions("6.12", []byte(strings.Join(without, "\n"))); err == nil || !strings.HasSuffix(err.Error(), "dropped CONFIG_IP_VS=y") {
		t.Errorf("%v", err)
	}
}

func TestFailedStepReportsItsOutput(t *testing.T) {
	var out bytes.Buffer
	b := &builder{out: &out, dir: t.TempDir()}
	err := b.run(t.Context(), "sh", "-c", "echo reason; exit 3")
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "reason") || !strings.Contains(out.String(), "vm: sh -c") {
		t.Errorf("%v, %q", err, out.String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := b.run(ctx, "sh", "-c", "sleep 100 & sleep 100"); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > 20*time.Second {
		t.Errorf("%v after %s", err, time.Since(begin))
	}
}

func TestSourceThatThePatchesDoNotKnowIsAnError(t *testing.T) {
	for _, series := range Series() {
		for _, c := range patches(series) {
			for found, want := range map[string]string{c.old: c.new, "x": "", c.old + c.old: ""} {
				dir := t.TempDir()
				at := filepath.Join(dir, c.file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(found), 0o644)); err != nil {
					t.Fatal(err)
				}
				err := patch(dir, []change{c})
				if want == "" {
					if err == nil || !strings.Contains(err.Error(), c.file) {
						t.Errorf("%s, %s with %q: %v", series, c.file, found, err)
					}
					continue
				}
				if got, readErr := os.ReadFile(at); err != nil || readErr != nil || string(got) != want {
					t.Errorf("%s, %s: %q, %v, %v", series, c.file, got, err, readErr)
				}
			}
		}
	}
}

// TestModulesAreLoadedAfterThoseThatTheyNeed looks at the modules of the arm64 kernel, if it has been unpacked.
func TestModulesAreLoadedAfterThoseThatTheyNeed(t *testing.T) {
	eachOf(t, []string{Arm64}, func(t *testing.T, kernel string) {
		dir := filepath.Join(filepath.Dir(kernel), modulesDir)
		all, err := filepath.Glob(filepath.Join(dir, "*.ko"))
		if err != nil || len(all) == 0 {
			t.Fatalf("%v, %v", all, err)
		}
		// In a folder of their own, without the numbers, so that their order is lost.
		work := t.TempDir()
		var names []string
		for _, file := range all {
			_, name, _ := strings.Cut(filepath.Base(file), "-")
			names = append(names, moduleName(name))
			if err := os.Symlink(file, filepath.Join(work, name)); err != nil {
				t.Fatal(err)
			}
		}
		slices.Reverse(names)
		order, err := inOrder(work, names)
		if err != nil || len(order) != len(all) {
			t.Fatalf("%d of %d: %v", len(order), len(all), err)
		}
		seen := map[string]bool{}
		for _, file := range order {
			needs, err := dependencies(file)
			for _, name := range needs {
				if !seen[moduleName(name)] {
					t.Errorf("%s is before %s, which it needs", file, name)
				}
			}
			if err != nil {
				t.Error(err)
			}
			seen[moduleName(file)] = true
		}
		if _, err := inOrder(work, []string{"nosuch"}); err == nil || !strings.Contains(err.Error(), "no module nosuch") {
			t.Errorf("a module that there is not: %v", err)
		}
	})
}

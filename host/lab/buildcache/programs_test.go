package buildcache

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func sample() Programs {
	return Programs{
		Kind:    "lab/programs",
		Source:  "host/lab/some",
		Modules: []string{"etcd", "kubernetes"},
		Version: "v1.36.3",
		List: map[string]Program{
			"etcd":     {Module: "etcd", Package: "go.etcd.io/etcd/server/v3"},
			"kubectl":  {Module: "kubernetes", Package: "k8s.io/kubernetes/cmd/kubectl"},
			"e2e.test": {Module: "kubernetes", Package: "./e2e", Test: true},
		},
		Command: func(missing []string) string { return "`build " + strings.Join(missing, " ") + "`" },
	}
}

// tree is a work tree whose modules build in no time, with a cache of its own; the Go build cache stays the user's.
func tree(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOCACHE", strings.TrimSpace(string(out)))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	const hello = "package main\n\nfunc main() { println(\"hello\") }\n"
	for name, text := range map[string]string{
		"kubernetes/go.mod":              "module k8s.io/kubernetes\n\ngo 1.26\n",
		"kubernetes/go.sum":              "",
		"kubernetes/cmd/kubectl/main.go": hello,
		"kubernetes/e2e/e2e_test.go":     "package e2e\n\nimport \"testing\"\n\nfunc TestE2E(t *testing.T) { t.Log(\"hello\") }\n",
		"etcd/go.mod":                    "module go.etcd.io/etcd/server/v3\n\ngo 1.26\n",
		"etcd/go.sum":                    "",
		"etcd/main.go":                   hello,
	} {
		path := filepath.Join(dir, "host/lab/some", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sub := filepath.Join(dir, "cmd", "sluice")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Chdir(sub) // tests run in the folders of their packages
	return filepath.Join(dir, "host/lab/some")
}

func TestMissingProgramsAreNamedWithTheBuildCommand(t *testing.T) {
	tree(t)
	_, err := sample().Find("etcd", "kubectl")
	var missing *Missing
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), "no etcd, kubectl in ") || !strings.Contains(err.Error(), "run `build etcd kubectl`") {
		t.Errorf("got %v", err)
	}
	t.Chdir(t.TempDir())
	if _, err := sample().Find("etcd"); err == nil || !strings.Contains(err.Error(), "work tree") {
		t.Errorf("outside: %v", err)
	}
}

func TestProgramsAreRebuiltWhenTheirModulesChange(t *testing.T) {
	src := tree(t)
	var log bytes.Buffer
	first, err := sample().Build(t.Context(), &log, "etcd", "kubectl")
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	for _, name := range []string{"etcd", "kubectl"} {
		if out, err := exec.Command(filepath.Join(first, name)).CombinedOutput(); err != nil || string(out) != "hello\n" {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
	log.Reset()
	if again, err := sample().Build(t.Context(), &log, "kubectl", "etcd"); err != nil || again != first || log.Len() > 0 {
		t.Errorf("again: %s, %v, printed %q", again, err, &log)
	}
	if found, err := sample().Find("etcd"); err != nil || found != first {
		t.Errorf("found %s, %v", found, err)
	}
	if err := os.WriteFile(filepath.Join(src, "etcd/go.sum"), []byte("\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := sample().Find("kubectl"); err == nil {
		t.Error("found after a module changed")
	}
	old := time.Now().Add(-2 * unusedTTL)
	if err := os.Chtimes(first, old, old); err != nil {
		t.Fatal(err)
	}
	second, err := sample().Build(t.Context(), &log, "kubectl")
	if err != nil || second == first {
		t.Errorf("rebuilt in %s, %v", second, err)
	}
	if _, err := os.Stat(first); err == nil {
		t.Errorf("%s is still there, and it was not used for two months", first)
	}
}

func TestTestBinariesAreBuilt(t *testing.T) {
	src := tree(t)
	var log bytes.Buffer
	dir, err := sample().Build(t.Context(), &log, "e2e.test")
	if err != nil {
		t.Fatalf("%v\n%s", err, &log)
	}
	if out, err := exec.Command(filepath.Join(dir, "e2e.test"), "-test.v").CombinedOutput(); err != nil || !strings.Contains(string(out), "hello") {
		t.Errorf("%s, %v", out, err)
	}
	if err := os.WriteFile(filepath.Join(src, "kubernetes/e2e/more_test.go"), []byte("package e2e\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := sample().Find("e2e.test"); err == nil {
		t.Error("found after a file of its module was added")
	}
}

func TestFailedBuildLeavesNoProgram(t *testing.T) {
	src := tree(t)
	if err := os.WriteFile(filepath.Join(src, "etcd/main.go"), []byte("package main\n\nfunc main() { no }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	if _, err := sample().Build(t.Context(), &log, "etcd"); err == nil || !strings.Contains(err.Error(), "build etcd") || !strings.Contains(log.String(), "undefined: no") {
		t.Errorf("%v\n%s", err, &log)
	}
	if _, err := sample().Find("etcd"); err == nil {
		t.Error("it is found")
	}
	if _, err := sample().Build(t.Context(), &log, "kubelet"); err == nil || !strings.Contains(err.Error(), "kubelet: no such program") {
		t.Errorf("kubelet: %v", err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func TestConcurrentBuildsAreSerialized(t *testing.T) {
	tree(t)
	dir, err := sample().Dir()
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := Open(t.Context(), &bytes.Buffer{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var log bytes.Buffer
	progress := writer(func(p []byte) (int, error) { cancel(); return log.Write(p) }) // cancel as soon as the build reports that it waits
	if _, err := sample().Build(ctx, progress, "etcd"); !errors.Is(err, context.Canceled) || !strings.Contains(log.String(), "waiting for another build") {
		t.Errorf("while another builds: %v, printed %q", err, &log)
	}
	unlock()
	var all sync.WaitGroup
	var logs [2]bytes.Buffer
	for i := range logs {
		all.Go(func() {
			if _, err := sample().Build(t.Context(), &logs[i], "etcd"); err != nil {
				t.Errorf("%v\n%s", err, &logs[i])
			}
		})
	}
	all.Wait()
	if n := strings.Count(logs[0].String()+logs[1].String(), "building etcd"); n != 1 {
		t.Errorf("built %d times", n)
	}
}

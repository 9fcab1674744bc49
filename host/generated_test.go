package host_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// TestGeneratedFilesAreCurrent generates in a copy of the package, as `make generate` does, and compares.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	root, err := filepath.Abs("..")
	must(t, err)
	command := exec.Command("make", "--no-print-directory", "-n", "generate")
	command.Dir = root
	printed, err := command.Output()
	must(t, err)
	args := strings.Fields(string(printed)) // go run controller-gen@version …
	if len(args) < 3 || args[0] != "go" || args[1] != "run" || !strings.Contains(args[2], "@v") {
		t.Fatalf("make -n generate: %q", args)
	}
	out := t.TempDir()
	for i, a := range args {
		switch {
		case strings.HasPrefix(a, "output:crd:dir="):
			args[i] = "output:crd:dir=" + out
		case strings.HasPrefix(a, "output:object:dir="):
			args[i] = "output:object:dir=" + out
		}
	}
	command = exec.Command(args[0], args[1:]...)
	command.Dir = root
	if text, err := command.CombinedOutput(); err != nil {
		if strings.Contains(string(text), "dial tcp") {
			testenv.Require(t, err)
		}
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, text)
	}
	files, err := os.ReadDir(out)
	must(t, err)
	if len(files) != 6 {
		t.Fatalf("generated %v, want five CustomResourceDefinitions and the copies", files)
	}
	for _, f := range files {
		dir := filepath.Join(root, "deploy/kustomize/crds")
		if filepath.Ext(f.Name()) == ".go" {
			dir = filepath.Join(root, "host/api/v1alpha1")
		}
		want, err := os.ReadFile(filepath.Join(out, f.Name()))
		must(t, err)
		if got, err := os.ReadFile(filepath.Join(dir, f.Name())); err != nil || string(got) != string(want) {
			t.Errorf("%s is not current (%v): run `make generate`", f.Name(), err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

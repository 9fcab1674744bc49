package programs

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/deploy/image/oci"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func requireDebian(t *testing.T) {
	t.Helper()
	_, err := os.Stat("/etc/debian_version")
	testenv.Require(t, err)
}

func TestWhatIsMissingIsNamedWithTheBuildCommand(t *testing.T) {
	requireDebian(t)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for _, c := range []struct {
		find        func() error
		build, want string
	}{
		{func() error { _, err := Find(); return err }, "`make node-programs`", "etcd kube-proxy kubelet load packages images"},
		{func() error { _, err := FindSuite(); return err }, "/build suite`", "e2e.test agnhost kube-proxy images"},
	} {
		err := c.find()
		var missing *Missing
		if !errors.As(err, &missing) || !strings.Contains(err.Error(), c.build) {
			t.Fatalf("got %v", err)
		}
		for _, want := range strings.Fields(c.want) {
			if !slices.Contains(missing.Names, want) {
				t.Errorf("%s is not named in %q", want, missing.Names)
			}
		}
	}
	if _, err := BuildSuite(t.Context(), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "kubelet") {
		t.Errorf("without the Set: %v", err)
	}
}

func TestInterruptedWorkIsRepeated(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kind", "key")
	var log bytes.Buffer
	fill := func(err error) func(string) error {
		return func(to string) error { return errors.Join(os.WriteFile(filepath.Join(to, "file"), nil, 0o644), err) }
	}
	boom := errors.New("boom")
	if _, err := complete(t.Context(), &log, dir, "root", fill(boom)); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	// What a process that was killed leaves.
	if err := os.MkdirAll(filepath.Join(dir, "root.part", "rest"), 0o755); err != nil {
		t.Fatal(err)
	}
	at, err := complete(t.Context(), &log, dir, "root", fill(nil))
	if err != nil {
		t.Fatal(err)
	}
	if again, err := complete(t.Context(), &log, dir, "root", fill(boom)); err != nil || again != at {
		t.Errorf("again: %s, %v", again, err)
	}
	list, err := os.ReadDir(at)
	if err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// materialize writes the files of an image to a folder.
func materialize(t *testing.T, files []oci.File) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		at := filepath.Join(dir, f.Name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		switch {
		case f.Link != "":
			err = errors.Join(err, os.Symlink(f.Link, at))
		case strings.HasSuffix(f.Name, "/"):
			err = errors.Join(err, os.MkdirAll(at, 0o755))
		default:
			err = errors.Join(err, os.WriteFile(at, f.Body, os.FileMode(f.Mode)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestProgramsRunWithNothingButTheirRoot takes this machine for the root of packages.
func TestProgramsRunWithNothingButTheirRoot(t *testing.T) {
	requireDebian(t)
	testenv.RequireProgram(t, "nft", "nftables")
	testenv.RequireProgram(t, "xtables-nft-multi", "iptables")
	if os.Geteuid() != 0 {
		testenv.Require(t, errors.New("chroot needs root"))
	}
	r := root{}
	for _, dir := range []string{"bin", "lib"} {
		r.link(dir, "usr/"+dir)
	}
	r.link("usr/bin/sh", "dash")
	if err := errors.Join(r.programs("/", "dash", "nft"), r.iptables("/")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", "nft --version && ip6tables-restore --version && iptables -m comment --help")
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: materialize(t, r.files())}
	if out, err := cmd.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "nftables v") || !strings.Contains(string(out), "comment match") {
		t.Errorf("%v: %s", err, out)
	}
	if err := r.programs("/", "no-such-program"); err == nil || !strings.Contains(err.Error(), "no-such-program") {
		t.Errorf("got %v", err)
	}
}

// TestAbsoluteLinksStayInTheRoot: packages have them, and on the machine something else is there.
func TestAbsoluteLinksStayInTheRoot(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "usr/bin"), 0o755), os.WriteFile(filepath.Join(dir, "usr/bin/sh.real"), []byte("x"), 0o755),
		os.Symlink("/usr/bin/sh.real", filepath.Join(dir, "usr/bin/sh")), os.Symlink("sh", filepath.Join(dir, "usr/bin/ash"))); err != nil {
		t.Fatal(err)
	}
	if got, err := debian(dir).find("usr/bin/ash"); err != nil || got != filepath.Join(dir, "usr/bin/sh.real") {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestNetworkPluginsAreNamed(t *testing.T) {
	if _, err := BuildNetwork(t.Context(), &bytes.Buffer{}, "weave"); err == nil || !strings.Contains(err.Error(), "calico, flannel, kube-router") {
		t.Errorf("got %v", err)
	}
}

func TestSettingsThatAManifestDoesNotHaveAreReported(t *testing.T) {
	module, to := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(module, "plugin.yaml"), []byte("a: 1\nb: 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n := network{manifest: "plugin.yaml", settings: []string{"a: 1", "a: 2"}}
	if err := n.writeObjects(module, to); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(to, objectsFile)); err != nil || string(got) != "a: 2\nb: 1\n" {
		t.Errorf("%q, %v", got, err)
	}
	n.settings = append(n.settings, "c: 1", "c: 2")
	if err := n.writeObjects(module, to); err == nil || !strings.Contains(err.Error(), "c: 1") {
		t.Errorf("got %v", err)
	}
}

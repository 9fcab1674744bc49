package dir

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

func TestInitialStateThenSyncedOnce(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "b.yaml"), node("n2", "b")+node("n1", "a"))
	write(t, filepath.Join(root, "a.yaml"), "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n")
	r := start(t, root, timedOptions)
	r.write("c.yaml", node("n3", "c"))
	r.waitForZones("n1=a n2=b n3=c")
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	for _, call := range r.calls {
		for _, c := range call {
			got = append(got, fmt.Sprint(c.Kind, c.Name))
		}
	}
	want := "[1 default/web 3 /n1 3 /n2 0 / 3 /n3]"
	if fmt.Sprint(got) != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestChangedFileEmitsOnlyDifferences(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), node("n1", "a")+node("n2", "a")+node("n3", "a"))
	r := start(t, root, timedOptions)
	r.write("a.yaml", "# a comment\n"+node("n1", "a")+node("n2", "b")+node("n3", "a"))
	r.waitForZones("n1=a n2=b n3=a")
	r.write("a.yaml", node("n1", "a")+node("n3", "a"))
	r.waitForZones("n1=a n3=a")
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, call := range r.calls[1:] {
		if len(call) != 1 || call[0].Name.Name != "n2" {
			t.Errorf("emitted %v, want only n2", call)
		}
	}
}

func TestAtomicRenameReplacesAFile(t *testing.T) {
	r := start(t, t.TempDir(), timedOptions)
	for i := range 10 {
		r.write(".a.tmp", node("n1", fmt.Sprintf("z%d", i)))
		r.must(os.Rename(filepath.Join(r.root, ".a.tmp"), filepath.Join(r.root, "a.yaml")))
		r.waitForZones(fmt.Sprintf("n1=z%d", i))
	}
}

func TestEditorRenamingTheOldFileFirstLosesNothing(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), node("n1", "a"))
	opt, end := pausedOptions(renameGrace)
	r := start(t, root, opt)
	r.must(os.Rename(filepath.Join(root, "a.yaml"), filepath.Join(root, "a.yaml~")))
	time.Sleep(5 * quietPeriod) // nothing happens
	r.write("a.yaml", node("n1", "b"))
	end()
	r.waitForZones("n1=b")
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, call := range r.calls {
		for _, c := range call {
			if c.Kind == model.NodeKind && c.Node == nil {
				t.Error("the Node was deleted temporarily")
			}
		}
	}
}

func TestRemovedFileRemovesItsObjects(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), node("n1", "a"))
	write(t, filepath.Join(root, "b.yaml"), node("n1", "b")+node("n2", "b"))
	r := start(t, root, timedOptions)
	r.waitForZones("n1=a n2=b")
	r.must(os.Remove(filepath.Join(root, "a.yaml")))
	r.waitForZones("n1=b n2=b") // the duplicate takes over
	r.must(os.Rename(filepath.Join(root, "b.yaml"), filepath.Join(root, "b.off")))
	r.waitForZones("")
}

func TestProblemIsLoggedOnceUntilResolved(t *testing.T) {
	r := start(t, t.TempDir(), timedOptions)
	count := func() int { return strings.Count(r.log.String(), "ConfigMap x") }
	other := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
	r.write("a.yaml", other)
	r.waitForLog("ConfigMap x")
	for i := range 3 {
		r.write("b.yaml", node("n1", fmt.Sprint("z", i)))
		r.waitForZones(fmt.Sprint("n1=z", i))
	}
	r.waitFor("one line", func() bool { return count() == 1 })
	r.write("a.yaml", "# nothing\n")
	r.write("b.yaml", node("n1", "later"))
	r.waitForZones("n1=later")
	r.write("a.yaml", other)
	r.waitFor("another line", func() bool { return count() == 2 })
}

func TestNewSubdirectoriesAreRead(t *testing.T) {
	r := start(t, t.TempDir(), timedOptions)
	r.write("x/y/z/a.yaml", node("n1", "a"))
	r.waitForZones("n1=a")
	r.write("x/y/b.yaml", node("n2", "a"))
	r.waitForZones("n1=a n2=a")
	r.must(os.Rename(filepath.Join(r.root, "x"), filepath.Join(r.root, "w")))
	r.waitForZones("n1=a n2=a")
	r.write("w/y/z/a.yaml", node("n1", "b"))
	r.waitForZones("n1=b n2=a")
	r.must(os.RemoveAll(filepath.Join(r.root, "w")))
	r.waitForZones("")
}

func TestMountedConfigMapUpdate(t *testing.T) {
	root := t.TempDir()
	publish := func(version, text string) {
		write(t, filepath.Join(root, version, "a.yaml"), text)
		tmp := filepath.Join(root, "..data_tmp")
		if err := os.Symlink(version, tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(root, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	publish("..1", node("n1", "a"))
	if err := os.Symlink("..data/a.yaml", filepath.Join(root, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	r := start(t, root, timedOptions)
	r.waitForZones("n1=a")
	for i := 2; i < 6; i++ {
		publish(fmt.Sprintf("..%d", i), node("n1", fmt.Sprintf("z%d", i)))
		r.waitForZones(fmt.Sprintf("n1=z%d", i))
		r.must(os.RemoveAll(filepath.Join(root, fmt.Sprintf("..%d", i-1))))
	}
	// A write to the link's target is noticed too.
	r.write("..data/a.yaml", node("n1", "behind"))
	r.waitForZones("n1=behind")
}

func TestRootSymlinkReplacement(t *testing.T) {
	base := t.TempDir()
	write(t, filepath.Join(base, "v1/a.yaml"), node("n1", "a"))
	write(t, filepath.Join(base, "v2/a.yaml"), node("n1", "b"))
	root := filepath.Join(base, "current")
	if err := os.Symlink("v1", root); err != nil {
		t.Fatal(err)
	}
	r := start(t, root, timedOptions)
	r.waitForZones("n1=a")
	r.must(os.Symlink("v2", root+".tmp"))
	r.must(os.Rename(root+".tmp", root))
	r.waitForZones("n1=b")
	r.write("a.yaml", node("n1", "c"))
	r.waitForZones("n1=c")
}

func TestRemovedRootKeepsObjectsUntilItReturns(t *testing.T) {
	root := filepath.Join(t.TempDir(), "manifests")
	write(t, filepath.Join(root, "a.yaml"), node("n1", "a"))
	r := start(t, root, timedOptions)
	r.must(os.Rename(root, root+".away"))
	r.waitForLog("keeping its objects")
	r.waitForZones("n1=a")
	r.write("a.yaml", node("n1", "b"))
	r.waitForZones("n1=b")
}

func TestSymlinkLoopsAndDanglingLinks(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "sub/a.yaml"), node("n1", "a"))
	for link, to := range map[string]string{"sub/loop": "..", "gone.yaml": "nowhere.yaml", "gone": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	r := start(t, root, timedOptions)
	r.waitForZones("n1=a")
	r.waitForLog("gone.yaml")
}

func TestBurstIsCoalesced(t *testing.T) {
	opt, end := pausedOptions(0)
	r := start(t, t.TempDir(), opt)
	for i := range 50 {
		r.write(fmt.Sprintf("f%02d.yaml", i), node(fmt.Sprintf("n%02d", i), "a"))
	}
	end()
	r.waitFor("50 nodes", func() bool { return len(r.snap.Nodes) == 50 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.calls); n > 15 {
		t.Errorf("%d calls for one burst of 50 files", n)
	}
}

func TestChangesArriveWithoutTimer(t *testing.T) {
	r := start(t, t.TempDir(), Options{})
	for i := range 20 {
		r.write("a.yaml", node("n1", fmt.Sprintf("z%d", i)))
	}
	r.waitForZones("n1=z19")
}

func TestRunOfMissingDirectoryFails(t *testing.T) {
	err := New(filepath.Join(t.TempDir(), "nowhere"), Options{}).Run(t.Context(), func([]model.Change) {})
	if err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("got %v", err)
	}
}

func TestEndDoesNotWaitForALargeFile(t *testing.T) {
	root := t.TempDir()
	writeDump(t, filepath.Join(root, "dump.yaml"), 200)
	begin := time.Now()
	if _, _, err := Load(root); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- New(root, Options{}).Run(ctx, func([]model.Change) { t.Error("emitted something") })
	}()
	time.Sleep(took / 10) // time passes: it reads the file
	cancel()
	begin = time.Now()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if waited := time.Since(begin); waited > took/2 {
		t.Errorf("Run ended %s after its context; reading the file takes %s", waited, took)
	}
}

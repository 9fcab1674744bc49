package dir

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func TestInitialStateThenSyncedOnce(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "b.yaml"), node("n2", "b")+node("n1", "a"))
	write(t, filepath.Join(root, "a.yaml"), "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n")
	r := start(t, root, Options{})
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
	r := start(t, root, Options{})
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
	r := start(t, t.TempDir(), Options{})
	for i := range 10 {
		r.write(".a.tmp", node("n1", fmt.Sprintf("z%d", i)))
		r.must(os.Rename(filepath.Join(r.root, ".a.tmp"), filepath.Join(r.root, "a.yaml")))
		r.waitForZones(fmt.Sprintf("n1=z%d", i))
	}
}

// TestFileThatComesBackLosesNothing: editors rename the old file before they write the new one, and a scan may be in between.
func TestFileThatComesBackLosesNothing(t *testing.T) {
	d := &directory{root: t.TempDir()}
	path := filepath.Join(d.root, "a.yaml")
	write(t, path, node("n1", "a"))
	scanOnce(t, d)
	if err := os.Rename(path, path+"~"); err != nil {
		t.Fatal(err)
	}
	if changes, _, again := scanOnce(t, d); len(changes) > 0 || !again {
		t.Errorf("the file is missing for the first time: %v, another scan: %t", changes, again)
	}
	write(t, path, node("n1", "b"))
	if changes, _, again := scanOnce(t, d); len(changes) != 1 || changes[0].Node == nil || again {
		t.Errorf("the file is back: %v, another scan: %t", changes, again)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if changes, _ := scanTwice(t, d); len(changes) != 1 || changes[0].Node != nil {
		t.Errorf("the file is gone: %v", changes)
	}
}

// TestFileThatComesBackInvalidLosesNothing: what an editor puts in the place of the old file may not be valid.
func TestFileThatComesBackInvalidLosesNothing(t *testing.T) {
	d := &directory{root: t.TempDir()}
	path := filepath.Join(d.root, "a.yaml")
	write(t, path, node("n1", "a")+node("n2", "a"))
	scanOnce(t, d)
	if err := os.Rename(path, path+"~"); err != nil {
		t.Fatal(err)
	}
	scanOnce(t, d)
	write(t, path, node("n1", "b")+"kind: [\n")
	for range 2 {
		changes, problems := scanTwice(t, d)
		if len(changes) != 0 || len(problems) != 1 || !strings.Contains(problems[0].Error(), "keeping the objects of its last valid version") {
			t.Errorf("%v, %v", changes, problems)
		}
	}
}

// TestFailedWalkRemovesNothing: the directory disappears when a walk has missed a file for the first time, as with rm -r.
func TestFailedWalkRemovesNothing(t *testing.T) {
	root := filepath.Join(t.TempDir(), "manifests")
	write(t, filepath.Join(root, "a.yaml"), node("n1", "a"))
	write(t, filepath.Join(root, "b.yaml"), node("n2", "a"))
	walks := make(chan time.Time)
	r := start(t, root, Options{After: func(time.Duration) <-chan time.Time { return walks }})
	walk := func() { walks <- time.Time{} }
	r.must(os.Rename(filepath.Join(root, "b.yaml"), filepath.Join(root, "c.json"))) // not valid
	walk()
	r.waitForLog("c.json")
	r.must(os.Rename(root, root+".away"))
	walk()
	r.waitForLog("keeping its objects")
	walk() // when the source takes this, it has handled the walk before
	r.waitForZones("n1=a n2=a")
	r.must(os.Rename(root+".away", root))
	walk()
	walk()
	r.waitForZones("n1=a")
	r.waitForLog("manifest problem resolved")
}

func TestRemovedFileRemovesItsObjects(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), node("n1", "a"))
	write(t, filepath.Join(root, "b.yaml"), node("n1", "b")+node("n2", "b"))
	r := start(t, root, Options{})
	r.waitForZones("n1=a n2=b")
	r.must(os.Remove(filepath.Join(root, "a.yaml")))
	r.waitForZones("n1=b n2=b") // the duplicate takes over
	r.must(os.Rename(filepath.Join(root, "b.yaml"), filepath.Join(root, "b.off")))
	r.waitForZones("")
}

func TestProblemIsLoggedOnceUntilResolved(t *testing.T) {
	r := start(t, t.TempDir(), Options{})
	count := func() int { return strings.Count(r.log.String(), "v1 ConfigMap") }
	other := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
	r.write("a.yaml", other)
	r.waitForLog("v1 ConfigMap")
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
	r := start(t, t.TempDir(), Options{})
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
	r := start(t, root, impatient)
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
	r := start(t, root, impatient)
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
	r := start(t, root, impatient)
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
	r := start(t, root, Options{})
	r.waitForZones("n1=a")
	r.waitForLog("gone.yaml")
}

func TestBurstIsCoalesced(t *testing.T) {
	opt, end := pausedOptions()
	r := start(t, t.TempDir(), opt)
	for i := range 50 {
		r.write(fmt.Sprintf("f%02d.yaml", i), node(fmt.Sprintf("n%02d", i), "a"))
	}
	end()
	r.waitFor("50 nodes", func() bool { return len(r.snap.Nodes) == 50 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.calls); n != 2 {
		t.Errorf("%d calls for the first state and one burst of 50 files", n)
	}
}

func TestRandomChangesArriveInTheEnd(t *testing.T) {
	root := t.TempDir()
	r := start(t, root, Options{})
	rng := rand.New(rand.NewPCG(1, 2))
	want := map[string]string{}
	for i := range 150 {
		name, zone := fmt.Sprint("n", rng.IntN(12)), fmt.Sprint("zone-", i)
		path := filepath.Join(root, name+".yaml")
		switch rng.IntN(4) {
		case 0:
			if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			delete(want, name)
			continue
		case 1: // as editors write
			write(t, path+".new", node(name, zone))
			r.must(os.Rename(path+".new", path))
		default:
			write(t, path, node(name, zone))
		}
		want[name] = zone
		if rng.IntN(5) == 0 {
			time.Sleep(time.Duration(rng.IntN(int(settle)))) // pace of changes
		}
		if i%50 == 49 {
			r.waitFor(fmt.Sprint("changes until ", i), func() bool {
				for _, n := range r.snap.Nodes {
					if want[n.Name] != n.Zone {
						return false
					}
				}
				return len(r.snap.Nodes) == len(want)
			})
		}
	}
}

func TestFirstStateSaysWhatItWaitsFor(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "sub/a.yaml")
	write(t, path, node("n1", "a")+strings.Repeat("# a comment\n", 1<<16))
	d := &directory{root: root}
	stop := writeForever(path)
	defer stop()
	testenv.Eventually(t, "a change while the file is read", func() bool {
		if _, _, err := d.scan(t.Context()); err != nil {
			t.Fatal(err)
		}
		return d.incomplete != nil && d.incomplete.Error() == "sub/a.yaml: "+errWritten.Error()
	})
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

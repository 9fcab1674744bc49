package dir

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// largeText returns a manifest of a Node that is read late, or another one of the same size.
func largeText(name, zone string, size int) string {
	return node(name, zone) + "# " + strings.Repeat("x", size) + "\n"
}

// TestSmallFilesDoNotWaitForLargeOnes changes files of together 16 MiB and a small one at once.
func TestSmallFilesDoNotWaitForLargeOnes(t *testing.T) {
	root := t.TempDir()
	for i := range 16 {
		write(t, filepath.Join(root, fmt.Sprintf("large-%d.yaml", i)), node(fmt.Sprint("large-", i), "a"))
	}
	write(t, filepath.Join(root, "small.yaml"), node("small", "a"))
	opt, end := pausedOptions(0)
	r := start(t, root, opt)
	for i := range 16 {
		r.write(fmt.Sprintf("large-%d.yaml", i), largeText(fmt.Sprint("large-", i), "b", 1<<20))
	}
	r.write("small.yaml", node("small", "b"))
	end()
	r.waitFor("all changes", func() bool { return strings.Count(r.zones(), "=b") == 17 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if first := r.calls[1]; len(first) != 1 || first[0].Name.Name != "small" {
		t.Errorf("%d changes at first, %v, in %d calls in all", len(first), first[0].Name, len(r.calls))
	}
}

// TestObjectThatMovesToALargeFileStays moves an object from a small file to one that is read later.
func TestObjectThatMovesToALargeFileStays(t *testing.T) {
	d := newDirectory(t.TempDir())
	small, large := filepath.Join(d.root, "a.yaml"), filepath.Join(d.root, "z.yaml")
	write(t, small, node("n1", "a")+node("n2", "a"))
	write(t, large, node("n3", "a"))
	scanAndMerge(t, d)
	d.stepwise = true
	write(t, small, node("n2", "a"))
	write(t, large, largeText("n1", "b", eagerBytes)+node("n3", "a"))
	if got := changesOfAScan(t, d, nil); got != "" {
		t.Errorf("the large file is not read: %s", got)
	}
	write(t, small, node("n4", "a")) // n2 is gone
	if got := changesOfAScan(t, d, pathSet{small: true}); got != "Node n4" {
		t.Errorf("the large file is not read: %s", got)
	}
	d.finish(<-d.reads)
	if got := changesOfAScan(t, d, nil); got != "Node n1, -Node n2" {
		t.Errorf("the large file is read: %s", got)
	}
	if got := d.last[key{"Node", model.Name{Name: "n1"}}]; len(d.vanished) > 0 || got.object.change.Node.Zone != "b" {
		t.Errorf("%v, %+v", d.vanished, got)
	}
}

// TestConstantlyChangedLargeFileDoesNotKeepObjects deletes an object while another file is changed again and again.
func TestConstantlyChangedLargeFileDoesNotKeepObjects(t *testing.T) {
	d := newDirectory(t.TempDir())
	small, large := filepath.Join(d.root, "a.yaml"), filepath.Join(d.root, "z.yaml")
	write(t, small, node("n1", "a"))
	write(t, large, node("n2", "a"))
	scanAndMerge(t, d)
	d.stepwise = true
	var log []string
	for i := range 4 {
		if i == 1 {
			write(t, small, "kind: List\napiVersion: v1\nitems: []\n")
		}
		write(t, large, largeText("n2", fmt.Sprint("zone-", i), eagerBytes))
		log = append(log, changesOfAScan(t, d, pathSet{small: true, large: true}))
		d.finish(<-d.reads)
	}
	if got := strings.Join(log, "; "); got != "; Node n2; -Node n1, Node n2; Node n2" {
		t.Errorf("changes: %q", got)
	}
}

func TestRandomChangesOfLargeFilesArriveInTheEnd(t *testing.T) {
	root := t.TempDir()
	r := start(t, root, timedOptions)
	rng := rand.New(rand.NewPCG(1, 2))
	want := map[string]string{}
	for i := range 150 {
		n := rng.IntN(12)
		name := fmt.Sprint("n", n)
		path := filepath.Join(root, name+".yaml")
		if rng.IntN(4) == 0 {
			if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			delete(want, name)
		} else {
			size := rng.IntN(2) * rng.IntN(2*eagerBytes)
			if rng.IntN(2) == 0 { // as editors write
				write(t, path+".new", largeText(name, fmt.Sprint("zone-", i), size))
				if err := os.Rename(path+".new", path); err != nil {
					t.Fatal(err)
				}
			} else {
				write(t, path, largeText(name, fmt.Sprint("zone-", i), size))
			}
			want[name] = fmt.Sprint("zone-", i)
		}
		if rng.IntN(5) == 0 {
			time.Sleep(time.Duration(rng.IntN(int(maxSettle))) / 2) // pace of changes
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

// changesOfAScan returns the changes of a scan, deletions with a minus sign.
func changesOfAScan(t *testing.T, d *directory, dirty pathSet) string {
	t.Helper()
	scan(t, d, dirty)
	changes, problems := d.merge()
	if len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
	var out []string
	for _, c := range changes {
		text := "Node " + c.Name.Name
		if c.Node == nil {
			text = "-" + text
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

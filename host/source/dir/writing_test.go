package dir

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestIncompleteFileKeepsLastValidObjects(t *testing.T) {
	root := t.TempDir()
	r := start(t, root, timedOptions)
	r.write("a.yaml", node("n1", "a")+node("n2", "a"))
	r.waitForZones("n1=a n2=a")
	for _, torn := range []string{node("n1", "b") + "apiVersion: v1\nkind: [", "", " \n"} {
		r.write("a.yaml", torn)
		r.waitForLog("keeping the objects of its last valid version")
		r.write("other.yaml", node("n3", "a")) // other changes are applied while the file is invalid
		r.waitForZones("n1=a n2=a n3=a")
		r.must(os.Remove(filepath.Join(root, "other.yaml")))
		r.waitForZones("n1=a n2=a")
	}
	r.write("a.yaml", node("n1", "b")+node("n2", "b"))
	r.waitForZones("n1=b n2=b")
}

func TestTruncatedButWellFormedFileLosesNothing(t *testing.T) {
	for _, torn := range []string{"apiVersion: v1\nkind: No", "apiVersion: v", "apiVersion: v1\nkind: Node\nmetadata:", "api"} {
		root := t.TempDir()
		r := start(t, root, timedOptions)
		r.write("a.yaml", node("n1", "a")+node("n2", "a"))
		r.waitForZones("n1=a n2=a")
		r.write("a.yaml", node("n1", "b")+torn)
		r.waitForZones("n1=b n2=a") // complete objects are updated, missing ones stay
		r.waitForLog("the file may be incomplete")
		r.write("a.yaml", node("n1", "c"))
		r.waitForZones("n1=c") // a complete file without n2 removes it
	}
}

func TestInvalidUpdateKeepsPreviousObject(t *testing.T) {
	root := t.TempDir()
	r := start(t, root, timedOptions)
	bad := strings.Replace(node("n1", "b"), "---", "spec: {podCIDRs: [10.0.0.0/99]}\n---", 1)
	r.write("a.yaml", bad)
	r.waitForZones("n1=b") // new: used without the invalid field
	r.write("a.yaml", node("n1", "a")+node("n2", "a"))
	r.waitForZones("n1=a n2=a")
	r.write("a.yaml", bad+node("n2", "b"))
	r.waitForZones("n1=a n2=b")
	r.waitForLog("keeping the previous version of the object")
	r.write("a.yaml", node("n1", "c"))
	r.waitForZones("n1=c")
	r.waitForLog("manifest problem resolved")
}

// TestFileIsReadWhenItsWriterCloses: a partial file is not read even if it is well-formed so far.
func TestFileIsReadWhenItsWriterCloses(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "a.yaml")
	write(t, path, node("n1", "a")+node("n2", "a"))
	probe, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	supported := isOpenForWriting(reader)
	reader.Close()
	probe.Close()
	if !supported {
		t.Skip("this file system does not support leases")
	}
	opt, end := pausedOptions(renameGrace)
	r := start(t, root, opt)
	w, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if _, err := w.WriteString(node(fmt.Sprintf("n%d", i+1), "b")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * quietPeriod) // nothing happens
	}
	r.must(w.Close())
	end()
	r.waitFor("ten nodes", func() bool { return len(r.snap.Nodes) == 10 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.calls) != 2 || len(r.calls[1]) != 10 {
		t.Errorf("emitted in %d calls, want the first state and the finished file: %v", len(r.calls), r.calls)
	}
}

func TestFileLeftOpenForWritingIsReadEventually(t *testing.T) {
	r := start(t, t.TempDir(), timedOptions)
	w, err := os.Create(filepath.Join(r.root, "a.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.WriteString(node("n1", "a")); err != nil {
		t.Fatal(err)
	}
	r.waitForZones("n1=a")
}

func TestInitialStateWaitsForOpenWriter(t *testing.T) {
	root := t.TempDir()
	w, err := os.Create(filepath.Join(root, "a.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteString(node("n1", "a")); err != nil {
		t.Fatal(err)
	}
	opt, end := pausedOptions(renameGrace)
	go func() {
		defer end()
		time.Sleep(5 * quietPeriod) // nothing happens
		_, _ = w.WriteString(node("n2", "a"))
		_ = w.Close()
	}()
	r := start(t, root, opt)
	r.waitForZones("n1=a n2=a")
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.calls) != 1 {
		t.Errorf("emitted in %d calls", len(r.calls))
	}
}

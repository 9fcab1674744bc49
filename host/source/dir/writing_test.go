package dir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestIncompleteFileKeepsLastValidObjects(t *testing.T) {
	root := t.TempDir()
	r := start(t, root, Options{})
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
		r := start(t, root, Options{})
		r.write("a.yaml", node("n1", "a")+node("n2", "a"))
		r.waitForZones("n1=a n2=a")
		r.write("a.yaml", node("n1", "b")+torn)
		r.waitForLog("the file may be incomplete; keeping the objects of its last valid version")
		r.write("other.yaml", node("n3", "a")) // other changes are applied
		r.waitForZones("n1=a n2=a n3=a")
		r.write("a.yaml", node("n1", "c"))
		r.waitForZones("n1=c n3=a") // a complete file without n2 removes it
	}
}

func TestInvalidUpdateKeepsPreviousObject(t *testing.T) {
	root := t.TempDir()
	r := start(t, root, Options{})
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

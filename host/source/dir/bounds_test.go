package dir

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestADocumentThatAliasesMakeTooLargeIsRefusedAlone(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), node("n1", "z1")+"---\nkind: Service\nx: &a "+strings.Repeat("x", 1<<20)+"\nips: ["+strings.Repeat("*a, ", 1499)+"*a]\n")
	snap, problems, err := Load(root)
	if err != nil || len(snap.Nodes) != 1 || len(problems) != 1 || !strings.Contains(problems[0].Error(), "aliases make 1501 MiB") || problems[0].Line == 0 {
		t.Errorf("%d nodes, %v, %v", len(snap.Nodes), problems, err)
	}
}

func TestDeepNestingIsRefusedInBothSyntaxes(t *testing.T) {
	for _, name := range []string{"a.json", "a.yaml"} {
		root := t.TempDir()
		write(t, filepath.Join(root, name), `{"kind":"Service","x":`+strings.Repeat("[", 9990)+strings.Repeat("]", 9990)+"}\n")
		_, problems, err := Load(root)
		if err != nil || len(problems) != 1 || problems[0].Error() != name+":1: nested more than 100 levels deep" {
			t.Errorf("%v, %v", problems, err)
		}
	}
}

func TestAFileThatIsTooLargeIsRefusedWithoutReadingIt(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "a.yaml")
	write(t, path, node("n1", "z1"))
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, problems, err := Load(root)
	runtime.ReadMemStats(&after)
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0].Error(), "1048576 MiB, larger than 128 MiB") {
		t.Errorf("%v, %v", problems, err)
	}
	if read := after.TotalAlloc - before.TotalAlloc; read > 8<<20 {
		t.Errorf("it has cost %d bytes", read)
	}
}

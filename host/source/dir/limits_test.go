package dir

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

func TestDocumentWithTooLargeAliasesIsRejectedAlone(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.yaml"), node("n1", "z1")+"---\nkind: Service\nx: &a "+strings.Repeat("x", 1<<20)+"\nips: ["+strings.Repeat("*a, ", 1499)+"*a]\n")
	snap, problems, err := Load(root)
	if err != nil || len(snap.Nodes) != 1 || len(problems) != 1 || !strings.Contains(problems[0].Error(), "aliases expand the document to 1501 MiB") || problems[0].Line == 0 {
		t.Errorf("%d nodes, %v, %v", len(snap.Nodes), problems, err)
	}
}

func TestDeepNestingIsRejectedInBothSyntaxes(t *testing.T) {
	for _, name := range []string{"a.json", "a.yaml"} {
		root := t.TempDir()
		write(t, filepath.Join(root, name), `{"kind":"Service","x":`+strings.Repeat("[", 9990)+strings.Repeat("]", 9990)+"}\n")
		_, problems, err := Load(root)
		if err != nil || len(problems) != 1 || problems[0].Error() != name+":1: nested more than 100 levels deep" {
			t.Errorf("%v, %v", problems, err)
		}
	}
}

func TestOversizedFileIsRejectedWithoutReadingIt(t *testing.T) {
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
		t.Errorf("allocated %d bytes", read)
	}
}

func TestProblemsOfAFileAreLimitedAndCounted(t *testing.T) {
	const one = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n"
	keys := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "k%d: 1\n", i)
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		text string
		want string // the last one
	}{
		"20, all reported":            {one + keys(20), `warning a.yaml:1: Node n1: k9: unknown field: ignored`},
		"21":                          {one + keys(21), `warning a.yaml: and 1 more`},
		"unknown keys":                {one + keys(100_000), `warning a.yaml: and 99980 more`},
		"errors come first":           {one + keys(100) + "status: {addresses: [1" + strings.Repeat(",1", 29) + "]}\n", `error a.yaml: and 110 more`},
		"values that are not objects": {"[]\n" + strings.Repeat("---\n[]\n", 99), `error a.yaml: and 80 more`},
		"keys twice":                  {`{"kind":"Node"` + strings.Repeat(`,"a":1`, 100) + "}", `error a.json: and 80 more`},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			file := "a.yaml"
			if strings.Contains(c.want, ".json") {
				file = "a.json"
			}
			write(t, filepath.Join(root, file), c.text)
			_, problems, err := Load(root)
			if err != nil || len(problems) > 21 {
				t.Fatalf("%d problems, %v", len(problems), err)
			}
			lines := strings.Split(strings.TrimSpace(dump(model.NewSnapshot(), problems)), "\n")
			if got := lines[len(lines)-1]; got != c.want {
				t.Errorf("the last of %d is %s; want %s", len(lines), got, c.want)
			}
			if name == "errors come first" && problems[0].Warning {
				t.Errorf("the first is %v", problems[0])
			}
		})
	}
}

func TestServiceWithInvalidPortNameKeepsPreviousVersion(t *testing.T) {
	service := func(name string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.0.1, ports: [{name: " + name + ", port: 80}]}\n"
	}
	root := t.TempDir()
	path := filepath.Join(root, "a.yaml")
	f := &directory{root: root}
	for _, step := range []struct {
		name              string
		changes, problems int
	}{{`"y"`, 1, 0}, {"y", 0, 1}, {`"n"`, 1, 0}} {
		write(t, path, service(step.name))
		changes, problems := scanTwice(t, f)
		if len(changes) != step.changes || len(problems) != step.problems {
			t.Errorf("%s: %v, %v", step.name, changes, problems)
		}
		if step.problems > 0 && !strings.HasSuffix(problems[0].Error(), "spec.ports[0].name: true is not a string (quote it); keeping the previous version of the object") {
			t.Errorf("%s: %v", step.name, problems)
		}
	}
}

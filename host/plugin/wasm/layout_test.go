package wasm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// The C compiler compares each record and value of sdk/c/sluice.h with sdk/ABI.md.
func TestCHeaderMatchesTheContract(t *testing.T) {
	testenv.RequireProgram(t, "clang", "clang")
	heading := regexp.MustCompile("^### .*: `(sluice_\\w+)`, (\\d+) bytes")
	field := regexp.MustCompile("^\\| (\\d+) \\| (\\d+) \\| `([a-z_.]+(?:\\[\\d\\])?)` \\|")
	value := regexp.MustCompile("^\\| `(NO_\\w+|[A-Z]+|[A-Z]+_[A-Z]+|[A-Z][A-Za-z]+)` \\| (?:`\\w+` \\| )?(-?\\d+|0x[0-9A-F]+) \\|")
	var b strings.Builder
	b.WriteString("#include \"sluice.h\"\n#include <stddef.h>\n")
	record, asserts := "", 0
	assert := func(format string, args ...any) {
		condition := fmt.Sprintf(format, args...)
		fmt.Fprintf(&b, "_Static_assert(%s, %q);\n", condition, condition)
		asserts++
	}
	for line := range strings.Lines(mustRead(t, "../../../sdk/ABI.md")) {
		if m := heading.FindStringSubmatch(line); m != nil {
			record = m[1]
			assert("sizeof(%s) == %s", record, m[2])
		} else if strings.HasPrefix(line, "#") {
			record = ""
		}
		if m := field.FindStringSubmatch(line); m != nil {
			assert("offsetof(%s, %s) == %s", record, m[3], m[1])
			assert("sizeof(((%s *)0)->%s) == %s", record, m[3], m[2])
		}
		if m := value.FindStringSubmatch(line); m != nil {
			name := strings.TrimPrefix(m[1], "Code") // error codes, needs and conditions have the names of Go
			name = strings.ToUpper(regexp.MustCompile("([a-z])([A-Z])").ReplaceAllString(name, "${1}_$2"))
			switch name {
			case "NO_WEIGHT", "NO_TIME": // without a name in C
				continue
			}
			assert("(long long)SLUICE_%s == %sLL", name, m[2])
		}
	}
	if asserts < 150 {
		t.Errorf("%d assertions: the tables are not read", asserts)
	}
	file := filepath.Join(t.TempDir(), "layout.c")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("clang", "--target=wasm32", "-ffreestanding", "-fsyntax-only", "-I", "../../../sdk/c", file)
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, msg)
	}
}

// The tables of exports and imports in sdk/ABI.md are those that the host accepts.
func TestContractHasEveryExportAndImport(t *testing.T) {
	text := mustRead(t, "../../../sdk/ABI.md")
	export := regexp.MustCompile("(?m)^\\| `(memory|_initialize|sluice_\\w+)` \\| (?:`(.*?)`|memory) \\| (required|optional) \\|")
	want := map[string]string{}
	for _, e := range abiExports() {
		want[e.name] = fmt.Sprintf("%s optional=%t", e.sig, e.optional && e.name != "sluice_role") // introduce requires it
	}
	for _, m := range export.FindAllStringSubmatch(text, -1) {
		if got := fmt.Sprintf("%s optional=%t", m[2], m[3] == "optional"); want[m[1]] != got {
			t.Errorf("export %s: in the contract %s, the host wants %s", m[1], got, want[m[1]])
		}
		delete(want, m[1])
	}
	for module, funcs := range hostFuncs() {
		for name, f := range funcs {
			want[module+"."+name] = f.sig
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(sluice|wasi_\\w+)` \\| `(\\w+)` \\| `(.*?)` \\|$").FindAllStringSubmatch(text, -1) {
		name := m[1] + "." + m[2]
		if want[name] != m[3] {
			t.Errorf("import %s: in the contract %s, the host has %s", name, m[3], want[name])
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("%s is not in the contract", name)
	}
}

package scaffold

import "strings"

// Language is a language in which plugins can be written.
type Language struct {
	Name     string // as of --lang
	Title    string
	Needs    string // what a build needs, in words
	Tools    []Tool
	Source   string // pattern of a file that a folder with a plugin in this language has
	About    []About
	commands [][]string // of a build; NAME is that of the plugin
	tests    []Command  // natively
}

// About is a file and what it is for.
type About struct{ Name, Text string }

// Tool is a program that a build needs.
type Tool struct {
	Program string
	Probe   []string // arguments with which it prints the path of something else that it needs; nil: nothing
	Missing string   // what is missing if that does not exist
	Install string   // how to get it
}

// Command is a program with its arguments. Leading arguments NAME=VALUE set its environment.
type Command []string

// String returns the command for a shell.
func (c Command) String() string {
	var words []string
	for _, w := range c {
		if strings.ContainsAny(w, " ") {
			w = "'" + w + "'"
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}

// Commands returns the commands that build a plugin in its folder, as NAME.wasm.
func (l *Language) Commands(name string) (out []Command) {
	for _, words := range l.commands {
		var c Command
		for _, w := range words {
			c = append(c, strings.ReplaceAll(w, "NAME", name))
		}
		out = append(out, c)
	}
	return out
}

const scenarioText = "a timeline with the decisions that are expected, run in the sandbox; `sluice plugin test --update` rewrites them"

// Languages returns the languages, sorted by name.
func Languages() []Language {
	return []Language{
		{
			Name: "as", Title: "AssemblyScript", Needs: "Node.js 18 and npm", Source: "assembly/index.ts",
			Tools: []Tool{
				{Program: "node", Install: "on Debian, apt-get install nodejs npm"},
				{Program: "npm", Install: "on Debian, apt-get install nodejs npm"},
			},
			commands: [][]string{
				{"npm", "install", "--silent"},
				{"node_modules/.bin/asc", "assembly/index.ts", "-o", "NAME.wasm", "-O3", "--runtime", "stub", "--use", "abort="},
			},
			tests: []Command{{"node", "--test"}},
			About: []About{
				{"assembly/index.ts", "the plugin"},
				{"assembly/sluice.ts", "the SDK of this version of sluice: the wire form of the plugin ABI"},
				{"test/decide.test.js", "tests, which call the module"},
				{"testdata/decide.scenario", scenarioText},
				{"package-lock.json", "the version of the compiler, with its digest"},
			},
		},
		{
			Name: "c", Title: "C", Needs: "clang, lld and the headers of the C library", Source: "*.c",
			Tools: []Tool{
				{Program: "clang", Probe: []string{"-print-prog-name=wasm-ld"}, Missing: "its linker wasm-ld", Install: "on Debian, apt-get install clang lld libc6-dev"},
			},
			commands: [][]string{{"clang", "--target=wasm32", "-O2", "-Wall", "-nostdlib", "-ffreestanding", "-fno-builtin", "-Wl,--no-entry", "-o", "NAME.wasm", "plugin.c"}},
			tests:    []Command{{"clang", "-std=c11", "-O1", "-Wall", "-o", "plugin_test", "plugin_test.c"}, {"./plugin_test"}},
			About: []About{
				{"plugin.c", "the plugin"},
				{"plugin_test.c", "native tests"},
				{"testdata/decide.scenario", scenarioText},
				{"sluice.h", "the SDK of this version of sluice: the wire form of the plugin ABI"},
			},
		},
		{
			Name: "go", Title: "Go", Needs: "Go 1.26", Source: "go.mod",
			Tools: []Tool{{Program: "go", Install: "see https://go.dev/dl"}},
			commands: [][]string{
				{"GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0", "go", "build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", "NAME.wasm", "."},
			},
			tests: []Command{{"go", "vet", "."}, {"go", "test", "."}},
			About: []About{
				{"main.go", "the plugin"},
				{"main_test.go", "native tests"},
				{"testdata/decide.scenario", "a timeline with the decisions that are expected, run natively and in the sandbox; `go test . -update` rewrites them"},
			},
		},
		{
			Name: "rust", Title: "Rust", Needs: "rustc with the target wasm32-unknown-unknown", Source: "src/lib.rs",
			Tools: []Tool{{
				Program: "rustc", Probe: []string{"--print", "target-libdir", "--target", "wasm32-unknown-unknown"}, Missing: "the target wasm32-unknown-unknown",
				Install: "rustup target add wasm32-unknown-unknown, or on Debian, apt-get install rustc libstd-rust-dev-wasm32",
			}},
			commands: [][]string{{"rustc", "--edition", "2021", "--target", "wasm32-unknown-unknown", "--crate-type", "cdylib",
				"-C", "opt-level=s", "-C", "panic=abort", "-C", "strip=symbols", "-o", "NAME.wasm", "src/lib.rs"}},
			tests: []Command{{"rustc", "--edition", "2021", "--test", "-o", "plugin_test", "src/lib.rs"}, {"./plugin_test"}},
			About: []About{
				{"src/lib.rs", "the plugin"},
				{"src/tests.rs", "native tests"},
				{"testdata/decide.scenario", scenarioText},
				{"src/sluice.rs", "the SDK of this version of sluice: the wire form of the plugin ABI, without std and without crates"},
			},
		},
	}
}

// Find returns a language by name.
func Find(name string) (Language, bool) {
	for _, l := range Languages() {
		if l.Name == name {
			return l, true
		}
	}
	return Language{}, false
}

package abiconformance

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/plugin/wasm"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// block returns the first block of code after a heading of a README, and what is in the backquotes before it.
func block(t *testing.T, readme, heading string) (text, file string) {
	t.Helper()
	m := regexp.MustCompile("(?s)\n" + heading + "\n(.*?)\n```[a-z]*\n(.*?)```\n").FindStringSubmatch(readme)
	if m == nil {
		t.Fatalf("no block of code after %q", heading)
	}
	if names := regexp.MustCompile("`([a-z]+\\.[a-z]+)`:").FindStringSubmatch(m[1]); names != nil {
		file = names[1]
	}
	return m[2], file
}

// authorsDesk returns the root of this repository, and an empty folder with what an author has beside a plugin: sluice, built.
func authorsDesk(t *testing.T) (root, dir string) {
	t.Helper()
	root, err := filepath.Abs("../../../..")
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	err = os.MkdirAll(filepath.Join(dir, "sluice", "bin"), 0o755)
	for _, folder := range []string{"sdk", "examples"} {
		err = errors.Join(err, os.Symlink(filepath.Join(root, folder), filepath.Join(dir, "sluice", folder)))
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "sluice", "bin"), "github.com/sluice-proxy/sluice/cmd/sluice").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return root, dir
}

// TestSDKFirstPlugin follows "Your first plugin in five minutes", without a network.
func TestSDKFirstPlugin(t *testing.T) {
	if os.Getenv("SLUICE_TEST_SDK") == "" {
		t.Skip("make test-sdk runs it")
	}
	root, dir := authorsDesk(t)
	text, err := os.ReadFile(filepath.Join(root, "sdk", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Your first plugin in five minutes\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var script strings.Builder
	files := []string{"main.go", "main_test.go", "plugin.json", "hello.yaml"}
	for _, m := range regexp.MustCompile("(?s)```([a-z]*)\n(.*?)```\n").FindAllStringSubmatch(section, -1) {
		if m[1] == "" {
			script.WriteString(regexp.MustCompile("(?m)^git clone .*\n").ReplaceAllString(m[2], ""))
			continue
		}
		if len(files) == 0 || !strings.Contains(section, "`"+files[0]+"`") {
			t.Fatalf("a block of %s that has no file", m[1])
		}
		script.WriteString("cat >" + files[0] + " <<'END'\n" + m[2] + "END\n")
		files = files[1:]
	}
	cmd := exec.Command("sh", "-exc", script.String())
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOPROXY=off", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !regexp.MustCompile(`10\.244\.1\.11:3550 .* node-a1 .* 3 .*hello: on this node`).Match(out) {
		t.Errorf("explain does not show the weight of the endpoint on this node:\n%s", out)
	}
	list := exec.Command("go", "list", "-m", "all")
	list.Dir, list.Env = filepath.Join(dir, "hello"), cmd.Env
	if out, err := list.Output(); err != nil || len(strings.Fields(string(out))) > 5 || !strings.HasPrefix(string(out), "example.com/hello\ngithub.com/sluice-proxy/sluice/sdk ") {
		t.Errorf("modules of the plugin: %v\n%s", err, out)
	}
}

// TestSDKReadmesHaveOneShape: whoever knows that of one language finds everything in another one.
func TestSDKReadmesHaveOneShape(t *testing.T) {
	var first []string
	for _, lang := range []string{"c", "rust", "assemblyscript"} {
		text, err := os.ReadFile(filepath.Join("../../../../sdk", lang, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		headings := regexp.MustCompile(`(?m)^## .*$|^- \*\*[A-Z]\w+\*\*`).FindAllString(string(text), -1)
		if first == nil {
			first = headings
		}
		if !slices.Equal(headings, first) {
			t.Errorf("%s: %q, in C %q", lang, headings, first)
		}
	}
}

// TestSDKReadmes follows the READMEs of the SDKs as an author would: it writes the plugin into a file of an empty folder and
// executes the commands. The plugins conform, and are the same.
func TestSDKReadmes(t *testing.T) {
	if os.Getenv("SLUICE_TEST_SDK") == "" {
		t.Skip("make test-sdk runs it")
	}
	root, dir := authorsDesk(t)
	h := newHost(t)
	answers := map[string]abi.Response{}
	for _, lang := range []string{"c", "rust", "assemblyscript"} {
		t.Run(lang, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(root, "sdk", lang, "README.md"))
			if err != nil {
				t.Fatal(err)
			}
			readme := string(text)
			source, file := block(t, readme, "## A plugin")
			commands, _ := block(t, readme, "## Build and check")
			folder := filepath.Join(dir, lang)
			if err := errors.Join(os.Mkdir(folder, 0o755), os.WriteFile(filepath.Join(folder, file), []byte(source), 0o644)); err != nil {
				t.Fatal(err)
			}
			switch lang {
			case "c":
				testenv.Clang(t, "", "") // requires it
			case "rust":
				testenv.Rust(t, "", "")
			case "assemblyscript": // npm has no network here: the compiler of new plugins, of the same version
				asc := testenv.AssemblyScript(t, "", "").Path
				if err := os.Symlink(filepath.Dir(filepath.Dir(asc)), filepath.Join(folder, "node_modules")); err != nil {
					t.Fatal(err)
				}
				template, err := os.ReadFile(filepath.Join(root, "host/plugin/scaffold/templates/as/package.json.tmpl"))
				if err != nil {
					t.Fatal(err)
				}
				version := regexp.MustCompile(`npm install --silent assemblyscript@([\d.]+)\n`).FindStringSubmatch(commands)
				if version == nil || !strings.Contains(string(template), `"assemblyscript": "`+version[1]+`"`) {
					t.Errorf("the README installs another compiler than new plugins have: %q", version)
				}
				commands = strings.Replace(commands, version[0], "", 1)
			}
			cmd := exec.Command("sh", "-exc", commands)
			cmd.Dir = folder
			cmd.Env = append(os.Environ(), "PATH=/usr/bin:"+os.Getenv("PATH")) // Debian's rustc has the target
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			module, err := os.ReadFile(filepath.Join(folder, "near.wasm"))
			if err != nil {
				t.Fatal(err)
			}
			for id, detail := range failures(t, h, module, `{"factor": 5}`) {
				t.Errorf("%s: %s", id, detail)
			}
			p, err := h.Load(t.Context(), "near", module, []byte(`{"factor": 5}`))
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			req := wasm.SampleRequest(9)
			req.Settings.Text = `{"factor": 5}`
			var resp abi.Response
			resp.Reset(9)
			if err := p.Decide(req, &resp); err != nil {
				t.Fatal(err)
			}
			answers[lang] = resp
		})
	}
	if t.Failed() {
		return
	}
	for lang, got := range answers {
		want := answers["c"]
		if !slices.Equal(got.Results, want.Results) {
			t.Errorf("%s: %+v, in C %+v", lang, got.Results, want.Results)
		}
	}
	if first := answers["c"].Results[0]; first.Value != 5*abi.One || first.Reason != "on this node" {
		t.Errorf("%+v", first)
	}
}

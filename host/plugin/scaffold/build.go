package scaffold

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// Detect returns the language of the plugin in a folder.
func Detect(dir string) (Language, error) {
	if _, err := os.ReadDir(dir); err != nil {
		return Language{}, err
	}
	var wanted []string
	for _, l := range Languages() {
		if found, _ := filepath.Glob(filepath.Join(escapeGlob(dir), l.Source)); len(found) > 0 {
			return l, nil
		}
		wanted = append(wanted, l.Source+" ("+l.Title+")")
	}
	return Language{}, fmt.Errorf("%s: no plugin: want one of %s", dir, strings.Join(wanted, ", "))
}

// escapeGlob escapes what filepath.Glob does not take literally.
func escapeGlob(path string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(path)
}

// Build builds the plugin in a folder as NAME.wasm, where NAME is the name of the folder, and returns the path of the module. The
// commands and what they print go to log.
func Build(ctx context.Context, dir string, log io.Writer) (module string, err error) {
	l, err := Detect(dir)
	if err != nil {
		return "", err
	}
	for _, t := range l.Tools {
		if err := t.check(ctx); err != nil {
			return "", fmt.Errorf("a plugin in %s needs %s: %w", l.Title, l.Needs, err)
		}
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	name := filepath.Base(abs)
	if err := CheckName(name); err != nil {
		return "", fmt.Errorf("the folder %s: %w", dir, err)
	}
	for _, words := range l.Commands(name) {
		fmt.Fprintln(log, words)
		at := slices.IndexFunc(words, func(w string) bool { return !strings.Contains(w, "=") })
		cmd := exec.CommandContext(ctx, words[at], words[at+1:]...)
		cmd.Dir, cmd.Env = abs, append(os.Environ(), words[:at]...)
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("%s: %w", words[at], err)
		}
	}
	module = filepath.Join(dir, name+".wasm")
	return module, manifest.EmbedFile(module, filepath.Join(dir, manifest.File))
}

// check returns an error that says how to install the tool if it, or what it needs, is missing.
func (t *Tool) check(ctx context.Context) error {
	if _, err := exec.LookPath(t.Program); err != nil {
		return fmt.Errorf("no %s in the PATH: %s", t.Program, t.Install)
	}
	if t.Probe == nil {
		return nil
	}
	out, err := exec.CommandContext(ctx, t.Program, t.Probe...).Output()
	if err != nil {
		return fmt.Errorf("%s %s: %w", t.Program, strings.Join(t.Probe, " "), err)
	}
	need := strings.TrimSpace(string(out))
	if _, err := exec.LookPath(need); err == nil {
		return nil
	}
	if _, err := os.Stat(need); err != nil {
		return fmt.Errorf("%s does not find %s: %s", t.Program, t.Missing, t.Install)
	}
	return nil
}

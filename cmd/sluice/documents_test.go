package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	documentedSpan = regexp.MustCompile("`(?:bin/)?sluice ([a-z-][^`]+)`")
	documentedLine = regexp.MustCompile(`(?m)^(?:    |\$ |.*&& )?(?:bin/)?sluice ([a-z-][^|;&#\n]+)`)
	examples       = regexp.MustCompile("(?ms)^ *```.*?^ *```$|^    .*?$")
)

// TestDocumentedCommandsHaveTheirFlags checks each command line of sluice in the documents: its command exists, and has the
// flags.
func TestDocumentedCommandsHaveTheirFlags(t *testing.T) {
	root := newRootCommand()
	commands := 0
	check := func(file, line string) {
		words := strings.Fields(strings.NewReplacer("\\\n", " ", "\n", " ", "[", "", "]", "").Replace(line))
		cmd, _, err := root.Find(words)
		if err != nil || cmd == root {
			if words[0][0] != '-' && !strings.Contains(line, "─") { // a picture
				t.Errorf("%s: sluice %s: no such command", file, line)
			}
			return
		}
		commands++
		for _, w := range words {
			if w == "--" {
				return
			}
			name, _, _ := strings.Cut(strings.TrimLeft(w, "-"), "=")
			if found := cmd.Flag(name) != nil || len(name) == 1 && cmd.Flags().ShorthandLookup(name) != nil; w[0] == '-' && !found && name != "help" {
				t.Errorf("%s: sluice %s: %s has no flag %s", file, line, cmd.CommandPath(), w)
			}
		}
	}
	err := filepath.WalkDir("../..", func(file string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".md" {
			return err
		}
		text, err := os.ReadFile(file)
		for _, m := range documentedSpan.FindAllStringSubmatch(string(text), -1) {
			check(file, m[1])
		}
		for _, example := range examples.FindAllString(strings.ReplaceAll(string(text), "\\\n", " "), -1) {
			for _, m := range documentedLine.FindAllStringSubmatch(example, -1) {
				check(file, m[1])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if commands < 100 {
		t.Errorf("%d command lines found", commands)
	}
}

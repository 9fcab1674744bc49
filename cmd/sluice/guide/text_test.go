package guide

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// text is the guide: its commands, and which of them have been run.
type text struct {
	*testing.T
	commands []string
	ran      map[string]bool
}

// programs are the programs in the guide's commands.
var programs = []string{"sluice", "kubectl", "ipvsadm", "nft", "ip", "sysctl", "ipset", "cat"}

var (
	inline = regexp.MustCompile("`([^`]+)`")
)

// read parses the guide. A command is a line of a code block, or text between backticks that begins with the name of a
// program and a space.
func read(t *testing.T, path string) *text {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	g := &text{T: t, ran: map[string]bool{}}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimRight(line, "\n")
		if rest, ok := strings.CutPrefix(line, "       "); ok { // in a step, whose lines are indented by three
			g.add(rest)
			continue
		}
		for _, m := range inline.FindAllStringSubmatch(line, -1) {
			g.add(m[1])
		}
	}
	if len(g.commands) < 8 {
		t.Fatalf("%s has only these commands: %q", path, g.commands)
	}
	return g
}

func (g *text) add(line string) {
	line = strings.TrimSpace(line)
	name, _, more := strings.Cut(line, " ")
	if more && slices.Contains(programs, name) && !slices.Contains(g.commands, line) {
		g.commands = append(g.commands, line)
	}
}

// command returns a command of the guide with its placeholders replaced; it must exist.
func (g *text) command(line string, placeholders ...string) string {
	g.Helper()
	if !slices.Contains(g.commands, line) {
		g.Fatalf("the guide has no %q; it has %q", line, g.commands)
	}
	g.ran[line] = true
	return strings.NewReplacer(placeholders...).Replace(line)
}

// all fails the test for commands that have not been run.
func (g *text) all() {
	g.Helper()
	for _, c := range g.commands {
		if !g.ran[c] {
			g.Errorf("the guide's command %q has not been run", c)
		}
	}
}

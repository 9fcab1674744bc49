// Package firstpolicy has the test of the tutorial in README.md.
package firstpolicy

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// timeout is for one command on a slow, busy machine that has to compile sluice first.
const timeout = 5 * time.Minute

// step is a block of commands of the README, and the output that it shows for them, if any.
type step struct {
	heading  string
	line     int // of the first command
	commands []string
	shown    []string
	measured bool // numbers of the output vary
}

// TestTutorial runs all commands of the README in one shell, as they are written, and compares their output with what the README
// shows.
func TestTutorial(t *testing.T) {
	testenv.RequireProgram(t, "bash", "bash")
	testenv.RequireProgram(t, "make", "make")
	testenv.DependOnSources(t)
	steps := read(t)
	sh := open(t)
	began, commands := time.Now(), 0
	for _, s := range steps {
		begin := time.Now()
		var output string
		for _, c := range s.commands {
			output += sh.run(s, c)
			commands++
		}
		t.Logf("%-40s README.md:%d  %6.1f s", s.heading, s.line, time.Since(begin).Seconds())
		s.compare(t, output)
	}
	sh.close()
	t.Logf("all %d commands took the machine %.0f s", commands, time.Since(began).Seconds())
}

// read returns the steps of the README.
func read(t *testing.T) (steps []step) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	heading, fence, here := "", "", ""
	for i, line := range strings.Split(string(text), "\n") {
		last := len(steps) - 1
		switch {
		case fence == "" && strings.HasPrefix(line, "#"):
			heading = strings.TrimLeft(line, "# ")
		case fence == "" && strings.HasPrefix(line, "```"):
			fence = line
			switch line {
			case "```sh":
				steps = append(steps, step{heading: heading, line: i + 2})
			case "```text", "```text measured":
				if last < 0 || steps[last].shown != nil {
					t.Fatalf("README.md:%d: output of which command?", i+1)
				}
				steps[last].shown, steps[last].measured = []string{}, line != "```text"
			default:
				t.Fatalf("README.md:%d: unknown block %s", i+1, line)
			}
		case line == "```":
			if here != "" {
				t.Fatalf("README.md:%d: the block ends within a command", i+1)
			}
			fence = ""
		case fence == "```sh": // a command is a line, with the text that it reads
			c := &steps[last].commands
			if here != "" {
				(*c)[len(*c)-1] += "\n" + line
			} else {
				*c = append(*c, line)
			}
			if m := heredoc.FindStringSubmatch(line); m != nil {
				here = m[1]
			} else if line == here {
				here = ""
			}
		case fence != "":
			steps[last].shown = append(steps[last].shown, line)
		}
	}
	if len(steps) < 8 {
		t.Fatalf("only %d blocks of commands", len(steps))
	}
	return steps
}

var (
	heredoc = regexp.MustCompile(`<<'(\w+)'$`)
	number  = regexp.MustCompile(`\d+`)
)

// tolerance is how many points a measured percentage of 600 connections may differ from the one shown: six standard deviations.
const tolerance = 12

// compare compares output with what is shown. A line ... stands for any number of lines, and … for any text in a line.
func (s *step) compare(t *testing.T, output string) {
	t.Helper()
	if s.shown == nil {
		return
	}
	pattern := ""
	for _, line := range s.shown {
		if line == "..." {
			pattern += `(?:.*\n)*?`
			continue
		}
		line = regexp.QuoteMeta(line)
		line = strings.ReplaceAll(line, "…", ".*")
		if s.measured {
			line = regexp.MustCompile(`\d+ %`).ReplaceAllString(line, `\d+ %`)
		}
		pattern += strings.Join(strings.Fields(line), ` +`) + ` *\n`
		pattern = strings.ReplaceAll(pattern, `.* +`, `.*`)
	}
	var plain strings.Builder
	for line := range strings.Lines(output) {
		plain.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	if !regexp.MustCompile(`^` + pattern + `$`).MatchString(plain.String()) {
		t.Errorf("README.md:%d: %s\nprints\n%s\nand the README shows\n%s", s.line, strings.Join(s.commands, "\n"), output, strings.Join(s.shown, "\n"))
		return
	}
	if !s.measured {
		return
	}
	got, want := number.FindAllString(output, -1), number.FindAllString(strings.Join(s.shown, "\n"), -1)
	for i := range min(len(got), len(want)) {
		g, _ := strconv.Atoi(got[i])
		w, _ := strconv.Atoi(want[i])
		if g < w-tolerance || g > w+tolerance {
			t.Errorf("README.md:%d: %d, and the README shows %d:\n%s", s.line, g, w, output)
		}
	}
}

// shell is a shell in an empty folder.
type shell struct {
	*testing.T
	in     io.WriteCloser
	lines  chan string // closed at the end of its output
	cmd    *exec.Cmd
	marker int
}

func open(t *testing.T) *shell {
	t.Helper()
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := &shell{T: t, lines: make(chan string, 100), cmd: exec.Command("bash", "--norc")}
	s.cmd.Dir = dir
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	s.cmd.WaitDelay = 10 * time.Second
	for _, v := range os.Environ() {
		switch name, _, _ := strings.Cut(v, "="); name {
		case "SLUICE_TESTNET": // the program in the README makes namespaces by itself
		case "MAKEFLAGS", "MFLAGS", "MAKELEVEL": // of a make that runs this test
		default:
			s.cmd.Env = append(s.cmd.Env, v)
		}
	}
	s.cmd.Env = append(s.cmd.Env, "REPO="+repo, "LC_ALL=C.UTF-8")
	out, w, err := os.Pipe()
	if err == nil {
		s.cmd.Stdout, s.cmd.Stderr = w, w
		s.in, err = s.cmd.StdinPipe()
	}
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() {
		defer out.Close()
		defer close(s.lines)
		for r := bufio.NewScanner(out); r.Scan(); {
			s.lines <- r.Text()
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) // the shell's group, with what it has started
		for range s.lines {
		}
		_ = s.cmd.Wait()
	})
	return s
}

// run types a command and returns what it prints. It must succeed.
func (s *shell) run(at step, command string) string {
	s.Helper()
	s.marker++
	// The second line is for the shell that reads it: that which the command has started, or has returned to.
	if _, err := fmt.Fprintf(s.in, "%s\necho marker-%d $?\n", command, s.marker); err != nil {
		s.Fatal(err)
	}
	var output strings.Builder
	end := time.After(timeout)
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				s.Fatalf("README.md:%d: %s\nended the shell:\n%s", at.line, command, &output)
			}
			code, marked := strings.CutPrefix(line, fmt.Sprintf("marker-%d ", s.marker))
			if !marked {
				output.WriteString(line + "\n")
				continue
			}
			if code != "0" {
				log, _ := os.ReadFile(filepath.Join(s.cmd.Dir, "sluice.log"))
				s.Fatalf("README.md:%d: %s\nexit code %s:\n%s\n%s", at.line, command, code, &output, log)
			}
			return output.String()
		case <-end:
			log, _ := os.ReadFile(filepath.Join(s.cmd.Dir, "sluice.log"))
			s.Fatalf("README.md:%d: %s\nhas not ended after %s:\n%s\n%s", at.line, command, timeout, &output, log)
		}
	}
}

// close ends the shell, in which nothing may run any more.
func (s *shell) close() {
	s.Helper()
	s.in.Close()
	for line := range s.lines {
		s.Errorf("after the last command: %s", line)
	}
	if err := s.cmd.Wait(); err != nil {
		s.Error(err)
	}
}

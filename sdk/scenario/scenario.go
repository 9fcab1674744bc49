// Package scenario reads scenarios: timelines of statements with the output that is expected of them, as text; and executes them
// in virtual time. The verbs belong to its users, see Verbs.
package scenario

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// Limits of a scenario.
const (
	MaxSize       = 1 << 20        // bytes of a file
	MaxStatements = 10_000         // statements of a file
	MaxLine       = 64 << 10       // bytes of a line
	MaxWords      = 100            // words of a statement
	MaxExpected   = 10_000         // expected lines of a statement
	MaxStep       = 24 * time.Hour // virtual time between two statements
	MaxDuration   = 24 * time.Hour // of an option
)

// Statement is a line of a scenario.
type Statement struct {
	Line    int           // its number in the file, from 1
	At      time.Duration // virtual time since the beginning, whole milliseconds
	Verb    string
	Args    []string
	Options []Option // in order; no key twice
	Expect  []string // the lines that begin with > below it, without "> " and trailing white space
}

// Option is a word key=value.
type Option struct{ Key, Value string }

// Option returns the value of an option, and whether the statement has it.
func (s *Statement) Option(key string) (value string, ok bool) {
	for _, o := range s.Options {
		if o.Key == key {
			return o.Value, true
		}
	}
	return "", false
}

// Duration returns the value of an option that is a DURATION, or otherwise if the statement does not have it.
func (s *Statement) Duration(key string, otherwise time.Duration) time.Duration {
	if text, ok := s.Option(key); ok {
		otherwise, _ = ParseDuration(text) // Verbs.Check has accepted it
	}
	return otherwise
}

// Response is how an endpoint responds to new connections, by the verb that sets it.
type Response uint8

// The responses.
const (
	Answers Response = iota
	Slow
	Refuses
	Silent
)

// Responses are the responses by their verbs.
var Responses = map[string]Response{"answer": Answers, "slow": Slow, "refuse": Refuses, "silent": Silent}

// File is a scenario.
type File struct {
	Name       string
	Statements []Statement

	clock time.Duration // the time of day of the beginning, in UTC; notSaid: none
	lines []string      // of the text, with line ends
}

// Errorf returns an error about a statement, with the name of the file and the number of the line.
func (f *File) Errorf(s *Statement, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s: %w", f.Name, s.Line, s.Verb, fmt.Errorf(format, args...))
}

// Parse reads a scenario. Errors begin with name and the number of the line.
func Parse(name string, text []byte) (*File, error) {
	if len(text) > MaxSize {
		return nil, fmt.Errorf("%s: %d bytes, at most %d are allowed", name, len(text), MaxSize)
	}
	f := &File{Name: name, clock: notSaid}
	now, moved := time.Duration(0), 0 // moved is the number of the last line that moved the time, 0 once a statement followed
	below := false                    // the line before is a statement or expected
	for line := range bytes.Lines(text) {
		f.lines = append(f.lines, string(line))
		number := len(f.lines)
		err := func() error {
			line, err := trimLine(f.lines[number-1])
			if err != nil {
				return err
			}
			if expected, ok := strings.CutPrefix(line, ">"); ok {
				if !below {
					return fmt.Errorf("expected output must be directly below a statement that prints something")
				}
				last := &f.Statements[len(f.Statements)-1]
				if len(last.Expect) == MaxExpected {
					return fmt.Errorf("more than %d expected lines below a statement", MaxExpected)
				}
				last.Expect = append(last.Expect, strings.TrimPrefix(expected, " "))
				return nil
			}
			s, err := parseStatement(line)
			below = err == nil && s.Verb != "" && s.Verb != "at" && s.Verb != "after" && s.Verb != "clock"
			switch {
			case err != nil || s.Verb == "":
				return err
			case !below:
				before := now
				if now, err = f.moveTime(now, s); now != before {
					moved = number
				}
				return err
			case len(f.Statements) == MaxStatements:
				return fmt.Errorf("more than %d statements", MaxStatements)
			}
			s.Line, s.At, moved = number, now, 0
			f.Statements = append(f.Statements, s)
			return nil
		}()
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
	}
	if moved != 0 {
		return nil, fmt.Errorf("%s:%d: no statement follows at this time", name, moved)
	}
	return f, nil
}

// Format returns the text of the scenario with other expected lines: expect(i) for Statements[i]. What else is in the text stays
// as it is.
func (f *File) Format(expect func(i int) []string) []byte {
	var out bytes.Buffer
	next := 0
	for i, line := range f.lines {
		if strings.HasPrefix(strings.TrimLeft(line, blank), ">") {
			continue
		}
		out.WriteString(line)
		if next == len(f.Statements) || f.Statements[next].Line != i+1 {
			continue
		}
		lines := expect(next)
		if len(lines) > 0 && !strings.HasSuffix(line, "\n") {
			out.WriteByte('\n')
		}
		for _, l := range lines {
			out.WriteString(strings.TrimRight("> "+l, blank) + "\n")
		}
		next++
	}
	return out.Bytes()
}

// moveTime returns the time that a statement `at DURATION`, `after DURATION` or `clock TIME` sets.
func (f *File) moveTime(now time.Duration, s Statement) (time.Duration, error) {
	if s.Verb == "clock" {
		return f.moveClock(now, s)
	}
	if len(s.Args) != 1 || len(s.Options) > 0 {
		return 0, fmt.Errorf("%s: want one duration, for example `%s 1m30s`", s.Verb, s.Verb)
	}
	d, err := ParseDuration(s.Args[0])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.Verb, err)
	}
	step := d
	if s.Verb == "at" {
		step = d - now
	}
	switch {
	case step < 0:
		return 0, fmt.Errorf("at %s: it is already %s", d, now)
	case step > MaxStep:
		return 0, fmt.Errorf("%s %s: a step of %s, at most %s are allowed", s.Verb, d, step, MaxStep)
	}
	return now + step, nil
}

// ParseDuration parses a duration as time.ParseDuration does. It must have whole milliseconds and not be negative.
func ParseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d%time.Millisecond != 0 {
		return 0, fmt.Errorf("%q is not a duration: want whole milliseconds or more, for example 500ms, 10s or 1m30s", text)
	}
	return d, nil
}

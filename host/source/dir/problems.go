package dir

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// problemList keeps the first errors and warnings, up to strictyaml.MaxReported of each, and counts all of them.
type problemList struct {
	list             []source.Problem
	errors, warnings int // including those that are not in the list
}

// ignoredKind says that an object is of a kind that is not supported, and more objects of the file are.
type ignoredKind struct {
	id   string
	more int
}

func (e *ignoredKind) Error() string {
	text := e.id + " is not supported: ignored"
	if e.more > 0 {
		text += fmt.Sprintf(", and %d more", e.more)
	}
	return text
}

func (l *problemList) add(p source.Problem) {
	if e, ok := p.Err.(*ignoredKind); ok { //nolint:errorlint // it is not wrapped
		for i := range l.list {
			if first, ok := l.list[i].Err.(*ignoredKind); ok && first.id == e.id { //nolint:errorlint // likewise
				l.list[i].Err = &ignoredKind{e.id, first.more + 1 + e.more}
				return
			}
		}
	}
	n := &l.errors
	if p.Warning {
		n = &l.warnings
	}
	if *n++; *n <= strictyaml.MaxReported {
		l.list = append(l.list, p)
	}
}

// addAll adds the problems of a part of a file. kept: the previous version of an object stays in use.
func (l *problemList) addAll(part *problemList, file string, line int, kept bool) {
	own := slices.Clone(part.list)
	if kept {
		source.NotePreviousKept(own)
	}
	for _, p := range own {
		p.File, p.Line = file, line
		l.add(p)
	}
	l.errors += max(0, part.errors-strictyaml.MaxReported)
	l.warnings += max(0, part.warnings-strictyaml.MaxReported)
}

// limited returns strictyaml.MaxReported problems of a file, errors before warnings, in the order of lines, and one with the
// number of the others.
func (l *problemList) limited(file string) []source.Problem {
	errors := min(l.errors, strictyaml.MaxReported)
	warnings := min(l.warnings, strictyaml.MaxReported-errors)
	more, onlyWarnings := l.errors+l.warnings-errors-warnings, l.errors == errors
	out := slices.DeleteFunc(l.list, func(p source.Problem) bool {
		n := &errors
		if p.Warning {
			n = &warnings
		}
		*n--
		return *n < 0
	})
	slices.SortStableFunc(out, func(a, b source.Problem) int { return cmp.Compare(a.Line, b.Line) })
	if more > 0 {
		what := "problems"
		if more == 1 {
			what = "problem"
		}
		out = append(out, source.Problem{File: file, Err: fmt.Errorf("and %d more %s in this file", more, what), Warning: onlyWarnings})
	}
	return out
}

// problemLog logs each problem when it appears and when it is resolved.
type problemLog struct {
	log     *slog.Logger
	onCount func(errors, warnings int) // may be nil
	logged  map[string]bool
}

func (l *problemLog) report(problems []source.Problem) {
	now := make(map[string]bool, len(problems))
	warnings := 0
	for _, p := range problems {
		text, level := p.Error(), slog.LevelError
		if p.Warning {
			level = slog.LevelWarn
			warnings++
		}
		if !l.logged[text] && !now[text] {
			l.log.Log(context.Background(), level, "manifest problem", attributes(p)...)
		}
		now[text] = true
	}
	for _, text := range slices.Sorted(maps.Keys(l.logged)) {
		if !now[text] {
			l.log.Info("manifest problem resolved", "problem", text)
		}
	}
	l.logged = now
	if l.onCount != nil {
		l.onCount(len(problems)-warnings, warnings)
	}
}

// attributes returns the known parts of a problem as log attributes.
func attributes(p source.Problem) (out []any) {
	for _, a := range []struct{ key, value string }{{"file", p.File}, {"object", p.Object}, {"field", p.Field}} {
		if a.value != "" {
			out = append(out, a.key, a.value)
		}
		if a.key == "file" && p.Line > 0 {
			out = append(out, "line", p.Line)
		}
	}
	return append(out, "err", p.Err)
}

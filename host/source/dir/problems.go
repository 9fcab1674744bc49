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

// problemList keeps the first errors and the first warnings, strictyaml.MaxReported of each, and counts the others. A warning
// that names no object is kept once.
type problemList struct {
	errors, warnings         []source.Problem
	moreErrors, moreWarnings int
}

func (l *problemList) add(p source.Problem) {
	list, more := &l.errors, &l.moreErrors
	if p.Warning {
		list, more = &l.warnings, &l.moreWarnings
	}
	switch {
	case p.Object == "" && p.Warning && slices.ContainsFunc(*list, func(q source.Problem) bool { return q.Error() == p.Error() }):
	case len(*list) == strictyaml.MaxReported:
		*more++
	default:
		*list = append(*list, p)
	}
}

func (l *problemList) isEmpty() bool { return len(l.errors)+len(l.warnings) == 0 }

// addAll adds the problems of a part of a file. kept: the previous version of an object stays in use.
func (l *problemList) addAll(part *problemList, file string, line int, kept bool) {
	errors := part.errors
	if kept {
		errors = slices.Clone(errors)
		source.NotePreviousKept(errors)
	}
	for _, list := range [][]source.Problem{errors, part.warnings} {
		for _, p := range list {
			p.File, p.Line = file, line
			l.add(p)
		}
	}
	l.moreErrors += part.moreErrors
	l.moreWarnings += part.moreWarnings
}

// limited returns strictyaml.MaxReported problems of a file, errors before warnings, in the order of lines, and one with the
// number of the others.
func (l *problemList) limited(file string) []source.Problem {
	out := slices.Concat(l.errors, l.warnings)
	more := l.moreErrors + l.moreWarnings + max(0, len(out)-strictyaml.MaxReported)
	out = out[:min(len(out), strictyaml.MaxReported)]
	slices.SortStableFunc(out, func(a, b source.Problem) int { return cmp.Compare(a.Line, b.Line) })
	if more > 0 {
		out = append(out, source.Problem{File: file, Err: fmt.Errorf("and %d more", more), Warning: l.moreErrors == 0})
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
			l.log.Log(context.Background(), level, "manifest problem", "problem", text)
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

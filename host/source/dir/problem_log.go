package dir

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"github.com/sluice-proxy/sluice/host/source"
)

// problemLog logs each problem when it appears and when it is resolved.
type problemLog struct {
	log     *slog.Logger
	onCount func(errors, warnings int) // may be nil
	logged  map[string]bool
}

func (l *problemLog) report(problems []source.Problem) {
	now := make(map[string]bool, len(problems))
	bad, warnings := 0, 0
	for _, p := range problems {
		text := p.Error()
		if p.Warning {
			warnings++
		} else {
			bad++
		}
		if !l.logged[text] && !now[text] {
			level := slog.LevelError
			if p.Warning {
				level = slog.LevelWarn
			}
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
		l.onCount(bad, warnings)
	}
}

// attributes returns the known parts of a problem as log attributes.
func attributes(p source.Problem) []any {
	var out []any
	if p.File != "" {
		out = append(out, "file", p.File)
	}
	if p.Line > 0 {
		out = append(out, "line", p.Line)
	}
	if p.Object != "" {
		out = append(out, "object", p.Object)
	}
	if p.Field != "" {
		out = append(out, "field", p.Field)
	}
	return append(out, "err", p.Err)
}

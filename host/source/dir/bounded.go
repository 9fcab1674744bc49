package dir

import (
	"fmt"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// bounded are problems of which some are kept and the others counted: of errors and of warnings the first ones.
type bounded struct {
	list             []source.Problem
	errors, warnings int // those that are not in the list too
}

func (b *bounded) add(p source.Problem) {
	n := &b.errors
	if p.Warning {
		n = &b.warnings
	}
	if *n++; *n <= strictyaml.MaxReported {
		b.list = append(b.list, p)
	}
}

// missing counts those that are not in the list.
func (b *bounded) missing() rest {
	return rest{max(0, b.errors-strictyaml.MaxReported), max(0, b.warnings-strictyaml.MaxReported)}
}

// rest counts problems that are not told.
type rest struct{ errors, warnings int }

func (r *rest) add(s rest) { r.errors, r.warnings = r.errors+s.errors, r.warnings+s.warnings }

// few leaves strictyaml.Most problems of each file, errors rather than warnings, and says how many more there are. The
// problems are sorted by file; more are those that are not among them.
func few(problems []source.Problem, more map[string]rest) []source.Problem {
	var out []source.Problem
	for len(problems) > 0 {
		file, n, errors := problems[0].File, 0, 0
		for ; n < len(problems) && problems[n].File == file; n++ {
			if !problems[n].Warning {
				errors++
			}
		}
		left := more[file]
		free := [2]int{min(errors, strictyaml.MaxReported)} // of errors, of warnings
		free[1] = strictyaml.MaxReported - free[0]
		for _, p := range problems[:n] {
			kind, over := 0, &left.errors
			if p.Warning {
				kind, over = 1, &left.warnings
			}
			if free[kind] == 0 && file != "" {
				*over++
				continue
			}
			free[kind]--
			out = append(out, p)
		}
		if all := left.errors + left.warnings; all > 0 {
			what := "problems"
			if all == 1 {
				what = "problem"
			}
			out = append(out, source.Problem{
				File: file, Err: fmt.Errorf("and %d more %s in this file", all, what), Warning: left.errors == 0,
			})
		}
		problems = problems[n:]
	}
	return out
}

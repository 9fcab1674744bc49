package dir

import (
	"fmt"

	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// problemList keeps the first errors and warnings, up to strictyaml.MaxReported of each, and counts all of them.
type problemList struct {
	list             []source.Problem
	errors, warnings int // including those that are not in the list
}

func (b *problemList) add(p source.Problem) {
	n := &b.errors
	if p.Warning {
		n = &b.warnings
	}
	if *n++; *n <= strictyaml.MaxReported {
		b.list = append(b.list, p)
	}
}

// omitted returns the number of problems that are not in the list.
func (b *problemList) omitted() omitted {
	return omitted{max(0, b.errors-strictyaml.MaxReported), max(0, b.warnings-strictyaml.MaxReported)}
}

// omitted counts problems that are not reported individually.
type omitted struct{ errors, warnings int }

func (r *omitted) add(s omitted) { r.errors, r.warnings = r.errors+s.errors, r.warnings+s.warnings }

// limitPerFile keeps strictyaml.MaxReported problems of each file, errors before warnings, and adds one with the number of
// the others. problems must be sorted by file; more has those that are not among them.
func limitPerFile(problems []source.Problem, more map[string]omitted) []source.Problem {
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

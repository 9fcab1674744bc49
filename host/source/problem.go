package source

import (
	"fmt"
	"strings"
)

// Problem is an error or a warning about one field of a source's input.
type Problem struct {
	File    string // relative to the source directory; "" for objects of a cluster
	Line    int    // first line of the object, or of its document; 0: unknown
	Object  string // such as "Service shop/web"; "" if no object could be decoded
	Field   string // such as "spec.externalIPs[1]"; "" for the object as a whole
	Err     error
	Warning bool // nothing was dropped
}

// Error returns "file:line: object: field: error" without the unknown parts.
func (p Problem) Error() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&b, ":%d", p.Line)
		}
		b.WriteString(": ")
	}
	for _, s := range []string{p.Object, p.Field} {
		if s != "" {
			b.WriteString(s)
			b.WriteString(": ")
		}
	}
	if p.Err != nil {
		b.WriteString(p.Err.Error())
	}
	return b.String()
}

// Unwrap returns the cause.
func (p Problem) Unwrap() error { return p.Err }

// problems collects the problems of one object.
type problems struct {
	object string
	list   []Problem
	more   int // problems beyond maxProblems
	// moreErrors reports that not all of those are warnings.
	moreErrors bool
}

// maxProblems bounds the problems of an object: each is kept and logged, and a list of addresses may have thousands.
const maxProblems = 20

func (p *problems) add(field, format string, args ...any) {
	p.append(Problem{Object: p.object, Field: field, Err: fmt.Errorf(format, args...)})
}

func (p *problems) warn(field, format string, args ...any) {
	p.append(Problem{Object: p.object, Field: field, Err: fmt.Errorf(format, args...), Warning: true})
}

func (p *problems) append(problem Problem) {
	if len(p.list) == maxProblems {
		p.more++
		p.moreErrors = p.moreErrors || !problem.Warning
		return
	}
	p.list = append(p.list, problem)
}

// all returns the problems, the last one about those that are not listed.
func (p *problems) all() []Problem {
	if p.more > 0 {
		return append(p.list, Problem{Object: p.object, Err: fmt.Errorf("%d more problems", p.more), Warning: !p.moreErrors})
	}
	return p.list
}

// NotePreviousKept adds to each error that the previous version of the object stays in use.
func NotePreviousKept(problems []Problem) {
	for i := range problems {
		if !problems[i].Warning {
			problems[i].Err = fmt.Errorf("%w; keeping the previous version of the object", problems[i].Err)
		}
	}
}

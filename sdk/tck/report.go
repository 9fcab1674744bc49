package tck

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Verdict is the result of a requirement.
type Verdict string

// Verdicts.
const (
	Pass Verdict = "pass"
	Fail Verdict = "fail"
	Skip Verdict = "skip"
)

// Result is a requirement with its verdict.
type Result struct {
	Requirement
	Verdict Verdict `json:"verdict"`
	Detail  string  `json:"detail,omitempty"` // of a failure: what was found; of a skipped one: why; may have any text of the module or host
}

// Report has a result for each requirement.
type Report struct {
	Conforms bool     `json:"conforms"` // no MUST has failed
	Passed   int      `json:"passed"`
	Failed   int      `json:"failed"` // MUST
	Warned   int      `json:"warned"` // SHOULD that failed
	Skipped  int      `json:"skipped"`
	Results  []Result `json:"results"`
}

// Skipped is the error of a requirement that cannot be tried: why.
type Skipped string

// Error implements error.
func (s Skipped) Error() string { return string(s) }

// NewReport makes the report of requirements. Those in found have been tried and have the verdict of their error; others are
// skipped, with the reason why.
func NewReport(requirements []Requirement, found map[string]error, why string) *Report {
	r := &Report{}
	for _, q := range requirements {
		x := Result{Requirement: q, Verdict: Pass}
		err, tried := found[q.ID]
		if !tried {
			err = Skipped(why)
		}
		var skip Skipped
		switch {
		case errors.As(err, &skip):
			x.Verdict, x.Detail = Skip, string(skip)
			r.Skipped++
		case err == nil:
			r.Passed++
		default:
			x.Verdict, x.Detail = Fail, err.Error()
			if q.Level == Should {
				r.Warned++
			} else {
				r.Failed++
			}
		}
		r.Results = append(r.Results, x)
	}
	r.Conforms = r.Failed == 0
	return r
}

// Print writes the report as text: a line for each requirement, and what was found and what to do where one is not met.
func (r *Report) Print(out io.Writer) {
	for i := range r.Results {
		x := &r.Results[i]
		verdict := string(x.Verdict)
		if x.Verdict == Fail {
			verdict = map[Level]string{Must: "FAIL", Should: "warn"}[x.Level]
		}
		fmt.Fprintf(out, "%-4s  %s  %-6s  %s\n", verdict, x.ID, x.Level, x.Text)
		switch x.Verdict {
		case Fail:
			fmt.Fprintf(out, "      found: %s\n      to do: %s (ABI.md, %s)\n", printable(x.Detail), x.Advice, x.Section)
		case Skip:
			fmt.Fprintf(out, "      %s\n", printable(x.Detail))
		}
	}
	fmt.Fprintf(out, "\n%d passed, %d failed, %d warnings, %d skipped\n", r.Passed, r.Failed, r.Warned, r.Skipped)
}

// printable returns s with escapes in the place of what a terminal would not print.
func printable(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if strconv.IsPrint(r) && (r != utf8.RuneError || n > 1) {
			b.WriteString(s[:n])
		} else {
			quoted := strconv.Quote(s[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[n:]
	}
	return b.String()
}

package policy

import (
	"slices"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// answers are what a plugin said of each endpoint, as they are kept: there is one for every endpoint of the cluster.
// They are not changed any more.
type answers struct {
	weights []uint16
	keep    []bool   // draining; nil: none is
	after   []uint32 // abi.Result.ResetAfterMS; nil: never
	reasons Reasons
}

func keepAnswers(list []abi.Result) answers {
	out := answers{weights: make([]uint16, len(list))}
	for i := range list {
		v := &list[i]
		out.weights[i] = v.Weight
		if v.Flags&abi.FlagKeepDraining != 0 {
			if out.keep == nil {
				out.keep = make([]bool, len(list))
			}
			out.keep[i] = true
		}
		if v.ResetAfterMS != abi.NeverReset {
			if out.after == nil {
				out.after = slices.Repeat([]uint32{abi.NeverReset}, len(list))
			}
			out.after[i] = v.ResetAfterMS
		}
	}
	out.reasons = PackReasons(len(list), func(i int) string { return list[i].Reason })
	return out
}

// Reasons are short texts for people, one for each of some endpoints, as they are kept. The zero value has none.
type Reasons struct {
	which []uint16 // of said
	said  []string // different ones, of which there are few; the first is empty
}

// mostReasons is how many different ones are kept; an answer has fewer (abi.MaxReasonCount).
const mostReasons = 1 << 16

// PackReasons makes a list of n.
func PackReasons(n int, at func(i int) string) (r Reasons) {
	last, which := "", 0
	for i := range n {
		if text := at(i); text != last {
			last = text
			if which = slices.Index(r.said, text); which < 0 {
				if r.said == nil {
					r.said = []string{""}
				}
				if which = 0; text != "" && len(r.said) < mostReasons {
					which, r.said = len(r.said), append(r.said, text)
				}
			}
		}
		if which != 0 {
			if r.which == nil {
				r.which = make([]uint16, n)
			}
			r.which[i] = uint16(which)
		}
	}
	return r
}

// At gives the reason for endpoint i.
func (r Reasons) At(i int) string {
	if r.which == nil {
		return ""
	}
	return r.said[r.which[i]]
}

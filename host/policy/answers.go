package policy

import (
	"slices"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// answers are what a plugin said of each endpoint, as they are kept: there is one for every endpoint of the cluster.
// They are not changed any more.
type answers struct {
	weights      []uint16
	keepDraining []bool   // draining; nil: none is
	resetAfterMS []uint32 // abi.Result.ResetAfterMS; nil: never
	reasons      Reasons
}

func packAnswers(list []abi.Result) answers {
	out := answers{weights: make([]uint16, len(list))}
	for i := range list {
		v := &list[i]
		out.weights[i] = v.Weight
		if v.Flags&abi.FlagKeepDraining != 0 {
			if out.keepDraining == nil {
				out.keepDraining = make([]bool, len(list))
			}
			out.keepDraining[i] = true
		}
		if v.ResetAfterMS != abi.NeverReset {
			if out.resetAfterMS == nil {
				out.resetAfterMS = slices.Repeat([]uint32{abi.NeverReset}, len(list))
			}
			out.resetAfterMS[i] = v.ResetAfterMS
		}
	}
	out.reasons = PackReasons(len(list), func(i int) string { return list[i].Reason })
	return out
}

// Reasons are short texts for people, one for each of some endpoints, as they are kept. The zero value has none.
type Reasons struct {
	indexes []uint16 // of said
	texts   []string // different ones, of which there are few; the first is empty
}

// maxReasons is how many different ones are kept; an answer has fewer (abi.MaxReasonCount).
const maxReasons = 1 << 16

// PackReasons makes a list of n.
func PackReasons(n int, at func(i int) string) (r Reasons) {
	last, which := "", 0
	for i := range n {
		if text := at(i); text != last {
			last = text
			if which = slices.Index(r.texts, text); which < 0 {
				if r.texts == nil {
					r.texts = []string{""}
				}
				if which = 0; text != "" && len(r.texts) < maxReasons {
					which, r.texts = len(r.texts), append(r.texts, text)
				}
			}
		}
		if which != 0 {
			if r.indexes == nil {
				r.indexes = make([]uint16, n)
			}
			r.indexes[i] = uint16(which)
		}
	}
	return r
}

// At gives the reason for endpoint i.
func (r Reasons) At(i int) string {
	if r.indexes == nil {
		return ""
	}
	return r.texts[r.indexes[i]]
}

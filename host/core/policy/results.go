package policy

import (
	"slices"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// packedResults stores a plugin's results compactly: there is one for every endpoint of the cluster. It is immutable.
type packedResults struct {
	answer       abi.Answer
	keepDraining []bool   // nil: all false
	resetAfterMS []uint32 // abi.Result.ResetAfterMS; nil: all NeverReset
	shedPermille []uint16 // abi.Result.ShedPermille; nil: all 0
	reasons      Reasons
}

func packResults(resp *abi.Response) packedResults {
	list, out := resp.Results, packedResults{answer: abi.AnswerOf(resp)}
	for i := range list {
		v := &list[i]
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
		if v.ShedPermille != 0 {
			if out.shedPermille == nil {
				out.shedPermille = make([]uint16, len(list))
			}
			out.shedPermille[i] = v.ShedPermille
		}
	}
	out.reasons = PackReasons(len(list), func(i int) string { return list[i].Reason })
	return out
}

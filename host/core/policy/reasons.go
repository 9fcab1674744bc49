package policy

import "slices"

// Reasons stores human-readable reasons, one for each endpoint of a list, compactly. In the zero value all are empty.
type Reasons struct {
	indexes []uint16 // into texts, by endpoint; nil: all are empty
	texts   []string // distinct, of which there are few; the first is ""
}

// maxReasons is the maximum number of distinct reasons; an answer has fewer (abi.MaxReasonCount).
const maxReasons = 1 << 16

// PackReasons stores n reasons.
func PackReasons(n int, at func(i int) string) (r Reasons) {
	last, index := "", 0
	for i := range n {
		if text := at(i); text != last {
			last = text
			if index = slices.Index(r.texts, text); index < 0 {
				if r.texts == nil {
					r.texts = []string{""}
				}
				if index = 0; text != "" && len(r.texts) < maxReasons {
					index, r.texts = len(r.texts), append(r.texts, text)
				}
			}
		}
		if index != 0 {
			if r.indexes == nil {
				r.indexes = make([]uint16, n)
			}
			r.indexes[i] = uint16(index)
		}
	}
	return r
}

// At returns the reason of endpoint i.
func (r Reasons) At(i int) string {
	if r.indexes == nil {
		return ""
	}
	return r.texts[r.indexes[i]]
}

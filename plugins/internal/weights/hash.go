package weights

// HashText returns a hash of a text.
func HashText(s string) uint32 { return Mix(FNV(s)) }

// FNV returns the FNV-1a hash of a text.
func FNV(s string) uint32 {
	h := uint32(2166136261)
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}

// Mix is the finalizer of MurmurHash3: every bit of its argument changes half of its result.
func Mix(h uint32) uint32 {
	h = (h ^ h>>16) * 0x85EBCA6B
	h = (h ^ h>>13) * 0xC2B2AE35
	return h ^ h>>16
}

package weights

import "github.com/sluice-proxy/sluice/sdk"

// HashAddr returns a hash of an address and port, FNV-1a, that is the same on every node.
func HashAddr(a sdk.Addr) uint32 {
	h := uint32(2166136261)
	for _, b := range a.As16() {
		h = (h ^ uint32(b)) * 16777619
	}
	return Mix(h ^ uint32(a.Port())*0x9E3779B1)
}

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

package nftables

import (
	"math/bits"
	"strconv"
)

// maxSizeClass is the largest size class: pools of up to 1<<maxSizeClass slots.
const maxSizeClass = 16

// A slot table is the size class of a pool when slots are drawn at random, and maxSizeClass+1 and up when they are
// chosen by hash. The latter have at least 1<<minHashClass slots, so that a change of endpoints moves few clients, and not
// more, because every frontend has its own.
const (
	minHashClass = 10
	slotTables   = maxSizeClass + 1 + maxSizeClass - minHashClass + 1
)

// classOf returns the size class of a slot table.
func classOf(kind int) (class int, hashed bool) {
	if kind <= maxSizeClass {
		return kind, false
	}
	return kind - (maxSizeClass + 1) + minHashClass, true
}

// sizeClass returns the smallest c with n ≤ 1<<c, for n > 0.
func sizeClass(n int) int { return bits.Len(uint(n - 1)) }

func sizeSetName(kind int) string {
	if c, hashed := classOf(kind); hashed {
		return "hashed_" + strconv.Itoa(1<<c)
	}
	return "total_" + strconv.Itoa(1<<kind)
}

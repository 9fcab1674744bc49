//go:build !race

package testenv

// Race reports whether the test has the race detector, which makes a process slower and maps more memory.
const Race = false

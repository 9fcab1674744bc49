//go:build amd64 || arm64

// Package registers clears the processor's vector registers. They belong to no function of Go across a call, so that they contain
// what other code has left there: parts of texts that the host has copied, or values of another guest. Compiled guests do not
// read a register that they have not written, unless the compiler is wrong, as it was (see replace.go of package meter).
package registers

// Clear sets all vector registers to zero. What the caller does next may write some of them.
func Clear()

// fill sets all vector registers, except those that Go reserves.
func fill(pattern *[16]byte)

// dump stores all vector registers, the unused ones of to stay.
func dump(to *[32][16]byte)

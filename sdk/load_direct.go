//go:build wasm || amd64 || arm64

package sdk

import "unsafe"

// Loads and stores of the wire form. These architectures are little-endian and allow unaligned access. For wasm each
// compiles to one instruction, where encoding/binary takes a dozen.

func u16(p unsafe.Pointer, at uintptr) uint16 { return *(*uint16)(unsafe.Add(p, at)) }
func u32(p unsafe.Pointer, at uintptr) uint32 { return *(*uint32)(unsafe.Add(p, at)) }
func u64(p unsafe.Pointer, at uintptr) uint64 { return *(*uint64)(unsafe.Add(p, at)) }

func putU16(p unsafe.Pointer, at uintptr, v uint16) { *(*uint16)(unsafe.Add(p, at)) = v }
func putU32(p unsafe.Pointer, at uintptr, v uint32) { *(*uint32)(unsafe.Add(p, at)) = v }
func putU64(p unsafe.Pointer, at uintptr, v uint64) { *(*uint64)(unsafe.Add(p, at)) = v }

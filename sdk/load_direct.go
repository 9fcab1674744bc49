//go:build wasm || amd64 || arm64

package sdk

import "unsafe"

// Loads and stores of the wire form. These architectures are little-endian and take any alignment, and a compiler for
// wasm makes one instruction of each, where it makes a dozen of encoding/binary's.

func u16(p unsafe.Pointer, at uintptr) uint16 { return *(*uint16)(unsafe.Add(p, at)) }
func u32(p unsafe.Pointer, at uintptr) uint32 { return *(*uint32)(unsafe.Add(p, at)) }
func u64(p unsafe.Pointer, at uintptr) uint64 { return *(*uint64)(unsafe.Add(p, at)) }

func putU32(p unsafe.Pointer, at uintptr, v uint32) { *(*uint32)(unsafe.Add(p, at)) = v }
func putU64(p unsafe.Pointer, at uintptr, v uint64) { *(*uint64)(unsafe.Add(p, at)) = v }

//go:build !(wasm || amd64 || arm64)

package sdk

import (
	"encoding/binary"
	"unsafe"
)

// Loads and stores of the wire form, byte by byte, for any byte order and alignment.

func u16(p unsafe.Pointer, at uintptr) uint16 {
	return binary.LittleEndian.Uint16((*[2]byte)(unsafe.Add(p, at))[:])
}

func u32(p unsafe.Pointer, at uintptr) uint32 {
	return binary.LittleEndian.Uint32((*[4]byte)(unsafe.Add(p, at))[:])
}

func u64(p unsafe.Pointer, at uintptr) uint64 {
	return binary.LittleEndian.Uint64((*[8]byte)(unsafe.Add(p, at))[:])
}

func putU32(p unsafe.Pointer, at uintptr, v uint32) {
	binary.LittleEndian.PutUint32((*[4]byte)(unsafe.Add(p, at))[:], v)
}

func putU64(p unsafe.Pointer, at uintptr, v uint64) {
	binary.LittleEndian.PutUint64((*[8]byte)(unsafe.Add(p, at))[:], v)
}

func putU16(p unsafe.Pointer, at uintptr, v uint16) {
	binary.LittleEndian.PutUint16((*[2]byte)(unsafe.Add(p, at))[:], v)
}

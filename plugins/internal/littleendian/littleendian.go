// Package littleendian has what plugins use of encoding/binary, which would add package reflect to a module.
package littleendian

// Uint16 reads a number.
func Uint16(b []byte) uint16 { return uint16(b[1])<<8 | uint16(b[0]) }

// Uint32 reads a number.
func Uint32(b []byte) uint32 { return uint32(Uint16(b[2:]))<<16 | uint32(Uint16(b)) }

// Uint64 reads a number.
func Uint64(b []byte) uint64 { return uint64(Uint32(b[4:]))<<32 | uint64(Uint32(b)) }

// AppendUint16 appends a number.
func AppendUint16(b []byte, n uint16) []byte { return append(b, byte(n), byte(n>>8)) }

// AppendUint32 appends a number.
func AppendUint32(b []byte, n uint32) []byte {
	return append(b, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
}

// AppendUint64 appends a number.
func AppendUint64(b []byte, n uint64) []byte {
	return AppendUint32(AppendUint32(b, uint32(n)), uint32(n>>32))
}

package meter

import "fmt"

// reader reads the bytes of a module. Its first error is sticky: later reads return zero and do not advance.
type reader struct {
	b   []byte
	pos int
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

func (r *reader) left() int {
	if r.err != nil {
		return 0
	}
	return len(r.b) - r.pos
}

func (r *reader) byte() byte {
	if r.left() < 1 {
		r.fail("unexpected end")
		return 0
	}
	c := r.b[r.pos]
	r.pos++
	return c
}

func (r *reader) bytes(n int) []byte {
	if n < 0 || r.left() < n {
		r.fail("unexpected end: %d bytes wanted, %d left", n, r.left())
		return nil
	}
	s := r.b[r.pos : r.pos+n : r.pos+n]
	r.pos += n
	return s
}

// u32 reads an unsigned LEB128 number of at most 5 bytes.
func (r *reader) u32() uint32 {
	var v uint32
	for shift := 0; shift < 35; shift += 7 {
		c := r.byte()
		if r.err != nil {
			return 0
		}
		if shift == 28 && c > 0x0f {
			break
		}
		v |= uint32(c&0x7f) << shift
		if c < 0x80 {
			return v
		}
	}
	r.fail("integer too large for 32 bits")
	return 0
}

// sleb reads a signed LEB128 number of bits bits (32, 33 or 64).
func (r *reader) sleb(bits int) int64 {
	var v int64
	for shift := 0; shift < bits; shift += 7 {
		c := r.byte()
		if r.err != nil {
			return 0
		}
		v |= int64(c&0x7f) << shift
		if c < 0x80 {
			if shift+7 < 64 && c&0x40 != 0 {
				v |= -1 << (shift + 7)
			}
			if bits < 64 && (v < -1<<(bits-1) || v >= 1<<(bits-1)) {
				break
			}
			if shift == 63 && c != 0 && c != 0x7f {
				break
			}
			return v
		}
	}
	r.fail("integer too large for %d bits", bits)
	return 0
}

// count reads the length of a vector with elements of at least minSize bytes, and checks that it fits the input.
func (r *reader) count(what string, limit, minSize int) int {
	n := r.u32()
	if r.err != nil {
		return 0
	}
	if int64(n) > int64(limit) {
		r.fail("%d %s, the limit is %d", n, what, limit)
		return 0
	}
	if int64(n)*int64(minSize) > int64(r.left()) {
		r.fail("%d %s, but only %d bytes follow", n, what, r.left())
		return 0
	}
	return int(n)
}

func appendU32(b []byte, v uint32) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func appendS64(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if (v == 0 && c&0x40 == 0) || (v == -1 && c&0x40 != 0) {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

package littleendian_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/sluice-proxy/sluice/plugins/internal/littleendian"
)

func TestNumbersAreThoseOfEncodingBinary(t *testing.T) {
	le := binary.LittleEndian
	for _, n := range []uint64{0, 1, 0x0102030405060708, 0xF8F7F6F5F4F3F2F1, 1<<64 - 1} {
		b := littleendian.AppendUint64(littleendian.AppendUint32(littleendian.AppendUint16(nil, uint16(n)), uint32(n)), n)
		if want := le.AppendUint64(le.AppendUint32(le.AppendUint16(nil, uint16(n)), uint32(n)), n); !bytes.Equal(b, want) {
			t.Errorf("%x: %x, want %x", n, b, want)
		}
		if littleendian.Uint16(b) != uint16(n) || littleendian.Uint32(b[2:]) != uint32(n) || littleendian.Uint64(b[6:]) != n {
			t.Errorf("%x is read as %x, %x, %x", n, littleendian.Uint16(b), littleendian.Uint32(b[2:]), littleendian.Uint64(b[6:]))
		}
	}
}

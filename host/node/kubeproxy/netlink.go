package kubeproxy

import (
	"encoding/binary"
	"iter"
	"maps"
	"strings"

	"golang.org/x/sys/unix"
)

// attrs iterates over netlink attributes by type. It stops at one that is truncated.
func attrs(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.NLA_HDRLEN {
			n := int(binary.NativeEndian.Uint16(b))
			if n < unix.NLA_HDRLEN || n > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(typ, b[unix.NLA_HDRLEN:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}

func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// attrsByType returns netlink attributes by type.
func attrsByType(b []byte) map[uint16][]byte { return maps.Collect(attrs(b)) }

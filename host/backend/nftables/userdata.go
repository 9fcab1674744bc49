package nftables

import (
	"encoding/binary"
)

// nft stores what only it needs as opaque user data: comments, and how to print the fields of a set. The format is
// libnftnl's: type, length and value, in bytes, with numbers in host byte order. This is what nft 1.0.6 writes for the
// same definitions.

const (
	udTableComment  = 0
	udElemComment   = 0
	udKeyByteOrder  = 0
	udDataByteOrder = 1
	udKeyTypeof     = 3
	udDataTypeof    = 4

	exprTypeof = 0
	exprData   = 1
	exprConcat = 13
)

// maxComment is the longest comment whose length, with its NUL, fits a byte.
const maxComment = 254

func tlv(b []byte, typ byte, v []byte) []byte {
	b = append(b, typ, byte(len(v)))
	return append(b, v...)
}

func tlv32(b []byte, typ byte, v uint32) []byte {
	return tlv(b, typ, binary.NativeEndian.AppendUint32(nil, v))
}

func keyByteOrder(order uint32) []byte { return tlv32(nil, udKeyByteOrder, order) }

// typeof is a field in terms of nft's typeof: an expression number and its parameters.
type typeof struct {
	expr   uint32
	params []uint32
}

func (t typeof) udata() []byte {
	var params []byte
	for i, p := range t.params {
		params = tlv32(params, byte(i), p)
	}
	return tlv(tlv32(nil, exprTypeof, t.expr), exprData, params)
}

func concat(typ byte, fields ...typeof) []byte {
	var parts []byte
	for i, f := range fields {
		parts = tlv(parts, byte(i), f.udata())
	}
	return tlv(nil, typ, tlv(tlv32(nil, exprTypeof, exprConcat), exprData, parts))
}

package nftables

import (
	"errors"
	"time"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// Attributes and flags that golang.org/x/sys/unix lacks, from linux/netfilter/nf_tables.h.
const (
	nftaSetExpr  = 17
	nftaSetCount = 20 // since Linux 6.16
)

// field is a part of a set's key or data: the number that nft gives its type, and its length. In a key each is padded
// to 4 bytes.
type field struct {
	typ   uint32
	bytes int
}

var (
	ipv4Field  = field{7, 4}
	ipv6Field  = field{8, 16}
	protoField = field{12, 1}
	portField  = field{13, 2}
	slotField  = field{4, 4} // an integer in host byte order, as numgen returns it
	markField  = field{19, 4}
	idField    = field{23, 4} // the type of meta priority
	// verdictField is the data of a map of verdicts.
	verdictField = field{unix.NFT_DATA_VERDICT, 16}
	ifnameField  = field{41, 16}
)

func padded(f []field) (n int) {
	for _, f := range f {
		n += nfnl.Align(f.bytes)
	}
	return n
}

// typeOf returns the number that nft gives a concatenation: 6 bits per field.
func typeOf(f []field) (t uint32) {
	for _, f := range f {
		t = t<<6 | f.typ
	}
	return t
}

// set is a named set or map of one table, with the pending changes.
type set struct {
	name     string
	key      []field
	data     []field // of a map
	flags    uint32
	size     uint32
	gc       time.Duration // how often the kernel looks for expired elements; 0: every second
	userdata []byte
	counters bool // each element has a counter

	exists     bool
	grace      grace // of the rules that look it up
	count      int   // of elements, as last listed, if the kernel reports it
	counted    bool
	dels, adds nfnl.ElementList
}

func with(key []field, more ...field) []field { return append(append([]field(nil), key...), more...) }

func (n *set) mapTo(data ...field) *set {
	n.data = data
	n.flags |= unix.NFT_SET_MAP
	return n
}

func (n *set) flag(f uint32) *set {
	n.flags |= f
	return n
}

// hostOrder declares to nft that keys are in host byte order.
func (n *set) hostOrder() *set {
	n.userdata = keyByteOrder(1)
	return n
}

// hostData declares to nft that a map's data is in host byte order.
func (n *set) hostData() *set {
	n.userdata = append(keyByteOrder(0), tlv32(nil, udDataByteOrder, 1)...)
	return n
}

// errSchemaMismatch is why a table under one of our names has to be replaced.
type errSchemaMismatch struct{ reason string }

func (e errSchemaMismatch) Error() string { return e.reason }

// IsForeignTable reports whether Read failed because a table with one of our names was written by another program, or by
// another version or mode of sluice. Apply replaces such a table.
func IsForeignTable(err error) bool {
	var mismatch errSchemaMismatch
	return errors.As(err, &mismatch)
}

// errForeignElement means that a set has an element that this version does not write.
func errForeignElement(s *set) error {
	return errSchemaMismatch{"its set " + s.name + " has an unknown element"}
}

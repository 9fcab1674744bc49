package nfnl

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestElementsDecodeAsEncoded(t *testing.T) {
	for _, e := range []Element{
		{Key: []byte{1, 2, 3, 4}},
		{Key: []byte{1, 2, 3, 4}, Data: []byte{5, 6, 7, 8, 0, 80}, Comment: "shop/web:http ClusterIP"},
		{Key: []byte{1, 2, 3, 4}, IntervalEnd: true},
		{Key: []byte{1, 2, 3, 4}, Jump: "learn_affinity"},
		{Key: []byte{1, 2, 3, 4}, Timeout: 3 * time.Hour, Expires: time.Millisecond},
	} {
		b := AppendElement(nil, e)
		if got := DecodeElement(Attr(b, unix.NFTA_LIST_ELEM)); !cmp.Equal(got, e) {
			t.Errorf("got %+v, want %+v", got, e)
		}
		for i := range b { // truncated
			DecodeElement(b[:i])
		}
	}
}

func TestPacerHalvesTheLimitAfterSlowTransactions(t *testing.T) {
	var p Pacer
	if p.Full(1 << 30) {
		t.Error("limited before the first transaction")
	}
	p.observe(256<<10, 2*MaxTxTime)
	if !p.Full(128<<10) || p.Full(128<<10-1) {
		t.Errorf("limit %d after a slow transaction of 256 KiB", p.maxBytes)
	}
	for range 10 {
		p.observe(256<<10, 2*MaxTxTime)
		p.observe(p.maxBytes, 2*MaxTxTime)
	}
	if p.Full(MinTxBytes - 1) {
		t.Errorf("limit %d, less than MinTxBytes", p.maxBytes)
	}
	for range 10 {
		p.observe(max(p.maxBytes, 1), time.Millisecond)
	}
	if p.Full(1 << 30) {
		t.Errorf("limit %d after fast transactions", p.maxBytes)
	}
	if p.Longest != 2*MaxTxTime || p.Transactions != 31 {
		t.Errorf("longest %s of %d", p.Longest, p.Transactions)
	}
}

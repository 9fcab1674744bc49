// Package nfnltest has transports for tests.
package nfnltest

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/util/nfnl"
	"golang.org/x/sys/unix"
)

// Fault is a transport that makes one message fail once it is armed.
type Fault struct {
	nfnl.Transport
	after int // messages of transactions until the fault
	lost  bool
	fired bool
	mute  bool // until the next Send

	reject []byte
}

// Reject makes every message that adds elements of a frontend fail, until undo is called.
func (f *Fault) Reject(addr netip.Addr, proto uint8, port uint16) (undo func()) {
	f.reject = append(append(addr.AsSlice(), proto, 0, 0, 0), byte(port>>8), byte(port), 0, 0)
	return func() { f.reject = nil }
}

// Arm makes the k-th message of transactions from now on fail, or, if lost, the reply to its transaction. It returns a
// function that disarms the fault and reports whether it fired.
func (f *Fault) Arm(k int, lost bool) (disarm func() (fired bool)) {
	f.after, f.lost, f.fired = k, lost, false
	return func() bool {
		f.after = 0
		return f.fired
	}
}

// Send implements nfnl.Transport.
func (f *Fault) Send(b []byte) error {
	f.mute = false
	messages, transaction := Messages(b)
	if transaction && f.reject != nil {
		for _, at := range messages {
			if m := b[at : at+int(binary.NativeEndian.Uint32(b[at:]))]; m[4] == unix.NFT_MSG_NEWSETELEM && bytes.Contains(m, f.reject) {
				m[4] = 0xff // no such message type
			}
		}
	}
	if transaction {
		for _, at := range messages {
			if f.after == 0 {
				break
			}
			if f.after--; f.after == 0 {
				f.fired = true
				if f.mute = f.lost; !f.lost {
					b[at+4] = 0xff // no such message type
				}
			}
		}
	}
	return f.Transport.Send(b)
}

// Receive implements nfnl.Transport.
func (f *Fault) Receive(buf []byte) (int, error) {
	n, err := f.Transport.Receive(buf)
	for f.mute && err == nil {
		n, err = f.Transport.Receive(buf)
	}
	return n, err
}

// Messages returns where the messages of a datagram begin, without the markers around a transaction, and reports whether
// it is a transaction.
func Messages(b []byte) (offsets []int, transaction bool) {
	for at := 0; at+unix.NLMSG_HDRLEN <= len(b); at += nfnl.Align(int(binary.NativeEndian.Uint32(b[at:]))) {
		switch binary.NativeEndian.Uint16(b[at+4:]) {
		case unix.NFNL_MSG_BATCH_BEGIN, unix.NFNL_MSG_BATCH_END:
			transaction = true
		default:
			offsets = append(offsets, at)
		}
	}
	return offsets, transaction
}

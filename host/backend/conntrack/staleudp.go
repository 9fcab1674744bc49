package conntrack

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// maxExactDumps is up to how many frontends the kernel is asked for the flows to each. Walking the table without returning an
// entry takes it a quarter of the time or less in which it returns them all.
const maxExactDumps = 3

// DeleteStaleUDP deletes the entries of UDP flows of a family for which stale returns true, and returns their number. The kernel
// leaves out what is not of UDP, or not to one of a few frontends (since Linux 5.8). The table is streamed; memory does not
// depend on its size.
func (t *Table) DeleteStaleUDP(ctx context.Context, f model.Family, frontends []plan.Key, stale func(to, endpoint netip.AddrPort) bool) (n int, err error) {
	requests := [][]byte{udpRequest(f, nil)}
	if len(frontends) <= maxExactDumps {
		requests = nil
		for i := range frontends {
			request := udpRequest(f, &frontends[i])
			if !slices.ContainsFunc(requests, func(r []byte) bool { return bytes.Equal(r, request) }) {
				requests = append(requests, request)
			}
		}
	}
	for _, request := range requests {
		var failed error
		err := listMatching(ctx, request, func(c *flowEntry) {
			if failed != nil || c.protocol != unix.IPPROTO_UDP || !stale(c.frontend, c.endpoint) {
				return
			}
			switch err := deleteEntry(f, c.id, c.identity()); {
			case err == nil:
				n++
			case !errors.Is(err, unix.ENOENT): // it has expired
				failed = err
			}
		})
		if err = errors.Join(err, failed); err != nil {
			return n, fmt.Errorf("conntrack: delete stale UDP flows, %s: %w", f, err)
		}
	}
	return n, nil
}

// Attributes and flags of a filter of a dump (enum ctattr_filter).
const (
	attrFilter          = 25
	attrFilterOrigFlags = 1
	filterDest          = 1 << 1
	filterProtocol      = 1 << 3
	filterDestPort      = 1 << 5
)

// udpRequest returns the message that asks for a dump of the UDP entries of a family; if to is not nil, only of those to its port
// and, in IPv4, its address. Linux (6.18) returns the entries to all other addresses for one of IPv6.
func udpRequest(f model.Family, to *plan.Key) []byte {
	flags, addr, proto := uint32(filterProtocol), []byte(nil), appendAttr(nil, attrProtoNum, []byte{unix.IPPROTO_UDP})
	if to != nil {
		flags |= filterDestPort
		proto = appendAttr(proto, attrDestPort, binary.BigEndian.AppendUint16(nil, to.Port))
		if f == model.IPv4 && !to.IsNodePort() {
			flags |= filterDest
			addr = appendAttr(nil, attrTupleIP|unix.NLA_F_NESTED, appendAttr(nil, attrIPv4Dest, to.Addr.AsSlice()))
		}
	}
	b := dumpRequest(familyOf(f), 0, 0)
	b = appendAttr(b, attrTupleOrig|unix.NLA_F_NESTED, append(addr, appendAttr(nil, attrTupleProto|unix.NLA_F_NESTED, proto)...))
	b = appendAttr(b, attrFilter|unix.NLA_F_NESTED, appendAttr(nil, attrFilterOrigFlags, binary.NativeEndian.AppendUint32(nil, flags)))
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	return b
}

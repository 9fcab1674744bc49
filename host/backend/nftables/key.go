package nftables

import (
	"encoding/binary"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"golang.org/x/sys/unix"
)

// lookup distinguishes frontends that are looked up by address from NodePorts, which are looked up without one.
type lookup uint8

const (
	byAddress lookup = iota
	byNodePort
	lookups
)

// frontendKey encodes the key of a frontend.
func frontendKey(dst []byte, k plan.Key) []byte {
	if !k.IsNodePort() {
		dst = appendAddr(dst, k.Addr)
	}
	dst = append(dst, byte(k.Protocol), 0, 0, 0)
	return appendPort(dst, k.Port)
}

func appendAddr(dst []byte, a netip.Addr) []byte {
	if a.Is4() {
		b := a.As4()
		return append(dst, b[:]...)
	}
	b := a.As16()
	return append(dst, b[:]...)
}

func appendPort(dst []byte, p uint16) []byte {
	return append(binary.BigEndian.AppendUint16(dst, p), 0, 0)
}

func lookupOf(k plan.Key) lookup {
	if k.IsNodePort() {
		return byNodePort
	}
	return byAddress
}

func protocol(b byte) model.Protocol { return model.Protocol(b) }

// uint32Of decodes a number in host byte order, zero if b is too short.
func uint32Of(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// countedKey encodes the key of an endpoint.
func countedKey(k model.EndpointKey) []byte {
	return frontendKey(nil, plan.Key{Addr: k.Addr.Addr(), Port: k.Addr.Port(), Protocol: k.Protocol})
}

// countedKeyOf decodes the key of an endpoint whose address has n bytes.
func countedKeyOf(n int, key []byte) (k model.EndpointKey, ok bool) {
	if len(key) < n+6 {
		return k, false
	}
	a, ok := netip.AddrFromSlice(key[:n])
	return model.EndpointKey{Addr: netip.AddrPortFrom(a, binary.BigEndian.Uint16(key[n+4:])), Protocol: protocol(key[n])}, ok
}

func endpointKey(group affinityID, a netip.AddrPort) []byte {
	return appendPort(appendAddr(group.bytes(), a.Addr()), a.Port())
}

func endpointData(a netip.AddrPort) []byte { return appendPort(appendAddr(nil, a.Addr()), a.Port()) }

// nfproto returns the kernel's number of a family.
func nfproto(f model.Family) byte {
	if f == model.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// prefix returns the prefix of names of sets and chains.
func prefix(i lookup, scope int) string {
	p := ""
	if i == byNodePort {
		p = "nodeport_"
	}
	if scope == outside {
		p += "outside_"
	}
	return p
}

// lastOf returns the last address of a masked prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// isUncommon reports whether few source ranges have a length. Those of registries, clouds and sites are multiples of 4 bits up
// to 64.
func isUncommon(f model.Family, bits int) bool {
	return f == model.IPv6 && (bits%4 != 0 || bits > 64) && bits != 128
}

// affinityID identifies an endpoint in a list of an affinity group: the group in the upper 16 bits, the endpoint in the
// lower. An endpoint of zero stands for the group.
type affinityID uint32

const maxAffinityID = 1<<16 - 1 // of a group, and of an endpoint in a list

func groupID(group int) affinityID                   { return affinityID(group) << 16 }
func (id affinityID) endpoint(n uint16) affinityID   { return id.group() | affinityID(n) }
func (id affinityID) group() affinityID              { return id &^ maxAffinityID }
func (id affinityID) bytes() []byte                  { return native(uint32(id)) }
func affinityIDOf(b []byte) (id affinityID, ok bool) { return affinityID(uint32Of(b)), len(b) >= 4 }

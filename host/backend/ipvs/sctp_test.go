package ipvs

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"golang.org/x/sys/unix"
)

// TestUnknownSCTPAssociationsAreNotAborted: a client with two addresses sends HEARTBEATs from the second one, of which IPVS knows
// nothing. The endpoint gets them; the node itself would answer with ABORT.
func TestUnknownSCTPAssociationsAreNotAborted(t *testing.T) {
	for family, to := range map[string]string{"IPv4": "10.96.0.80:80", "IPv6": "[fd00:10:96::80]:80"} {
		t.Run(family, func(t *testing.T) {
			d := newEnv(t)
			d.apply(d.open(), parse(t, `service shop/web
  port http  10.96.0.80:80/SCTP         ClusterIP   masquerade=never balance=random
    forward 1 endpoint, total 1
      10.244.0.1:9000  weight 1  100.0 %  active
  port http  [fd00:10:96::80]:80/SCTP   ClusterIP   masquerade=never balance=random
    forward 1 endpoint, total 1
      [fd00:10:244::1]:9000  weight 1  100.0 %  active
`), nil)
			at := netip.MustParseAddrPort(to)
			pod, client := d.rawSCTP(d.Pods[0], at.Addr()), d.rawSCTP(d.Client, at.Addr())
			const heartbeat = 4
			m := binary.BigEndian.AppendUint16(nil, 40000)
			m = binary.BigEndian.AppendUint16(m, at.Port())
			m = append(m, 0x22, 0x22, 0x22, 0x22, 0, 0, 0, 0, heartbeat, 0, 0, 12, 0, 1, 0, 8, 'b', 'e', 'a', 't')
			binary.LittleEndian.PutUint32(m[8:], crc32.Checksum(m, crc32.MakeTable(crc32.Castagnoli)))
			var sa unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte{10, 96, 0, 80}}
			if at.Addr().Is6() {
				sa = &unix.SockaddrInet6{Addr: at.Addr().As16()}
			}
			if err := d.Client.Do(func() error { return unix.Sendto(client, m, 0, sa) }); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 2048)
			for {
				n, _, err := unix.Recvfrom(pod, b, 0)
				if err != nil {
					t.Fatalf("the endpoint gets no HEARTBEAT: %v", err)
				}
				chunks := b[:n]
				if at.Addr().Is4() {
					chunks = chunks[int(b[0]&15)*4:]
				}
				if binary.BigEndian.Uint16(chunks) == 40000 && chunks[12] == heartbeat {
					return
				}
			}
		})
	}
}

// rawSCTP returns a socket that receives the SCTP packets of a host, in the family of an address.
func (d *env) rawSCTP(h *testnet.Host, of netip.Addr) (fd int) {
	d.Helper()
	family := unix.AF_INET
	if of.Is6() {
		family = unix.AF_INET6
	}
	if err := h.Do(func() (err error) {
		fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		if err == nil {
			err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30})
		}
		return err
	}); err != nil {
		d.Fatal(errors.Join(errors.New("a raw socket of "+h.Name), err))
	}
	d.Cleanup(func() { unix.Close(fd) })
	return fd
}

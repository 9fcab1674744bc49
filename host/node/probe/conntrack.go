package probe

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ConntrackEntries returns the number of conntrack entries, by netlink, which sluice also uses to list and delete entries.
// The request loads the kernel modules that it needs.
func ConntrackEntries() (int, error) {
	n, err := conntrackEntries()
	if err != nil {
		return 0, fmt.Errorf("conntrack netlink: %w", err)
	}
	return n, nil
}

// From linux/netfilter/nfnetlink_conntrack.h.
const (
	ctGetStats   = 5 // IPCTNL_MSG_CT_GET_STATS
	statsEntries = 1 // CTA_STATS_GLOBAL_ENTRIES
)

func conntrackEntries() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	const size = unix.NLMSG_HDRLEN + 4
	req := binary.NativeEndian.AppendUint32(nil, size)
	req = binary.NativeEndian.AppendUint16(req, unix.NFNL_SUBSYS_CTNETLINK<<8|ctGetStats)
	req = binary.NativeEndian.AppendUint16(req, unix.NLM_F_REQUEST)
	req = append(req, make([]byte, size-len(req))...)
	req[unix.NLMSG_HDRLEN+1] = unix.NFNETLINK_V0
	if err := unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT) // the reply is queued before Sendto returns
	if err != nil {
		return 0, err
	}
	body := buf[min(n, unix.NLMSG_HDRLEN):n]
	if len(body) < 4 {
		return 0, errors.New("malformed reply")
	}
	if binary.NativeEndian.Uint16(buf[4:]) == unix.NLMSG_ERROR {
		return 0, unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
	}
	for b := body[4:]; len(b) >= 8; {
		length, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if length < 4 || length > len(b) {
			break
		}
		if typ&^unix.NLA_F_NESTED == statsEntries && length >= 8 {
			return int(binary.BigEndian.Uint32(b[4:])), nil
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return 0, errors.New("reply without an entry count")
}

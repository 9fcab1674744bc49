package ipvs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNoIPVS means that the kernel has no IPVS, or that its module is not loaded.
var ErrNoIPVS = errors.New("the kernel has no IPVS (CONFIG_IP_VS; modprobe ip_vs, or run sluice run --init-only with full rights on the host)")

// checkIPVSLoaded is checkIPVS without the request that makes the kernel load the module.
func checkIPVSLoaded() error {
	if _, err := os.Stat("/proc/net/ip_vs"); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("ipvs: %w", ErrNoIPVS)
	}
	return checkIPVS()
}

// checkIPVS returns ErrNoIPVS if the kernel has no IPVS, for which moby/ipvs has no error.
func checkIPVS() error {
	_, err := netlink.GenlFamilyGet("IPVS")
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("ipvs: %w", ErrNoIPVS)
	case err != nil:
		return fmt.Errorf("ipvs: look up the netlink family IPVS: %w", withHint(err))
	}
	return nil
}

func openIPVS(ns int) (ipvsAPI, error) {
	if err := checkIPVS(); err != nil {
		return nil, err
	}
	path := ""
	if ns != 0 {
		path = fmt.Sprintf("/proc/self/fd/%d", ns)
	}
	// moby/ipvs logs to standard error, for example that it cannot run modprobe, although IPVS is present.
	logrus.SetOutput(io.Discard)
	h, err := ipvs.New(path)
	if err != nil {
		return nil, fmt.Errorf("ipvs: open a netlink socket: %w", withHint(err))
	}
	return kernelIPVS{h}, nil
}

func openLink(ns int, name string) (*kernelLink, error) {
	at := netns.None()
	if ns != 0 {
		at = netns.NsHandle(ns)
	}
	h, err := netlink.NewHandleAt(at, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("ipvs: open a netlink socket for links: %w", withHint(err))
	}
	s, err := openAddrSocket(at)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("ipvs: open a netlink socket for addresses: %w", withHint(err))
	}
	l := &kernelLink{name: name, handle: h, addrs: s}
	if err := l.refresh(); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

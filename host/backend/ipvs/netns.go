package ipvs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"

	"github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ErrNoIPVS is about a kernel without IPVS.
var ErrNoIPVS = errors.New("the kernel has no IPVS (CONFIG_IP_VS; modprobe ip_vs, or run sluice run --init-only with full rights on the host)")

// checkIPVSLoaded is present without asking for what would load the module.
func checkIPVSLoaded() error {
	if _, err := os.Stat("/proc/net/ip_vs"); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("ipvs: %w", ErrNoIPVS)
	}
	return checkIPVS()
}

// checkIPVS tells whether the kernel has IPVS. The library that talks to it does not.
func checkIPVS() error {
	_, err := netlink.GenlFamilyGet("IPVS")
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("ipvs: %w", ErrNoIPVS)
	case err != nil:
		return fmt.Errorf("ipvs: look for IPVS in the kernel: %w", withHint(err))
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
	// The library writes to standard error by itself, that it cannot run modprobe for one: IPVS is there.
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
	r, err := openAddrSocket(at)
	if err != nil {
		h.Close()
		return nil, fmt.Errorf("ipvs: open a netlink socket for addresses: %w", withHint(err))
	}
	l := &kernelLink{name: name, handle: h, addrs: r}
	if err := l.refresh(); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// inNetns runs f on a thread in a network namespace; 0 is the current one.
func inNetns(ns int, f func() error) error {
	if ns == 0 {
		return f()
	}
	done := make(chan error)
	go func() {
		// Not unlocked: the thread ends with this goroutine, and with it the stay in the namespace.
		runtime.LockOSThread()
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

// inNewNetns runs f in a network namespace of its own, which is gone afterwards.
func inNewNetns(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // as above
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		done <- f()
	}()
	return <-done
}

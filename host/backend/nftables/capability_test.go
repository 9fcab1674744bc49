package nftables

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// lockedWithoutCapabilities runs f on a thread that has dropped its capabilities for good, and ends with f.
func lockedWithoutCapabilities(t *testing.T, f func()) {
	runtime.LockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&hdr, &none[0]); err != nil {
		t.Errorf("give up capabilities: %v", err)
	}
	f()
}

package confine

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rights that landlock_create_ruleset(2) knows, by the version of its ABI.
const (
	filesV1 = 1<<13 - 1
	refer   = 1 << 13 // version 2
	cut     = 1 << 14 // version 3: truncate
	device  = 1 << 15 // version 5: ioctl
	tcp     = 1<<0 | 1<<1
	sockets = 1 << 0 // scope: abstract sockets
	signals = 1 << 1 // scope
)

func pointer[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// denyFiles takes all files from all threads, except for the policy's folder, and where the kernel can, TCP, abstract sockets and
// signals to other processes.
func denyFiles(p *Policy) error {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return errno
	}
	attr := struct{ files, net, scoped uint64 }{files: filesV1}
	size := unsafe.Sizeof(attr.files)
	if version >= 2 {
		attr.files |= refer
	}
	if version >= 3 {
		attr.files |= cut
	}
	if version >= 4 {
		attr.net, size = tcp, 16
	}
	if version >= 5 {
		attr.files |= device
	}
	if version >= 6 {
		attr.scoped, size = sockets, 24
		// Each thread has a domain of its own. Kernels without the correction let none signal another, as Go's runtime does.
		const errata, threads = 2, 1 << 1
		if fixed, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, errata); errno == 0 && fixed&threads != 0 {
			attr.scoped |= signals
		}
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, pointer(&attr), size, 0)
	if errno != 0 {
		return errno
	}
	defer unix.Close(int(fd))
	if p.Folder != "" {
		if err := allowFolder(int(fd), p.Folder, attr.files&^device); err != nil {
			return fmt.Errorf("%s: %w", p.Folder, err)
		}
	}
	if err := allThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return err
	}
	return allThreads(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0)
}

// allowFolder allows what is under a folder.
func allowFolder(ruleset int, path string, rights uint64) error {
	folder, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(folder)
	const write, read, list, remove, file = 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 8 // no programs, links, devices and folders
	var rule [12]byte                                                              // struct landlock_path_beneath_attr, packed
	*(*uint64)(unsafe.Pointer(&rule[0])) = rights & (write | read | list | remove | file | cut)
	*(*int32)(unsafe.Pointer(&rule[8])) = int32(folder)
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, pointer(&rule), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

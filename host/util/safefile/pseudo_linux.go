package safefile

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// owner returns the user that a file belongs to.
func owner(info os.FileInfo) (uid int, ok bool) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(s.Uid), true
}

// Changed returns when the content or the attributes of a file last changed. No program can set that time.
func Changed(info os.FileInfo) time.Time {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return info.ModTime()
	}
	return time.Unix(s.Ctim.Unix())
}

// pseudoFileSystem returns the name of the file system of a file if it is a pseudo file system, else "". Its regular files
// may block forever when read, be endless, or have side effects.
func pseudoFileSystem(f *os.File) string {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &s); err != nil {
		return ""
	}
	return pseudoName(&s)
}

func pseudoName(s *unix.Statfs_t) string {
	switch uint32(s.Type) { // the field's width differs between architectures
	case unix.PROC_SUPER_MAGIC:
		return "proc"
	case unix.SYSFS_MAGIC:
		return "sysfs"
	case unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
		return "cgroup"
	case unix.DEBUGFS_MAGIC:
		return "debugfs"
	case unix.TRACEFS_MAGIC:
		return "tracefs"
	case unix.SECURITYFS_MAGIC, unix.SELINUX_MAGIC, unix.SMACK_MAGIC:
		return "security"
	case configfsMagic:
		return "configfs"
	case unix.BPF_FS_MAGIC:
		return "bpf"
	case unix.PSTOREFS_MAGIC:
		return "pstore"
	case unix.EFIVARFS_MAGIC:
		return "efivarfs"
	case unix.DEVPTS_SUPER_MAGIC:
		return "devpts"
	case unix.BINFMTFS_MAGIC:
		return "binfmt_misc"
	case unix.NSFS_MAGIC:
		return "nsfs"
	case unix.RDTGROUP_SUPER_MAGIC:
		return "resctrl"
	case mqueueMagic, fusectlMagic:
		return "pseudo"
	}
	return ""
}

// Magic numbers that x/sys lacks, from fs/configfs, ipc/mqueue.c and fs/fuse/control.c.
const (
	configfsMagic = 0x62656570
	mqueueMagic   = 0x19800202
	fusectlMagic  = 0x65735543
)

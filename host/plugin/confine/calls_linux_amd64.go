package confine

import "golang.org/x/sys/unix"

func otherFiles() []uint32 {
	return []uint32{unix.SYS_NEWFSTATAT, unix.SYS_RENAMEAT, unix.SYS_EPOLL_WAIT}
}

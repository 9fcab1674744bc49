package confine

import "golang.org/x/sys/unix"

func otherFiles() []uint32 { return []uint32{unix.SYS_FSTATAT, unix.SYS_RENAMEAT} }

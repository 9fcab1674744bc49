package gctuner

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseProgram makes the resident pages of the program's own file the first that the kernel reuses, and unmaps them. Most have been
// needed to start only. Those that are needed again are mapped from the page cache, 16 at a time.
func ReleaseProgram() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		f := strings.Fields(lines.Text()) // addresses, permissions, offset, device, inode, path
		if len(f) < 6 || strings.Contains(f[1], "w") || !strings.HasSuffix(lines.Text(), " "+program) {
			continue // not a file, or one with changes of this process
		}
		from, to, _ := strings.Cut(f[0], "-")
		begin, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err1 != nil || err2 != nil {
			continue
		}
		for _, advice := range []uintptr{unix.MADV_COLD, unix.MADV_DONTNEED} {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(end-begin), advice) // only saves memory
		}
	}
}

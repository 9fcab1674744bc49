package gctuner

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseProgram unmaps the pages of the program's own file, most of which have been needed to start only. Those that are needed again are
// mapped from the kernel's page cache, 16 at a time.
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
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(end-begin), unix.MADV_DONTNEED) // only saves memory
	}
}

package gctuner

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ReleaseProgram unmaps the pages of the program's own file, most of which have been needed to start only. Those that are needed
// again are mapped from the kernel's page cache, 16 at a time. Mappings with pages that this process has changed are left alone:
// those that can be written, and those that the dynamic loader has relocated and made read-only (a position-independent
// executable, or one with cgo).
func ReleaseProgram() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer smaps.Close()
	var begin, end uint64 // of the mapping; zero: not one of the program, or changed
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		f := strings.Fields(lines.Text())
		switch {
		case len(f) >= 5 && !strings.HasSuffix(f[0], ":"): // addresses, permissions, offset, device, inode, path
			begin, end = 0, 0
			from, to, _ := strings.Cut(f[0], "-")
			b, err1 := strconv.ParseUint(from, 16, 64)
			e, err2 := strconv.ParseUint(to, 16, 64)
			if err1 == nil && err2 == nil && !strings.Contains(f[1], "w") && strings.HasSuffix(lines.Text(), " "+program) {
				begin, end = b, e
			}
		case len(f) >= 2 && f[0] == "Anonymous:" && f[1] != "0":
			begin, end = 0, 0
		case end > begin && len(f) >= 2 && f[0] == "Swap:" && f[1] == "0": // after Anonymous
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(begin), uintptr(end-begin), unix.MADV_DONTNEED) // only saves memory
		}
	}
}

package probe

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// testedKernels are the series of Linux on which sluice is tested, oldestKernel is the oldest one that has what it needs.
var (
	testedKernels = []string{"6.1", "6.12", "6.18"}
	oldestKernel  = [2]int{5, 10}
)

// Kernel compares the kernel's version with those on which sluice is tested.
func Kernel() Finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Finding{Group: "kernel", Name: "version", State: Unknown, Found: err.Error()}
	}
	return kernelFinding(unix.ByteSliceToString(u.Release[:]))
}

func kernelFinding(release string) Finding {
	f := Finding{Group: "kernel", Name: "version", State: OK, Found: release + "; tested: " + strings.Join(testedKernels, ", ")}
	var v [2]int
	switch _, err := fmt.Sscanf(release, "%d.%d", &v[0], &v[1]); {
	case err != nil:
		f.State = Unknown
	case v[0] < oldestKernel[0] || v[0] == oldestKernel[0] && v[1] < oldestKernel[1]:
		f.State, f.Impact = Warning, fmt.Sprintf("older than %d.%d: rules of sluice's may be refused, or mean something else", oldestKernel[0], oldestKernel[1])
		f.Remedy = "a newer kernel"
	}
	return f
}

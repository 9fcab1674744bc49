package benchutil

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// CPUUtilization measures the fraction of this machine's CPU time that is in use, 0 to 1.
func CPUUtilization(during time.Duration) (float64, error) {
	idle, all, err := cpuTimes()
	if err != nil {
		return 0, err
	}
	time.Sleep(during)
	idle2, all2, err := cpuTimes()
	if err != nil || all2 == all {
		return 0, err
	}
	return 1 - float64(idle2-idle)/float64(all2-all), nil
}

func cpuTimes() (idle, all uint64, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	var v [8]uint64 // user nice system idle iowait irq softirq steal
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]); err != nil {
		return 0, 0, fmt.Errorf("/proc/stat: %q: %w", line, err)
	}
	for _, n := range v {
		all += n
	}
	return v[3] + v[4], all, nil
}

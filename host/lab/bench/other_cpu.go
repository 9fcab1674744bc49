package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// otherCPU measures the CPUs used by other processes, which make figures noisy.
type otherCPU struct {
	begin     time.Time
	all, ours float64 // CPU seconds
}

func startOtherCPU() otherCPU { return otherCPU{time.Now(), machineCPUSeconds(), cpuSeconds()} }

// average returns the average number of CPUs since the start.
func (o otherCPU) average() float64 {
	now := startOtherCPU()
	return max(0, (now.all-o.all)-(now.ours-o.ours)) / now.begin.Sub(o.begin).Seconds()
}

// machineCPUSeconds returns the CPU seconds that the machine has used since boot.
func machineCPUSeconds() float64 {
	const perSecond = 100 // USER_HZ on every Linux architecture that Go supports
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	sum := 0.0
	for i, f := range strings.Fields(line) {
		if i == 0 || i == 4 || i == 5 || i > 8 { // name, idle, iowait, guests (included in user)
			continue
		}
		n, _ := strconv.ParseFloat(f, 64)
		sum += n
	}
	return sum / perSecond
}

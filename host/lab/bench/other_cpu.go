package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// otherCPU measures how many processors other programs keep busy: figures that were taken meanwhile are noisy.
type otherCPU struct {
	begin     time.Time
	all, ours float64 // seconds of processors
}

func startOtherCPU() otherCPU { return otherCPU{time.Now(), machineCPUSeconds(), cpuSeconds()} }

// average gives how many on average, since the beginning.
func (o otherCPU) average() float64 {
	now := startOtherCPU()
	return max(0, (now.all-o.all)-(now.ours-o.ours)) / now.begin.Sub(o.begin).Seconds()
}

// machineCPUSeconds is the time of processors that all of the machine has used, in seconds since it came up.
func machineCPUSeconds() float64 {
	const perSecond = 100 // USER_HZ, on all of Linux's architectures that Go runs on
	text, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(text), "\n")
	sum := 0.0
	for i, f := range strings.Fields(line) {
		if i == 0 || i == 4 || i == 5 || i > 8 { // the name, idle, waiting for a disk, guests (counted as user)
			continue
		}
		n, _ := strconv.ParseFloat(f, 64)
		sum += n
	}
	return sum / perSecond
}

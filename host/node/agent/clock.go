package agent

import (
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/engine"
)

// clock returns a function that reads the node's clocks.
func clock(log *slog.Logger) func() engine.ClockReading {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		log.Warn("the boot is unknown: after a restart, drains in progress start over", "err", err)
	}
	boot := strings.TrimSpace(string(id))
	return func() engine.ClockReading { return readClocks(boot) }
}

// readClocks reads both clocks within a millisecond, unless this process is interrupted each time that it tries.
func readClocks(boot string) engine.ClockReading {
	const attempts = 10
	r := engine.ClockReading{Boot: boot}
	for range attempts {
		begin := sinceBoot()
		r.Wall, r.SinceBoot = time.Now(), sinceBoot()
		if r.SinceBoot-begin < time.Millisecond {
			break
		}
	}
	return r
}

func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // every kernel since 2.6.39 has this clock
	}
	return time.Duration(t.Nano())
}

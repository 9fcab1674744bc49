package agent

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestClockCountsFromTheBoot(t *testing.T) {
	uptime := func() time.Duration { // includes the time suspended
		text, err := os.ReadFile("/proc/uptime")
		if err != nil {
			t.Fatal(err)
		}
		seconds, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(seconds * float64(time.Second))
	}
	const resolution = 10 * time.Millisecond // of /proc/uptime
	read := clock(slog.New(slog.DiscardHandler))
	before, begin := uptime(), time.Now()
	r := read()
	if end := time.Now(); r.Wall.Before(begin) || r.Wall.After(end) {
		t.Errorf("wall time %s, not from %s to %s", r.Wall, begin, end)
	}
	if after := uptime() + resolution; r.SinceBoot < before || r.SinceBoot > after {
		t.Errorf("%s since the boot, not %s to %s", r.SinceBoot, before, after)
	}
	if again := read(); r.Boot == "" || again.Boot != r.Boot || again.SinceBoot <= r.SinceBoot {
		t.Errorf("read %+v, then %+v", r, again)
	}
}

package peer

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/loadgen"
)

// timelineWindow is the resolution of a timeline.
const timelineWindow = 50 * time.Millisecond

// window is what happens in a part of a start.
type window struct {
	CPU, APIServerCPU time.Duration
	MiB               float64 // received
	Log               []string
}

// timeline records the windows since the start of a proxy.
type timeline struct {
	proxy     *runningProxy
	apiserver benchutil.Process
	windows   []window
	err       error
	stopped   chan struct{}
	done      chan struct{}
}

// observe begins a timeline. end ends it.
func (r *runningProxy) observe(apiserver int) *timeline {
	l := &timeline{proxy: r, apiserver: benchutil.Process(apiserver), stopped: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.err = l.record()
	}()
	return l
}

// counters are what a window is the difference of.
func (l *timeline) counters() (own, apiserver time.Duration, received float64, err error) {
	if own, err = l.proxy.CPU(); err != nil {
		return 0, 0, 0, err
	}
	if apiserver, err = l.apiserver.CPU(); err != nil {
		return 0, 0, 0, err
	}
	received, err = loadgen.Received(l.proxy.node.lab.Node)
	return own, apiserver, received, err
}

func (l *timeline) record() error {
	own, apiserver, received, err := l.counters()
	if err != nil {
		return err
	}
	for at := l.proxy.started.Add(timelineWindow); ; at = at.Add(timelineWindow) {
		select {
		case <-l.stopped:
			return nil
		case <-time.After(time.Until(at)):
		}
		nextOwn, nextAPIServer, nextReceived, err := l.counters()
		if err != nil {
			return err
		}
		l.windows = append(l.windows, window{CPU: nextOwn - own, APIServerCPU: nextAPIServer - apiserver, MiB: (nextReceived - received) / (1 << 20)})
		own, apiserver, received = nextOwn, nextAPIServer, nextReceived
	}
}

// end returns the windows until a time, with the proxy's log.
func (l *timeline) end(until time.Time) ([]window, error) {
	close(l.stopped)
	<-l.done
	if l.err != nil {
		return nil, l.err
	}
	out := l.windows[:max(0, min(len(l.windows), l.at(until)+1))]
	text, err := os.ReadFile(filepath.Join(l.proxy.node.dir, "log"))
	if err != nil {
		return nil, err
	}
	for _, e := range parseLog(string(text)) {
		if n := l.at(e.at); n >= 0 && n < len(out) {
			out[n].Log = append(out[n].Log, e.message)
		}
	}
	return out, nil
}

// at returns the window of a time.
func (l *timeline) at(t time.Time) int { return int(t.Sub(l.proxy.started) / timelineWindow) }

type logEntry struct {
	at      time.Time
	message string
}

// logLine is a line of sluice's log: time, message without quotes, the rest.
var logLine = regexp.MustCompile(`^time=(\S+) level=\S+ msg=(?:"([^"]*)"|(\S+))`)

// parseLog returns the entries of sluice's log. Other lines are left out.
func parseLog(text string) (out []logEntry) {
	for line := range strings.Lines(text) {
		m := logLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		if at, err := time.Parse(time.RFC3339Nano, m[1]); err == nil {
			message, _, _ := strings.Cut(m[2]+m[3], ";")
			out = append(out, logEntry{at, message})
		}
	}
	return out
}

// printTimeline prints the last start of sluice at a size.
func (r *sizeResult) printTimeline(w io.Writer) {
	list := r.Proxies[1].Timeline
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(w, "\n**A start of sluice** at %d Services, in windows of %d ms, until each probed Service answers\n\n", r.Services, timelineWindow.Milliseconds())
	fmt.Fprint(w, "| until, ms | CPU of sluice, ms | … of the API server | received, MiB | log of sluice |\n|---|---|---|---|---|\n")
	for i := range list {
		v := &list[i]
		fmt.Fprintf(w, "| %d | %d | %d | %.1f | %s |\n", int64(i+1)*timelineWindow.Milliseconds(), v.CPU.Milliseconds(), v.APIServerCPU.Milliseconds(), v.MiB, strings.Join(v.Log, "; "))
	}
}

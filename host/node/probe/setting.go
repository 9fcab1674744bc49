package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Conntrack is the configuration of conntrack. 0 keeps the kernel's value.
type Conntrack struct {
	MaxPerCore            int // entries per CPU; 0 also disables Min
	Min                   int // minimum number of entries
	TCPBeLiberal          bool
	TCPEstablishedTimeout time.Duration
	TCPCloseWaitTimeout   time.Duration
	UDPTimeout            time.Duration
	UDPStreamTimeout      time.Duration
}

// Setting is a numeric kernel setting and its required value.
type Setting struct {
	Name    string // of a sysctl, or an absolute path
	Want    int
	AtLeast bool   // a larger value is kept
	Impact  string // what does not work if it cannot be set
	// Optional settings are derived from others; sluice works without them.
	Optional bool
}

const hashSize = "/sys/module/nf_conntrack/parameters/hashsize"

// ConntrackSettings returns the conntrack settings, with the values that kube-proxy sets. The table size is never lowered,
// because a larger one was set on purpose (kubernetes/kubernetes#142035).
func (h Host) ConntrackSettings(c Conntrack) []Setting {
	const table = "net.netfilter.nf_conntrack_"
	var out []Setting
	if limit := max(c.MaxPerCore*h.CPUs, c.Min); c.MaxPerCore > 0 && limit > 0 {
		out = append(out,
			Setting{Name: table + "max", Want: limit, AtLeast: true, Impact: "new connections are dropped when the table is full"},
			// The kernel sizes its hash table to a quarter of the limit, but only at boot.
			Setting{Name: hashSize, Want: limit / 4, AtLeast: true, Optional: true, Impact: "conntrack lookups slow down with many connections"})
	}
	for _, t := range []struct {
		name string
		d    time.Duration
	}{
		{"tcp_timeout_established", c.TCPEstablishedTimeout},
		{"tcp_timeout_close_wait", c.TCPCloseWaitTimeout},
		{"udp_timeout", c.UDPTimeout},
		{"udp_timeout_stream", c.UDPStreamTimeout},
	} {
		if t.d > 0 {
			out = append(out, Setting{Name: table + t.name, Want: int(t.d / time.Second), Impact: "idle connections expire earlier or later than configured"})
		}
	}
	if c.TCPBeLiberal {
		out = append(out, Setting{Name: table + "tcp_be_liberal", Want: 1, Impact: "packets outside the TCP window are not translated and may reset connections"})
	}
	return out
}

func (h Host) file(s Setting) string {
	if strings.HasPrefix(s.Name, "/") {
		return h.path(s.Name)
	}
	return h.path(sysctlPath(s.Name))
}

// read returns the value of a setting and reports whether it is acceptable.
func (h Host) read(s Setting) (value int, ok bool, err error) {
	value, err = readInt(h.file(s))
	if err != nil {
		return 0, false, fmt.Errorf("%s: %w", s.Name, explainReadError(s.Name, err))
	}
	return value, value == s.Want || s.AtLeast && value > s.Want, nil
}

// Set sets a setting unless its value is acceptable, and returns the previous value. An acceptable value is not written, so
// an unprivileged process can call Set after a privileged one.
func (h Host) Set(s Setting) (previous int, changed bool, err error) {
	previous, ok, err := h.read(s)
	if err != nil || ok {
		return previous, false, err
	}
	f, err := os.OpenFile(h.file(s), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(s.Want))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return previous, false, fmt.Errorf("set %s from %d to %d: %w", s.Name, previous, s.Want, explainWriteError(s.Name, err))
	}
	return previous, true, nil
}

// SetOOMScoreAdj sets the OOM score adjustment of this process, -1000 to 1000.
func (h Host) SetOOMScoreAdj(adj int) error {
	_, _, err := h.Set(oomScoreSetting(adj))
	return err
}

const oomFile = "/proc/self/oom_score_adj"

func oomScoreSetting(adj int) Setting {
	return Setting{Name: oomFile, Want: adj, Impact: "the kernel may kill sluice early when memory is short; programmed rules continue to forward"}
}

func readInt(path string) (int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		var p *fs.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("%.50q is not a number", b)
	}
	return n, nil
}

// explainReadError adds the likely cause of a missing file.
func explainReadError(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		module := "nf_conntrack"
		if strings.HasPrefix(name, "net.ipv4.vs.") {
			module = "ip_vs"
		}
		return fmt.Errorf("%w: is the kernel module loaded (modprobe %s)?", err, module)
	}
	return err
}

// explainWriteError adds the likely cause of a failed write.
func explainWriteError(name string, err error) error {
	switch {
	case name == oomFile && errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: lowering it requires CAP_SYS_RESOURCE", err)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: mounted read-only, as in an unprivileged container", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: requires root in the host's network namespace", err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: cannot be set from this network namespace?", err)
	}
	return err
}

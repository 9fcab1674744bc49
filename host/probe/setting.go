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

// Conntrack is what is wanted of the kernel's connection table; a 0 leaves the kernel's value as it is.
type Conntrack struct {
	MaxPerCore            int // entries for each CPU; 0: Min says nothing either
	Min                   int // entries at least
	TCPBeLiberal          bool
	TCPEstablishedTimeout time.Duration
	TCPCloseWaitTimeout   time.Duration
	UDPTimeout            time.Duration
	UDPStreamTimeout      time.Duration
}

// Setting is a number that the kernel is to have.
type Setting struct {
	Name    string // of a sysctl, or a path
	Want    int
	AtLeast bool   // more is as good, and stays
	Impact  string // what it costs when it cannot be set
	// Optional settings follow from others, and the kernel does without.
	Optional bool
}

const hashSize = "/sys/module/nf_conntrack/parameters/hashsize"

// ConntrackSettings are those of the connection table, as kube-proxy sets them. The table's size is only ever raised: whoever
// gave it more had a reason (kubernetes/kubernetes#142035).
func (h Host) ConntrackSettings(c Conntrack) []Setting {
	const table = "net.netfilter.nf_conntrack_"
	var out []Setting
	if limit := max(c.MaxPerCore*h.CPUs, c.Min); c.MaxPerCore > 0 && limit > 0 {
		out = append(out,
			Setting{Name: table + "max", Want: limit, AtLeast: true, Impact: "new connections are dropped when the table is full"},
			// The kernel's own proportion, which it keeps only at its start.
			Setting{Name: hashSize, Want: limit / 4, AtLeast: true, Optional: true, Impact: "looking connections up gets slower as they become many"})
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
			out = append(out, Setting{Name: table + t.name, Want: int(t.d / time.Second), Impact: "idle connections are forgotten sooner or later than configured"})
		}
	}
	if c.TCPBeLiberal {
		out = append(out, Setting{Name: table + "tcp_be_liberal", Want: 1, Impact: "packets outside the TCP window stay without NAT, and may reset connections"})
	}
	return out
}

func (h Host) file(s Setting) string {
	if strings.HasPrefix(s.Name, "/") {
		return h.path(s.Name)
	}
	return h.path(sysctlPath(s.Name))
}

// read reads a setting, and tells whether it is as wanted.
func (h Host) read(s Setting) (is int, good bool, err error) {
	is, err = readInt(h.file(s))
	if err != nil {
		return 0, false, fmt.Errorf("%s: %w", s.Name, explainReadError(err))
	}
	return is, is == s.Want || s.AtLeast && is > s.Want, nil
}

// Set brings a setting to what is wanted, and tells what it was when that was something else. Nothing is written
// where nothing differs, so that it needs no rights there.
func (h Host) Set(s Setting) (was int, changed bool, err error) {
	was, good, err := h.read(s)
	if err != nil || good {
		return was, false, err
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
		return was, false, fmt.Errorf("%s: is %d, cannot be set to %d: %w", s.Name, was, s.Want, explainWriteError(s.Name, err))
	}
	return was, true, nil
}

// SetOOMScoreAdj sets how ready the kernel is to kill this process when memory is short.
func (h Host) SetOOMScoreAdj(adj int) error {
	_, _, err := h.Set(oomScoreSetting(adj))
	return err
}

const oomFile = "/proc/self/oom_score_adj"

func oomScoreSetting(adj int) Setting {
	return Setting{Name: oomFile, Want: adj, Impact: "the kernel may kill sluice early when memory is short; what is programmed forwards on"}
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

// explainReadError adds what a missing file means.
func explainReadError(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: is the kernel module loaded (modprobe nf_conntrack)?", err)
	}
	return err
}

// explainWriteError adds what a refusal means.
func explainWriteError(name string, err error) error {
	switch {
	case name == oomFile && errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: lowering it takes CAP_SYS_RESOURCE", err)
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: mounted read-only, as in an unprivileged container", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: it takes full rights in the host's own network namespace", err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: not from this network namespace?", err)
	}
	return err
}

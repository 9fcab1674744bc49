package ipvs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Setting is a number that the kernel is to have, in the network namespace.
type Setting struct {
	Name   string // of a sysctl
	Want   int
	Costs  string // what it costs when it cannot be set
	Kernel string // what has it
	// Required: without it connections go astray.
	Required bool
}

func (s Setting) path() string { return "/proc/sys/" + strings.ReplaceAll(s.Name, ".", "/") }

func (s Setting) read() (int, error) {
	b, err := os.ReadFile(s.path())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

var required = []Setting{
	{Name: "net.ipv4.vs.conntrack", Want: 1, Required: true, Kernel: "CONFIG_IP_VS_NFCT", Costs: "masquerading and source ranges, which go by connection tracking"},
}

// Settings are what IPVS needs, and what is asked for. They belong to the network namespace.
func Settings(o Options) []Setting {
	const kernel = "module ip_vs"
	out := append(slices.Clone(required),
		Setting{Name: "net.ipv4.vs.expire_nodest_conn", Want: 1, Kernel: kernel, Costs: "UDP flows to a member that left find no other until they time out"},
		Setting{Name: "net.ipv4.vs.expire_quiescent_template", Want: 1, Kernel: kernel, Costs: "clients go back to a member that is being drained"},
		Setting{Name: "net.ipv4.ip_forward", Want: 1, Kernel: "CONFIG_INET", Costs: "nothing is forwarded to other nodes' Pods"},
	)
	// From 5.9 on a new connection from a port that was just in use no longer has to wait; before, it had to or went
	// to the old member.
	if release() < 5_09 {
		out = append(out, Setting{Name: "net.ipv4.vs.conn_reuse_mode", Want: 0, Kernel: kernel, Costs: "a new connection from a port that was just in use waits a second"})
	}
	if o.StrictARP {
		out = append(out,
			Setting{Name: "net.ipv4.conf.all.arp_ignore", Want: 1, Kernel: "CONFIG_INET", Costs: "strictARP: the node answers ARP for the addresses of Services"},
			Setting{Name: "net.ipv4.conf.all.arp_announce", Want: 2, Kernel: "CONFIG_INET", Costs: "strictARP: the node announces the addresses of Services"})
	}
	return out
}

// release is the kernel's version: 5_09 for 5.9; 0 when it cannot be told.
func release() int {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return 0
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return 0
	}
	return major*100 + minor
}

// set brings the settings to what is needed. What cannot be set is an error when it is required, otherwise a warning.
func set(o Options, log *slog.Logger) error {
	var errs []error
	err := inNetns(o.Netns, func() error {
		for _, s := range Settings(o) {
			changed, err := s.set()
			switch {
			case err != nil && s.Required:
				errs = append(errs, fmt.Errorf("%w; do: sluice run --init-only with full rights on the host", err))
			case err != nil:
				log.Warn("a kernel setting is not as it should be", "err", err, "costs", s.Costs,
					"do", "sluice run --init-only with full rights on the host")
			case changed:
				log.Info("kernel setting changed", "setting", s.Name, "is", s.Want)
			}
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

func (s Setting) set() (changed bool, err error) {
	now, err := s.read()
	if errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("ipvs: setting %s: %w: the kernel has no such setting here (%s; or in a user namespace of its own)", s.Name, err, s.Kernel)
	}
	if err == nil && now == s.Want {
		return false, nil
	}
	if err := os.WriteFile(s.path(), []byte(strconv.Itoa(s.Want)), 0); err != nil {
		return false, fmt.Errorf("ipvs: set %s to %d: %w", s.Name, s.Want, err)
	}
	return true, nil
}

// resetSettings puts settings right that somebody else has changed. One that cannot be set is told once.
func (b *Backend) resetSettings() {
	err := inNetns(b.o.Netns, func() error {
		for _, s := range Settings(b.o) {
			changed, err := s.set()
			if changed {
				b.log.Warn("somebody else has changed a kernel setting; it is put right", "setting", s.Name, "is", s.Want, "costs", s.Costs)
			}
			if err != nil && !b.unset[s.Name] {
				b.log.Warn("a kernel setting is not as it should be", "err", err, "costs", s.Costs)
			}
			b.unset[s.Name] = err != nil
		}
		return nil
	})
	if err != nil {
		b.log.Debug("looking at the kernel's settings", "err", err)
	}
}

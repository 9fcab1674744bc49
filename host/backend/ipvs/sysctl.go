package ipvs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Sysctl is a number that the kernel is to have, in the network namespace.
type Sysctl struct {
	Name   string // of a sysctl
	Want   int
	Impact string // what it costs when it cannot be set
	Kernel string // what has it
	// Required: without it connections go astray.
	Required bool
}

func (s Sysctl) path() string { return "/proc/sys/" + strings.ReplaceAll(s.Name, ".", "/") }

func (s Sysctl) read() (int, error) {
	b, err := os.ReadFile(s.path())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

var requiredSysctls = []Sysctl{
	{Name: "net.ipv4.vs.conntrack", Want: 1, Required: true, Kernel: "CONFIG_IP_VS_NFCT", Impact: "masquerading and source ranges, which go by connection tracking"},
}

// Sysctls are what IPVS needs, and what is asked for. They belong to the network namespace.
func Sysctls(o Options) []Sysctl {
	const kernel = "module ip_vs"
	out := append(slices.Clone(requiredSysctls),
		Sysctl{Name: "net.ipv4.vs.expire_nodest_conn", Want: 1, Kernel: kernel, Impact: "UDP flows to a member that left find no other until they time out"},
		Sysctl{Name: "net.ipv4.vs.expire_quiescent_template", Want: 1, Kernel: kernel, Impact: "clients go back to a member that is being drained"},
		Sysctl{Name: "net.ipv4.ip_forward", Want: 1, Kernel: "CONFIG_INET", Impact: "nothing is forwarded to other nodes' Pods"},
	)
	// From 5.9 on a new connection from a port that was just in use no longer has to wait; before, it had to or went
	// to the old member.
	if kernelRelease() < 5_09 {
		out = append(out, Sysctl{Name: "net.ipv4.vs.conn_reuse_mode", Want: 0, Kernel: kernel, Impact: "a new connection from a port that was just in use waits a second"})
	}
	if o.StrictARP {
		out = append(out,
			Sysctl{Name: "net.ipv4.conf.all.arp_ignore", Want: 1, Kernel: "CONFIG_INET", Impact: "strictARP: the node answers ARP for the addresses of Services"},
			Sysctl{Name: "net.ipv4.conf.all.arp_announce", Want: 2, Kernel: "CONFIG_INET", Impact: "strictARP: the node announces the addresses of Services"})
	}
	return out
}

// kernelRelease is the kernel's version: 5_09 for 5.9; 0 when it cannot be told.
func kernelRelease() int {
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

// sysctlStore are the kernel's settings, in one network namespace.
type sysctlStore interface {
	getSysctl(name string) (int, error)
	setSysctl(name string, v int) error
}

// procSysctls is the real ones; it is a namespace's file descriptor, or 0.
type procSysctls int

func (p procSysctls) getSysctl(name string) (v int, err error) {
	nerr := inNetns(int(p), func() error { v, err = Sysctl{Name: name}.read(); return nil })
	return v, errors.Join(nerr, err)
}

func (p procSysctls) setSysctl(name string, v int) (err error) {
	nerr := inNetns(int(p), func() error {
		err = os.WriteFile(Sysctl{Name: name}.path(), []byte(strconv.Itoa(v)), 0)
		return nil
	})
	return errors.Join(nerr, err)
}

const initOnlyRemedy = "sluice run --init-only with full rights on the host"

// applySysctls brings the kernel's settings to what is needed: at the start, and whenever somebody else has changed them.
// One that cannot be set is an error when it is required, otherwise a warning, once.
func (b *Backend) applySysctls(start bool) error {
	var errs []error
	for _, s := range Sysctls(b.o) {
		was, changed, err := s.apply(b.sysctls)
		switch {
		case err != nil && s.Required:
			errs = append(errs, fmt.Errorf("%w; do: %s", err, initOnlyRemedy))
		case err != nil && !b.failedSysctls[s.Name]:
			b.log.Warn("a kernel setting is not as it should be", "err", err, "costs", s.Impact, "do", initOnlyRemedy)
		case changed && start:
			b.log.Info("kernel setting changed", "setting", s.Name, "was", was, "is", s.Want)
		case changed:
			b.log.Warn("somebody else has changed a kernel setting; it is put right", "setting", s.Name, "was", was, "is", s.Want, "costs", s.Impact)
		}
		b.failedSysctls[s.Name] = err != nil
	}
	return errors.Join(errs...)
}

// apply sees to it that a setting is as wanted.
func (s Sysctl) apply(k sysctlStore) (was int, changed bool, err error) {
	was, err = k.getSysctl(s.Name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, fmt.Errorf("ipvs: setting %s: %w: the kernel has no such setting here (%s; or in a user namespace of its own)", s.Name, err, s.Kernel)
	}
	if err == nil && was == s.Want {
		return was, false, nil
	}
	if err := k.setSysctl(s.Name, s.Want); err != nil {
		return was, false, fmt.Errorf("ipvs: set %s to %d: %w", s.Name, s.Want, err)
	}
	return was, true, nil
}

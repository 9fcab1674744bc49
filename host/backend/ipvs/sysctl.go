package ipvs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/host/util/netns"
	"golang.org/x/sys/unix"
)

// Sysctl is a kernel parameter of the network namespace and the value that sluice sets.
type Sysctl struct {
	Name   string
	Want   int
	Impact string // what does not work if it cannot be set
	Kernel string // configuration symbol or module that provides it
	// Required: connections are misdirected without it.
	Required bool
}

var requiredSysctls = []Sysctl{
	{Name: "net.ipv4.vs.conntrack", Want: 1, Required: true, Kernel: "CONFIG_IP_VS_NFCT", Impact: "masquerading and source ranges, which rely on connection tracking"},
}

// Sysctls returns the sysctls that the given options require. All belong to the network namespace.
func Sysctls(o Options) []Sysctl {
	const kernel = "module ip_vs"
	out := append(slices.Clone(requiredSysctls),
		Sysctl{Name: "net.ipv4.vs.expire_nodest_conn", Want: 1, Kernel: kernel, Impact: "UDP flows to a removed endpoint are not rescheduled until they time out"},
		Sysctl{Name: "net.ipv4.vs.expire_quiescent_template", Want: 1, Kernel: kernel, Impact: "clients return to an endpoint that is being drained"},
		Sysctl{Name: "net.ipv4.vs.sloppy_sctp", Want: 1, Kernel: kernel, Impact: "the node answers packets of SCTP associations that IPVS does not know with ABORT, such as HEARTBEATs of a client's second address"},
		Sysctl{Name: "net.ipv4.ip_forward", Want: 1, Kernel: "CONFIG_INET", Impact: "nothing is forwarded to Pods of other nodes"},
	)
	// Since Linux 5.9, a new connection from a port in TIME_WAIT is scheduled at once. Before, with conn_reuse_mode 1, it
	// was delayed, or went to the previous destination.
	if kernelRelease() < 5_09 {
		out = append(out, Sysctl{Name: "net.ipv4.vs.conn_reuse_mode", Want: 0, Kernel: kernel, Impact: "a new connection from a recently used port is delayed by a second"})
	}
	if o.StrictARP {
		out = append(out,
			Sysctl{Name: "net.ipv4.conf.all.arp_ignore", Want: 1, Kernel: "CONFIG_INET", Impact: "strictARP: the node answers ARP requests for Service addresses"},
			Sysctl{Name: "net.ipv4.conf.all.arp_announce", Want: 2, Kernel: "CONFIG_INET", Impact: "strictARP: the node announces Service addresses by ARP"})
	}
	return out
}

// kernelRelease returns the kernel's version, 5_09 for 5.9, or 0 if it is unknown.
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

// sysctlStore reads and writes the sysctls of one network namespace.
type sysctlStore interface {
	getSysctl(name string) (int, error)
	setSysctl(name string, v int) error
}

// procSysctls implements sysctlStore by /proc/sys. Its value is a file descriptor of a network namespace, or 0.
type procSysctls int

func (p procSysctls) getSysctl(name string) (v int, err error) {
	nerr := netns.Do(int(p), func() error { v, err = Sysctl{Name: name}.read(); return nil })
	return v, errors.Join(nerr, err)
}

func (p procSysctls) setSysctl(name string, v int) (err error) {
	nerr := netns.Do(int(p), func() error {
		err = os.WriteFile(Sysctl{Name: name}.path(), []byte(strconv.Itoa(v)), 0)
		return nil
	})
	return errors.Join(nerr, err)
}

func (s Sysctl) path() string { return "/proc/sys/" + strings.ReplaceAll(s.Name, ".", "/") }

func (s Sysctl) read() (int, error) {
	b, err := os.ReadFile(s.path())
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

const initOnlyRemedy = "sluice run --init-only with full rights on the host"

// applySysctls sets all sysctls that do not have the wanted value: when opening, and whenever another process has
// changed them. One that cannot be set is an error if it is required; otherwise a warning is logged once.
func (b *Backend) applySysctls(opening bool) error {
	var errs []error
	for _, s := range Sysctls(b.o) {
		was, changed, err := s.apply(b.sysctls)
		switch {
		case err != nil && s.Required:
			errs = append(errs, fmt.Errorf("%w; remedy: %s", err, initOnlyRemedy))
		case err != nil && !b.failedSysctls[s.Name]:
			b.log.Warn("cannot set sysctl", "err", err, "impact", s.Impact, "remedy", initOnlyRemedy)
		case changed && opening:
			b.log.Info("set sysctl", "sysctl", s.Name, "from", was, "to", s.Want)
		case changed:
			b.log.Warn("set sysctl that another process changed", "sysctl", s.Name, "from", was, "to", s.Want, "impact", s.Impact)
		}
		b.failedSysctls[s.Name] = err != nil
	}
	return errors.Join(errs...)
}

// apply sets the sysctl unless it has the wanted value.
func (s Sysctl) apply(store sysctlStore) (was int, changed bool, err error) {
	was, err = store.getSysctl(s.Name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, false, fmt.Errorf("ipvs: sysctl %s: %w: the kernel lacks it (%s), or this is the network namespace of another user namespace", s.Name, err, s.Kernel)
	}
	if err == nil && was == s.Want {
		return was, false, nil
	}
	if err := store.setSysctl(s.Name, s.Want); err != nil {
		return was, false, fmt.Errorf("ipvs: set sysctl %s to %d: %w", s.Name, s.Want, err)
	}
	return was, true, nil
}

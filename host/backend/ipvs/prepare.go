package ipvs

import (
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
)

// Prepare does what needs more rights than CAP_NET_ADMIN: it loads missing kernel modules and sets sysctls. It must run
// in the host's network namespace.
func Prepare(o Options, log *slog.Logger) error {
	var errs []error
	modules := []string{"nf_conntrack", "ip_vs", "ip_vs_wrr", "ip_vs_wlc", "ip_vs_mh"}
	if o.Scheduler != "" {
		modules = append(modules, "ip_vs_"+o.Scheduler)
	}
	if _, err := netlink.LinkByName(DefaultLink); err != nil && (o.Link == "" || o.Link == DefaultLink) {
		modules = append(modules, "dummy")
	}
	for _, m := range modules {
		// Not an error: the feature may be built into the kernel. checkIPVS and probeSchedulers find what is missing.
		if out, err := exec.Command("modprobe", m).CombinedOutput(); err != nil {
			log.Debug("modprobe failed", "module", m, "err", err, "output", strings.TrimSpace(string(out)))
		}
	}
	if err := checkIPVS(); err != nil {
		return err
	}
	if _, err := probeSchedulers(); err != nil {
		errs = append(errs, err)
	}
	for _, s := range Sysctls(o) {
		was, changed, err := s.apply(procSysctls(0))
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%w: %s", err, s.Impact))
		case changed:
			log.Info("set sysctl", "sysctl", s.Name, "from", was, "to", s.Want)
		}
	}
	return errors.Join(errs...)
}

package ipvs

import (
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
)

// Prepare does what needs more rights than CAP_NET_ADMIN: it loads the modules that are missing, and sets what is to be
// set. It is for the host's network namespace.
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
		// It does nothing when the module is there. One that is built in is no module, and no failure.
		if out, err := exec.Command("modprobe", m).CombinedOutput(); err != nil {
			log.Debug("modprobe", "module", m, "err", err, "output", strings.TrimSpace(string(out)))
		}
	}
	if err := checkIPVS(); err != nil {
		return err
	}
	if _, err := probeSchedulers(); err != nil {
		errs = append(errs, err)
	}
	for _, s := range Sysctls(o) {
		_, changed, err := s.apply(procSysctls(0))
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%w: %s", err, s.Impact))
		case changed:
			log.Info("kernel setting changed", "setting", s.Name, "is", s.Want)
		}
	}
	return errors.Join(errs...)
}

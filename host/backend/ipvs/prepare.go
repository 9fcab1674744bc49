package ipvs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/sluice-proxy/sluice/host/util/printable"
	"github.com/vishvananda/netlink"
)

// modprobe loads a kernel module with the modprobe of a root directory, such as that of the host in a container whose image has
// none; "" is that of this process.
func modprobe(root, module string) error {
	cmd := exec.Command("modprobe", module)
	if root != "" {
		path := "/sbin/modprobe"
		if b, err := os.ReadFile("/proc/sys/kernel/modprobe"); err == nil { // where the host has it: the kernel runs it itself
			path = strings.TrimSpace(string(b))
		}
		cmd = &exec.Cmd{Path: path, Args: []string{"modprobe", module}, Dir: "/", SysProcAttr: &syscall.SysProcAttr{Chroot: root}}
	}
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if last := strings.TrimPrefix(lines[len(lines)-1], "modprobe: "); last != "" {
		err = errors.New(printable.Escape(last[:min(len(last), 200)]))
	}
	return fmt.Errorf("modprobe %s: %w", module, err)
}

// Prepare does what needs more rights than CAP_NET_ADMIN: it loads missing kernel modules and sets sysctls. It must run
// in the host's network namespace. hostRoot is the host's root directory, if this process has another one.
func Prepare(o Options, hostRoot string, log *slog.Logger) error {
	var errs []error
	failed := map[string]error{} // not an error: the feature may be built into the kernel
	load := func(m string) { failed[m] = modprobe(hostRoot, m) }
	load("nf_conntrack")
	load("ip_vs")
	if err := checkIPVS(); err != nil {
		return errors.Join(err, failed["ip_vs"])
	}
	var others []string
	if o.Scheduler != "" {
		others = []string{o.Scheduler}
	}
	schedulers := append(slices.Clone(standardSchedulers), others...)
	for _, s := range schedulers {
		load("ip_vs_" + s)
	}
	have, err := probeSchedulers(others...)
	if err != nil {
		errs = append(errs, err)
	}
	for _, s := range schedulers {
		if err := failed["ip_vs_"+s]; !have[s] && err != nil {
			log.Warn("loading an IPVS scheduler failed", "scheduler", s, "err", err)
		}
	}
	if o.Link == "" || o.Link == DefaultLink {
		if _, err := netlink.LinkByName(DefaultLink); err != nil {
			load("dummy")
		}
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

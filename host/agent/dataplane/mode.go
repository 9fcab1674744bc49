// Package dataplane is the table of modes, and the backend in use. A mode is a name in the configuration, a backend, and
// what the agent and the commands have to know of it: a third one is an entry here and a folder under host/backend.
package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/ipvs"
	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/probe"
)

// Mode is one way to forward. Functions that say so may be nil.
type Mode struct {
	Name string // value of the configuration's field mode
	// NFTablesMetrics: the metrics of kube-proxy's nftables mode are exported.
	NFTablesMetrics bool
	// Caps returns the capabilities of the backend, without a kernel.
	Caps func() plan.Caps
	Open func(cfg *config.Config, log *slog.Logger) (backend.Backend, error)
	// Init loads kernel modules and sets sysctls, which takes more rights than CAP_NET_ADMIN; nil: nothing to do.
	Init func(cfg *config.Config, log *slog.Logger) error
	// Probe tries the kernel features that the backend uses.
	Probe func(ctx context.Context) []probe.Finding
	// Sysctls compares the sysctls that Init sets with the host's; nil: none.
	Sysctls func(h probe.Host, cfg *config.Config) []probe.Finding
	// Read decodes what the mode has programmed, with the rights of the caller. The error is errOtherMode where this
	// mode has programmed nothing.
	Read func(ctx context.Context) (*plan.Plan, error)
	// Drain removes what the mode has programmed and no connection uses, after another mode has taken over, and returns
	// how many virtual servers remain; with force it removes those too. It is called until none remain. nil: the
	// successor's first write replaces everything.
	Drain func(ctx context.Context, cfg *config.Config, log *slog.Logger, force bool) (remaining int, err error)
	// Cleanup removes everything that the mode has programmed, and describes it.
	Cleanup func(ctx context.Context) (removed []string, err error)
	// ServiceAddrs returns the Service addresses that the mode has put on links; nil: it does not.
	ServiceAddrs func(cfg *config.Config) (map[netip.Addr]bool, error)
	// Stats reads the kernel's counters of up to limit virtual servers; nil: the kernel has none.
	Stats func(ctx context.Context, limit int) ([]ipvs.ServerStats, error)
}

// Modes is a table of modes, in the order in which they are read and cleaned up.
type Modes []Mode

// All returns the modes that a configuration may name.
func All() Modes { return Modes{nftablesMode(), ipvsMode()} }

// Get returns the mode of a checked configuration.
func (m Modes) Get(name string) *Mode {
	for i := range m {
		if m[i].Name == name {
			return &m[i]
		}
	}
	panic(fmt.Sprintf("mode %q: not in the table", name)) // config accepts the names in the table only
}

// otherModeError says that a mode has programmed nothing in this kernel.
type otherModeError struct{ error }

func (e otherModeError) Unwrap() error { return e.error }

// Read decodes what sluice has programmed in this kernel in whichever mode, with the rights of the caller.
func (m Modes) Read(ctx context.Context) (*plan.Plan, error) {
	var first error
	for i := range m {
		p, err := m[i].Read(ctx)
		var other otherModeError
		if !errors.As(err, &other) {
			return p, err
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// Stats reads the kernel's counters of up to limit virtual servers, also of a mode that is no longer in use.
func (m Modes) Stats(ctx context.Context, limit int) (all []ipvs.ServerStats, err error) {
	for i := range m {
		if m[i].Stats == nil {
			continue
		}
		counts, err := m[i].Stats(ctx, limit)
		if err != nil {
			return all, err
		}
		all = append(all, counts...)
	}
	return all, nil
}

// Cleanup removes everything that sluice has programmed in any mode, and describes it.
func (m Modes) Cleanup(ctx context.Context) (removed []string, err error) {
	for i := range m {
		r, err := m[i].Cleanup(ctx)
		if removed = append(removed, r...); err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// LocalAddrs returns the addresses on this host's links, without the Service addresses that a mode has put there.
func (m Modes) LocalAddrs(cfg *config.Config) ([]netip.Addr, error) {
	services := map[netip.Addr]bool{}
	read := func() error {
		for i := range m {
			if m[i].ServiceAddrs == nil {
				continue
			}
			addrs, err := m[i].ServiceAddrs(cfg)
			if err != nil {
				return fmt.Errorf("this host's addresses: %w", err)
			}
			for a := range addrs {
				services[a] = true
			}
		}
		return nil
	}
	if err := read(); err != nil {
		return nil, err
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("this host's addresses: %w", err)
	}
	if err := read(); err != nil { // some may have been added meanwhile
		return nil, err
	}
	var out []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && !services[ip.Unmap()] {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out, nil
}

// Package dataplane is the table of proxy modes, and opens, switches and drains their backends. A third mode is an entry in
// the table and a folder under host/backend.
package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/node/probe"
)

// Mode is everything that differs between modes. Functions may be nil only where their comment says so.
type Mode struct {
	Name string // value of the configuration's field mode
	// NFTablesMetrics: the metrics of kube-proxy's nftables mode are exported.
	NFTablesMetrics bool
	// OutcomeNeeds are the needs of plugins for which the outcomes of connections are counted. Where conntrack counts open
	// connections, they need them too: between two dumps, the attempts since the last one are added.
	OutcomeNeeds uint32
	// Caps returns the capabilities of the backend. It needs no kernel.
	Caps func() plan.Caps
	// Open opens the backend.
	Open func(cfg *config.Config, log *slog.Logger) (backend.Backend, error)
	// Init makes the settings that need more rights than CAP_NET_ADMIN: kernel modules, with the modprobe of a root
	// directory, and sysctls. nil: there are none.
	Init func(cfg *config.Config, hostRoot string, log *slog.Logger) error
	// Probe tries the kernel features that the backend uses.
	Probe func(ctx context.Context) []probe.Finding
	// Sysctls compares the sysctls that Init sets with those of the host. nil: it sets none.
	Sysctls func(h probe.Host, cfg *config.Config) []probe.Finding
	// Read decodes the plan that is programmed in the kernel, with the rights of the caller. The error is an
	// otherModeError if this mode has programmed nothing.
	Read func(ctx context.Context) (*plan.Plan, error)
	// Drain removes virtual servers without connections after another mode has taken over, and returns how many remain;
	// with force it removes all. It is called until none remain. nil: the other mode's first sync replaces everything.
	Drain func(ctx context.Context, cfg *config.Config, log *slog.Logger, force bool) (remaining int, err error)
	// Cleanup removes everything that the mode has programmed, and describes it.
	Cleanup func(ctx context.Context) (removed []string, err error)
	// ServiceAddrs returns the Service addresses that the mode has added to network interfaces. nil: it adds none.
	ServiceAddrs func(cfg *config.Config) (map[netip.Addr]bool, error)
	// Gateways returns the gateways of this host's routes, to which the mode must not add addresses. nil: it adds none.
	Gateways func() ([]netip.Addr, error)
	// Stats reads the kernel's statistics of at most limit virtual servers. nil: the kernel has none.
	Stats func(ctx context.Context, limit int) ([]backend.ServerStats, error)
}

// BindsAddresses reports whether the mode adds Service addresses to network interfaces.
func (m *Mode) BindsAddresses() bool { return m.ServiceAddrs != nil }

// Modes is a table of modes, in the order in which Read and Cleanup go through them.
type Modes []Mode

// All returns the modes that a configuration may name.
func All() Modes { return Modes{nftablesMode(), ipvsMode()} }

// Get returns the mode of a valid configuration.
func (m Modes) Get(name string) *Mode {
	for i := range m {
		if m[i].Name == name {
			return &m[i]
		}
	}
	panic(fmt.Sprintf("mode %q is not in the table", name)) // config.CheckMode accepts only names in the table
}

// otherModeError is the reason why the kernel's state was not programmed by a mode.
type otherModeError struct{ error }

func (e otherModeError) Unwrap() error { return e.error }

// Read decodes the plan that is programmed in the kernel in any mode, with the rights of the caller.
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

// Stats reads the kernel's statistics of at most limit virtual servers, including those of a mode that is no longer in
// use.
func (m Modes) Stats(ctx context.Context, limit int) (all []backend.ServerStats, err error) {
	for i := range m {
		if m[i].Stats == nil {
			continue
		}
		stats, err := m[i].Stats(ctx, limit)
		if err != nil {
			return all, err
		}
		all = append(all, stats...)
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

// Gateways returns the gateways of this host's routes if the mode adds addresses to the host, which must not be among them.
func (m Modes) Gateways(cfg *config.Config) ([]netip.Addr, error) {
	if g := m.Get(cfg.Mode).Gateways; g != nil {
		return g()
	}
	return nil, nil
}

// LocalAddrs returns the addresses of this host's network interfaces, without the Service addresses that a mode has added.
func (m Modes) LocalAddrs(cfg *config.Config) ([]netip.Addr, error) {
	services := map[netip.Addr]bool{}
	read := func() error {
		for i := range m {
			if m[i].ServiceAddrs == nil {
				continue
			}
			addrs, err := m[i].ServiceAddrs(cfg)
			if err != nil {
				return fmt.Errorf("local addresses: %w", err)
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
		return nil, fmt.Errorf("local addresses: %w", err)
	}
	if err := read(); err != nil { // some may have been added in the meantime
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

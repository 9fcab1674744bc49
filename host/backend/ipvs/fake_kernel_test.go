package ipvs

import (
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"golang.org/x/sys/unix"
)

// fakeKernel implements ipvsAPI, linkAPI and sysctlStore in memory, with the kernel's errors. It forwards no packets.
type fakeKernel struct {
	virtualServers map[serverKey]*fakeServer
	nodeAddrs
	localRoutes map[netip.Addr]bool // local by a route
	linkUp      bool
	sysctls     map[string]int // those that differ from 1; a negative one cannot be set
}

type fakeServer struct {
	serverConfig
	counters     backend.ServerCounters
	destinations map[netip.AddrPort]destinationState
}

func newFakeKernel() *fakeKernel {
	set := func() map[netip.Addr]bool { return map[netip.Addr]bool{} }
	return &fakeKernel{virtualServers: map[serverKey]*fakeServer{}, nodeAddrs: nodeAddrs{set(), set(), set()}, localRoutes: set(), sysctls: map[string]int{}}
}

func (m *fakeKernel) close()                                  {}
func (m *fakeKernel) setTimeouts(_, _, _ time.Duration) error { return nil }

func (m *fakeKernel) listServers() (map[serverKey]serverConfig, error) {
	out := map[serverKey]serverConfig{}
	for k, s := range m.virtualServers {
		out[k] = s.serverConfig
	}
	return out, nil
}

func (m *fakeKernel) listCounters() (map[serverKey]serverCounters, error) {
	out := map[serverKey]serverCounters{}
	for k, s := range m.virtualServers {
		out[k] = serverCounters{s.serverConfig, s.counters}
	}
	return out, nil
}

func (m *fakeKernel) getServer(k serverKey) (serverConfig, bool, error) {
	s := m.virtualServers[k]
	if s == nil {
		return serverConfig{}, false, nil
	}
	return s.serverConfig, true, nil
}

func (m *fakeKernel) listDestinations(k serverKey) ([]destinationState, error) {
	if m.virtualServers[k] == nil {
		return nil, nil
	}
	return slices.Collect(maps.Values(m.virtualServers[k].destinations)), nil
}

func (m *fakeKernel) do(o op) error {
	s := m.virtualServers[o.key]
	if o.kind == opAddServer {
		if s != nil {
			return unix.EEXIST
		}
		m.virtualServers[o.key] = &fakeServer{serverConfig: o.serverConfig, destinations: map[netip.AddrPort]destinationState{}}
		return nil
	}
	if s == nil {
		return unix.ESRCH
	}
	_, there := s.destinations[o.destination.addr]
	switch {
	case o.kind == opSetServer:
		s.serverConfig = o.serverConfig
	case o.kind == opDelServer:
		delete(m.virtualServers, o.key)
	case o.kind == opAddDestination && there:
		return unix.EEXIST
	case o.kind != opAddDestination && !there:
		return unix.ENOENT
	case o.kind == opDelDestination:
		delete(s.destinations, o.destination.addr)
	default:
		was := s.destinations[o.destination.addr]
		s.destinations[o.destination.addr] = destinationState{destination: o.destination, active: was.active, inactive: was.inactive}
	}
	return nil
}

func (m *fakeKernel) listAddrs() (nodeAddrs, error) {
	return nodeAddrs{maps.Clone(m.bound), maps.Clone(m.otherLinks), maps.Clone(m.nodeLocal)}, nil
}

func (m *fakeKernel) delFromOtherLinks(a netip.Addr) error { delete(m.otherLinks, a); return nil }
func (m *fakeKernel) deleteUnusedDefault() error           { return nil }

func (m *fakeKernel) getSysctl(name string) (int, error) {
	if v, ok := m.sysctls[name]; ok {
		return v, nil
	}
	return 1, nil
}

func (m *fakeKernel) setSysctl(name string, v int) error {
	if m.sysctls[name] < 0 {
		return unix.EROFS
	}
	m.sysctls[name] = v
	return nil
}

func (m *fakeKernel) locate(a netip.Addr) (addrLocation, error) {
	if m.nodeLocal[a] || m.localRoutes[a] {
		return onNode, nil
	}
	return notOnNode, nil
}

func (m *fakeKernel) addAddr(a netip.Addr) error  { m.bound[a] = true; return nil }
func (m *fakeKernel) awaitLocal(netip.Addr) error { return nil }
func (m *fakeKernel) delAddr(a netip.Addr) error  { delete(m.bound, a); return nil }

func (m *fakeKernel) ensureLink() (made bool, err error) {
	made = !m.linkUp
	m.linkUp = true
	return made, nil
}

// memEnv is a node with real nf_tables and a fakeKernel.
type memEnv struct {
	*env
	*fakeKernel
}

func newMemEnv(t testing.TB) *memEnv {
	return &memEnv{newEnvOf(t, 0), newFakeKernel()}
}

func (d *memEnv) tryOpen() (*Backend, error) {
	o := d.options()
	o = o.withDefaults()
	o.Scheduler, o.Log = "wrr", slog.New(slog.DiscardHandler)
	b := newBackend(o, map[string]bool{"wrr": true, "wlc": true, "mh": true})
	b.ipvs, b.links, b.sysctls = d.fakeKernel, d.fakeKernel, d.fakeKernel
	return b, b.openRules(nil)
}

func (d *memEnv) open() *Backend {
	d.Helper()
	b, err := d.tryOpen()
	if err != nil {
		d.Fatal(err)
	}
	return d.closeAtEnd(b)
}

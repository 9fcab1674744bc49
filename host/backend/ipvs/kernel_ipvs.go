package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/moby/ipvs"
	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"golang.org/x/sys/unix"
)

// kernelIPVS implements ipvsAPI by netlink.
type kernelIPVS struct{ handle *ipvs.Handle }

func (k kernelIPVS) close() { k.handle.Close() }

func (k kernelIPVS) do(o op) error {
	s, d := o.key.moby(o.serverConfig), o.moby()
	switch o.kind {
	case opAddServer:
		return k.handle.NewService(s)
	case opSetServer:
		return k.handle.UpdateService(s)
	case opDelServer:
		return k.handle.DelService(s)
	case opAddDestination:
		return k.handle.NewDestination(s, d)
	case opSetDestination:
		return k.handle.UpdateDestination(s, d)
	case opDelDestination:
		return k.handle.DelDestination(s, d)
	}
	return errors.ErrUnsupported
}

func (k serverKey) moby(c serverConfig) *ipvs.Service {
	s := &ipvs.Service{FWMark: k.mark, SchedName: c.scheduler, Flags: c.flags, AddressFamily: unix.AF_INET, Netmask: 0xffffffff}
	if k.v6 {
		s.AddressFamily, s.Netmask = unix.AF_INET6, 128
	}
	if k.mark == 0 {
		s.Address, s.Port, s.Protocol = k.addr.AsSlice(), k.port, uint16(k.proto)
	}
	return s
}

func (x destination) moby() *ipvs.Destination {
	d := &ipvs.Destination{
		Address: x.addr.Addr().AsSlice(), Port: x.addr.Port(), Weight: int(x.weight), ConnectionFlags: ipvs.ConnFwdMasq,
	}
	if x.draining {
		d.UpperThreshold = drainThreshold
	}
	return d
}

func (k kernelIPVS) listServers() (map[serverKey]serverConfig, error) {
	all, err := k.listCounters()
	if err != nil {
		return nil, err
	}
	out := make(map[serverKey]serverConfig, len(all))
	for key, v := range all {
		out[key] = v.serverConfig
	}
	return out, nil
}

func (k kernelIPVS) listCounters() (map[serverKey]serverCounters, error) {
	list, err := k.handle.GetServices()
	if err != nil {
		return nil, err
	}
	out := make(map[serverKey]serverCounters, len(list))
	for _, s := range list {
		key := serverKey{mark: s.FWMark, v6: s.AddressFamily == unix.AF_INET6}
		if s.FWMark == 0 {
			a, ok := netip.AddrFromSlice(s.Address)
			if !ok {
				return nil, fmt.Errorf("virtual server with malformed address %v", s.Address)
			}
			key.addr, key.port, key.proto = a, s.Port, model.Protocol(s.Protocol)
		}
		out[key] = serverCounters{serverConfig{s.SchedName, s.Flags &^ flagHashed}, backend.ServerCounters{
			Connections: s.Stats.Connections, PacketsIn: s.Stats.PacketsIn, PacketsOut: s.Stats.PacketsOut,
			BytesIn: s.Stats.BytesIn, BytesOut: s.Stats.BytesOut,
		}}
	}
	return out, nil
}

func (k kernelIPVS) getServer(key serverKey) (serverConfig, bool, error) {
	s, err := k.handle.GetService(key.moby(serverConfig{}))
	switch {
	case errors.Is(err, unix.ESRCH):
		return serverConfig{}, false, nil
	case err != nil:
		return serverConfig{}, false, err
	}
	return serverConfig{s.SchedName, s.Flags &^ flagHashed}, true, nil
}

func (k kernelIPVS) listDestinations(key serverKey) ([]destinationState, error) {
	list, err := k.handle.GetDestinations(key.moby(serverConfig{}))
	if err != nil {
		return nil, err
	}
	out := make([]destinationState, 0, len(list))
	for _, d := range list {
		a, ok := netip.AddrFromSlice(d.Address)
		if !ok {
			return nil, fmt.Errorf("virtual server %s: real server with malformed address %v", key, d.Address)
		}
		x := destinationState{
			destination: destination{addr: netip.AddrPortFrom(a, d.Port), weight: uint16(d.Weight)},
			active:      d.ActiveConnections, inactive: d.InactiveConnections,
		}
		x.draining = d.UpperThreshold == drainThreshold && d.Weight == 0
		x.modified = d.ConnectionFlags&ipvs.ConnFwdMask != ipvs.ConnFwdMasq || !x.draining && d.UpperThreshold|d.LowerThreshold != 0
		out = append(out, x)
	}
	return out, nil
}

func (k kernelIPVS) setTimeouts(tcp, tcpFin, udp time.Duration) error {
	return k.handle.SetConfig(&ipvs.Config{TimeoutTCP: tcp, TimeoutTCPFin: tcpFin, TimeoutUDP: udp})
}

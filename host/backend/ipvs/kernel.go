package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/moby/ipvs"
	"github.com/sluice-proxy/sluice/host/model"
	"golang.org/x/sys/unix"
)

// kernel is the real one.
type kernel struct{ h *ipvs.Handle }

func (k kernel) close() { k.h.Close() }

func (k kernel) do(o op) error {
	s, d := o.key.moby(o.service), o.moby()
	switch o.kind {
	case addServer:
		return k.h.NewService(s)
	case setServer:
		return k.h.UpdateService(s)
	case delServer:
		return k.h.DelService(s)
	case addMember:
		return k.h.NewDestination(s, d)
	case setMember:
		return k.h.UpdateDestination(s, d)
	case delMember:
		return k.h.DelDestination(s, d)
	}
	return errors.ErrUnsupported
}

func (k serverKey) moby(v service) *ipvs.Service {
	s := &ipvs.Service{FWMark: k.mark, SchedName: v.scheduler, Flags: v.flags, AddressFamily: unix.AF_INET, Netmask: 0xffffffff}
	if k.v6 {
		s.AddressFamily, s.Netmask = unix.AF_INET6, 128
	}
	if k.mark == 0 {
		s.Address, s.Port, s.Protocol = k.addr.AsSlice(), k.port, uint16(k.proto)
	}
	return s
}

func (m member) moby() *ipvs.Destination {
	d := &ipvs.Destination{
		Address: m.addr.Addr().AsSlice(), Port: m.addr.Port(), Weight: int(m.weight), ConnectionFlags: ipvs.ConnFwdMasq,
	}
	if m.lingering {
		d.UpperThreshold = lingerThreshold
	}
	return d
}

func (k kernel) servers() (map[serverKey]service, error) {
	all, err := k.traffic()
	if err != nil {
		return nil, err
	}
	out := make(map[serverKey]service, len(all))
	for key, v := range all {
		out[key] = v.service
	}
	return out, nil
}

func (k kernel) traffic() (map[serverKey]counted, error) {
	list, err := k.h.GetServices()
	if err != nil {
		return nil, err
	}
	out := make(map[serverKey]counted, len(list))
	for _, s := range list {
		key := serverKey{mark: s.FWMark, v6: s.AddressFamily == unix.AF_INET6}
		if s.FWMark == 0 {
			a, ok := netip.AddrFromSlice(s.Address)
			if !ok {
				return nil, fmt.Errorf("a virtual server has the address %v", s.Address)
			}
			key.addr, key.port, key.proto = a, s.Port, model.Protocol(s.Protocol)
		}
		out[key] = counted{service{s.SchedName, s.Flags &^ flagHashed}, Counters{
			Connections: s.Stats.Connections, PacketsIn: s.Stats.PacketsIn, PacketsOut: s.Stats.PacketsOut,
			BytesIn: s.Stats.BytesIn, BytesOut: s.Stats.BytesOut,
		}}
	}
	return out, nil
}

func (k kernel) server(key serverKey) (service, bool, error) {
	s, err := k.h.GetService(key.moby(service{}))
	switch {
	case errors.Is(err, unix.ESRCH):
		return service{}, false, nil
	case err != nil:
		return service{}, false, err
	}
	return service{s.SchedName, s.Flags &^ flagHashed}, true, nil
}

func (k kernel) members(key serverKey) ([]memberState, error) {
	list, err := k.h.GetDestinations(key.moby(service{}))
	if err != nil {
		return nil, err
	}
	out := make([]memberState, 0, len(list))
	for _, d := range list {
		a, ok := netip.AddrFromSlice(d.Address)
		if !ok {
			return nil, fmt.Errorf("a member of virtual server %s has the address %v", key, d.Address)
		}
		m := memberState{member: member{addr: netip.AddrPortFrom(a, d.Port), weight: uint16(d.Weight)}, active: d.ActiveConnections, inactive: d.InactiveConnections}
		m.lingering = d.UpperThreshold == lingerThreshold && d.Weight == 0
		m.foreign = d.ConnectionFlags&ipvs.ConnFwdMask != ipvs.ConnFwdMasq || !m.lingering && d.UpperThreshold|d.LowerThreshold != 0
		out = append(out, m)
	}
	return out, nil
}

func (k kernel) timeouts(tcp, tcpFin, udp time.Duration) error {
	return k.h.SetConfig(&ipvs.Config{TimeoutTCP: tcp, TimeoutTCPFin: tcpFin, TimeoutUDP: udp})
}

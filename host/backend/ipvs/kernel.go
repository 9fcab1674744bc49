package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/moby/ipvs"
	"github.com/sluice-proxy/sluice/host/model"
	"golang.org/x/sys/unix"
)

// virtual is IPVS, as this package needs it. Every method is one message and its answer.
type virtual interface {
	// servers gives all virtual servers of the network namespace, without their members.
	servers() (map[serverKey]service, error)
	// traffic is servers, with what they have counted.
	traffic() (map[serverKey]counted, error)
	// server gives one; ok is false when it is not there.
	server(k serverKey) (v service, ok bool, err error)
	// members gives those of one, with their connections; none when it is not there.
	members(k serverKey) ([]memberState, error)
	do(op op) error
	// timeouts sets those that are not 0.
	timeouts(tcp, tcpFin, udp time.Duration) error
	close()
}

// serverKey is where a virtual server takes connections: an address, or a packet mark of a family.
type serverKey struct {
	addr  netip.Addr
	port  uint16
	proto model.Protocol
	mark  uint32
	v6    bool
}

func byAddr(a netip.Addr, port uint16, proto model.Protocol) serverKey {
	return serverKey{addr: a, port: port, proto: proto, v6: a.Is6()}
}

func (k serverKey) String() string {
	if k.mark != 0 {
		family := "IPv4"
		if k.v6 {
			family = "IPv6"
		}
		return "of mark 0x" + strconv.FormatUint(uint64(k.mark), 16) + " " + family
	}
	return netip.AddrPortFrom(k.addr, k.port).String() + "/" + k.proto.String()
}

// service is what a virtual server does.
type service struct {
	scheduler string
	flags     uint32
}

// flagOurs tells sluice's virtual servers from others. It is the third flag for schedulers, which none of the kernel's
// own looks at; ipvsadm shows it as flag-3.
const flagOurs = 0x20

// counted is a service, and what came through it.
type counted struct {
	service
	Traffic
}

const (
	flagHashed = 0x2  // the kernel's own mark of a server in its table
	flagPort   = 0x10 // of mh: the source port is hashed too
)

// lingerThreshold as a member's upper threshold tells that it is in no plan any more: it has weight 0, and stays as
// long as it has connections. For a member of weight 0 the threshold has no other effect.
const lingerThreshold = 1

// member is a destination of a virtual server.
type member struct {
	addr      netip.AddrPort
	weight    uint16
	lingering bool
}

// memberState is a member with its connections.
type memberState struct {
	member
	active, inactive int
	foreign          bool // not forwarded by address translation, or with thresholds of its own
}

// kind of an op.
type kind uint8

const (
	addServer kind = iota
	setServer
	delServer
	addMember
	setMember
	delMember
)

var kindNames = [...]string{"add virtual server", "change virtual server", "delete virtual server",
	"add member", "change member", "delete member"}

// op is one message that changes something.
type op struct {
	kind kind
	key  serverKey
	service
	member
}

func (o op) String() string {
	switch o.kind {
	case addServer, setServer:
		return fmt.Sprintf("%s %s (%s)", kindNames[o.kind], o.key, o.scheduler)
	case delServer:
		return fmt.Sprintf("%s %s", kindNames[o.kind], o.key)
	}
	return fmt.Sprintf("%s %s (weight %d) of virtual server %s", kindNames[o.kind], o.member.addr, o.weight, o.key)
}

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
		out[key] = counted{service{s.SchedName, s.Flags &^ flagHashed}, Traffic{
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

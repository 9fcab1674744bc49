package ipvs

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
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
	Counters
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
	// spoiled: somebody has changed it in another way, to another kind of forwarding or with thresholds.
	spoiled bool
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

package ipvs

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
)

// ipvsAPI is IPVS, as this package needs it. Every method is one message and its answer.
type ipvsAPI interface {
	// listServers gives all virtual servers of the network namespace, without their members.
	listServers() (map[serverKey]serverConfig, error)
	// listCounters is servers, with what they have counted.
	listCounters() (map[serverKey]serverCounters, error)
	// getServer gives one; ok is false when it is not there.
	getServer(k serverKey) (v serverConfig, ok bool, err error)
	// listDestinations gives those of one, with their connections; none when it is not there.
	listDestinations(k serverKey) ([]destinationState, error)
	do(op op) error
	// setTimeouts sets those that are not 0.
	setTimeouts(tcp, tcpFin, udp time.Duration) error
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

func addrKey(a netip.Addr, port uint16, proto model.Protocol) serverKey {
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

// serverConfig is what a virtual server does.
type serverConfig struct {
	scheduler string
	flags     uint32
}

// flagOurs tells sluice's virtual servers from others. It is the third flag for schedulers, which none of the kernel's
// own looks at; ipvsadm shows it as flag-3.
const flagOurs = 0x20

// serverCounters is a service, and what came through it.
type serverCounters struct {
	serverConfig
	Counters
}

const (
	flagHashed = 0x2  // the kernel's own mark of a server in its table
	flagPort   = 0x10 // of mh: the source port is hashed too
)

// drainThreshold as a member's upper threshold tells that it is in no plan any more: it has weight 0, and stays as
// long as it has connections. For a member of weight 0 the threshold has no other effect.
const drainThreshold = 1

// destination is a destination of a virtual server.
type destination struct {
	addr     netip.AddrPort
	weight   uint16
	draining bool
	// modified: somebody has changed it in another way, to another kind of forwarding or with thresholds.
	modified bool
}

// destinationState is a member with its connections.
type destinationState struct {
	destination
	active, inactive int
	foreign          bool // not forwarded by address translation, or with thresholds of its own
}

// opKind of an op.
type opKind uint8

const (
	opAddServer opKind = iota
	opSetServer
	opDelServer
	opAddDestination
	opSetDestination
	opDelDestination
)

var opNames = [...]string{"add virtual server", "change virtual server", "delete virtual server",
	"add member", "change member", "delete member"}

// op is one message that changes something.
type op struct {
	kind opKind
	key  serverKey
	serverConfig
	destination
}

func (o op) String() string {
	switch o.kind {
	case opAddServer, opSetServer:
		return fmt.Sprintf("%s %s (%s)", opNames[o.kind], o.key, o.scheduler)
	case opDelServer:
		return fmt.Sprintf("%s %s", opNames[o.kind], o.key)
	}
	return fmt.Sprintf("%s %s (weight %d) of virtual server %s", opNames[o.kind], o.destination.addr, o.weight, o.key)
}

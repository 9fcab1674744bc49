package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
)

// ipvsAPI is the kernel's IPVS. Each method is one request and its answer.
type ipvsAPI interface {
	// listServers returns all virtual servers of the network namespace, without their destinations.
	listServers() (map[serverKey]serverConfig, error)
	// listCounters is listServers with the kernel's counters.
	listCounters() (map[serverKey]serverCounters, error)
	// getServer returns one virtual server; ok is false if it does not exist.
	getServer(k serverKey) (c serverConfig, ok bool, err error)
	// listDestinations returns the destinations of a virtual server with their connections; none if it does not exist.
	listDestinations(k serverKey) ([]destinationState, error)
	do(op op) error
	// setTimeouts sets those that are not 0.
	setTimeouts(tcp, tcpFin, udp time.Duration) error
	close()
}

// serverKey identifies a virtual server: by address, port and protocol, or by packet mark and family (a fwmark
// service).
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
		return "fwmark 0x" + strconv.FormatUint(uint64(k.mark), 16) + " " + family
	}
	return netip.AddrPortFrom(k.addr, k.port).String() + "/" + k.proto.String()
}

func compareKeys(a, b serverKey) int {
	return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.port, b.port), cmp.Compare(a.proto, b.proto), cmp.Compare(a.mark, b.mark), boolToInt(a.v6)-boolToInt(b.v6))
}

func boolToInt(v bool) int {
	if v {
		return 1
	}
	return 0
}

// serverConfig is the configuration of a virtual server.
type serverConfig struct {
	scheduler string
	flags     uint32
}

const (
	// flagOwned marks the virtual servers of sluice. It is the third scheduler flag, which none of the kernel's
	// schedulers reads; ipvsadm prints it as flag-3.
	flagOwned  = 0x20
	flagHashed = 0x2  // set by the kernel: the virtual server is in its hash table
	flagPort   = 0x10 // mh-port: mh hashes the source port too
)

// serverCounters is a virtual server with its counters.
type serverCounters struct {
	serverConfig
	backend.ServerCounters
}

// drainThreshold as the upper threshold of a destination marks it as draining. On a destination of weight 0 the
// threshold has no other effect.
const drainThreshold = 1

// destination is a real server of a virtual server, under the name that the netlink API has for it.
type destination struct {
	addr   netip.AddrPort
	weight uint16
	// draining: it is no longer in the plan and is kept, with weight 0, for its connections.
	draining bool
	// modified: another program gave it thresholds or a forwarding method other than NAT.
	modified bool
}

// destinationState is a destination with its connections.
type destinationState struct {
	destination
	active, inactive int
}

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
	"add real server", "change real server", "delete real server"}

// op is one request that changes IPVS.
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

package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Key is where a frontend listens; it is unique in a plan. The Addr of a NodePort is the unspecified address of its family
// (0.0.0.0 or ::), which means Global.NodePortAddrs.
type Key struct {
	Addr     netip.Addr
	Port     uint16
	Protocol model.Protocol
}

// IsNodePort reports whether the key is of a NodePort.
func (k Key) IsNodePort() bool { return k.Addr.IsUnspecified() }

// Family returns the family of the frontend and its endpoints.
func (k Key) Family() model.Family { return model.FamilyOf(k.Addr) }

// String returns address:port/protocol. The address of a NodePort is *4 or *6.
func (k Key) String() string {
	if k.IsNodePort() {
		return nodePortStar[k.Family()] + ":" + strconv.Itoa(int(k.Port)) + "/" + k.Protocol.String()
	}
	return netip.AddrPortFrom(k.Addr, k.Port).String() + "/" + k.Protocol.String()
}

// Compare orders by family, address, port, protocol.
func (k Key) Compare(l Key) int {
	if c := k.Addr.Compare(l.Addr); c != 0 {
		return c
	}
	if c := cmp.Compare(k.Port, l.Port); c != 0 {
		return c
	}
	return cmp.Compare(k.Protocol, l.Protocol)
}

var nodePortStar = map[model.Family]string{model.IPv4: "*4", model.IPv6: "*6"}

// ParseKey parses the result of Key.String.
func ParseKey(s string) (Key, error) {
	where, proto, ok := strings.Cut(s, "/")
	if !ok {
		return Key{}, fmt.Errorf("key %q: want address:port/protocol", s)
	}
	k := Key{}
	if k.Protocol, ok = model.ParseProtocol(proto); !ok {
		return Key{}, fmt.Errorf("key %q: protocol %q: want TCP, UDP or SCTP", s, proto)
	}
	for family, addr := range map[model.Family]netip.Addr{model.IPv4: netip.IPv4Unspecified(), model.IPv6: netip.IPv6Unspecified()} {
		if port, found := strings.CutPrefix(where, nodePortStar[family]+":"); found {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil || n == 0 {
				return Key{}, fmt.Errorf("key %q: port %q: want 1 to 65535", s, port)
			}
			k.Addr, k.Port = addr, uint16(n)
			return k, nil
		}
	}
	ap, err := netip.ParseAddrPort(where)
	if err != nil {
		return Key{}, fmt.Errorf("key %q: %w", s, err)
	}
	if ap.Addr().IsUnspecified() {
		return Key{}, fmt.Errorf("key %q: a NodePort is written %s:port or %s:port", s, nodePortStar[model.IPv4], nodePortStar[model.IPv6])
	}
	k.Addr, k.Port = ap.Addr(), ap.Port()
	return k, nil
}

// keyName is like Key.String, for keys that may be invalid.
func keyName(k Key) string {
	if !k.Addr.IsValid() {
		return fmt.Sprintf("(no address):%d/%s", k.Port, k.Protocol)
	}
	return k.String()
}

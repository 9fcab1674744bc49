package source

import (
	"fmt"
	"net/netip"
)

// checkFrontend rejects addresses that cannot be a Service's: capturing their traffic would break the node.
func checkFrontend(a netip.Addr) error {
	switch {
	case a.IsUnspecified():
		return fmt.Errorf("%s is the unspecified address", a)
	case a.IsLoopback():
		return fmt.Errorf("%s is a loopback address", a)
	case a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Errorf("%s is not a unicast address", a)
	}
	return nil
}

// checkEndpoint rejects the addresses that the API server rejects in an EndpointSlice: traffic must not reach the node's
// loopback services or its cloud's metadata address.
func checkEndpoint(a netip.Addr) error {
	if a.IsLinkLocalUnicast() {
		return fmt.Errorf("%s is a link-local address", a)
	}
	return checkFrontend(a)
}

package conntrack

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

func TestMain(m *testing.M) { testnet.Main(m) }

// flow is a conntrack entry: a client's packet to a destination, answered by a source.
type flow struct {
	protocol uint8
	to       string
	from     string // source of the replies
}

var client = netip.MustParseAddrPort("10.244.9.9:4000")

func add(t *testing.T, n uint16, f flow) {
	t.Helper()
	to, from := netip.MustParseAddrPort(f.to), netip.MustParseAddrPort(f.from)
	c, family := client.Addr(), netlink.InetFamily(unix.AF_INET)
	if to.Addr().Is6() {
		c, family = netip.MustParseAddr("fd00:10:244::9"), unix.AF_INET6
	}
	entry := &netlink.ConntrackFlow{
		FamilyType: uint8(family), TimeOut: 100,
		Forward: netlink.IPTuple{SrcIP: ip(c), SrcPort: client.Port() + n, DstIP: ip(to.Addr()), DstPort: to.Port(), Protocol: f.protocol},
		Reverse: netlink.IPTuple{SrcIP: ip(from.Addr()), SrcPort: from.Port(), DstIP: ip(c), DstPort: client.Port() + n, Protocol: f.protocol},
	}
	if f.protocol == unix.IPPROTO_TCP {
		entry.ProtoInfo = &netlink.ProtoInfoTCP{State: 3} // established
	}
	if err := netlink.ConntrackCreate(netlink.ConntrackTable, family, entry); err != nil {
		t.Fatalf("add %+v: %v", f, err)
	}
}

func ip(a netip.Addr) net.IP { return a.AsSlice() }

// remaining returns the numbers of the entries that are still in the table.
func remaining(t *testing.T) (numbers []int) {
	t.Helper()
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range flows {
			numbers = append(numbers, int(f.Forward.SrcPort-client.Port()))
		}
	}
	slices.Sort(numbers)
	return numbers
}

func key(addr string, protocol model.Protocol) plan.Key {
	a := netip.MustParseAddrPort(addr)
	return plan.Key{Addr: a.Addr(), Port: a.Port(), Protocol: protocol}
}

func flush(t testing.TB) {
	t.Helper()
	if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		t.Fatal(err)
	}
}

func TestResetDeletesConnectionsOfOneFrontendAndEndpoint(t *testing.T) {
	flush(t)
	for n, f := range []flow{
		{unix.IPPROTO_TCP, "10.96.0.10:80", "10.244.1.1:8080"},   // 0
		{unix.IPPROTO_TCP, "10.96.0.10:80", "10.244.1.2:8080"},   // 1: another endpoint
		{unix.IPPROTO_TCP, "10.96.0.11:80", "10.244.1.1:8080"},   // 2: another frontend
		{unix.IPPROTO_UDP, "10.96.0.10:80", "10.244.1.1:8080"},   // 3: another protocol
		{unix.IPPROTO_TCP, "192.0.2.1:30080", "10.244.1.1:8080"}, // 4: by NodePort
	} {
		add(t, uint16(n), f)
	}
	member := netip.MustParseAddrPort("10.244.1.1:8080")
	n, err := (&Table{}).Reset(context.Background(), []plan.Reset{
		{Frontend: key("10.96.0.10:80", model.TCP), Endpoint: member}, {Frontend: key("0.0.0.0:30080", model.TCP), Endpoint: member},
	}, nil)
	if n != (plan.ResetCount{Connections: 2}) || err != nil {
		t.Fatalf("%+v, %v", n, err)
	}
	if want := []int{1, 2, 3}; !slices.Equal(remaining(t), want) {
		t.Fatalf("remaining %v, want %v", remaining(t), want)
	}
}

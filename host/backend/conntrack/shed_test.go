package conntrack

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// conn is a connection in the table.
type conn struct {
	client, frontend, endpoint netip.AddrPort
	protocol                   uint8
	state                      uint8 // of TCP
}

func attr(kind uint16, values ...[]byte) []byte {
	value := slices.Concat(values...)
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, (4-len(b)%4)%4)...)
}

func ctTuple(kind uint16, from, to netip.AddrPort, protocol uint8) []byte {
	nested := uint16(unix.NLA_F_NESTED)
	port := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	src, dst := uint16(1), uint16(2)
	if from.Addr().Is6() {
		src, dst = 3, 4
	}
	return attr(kind|nested,
		attr(1|nested, attr(src, from.Addr().AsSlice()), attr(dst, to.Addr().AsSlice())),
		attr(2|nested, attr(1, []byte{protocol}), attr(2, port(from.Port())), attr(3, port(to.Port()))))
}

// createConns adds connections that have replies to the table.
func createConns(t testing.TB, conns ...conn) {
	t.Helper()
	const seenReplyAssuredConfirmed = 1<<1 | 1<<2 | 1<<3
	for _, c := range conns {
		createEntry(t, c, seenReplyAssuredConfirmed)
	}
}

// createEntry adds a connection with a status to the table.
func createEntry(t testing.TB, c conn, status uint32) {
	t.Helper()
	req := newRequest(model.FamilyOf(c.client.Addr()), nl.IPCTNL_MSG_CT_NEW, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddRawData(ctTuple(attrTupleOrig, c.client, c.frontend, c.protocol))
	req.AddRawData(ctTuple(attrTupleReply, c.endpoint, c.client, c.protocol))
	req.AddRawData(attr(3, binary.BigEndian.AppendUint32(nil, status)))
	req.AddRawData(attr(7, binary.BigEndian.AppendUint32(nil, 600))) // timeout
	if c.protocol == unix.IPPROTO_TCP {
		nested := uint16(unix.NLA_F_NESTED)
		req.AddRawData(attr(attrProtoInfo|nested, attr(1|nested, attr(1, []byte{c.state}))))
	}
	if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
		t.Fatalf("create %+v: %v", c, err)
	}
}

// clients returns the clients of the entries in the table.
func clients(t *testing.T) map[netip.AddrPort]bool {
	t.Helper()
	out := map[netip.AddrPort]bool{}
	for _, f := range []model.Family{model.IPv4, model.IPv6} {
		if err := listFlows(context.Background(), f, statusSeenReply, statusSeenReply, func(c *flowEntry) { out[c.client] = true }); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

var (
	shedFrontend = netip.MustParseAddrPort("10.96.0.10:80")
	shedNodePort = netip.MustParseAddrPort("192.0.2.1:30080")
	shedEndpoint = netip.MustParseAddrPort("10.244.1.1:8080")
	otherOne     = netip.MustParseAddrPort("10.244.1.2:8080")
)

func shedClient(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 9, byte(n / 30000)}), uint16(1024+n%30000))
}

// TestShedResetsItsShareByHash: over the steps of a minute exactly the connections whose hash is in the share are reset, each
// step those of its own range, and the table is listed once. Others are not touched.
func TestShedResetsItsShareByHash(t *testing.T) {
	flush(t)
	n := 10_000
	if testing.Short() {
		n = 2000
	}
	var shedded, others []conn
	for i := range n {
		c := conn{shedClient(i), shedFrontend, shedEndpoint, unix.IPPROTO_TCP, tcpEstablished}
		if i%3 == 0 {
			c.frontend = shedNodePort
		}
		shedded = append(shedded, c)
	}
	for i, c := range []conn{
		{endpoint: otherOne},
		{frontend: netip.MustParseAddrPort("10.96.0.11:80")},
		{frontend: netip.MustParseAddrPort("10.96.0.10:81")},
		{endpoint: netip.MustParseAddrPort("10.244.1.1:8081")},
		{protocol: unix.IPPROTO_UDP},
		{state: 1}, // SYN_SENT
		{state: 7}, // TIME_WAIT
	} {
		for j := range 30 {
			o := conn{shedClient(50_000 + i*100 + j), shedFrontend, shedEndpoint, unix.IPPROTO_TCP, tcpEstablished}
			if c.endpoint.IsValid() {
				o.endpoint = c.endpoint
			}
			if c.frontend.IsValid() {
				o.frontend = c.frontend
			}
			if c.protocol != 0 {
				o.protocol = c.protocol
			}
			if c.state != 0 {
				o.state = c.state
			}
			others = append(others, o)
		}
	}
	createConns(t, shedded...)
	createConns(t, others...)
	table := &Table{}
	const seed, share = 1_700_000_000_000, plan.ShedSpace / 4
	keys := []plan.Key{key("10.96.0.10:80", model.TCP), key("0.0.0.0:30080", model.TCP)}
	total, expired, reused := 0, 0, netip.AddrPort{}
	for step := range uint64(60) {
		s := plan.Shed{Frontends: keys, Endpoint: shedEndpoint, Seed: seed, From: share * step / 60, To: share * (step + 1) / 60, Until: share}
		if step == 30 { // a connection that ends, and one whose client uses its port for another endpoint
			for _, c := range shedded {
				if h := uint64(plan.ShedHash(seed, c.client, c.frontend)); h >= s.From && h < s.To && expired < 2 {
					if err := deleteEntry(model.IPv4, idOfConn(t, c), string(ctTuple(attrTupleReply, c.endpoint, c.client, c.protocol))); err != nil {
						t.Fatal(err)
					}
					if expired++; expired == 2 {
						c.endpoint = otherOne
						createConns(t, c)
						reused = c.client
					}
				}
			}
		}
		got, deferred, err := table.Shed(context.Background(), []plan.Shed{s}, nil)
		if err != nil || deferred != nil {
			t.Fatal(got, deferred, err)
		}
		total += got.Connections
		if step%12 != 11 {
			continue
		}
		left := clients(t)
		for _, c := range shedded {
			want := uint64(plan.ShedHash(seed, c.client, c.frontend)) >= s.To || c.client == reused
			if left[c.client] != want {
				t.Fatalf("step %d: the connection of %s is there: %t, want %t", step, c.client, left[c.client], want)
			}
		}
		for _, o := range others {
			if !left[o.client] {
				t.Fatalf("step %d: %+v was reset", step, o)
			}
		}
	}
	want := -expired
	for _, c := range shedded {
		if uint64(plan.ShedHash(seed, c.client, c.frontend)) < share {
			want++
		}
	}
	if total != want || expired != 2 {
		t.Errorf("%d connections were reset, want %d; %d had ended before", total, want, expired)
	}
	if off := want*4 - n; off*off > n*16*4 { // some 4 standard deviations, for those who doubt the hash
		t.Errorf("a quarter of %d connections by hash is %d", n, want)
	}
	if table.shedder.lists != 1 || len(table.shedder.picks) != 0 {
		t.Errorf("the table was listed %d times, %d sheds are remembered", table.shedder.lists, len(table.shedder.picks))
	}
}

func idOfConn(t *testing.T, c conn) (id uint32) {
	t.Helper()
	if err := listFlows(context.Background(), model.IPv4, statusSeenReply, statusSeenReply, func(e *flowEntry) {
		if e.client == c.client {
			id = e.id
		}
	}); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestShedOfIPv6AndUDP(t *testing.T) {
	flush(t)
	six := conn{netip.MustParseAddrPort("[fd00:10:244::9]:4000"), netip.MustParseAddrPort("[2001:db8::1]:30080"), netip.MustParseAddrPort("[fd00:10:244::1]:8080"), unix.IPPROTO_TCP, tcpEstablished}
	udp := conn{shedClient(1), shedFrontend, shedEndpoint, unix.IPPROTO_UDP, 0}
	createConns(t, six, udp)
	n, deferred, err := (&Table{}).Shed(context.Background(), []plan.Shed{
		{Frontends: []plan.Key{key("[::]:30080", model.TCP)}, Endpoint: six.endpoint, To: plan.ShedSpace, Until: plan.ShedSpace},
		{Frontends: []plan.Key{key("10.96.0.10:80", model.UDP)}, Endpoint: udp.endpoint, To: plan.ShedSpace, Until: plan.ShedSpace},
	}, nil)
	if n.Connections != 2 || deferred != nil || err != nil || len(clients(t)) != 0 {
		t.Errorf("%d, %v, %v; left: %v", n, deferred, err, clients(t))
	}
}

// TestListingIsBounded: after a long listing, sheds that begin wait for as many calls as the listing was long. Those in progress
// do not.
func TestListingIsBounded(t *testing.T) {
	flush(t)
	createConns(t, conn{shedClient(1), shedFrontend, shedEndpoint, unix.IPPROTO_TCP, tcpEstablished},
		conn{shedClient(2), shedFrontend, otherOne, unix.IPPROTO_TCP, tcpEstablished})
	table := &Table{}
	keys := []plan.Key{key("10.96.0.10:80", model.TCP)}
	first := plan.Shed{Frontends: keys, Endpoint: shedEndpoint, To: 1, Until: plan.ShedSpace}
	if _, deferred, err := table.Shed(context.Background(), []plan.Shed{first}, nil); deferred != nil || err != nil {
		t.Fatal(deferred, err)
	}
	table.shedder.rest = 3 // as after 15,000 entries
	second := plan.Shed{Frontends: keys, Endpoint: otherOne, To: plan.ShedSpace, Until: plan.ShedSpace}
	for call := range 2 {
		first.From, first.To = first.To, first.To+1
		n, deferred, err := table.Shed(context.Background(), []plan.Shed{first, second}, nil)
		if n.Connections != 0 || err != nil || !slices.Equal(deferred, []bool{false, true}) {
			t.Fatalf("call %d: %d connections, deferred %v, %v", call, n, deferred, err)
		}
	}
	first.From, first.To = first.To, plan.ShedSpace
	if n, deferred, err := table.Shed(context.Background(), []plan.Shed{first, second}, nil); n.Connections != 2 || deferred != nil || err != nil {
		t.Errorf("%d connections, deferred %v, %v", n, deferred, err)
	}
}

// TestPrunedPicksAreThoseThatAreResetFirst: too many connections to remember are listed again later, and none is missed or reset
// twice.
func TestPrunedPicksAreThoseThatAreResetFirst(t *testing.T) {
	a, b := &pick{until: plan.ShedSpace}, &pick{until: plan.ShedSpace}
	for i := range 3 * maxPicked / 2 {
		p := a
		if i%3 == 0 {
			p = b
		}
		p.list = append(p.list, picked{hash: plan.ShedHash(1, shedClient(i%60_000), shedFrontend) >> 8})
	}
	all := len(a.list) + len(b.list)
	if left := prune(map[shedID]*pick{{seed: 1}: a, {seed: 2}: b}, all); left > maxPicked || left < maxPicked*99/100 {
		t.Errorf("%d of %d are left", left, all)
	}
	for _, p := range []*pick{a, b} {
		if !slices.IsSortedFunc(p.list, func(x, y picked) int { return int(int64(x.hash) - int64(y.hash)) }) || uint64(p.list[len(p.list)-1].hash) >= p.until {
			t.Errorf("the last one of %d has %d, the range ends at %d", len(p.list), p.list[len(p.list)-1].hash, p.until)
		}
	}
}

func FuzzDecodeFlow(f *testing.F) {
	c := conn{shedClient(1), shedFrontend, shedEndpoint, unix.IPPROTO_TCP, tcpEstablished}
	f.Add(slices.Concat(ctTuple(attrTupleOrig, c.client, c.frontend, c.protocol), ctTuple(attrTupleReply, c.endpoint, c.client, c.protocol), attr(attrID, []byte{1, 2, 3, 4})))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e flowEntry
		if e.decode(b) == nil && len(e.identity()) > len(b)+12 {
			t.Errorf("identity of %d bytes from %d", len(e.identity()), len(b))
		}
	})
}

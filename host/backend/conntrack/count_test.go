package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// open is a conntrack entry with its status and TCP state.
type open struct {
	flow
	status uint32
	state  uint8
}

const (
	statusConfirmed = 1 << 3 // of each entry in the table

	established = statusCounted | 1<<2 // and assured
)

// create adds entries as the kernel's translation would make them: with IPS_DST_NAT.
func create(t testing.TB, first uint32, entries ...open) {
	t.Helper()
	for i, o := range entries {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
		to, from := netip.MustParseAddrPort(o.to), netip.MustParseAddrPort(o.from)
		for _, a := range entryAttributes(first+uint32(i), o.protocol, to, from, o.status, o.state) {
			req.AddData(a)
		}
		family := uint8(unix.AF_INET)
		if to.Addr().Is6() {
			family = unix.AF_INET6
		}
		req.Data = append([]nl.NetlinkRequestData{&nl.Nfgenmsg{NfgenFamily: family}}, req.Data...)
		if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil {
			t.Fatalf("create %+v: %v", o, err)
		}
	}
}

// entryAttributes returns the attributes of a new entry. Its client is made from n.
func entryAttributes(n uint32, protocol uint8, to, from netip.AddrPort, status uint32, state uint8) []nl.NetlinkRequestData {
	client := netip.AddrFrom4([4]byte{172, 16 | byte(n>>24&15), byte(n >> 16), byte(n >> 8)})
	if to.Addr().Is6() {
		client = netip.MustParseAddr("fd00:10:244::9")
	}
	port := uint16(1024 + n&0xff)
	source, destination := 1, 2
	if to.Addr().Is6() {
		source, destination = 3, 4
	}
	tuple := func(kind int, a, b netip.Addr, ap, bp uint16) *nl.RtAttr {
		out := nl.NewRtAttr(unix.NLA_F_NESTED|kind, nil)
		ip := nl.NewRtAttr(unix.NLA_F_NESTED|attrTupleIP, nil)
		ip.AddRtAttr(source, a.AsSlice())
		ip.AddRtAttr(destination, b.AsSlice())
		proto := nl.NewRtAttr(unix.NLA_F_NESTED|attrTupleProto, nil)
		proto.AddRtAttr(attrProtoNum, []byte{protocol})
		proto.AddRtAttr(attrSourcePort, binary.BigEndian.AppendUint16(nil, ap))
		proto.AddRtAttr(3, binary.BigEndian.AppendUint16(nil, bp))
		out.AddChild(ip)
		out.AddChild(proto)
		return out
	}
	const attrTupleOrig, attrTimeout = 1, 7
	replyFrom := from
	if status&statusDstNAT != 0 {
		replyFrom = to // until the kernel translates it
	}
	out := []nl.NetlinkRequestData{
		tuple(attrTupleOrig, client, to.Addr(), port, to.Port()), tuple(attrTupleReply, replyFrom.Addr(), client, replyFrom.Port(), port),
		nl.NewRtAttr(attrStatus, binary.BigEndian.AppendUint32(nil, status&^statusDstNAT|statusConfirmed)),
		nl.NewRtAttr(attrTimeout, binary.BigEndian.AppendUint32(nil, 3600)),
	}
	if protocol == unix.IPPROTO_TCP {
		info := nl.NewRtAttr(unix.NLA_F_NESTED|attrProtoInfo, nil)
		tcp := nl.NewRtAttr(unix.NLA_F_NESTED|attrTCP, nil)
		tcp.AddRtAttr(attrTCPState, []byte{state})
		info.AddChild(tcp)
		out = append(out, info)
	}
	if status&statusDstNAT != 0 { // the kernel sets the status if there is an address to translate to
		const attrNATDst, attrNATMinIP, attrNATMinIPv6, attrNATProto, attrNATPortMin = 13, 1, 4, 3, 1
		nat := nl.NewRtAttr(unix.NLA_F_NESTED|attrNATDst, nil)
		minimum := attrNATMinIP
		if to.Addr().Is6() {
			minimum = attrNATMinIPv6
		}
		nat.AddRtAttr(minimum, from.Addr().AsSlice())
		proto := nl.NewRtAttr(unix.NLA_F_NESTED|attrNATProto, nil)
		proto.AddRtAttr(attrNATPortMin, binary.BigEndian.AppendUint16(nil, from.Port()))
		nat.AddChild(proto)
		out = append(out, nat)
	}
	return out
}

func endpoint(addr string, p model.Protocol) model.EndpointKey {
	return model.EndpointKey{Addr: netip.MustParseAddrPort(addr), Protocol: p}
}

func TestCountConnectionsCountsOpenOnesOfTheGivenEndpoints(t *testing.T) {
	flush(t)
	const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP
	create(t, 0,
		open{flow{tcp, "10.96.0.10:80", "10.244.1.1:8080"}, established, 3},
		open{flow{tcp, "10.96.0.10:80", "10.244.1.1:8080"}, established, 3},
		open{flow{tcp, "192.0.2.1:30080", "10.244.1.1:8080"}, established, 3},         // through another frontend
		open{flow{tcp, "10.96.0.10:80", "10.244.1.1:8080"}, statusDstNAT, 1},          // SYN sent
		open{flow{tcp, "10.96.0.10:80", "10.244.1.1:8080"}, established, 7},           // TIME_WAIT
		open{flow{tcp, "10.244.1.1:8080", "10.244.1.1:8080"}, statusSeenReply | 4, 3}, // not through a Service
		open{flow{tcp, "10.96.0.10:80", "10.244.1.2:8080"}, established, 3},           // an endpoint that is not asked for
		open{flow{udp, "10.96.0.10:53", "10.244.1.1:8080"}, established, 0},
		open{flow{udp, "10.96.0.10:53", "10.244.1.1:8080"}, statusDstNAT, 0}, // no reply
		open{flow{tcp, "[fd00:10:96::a]:80", "[fd00:10:244:1::1]:8080"}, established, 3},
	)
	count := map[model.EndpointKey]uint32{
		endpoint("10.244.1.1:8080", model.TCP): 0, endpoint("10.244.1.1:8080", model.UDP): 0,
		endpoint("[fd00:10:244:1::1]:8080", model.TCP): 0, endpoint("10.244.1.9:8080", model.TCP): 0,
	}
	if err := (Table{}).CountConnections(context.Background(), count); err != nil {
		t.Fatal(err)
	}
	want := map[model.EndpointKey]uint32{
		endpoint("10.244.1.1:8080", model.TCP): 3, endpoint("10.244.1.1:8080", model.UDP): 1,
		endpoint("[fd00:10:244:1::1]:8080", model.TCP): 1, endpoint("10.244.1.9:8080", model.TCP): 0,
	}
	if !maps.Equal(count, want) {
		t.Errorf("got  %v\nwant %v", count, want)
	}
}

func TestKernelLeavesOutOtherEntries(t *testing.T) {
	flush(t)
	create(t, 0,
		open{flow{unix.IPPROTO_TCP, "10.96.0.10:80", "10.244.1.1:8080"}, established, 3},
		open{flow{unix.IPPROTO_TCP, "10.244.1.1:80", "10.244.1.1:80"}, statusSeenReply, 3},
		open{flow{unix.IPPROTO_UDP, "10.96.0.10:53", "10.244.1.1:53"}, statusDstNAT, 0},
	)
	n := 0
	if err := dump(context.Background(), func(*entry) { n++ }); err != nil {
		t.Fatal(err)
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	if n != 1 {
		t.Errorf("%d entries on Linux %s, want 1", n, unix.ByteSliceToString(u.Release[:]))
	}
}

func TestCountConnectionsEndsWithItsContext(t *testing.T) {
	flush(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := (Table{}).CountConnections(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// message returns a message of a dump with one entry.
func message(n uint32, protocol uint8, to, from netip.AddrPort, status uint32, state uint8) []byte {
	body := (&nl.Nfgenmsg{NfgenFamily: unix.AF_INET}).Serialize()
	for _, a := range entryAttributes(n, protocol, to, from, status, state) {
		body = append(body, a.Serialize()...)
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, unix.NFNL_SUBSYS_CTNETLINK<<8)
	b = append(b, make([]byte, 10)...)
	return append(b, body...)
}

func TestDecodedEntriesEqualEncodedOnes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(r.Uint32()), byte(r.Uint32()), byte(r.Uint32())}), uint16(r.Uint32()))
		if r.IntN(2) == 0 {
			a := [16]byte{0xfd}
			binary.BigEndian.PutUint64(a[8:], r.Uint64())
			from = netip.AddrPortFrom(netip.AddrFrom16(a), from.Port())
		}
		protocol, status, state := [...]uint8{6, 17, 132}[r.IntN(3)], r.Uint32()&^statusDstNAT|statusConfirmed, uint8(r.IntN(12))
		var got []entry
		both := append(message(r.Uint32(), protocol, from, from, status, state), message(1, 17, from, from, 0, 0)...)
		done, err := new(entry).messages(both, func(e *entry) { got = append(got, *e) })
		if err != nil || done || len(got) != 2 {
			t.Fatalf("%d entries, done %t, %v", len(got), done, err)
		}
		switch {
		case protocol != 6:
			state = 0
		case state == 0 && status&statusOffload != 0:
			state = tcpEstablished
		}
		if g := got[0]; g.replyFrom != from || g.protocol != protocol || g.status != status || g.tcpState != state {
			t.Fatalf("got %+v, want %s %d %#x %d", g, from, protocol, status, state)
		}
	}
}

func FuzzMessages(f *testing.F) {
	a := netip.MustParseAddrPort("10.0.0.1:80")
	f.Add(message(1, 6, a, a, established, 3))
	f.Add([]byte{20, 0, 0, 0, 3, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		_, _ = new(entry).messages(b, func(*entry) { n++ })
		if n > len(b)/unix.SizeofNlMsghdr {
			t.Errorf("%d entries in %d bytes", n, len(b))
		}
	})
}

// BenchmarkCountConnections counts the connections to 1,000 endpoints in tables of different sizes. A table of a million entries
// needs a kernel with such a limit: bin/vm exec -kernel 6.12, see host/README.md.
func BenchmarkCountConnections(b *testing.B) {
	for _, entries := range []int{1000, 100_000, 1_000_000} {
		b.Run(strconv.Itoa(entries), func(b *testing.B) {
			if limit := conntrackMax(b); limit < entries {
				b.Skipf("net.netfilter.nf_conntrack_max is %d", limit)
			}
			if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil {
				b.Fatal(err)
			}
			fill(b, unix.IPPROTO_TCP, entries)
			count := map[model.EndpointKey]uint32{}
			for i := range 1000 {
				count[model.EndpointKey{Addr: benchEndpoint(i), Protocol: model.TCP}] = 0
			}
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var cpu time.Duration
			b.ReportAllocs()
			for b.Loop() {
				before := threadCPU(b)
				if err := (Table{}).CountConnections(context.Background(), count); err != nil {
					b.Fatal(err)
				}
				cpu += threadCPU(b) - before
			}
			total := uint64(0)
			for _, n := range count {
				total += uint64(n)
			}
			if total != uint64(entries)*uint64(b.N) {
				b.Fatalf("%d connections in %d counts of %d entries", total, b.N, entries)
			}
			b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
			b.ReportMetric(0, "ns/op")
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(m.HeapInuse>>20), "heap-MiB")
		})
	}
}

// threadCPU returns the CPU time that the calling thread has used, in user space and in the kernel.
func threadCPU(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func benchEndpoint(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 8080)
}

func conntrackMax(b *testing.B) int {
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		b.Fatal(err)
	}
	var n int
	if _, err := fmt.Sscan(string(text), &n); err != nil {
		b.Fatal(err)
	}
	return n
}

// fill creates established connections, many in a request.
func fill(b *testing.B, protocol uint8, entries int) {
	b.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	to := netip.MustParseAddrPort("10.96.0.10:80")
	buffer := make([]byte, bufferSize)
	for n := 0; n < entries; {
		var batch []byte
		for ; n < entries && len(batch) < 60<<10; n++ {
			m := message(uint32(n), protocol, to, benchEndpoint(n%1000), established, tcpEstablished)
			binary.NativeEndian.PutUint16(m[6:], unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
			batch = append(batch, m...)
		}
		binary.NativeEndian.PutUint16(batch[6:], unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
		if err := unix.Sendto(fd, batch, 0, kernel); err != nil {
			b.Fatal(err)
		}
		if size, err := unix.Read(fd, buffer); err != nil {
			b.Fatal(err)
		} else if _, err := new(entry).messages(buffer[:size], func(*entry) {}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestWaitForThePartOfADumpEndsWithTheContext(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	ctx, cancel := context.WithCancel(t.Context())
	parts, err := 0, unix.Send(pair[1], []byte("one"), 0)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err = receiveParts(ctx, pair[0], func([]byte) (bool, error) {
		parts++
		cancel()
		return false, nil
	})
	if !errors.Is(err, context.Canceled) || parts != 1 || time.Since(begin) >= stallTimeout {
		t.Errorf("%v after %d parts and %s", err, parts, time.Since(begin))
	}
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	begin = time.Now()
	if err := receiveParts(ctx, pair[0], nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) >= stallTimeout {
		t.Errorf("%v after %s", err, time.Since(begin))
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/host/backend/nftables"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/benchutil"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
	"github.com/sluice-proxy/sluice/host/util/stats"
)

// Costs of counting the outcomes of connections. Each round measures all settings there and back.
const (
	outcomeRounds      = 30
	outcomeConnections = 1000
	outcomePackets     = 20_000
)

// outcomeCost is the CPU time of a thread that opens connections and sends packets, in µs. On veth pairs, that contains the
// way of the packets through the node, and of the answers.
type outcomeCost struct {
	Counted            int // endpoints
	Connection, Packet []float64
}

// outcomeLab is a node with a client and an endpoint of a Service, and Services with 9 and 9990 other endpoints.
type outcomeLab struct {
	client *testnet.Host
	to     netip.AddrPort
	apply  func(counted int) error
}

var countedEndpoints = []int{0, 10, 10_000}

// measureOutcomes measures a new connection and a packet of an established one, with and without counting.
func measureOutcomes(ctx context.Context) ([]outcomeCost, error) {
	node, pod, from := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("10.244.0.2")
	lab, err := testnet.New(node)
	if err != nil {
		return nil, err
	}
	defer lab.Close()
	endpoint, err := lab.AddHost("endpoint", pod)
	if err != nil {
		return nil, err
	}
	l := &outcomeLab{to: netip.MustParseAddrPort("10.96.0.10:80")}
	if l.client, err = lab.AddHost("client", from); err != nil {
		return nil, err
	}
	var at net.Listener
	if err := endpoint.Do(func() (err error) {
		at, err = net.Listen("tcp", netip.AddrPortFrom(pod, 9000).String())
		return err
	}); err != nil {
		return nil, err
	}
	defer at.Close()
	go discard(at)
	b, err := nftables.Open(nftables.Options{Netns: lab.Node.Fd(), Now: time.Now})
	if err != nil {
		return nil, err
	}
	defer b.Close()
	prev := &plan.Plan{}
	l.apply = func(counted int) error {
		next := outcomePlan(netip.AddrPortFrom(pod, 9000), l.to, counted)
		_, err := b.Apply(ctx, next, plan.Diff(prev, next))
		prev = next
		return err
	}
	return l.measure()
}

// discard accepts connections and reads what comes.
func discard(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}()
	}
}

func outcomePlan(endpoint, to netip.AddrPort, counted int) *plan.Plan {
	p := &plan.Plan{Global: plan.Global{MasqueradeMark: 0x4000}, Frontends: map[plan.Key]*plan.Frontend{}}
	add := func(name string, to netip.AddrPort, outcomes bool, endpoints []plan.Endpoint) {
		k := plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: model.TCP}
		p.Frontends[k] = &plan.Frontend{Key: k, Outcomes: outcomes, Pool: plan.Pool{Endpoints: endpoints}, Owner: model.PortName{
			Service: model.Name{Namespace: "bench", Name: name}, Protocol: model.TCP,
		}}
	}
	others := func(block byte, n int) (list []plan.Endpoint) {
		for i := range n {
			addr := netip.AddrFrom4([4]byte{11, block, byte(i >> 8), byte(i)})
			list = append(list, plan.Endpoint{Addr: netip.AddrPortFrom(addr, 80), Weight: 1})
		}
		return list
	}
	add("measured", to, counted > 0, []plan.Endpoint{{Addr: endpoint, Weight: 1}})
	add("few", netip.MustParseAddrPort("10.96.0.11:80"), counted > 0, others(1, 9))
	add("many", netip.MustParseAddrPort("10.96.0.12:80"), counted > 10, others(2, 9990))
	return p
}

// measure measures all settings in the order A B C C B A.
func (l *outcomeLab) measure() ([]outcomeCost, error) {
	var costs []outcomeCost
	var order []int
	for i, n := range countedEndpoints {
		costs, order = append(costs, outcomeCost{Counted: n}), append(order, i)
	}
	for round := range outcomeRounds + 1 {
		back := slices.Clone(order)
		slices.Reverse(back)
		for _, i := range append(slices.Clone(order), back...) {
			if err := l.apply(costs[i].Counted); err != nil {
				return nil, err
			}
			connection, err := l.perConnection()
			if err != nil {
				return nil, err
			}
			packet, err := l.perPacket()
			if err != nil {
				return nil, err
			}
			if round > 0 { // the first one is a warm-up
				costs[i].Connection, costs[i].Packet = append(costs[i].Connection, connection), append(costs[i].Packet, packet)
			}
		}
	}
	return costs, nil
}

// perConnection opens connections and resets them.
func (l *outcomeLab) perConnection() (microseconds float64, err error) {
	err = l.client.Do(func() error {
		begin := benchutil.ThreadCPU()
		for range outcomeConnections {
			fd, err := l.connect()
			if err != nil {
				return err
			}
			if err := unix.Close(fd); err != nil {
				return err
			}
		}
		microseconds = float64(benchutil.ThreadCPU()-begin) / 1e3 / outcomeConnections
		return nil
	})
	return microseconds, err
}

// perPacket sends packets of one connection.
func (l *outcomeLab) perPacket() (microseconds float64, err error) {
	err = l.client.Do(func() (err error) {
		fd, err := l.connect()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, unix.Close(fd)) }()
		payload := make([]byte, 64)
		begin := benchutil.ThreadCPU()
		for range outcomePackets {
			if _, err := unix.Write(fd, payload); err != nil {
				return err
			}
		}
		microseconds = float64(benchutil.ThreadCPU()-begin) / 1e3 / outcomePackets
		return nil
	})
	return microseconds, err
}

// connect opens a connection that is reset when it is closed.
func (l *outcomeLab) connect() (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	err = errors.Join(
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.Connect(fd, &unix.SockaddrInet4{Port: int(l.to.Port()), Addr: l.to.Addr().As4()}))
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func printOutcomes(w io.Writer, costs []outcomeCost) {
	fmt.Fprintf(w, "\n**Counting outcomes**, CPU µs of the sender, %d alternating blocks of %d connections and %d packets each\n\n",
		2*outcomeRounds, outcomeConnections, outcomePackets)
	fmt.Fprint(w, "| counted endpoints |")
	for _, c := range costs {
		fmt.Fprintf(w, " %d |", c.Counted)
	}
	fmt.Fprint(w, "\n|---|---|---|---|\n")
	for _, f := range []struct {
		name string
		of   func(outcomeCost) []float64
	}{
		{"new connection", func(c outcomeCost) []float64 { return c.Connection }},
		{"packet of an established connection", func(c outcomeCost) []float64 { return c.Packet }},
	} {
		fmt.Fprintf(w, "| %s, median of blocks |", f.name)
		for _, c := range costs {
			fmt.Fprintf(w, " %.2f |", stats.Summarize(slices.Clone(f.of(c))).Median)
		}
		fmt.Fprint(w, "\n| … relative to not counting (95 % CI) |")
		for i, c := range costs {
			if i == 0 {
				fmt.Fprint(w, " |")
				continue
			}
			fmt.Fprintf(w, " %s |", stats.Ratios(f.of(costs[0]), f.of(c)).Text(2))
		}
		fmt.Fprintln(w)
	}
}

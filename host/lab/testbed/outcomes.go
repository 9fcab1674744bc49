package testbed

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/lab/testnet"
)

// DataPlane is a backend on a Bed's node.
type DataPlane struct {
	Apply        func(next *plan.Plan) error
	ReadOutcomes func() (map[model.EndpointKey]backend.OutcomeCounters, error)
}

// Kinds of endpoint, by what they do with a connection. Those of local are in the node's own namespace.
type endpointKind int

const (
	listening endpointKind = iota
	closed
	silent
	unreachable // refuses by ICMP
	flapping    // listening and closed in turn
	localListening
	localClosed
	endpointKinds
)

func (k endpointKind) local() bool { return k >= localListening }

// outcomesBed is a Bed whose first Pod, and the node, have an endpoint of each kind, and a Service for each.
type outcomesBed struct {
	*Bed
	testing.TB
	d       DataPlane
	clients []*Dialer
	opened  [2]atomic.Int64 // how often the flapping endpoints of a family were opened
	mu      sync.Mutex
	want    map[model.EndpointKey]backend.OutcomeCounters
	// repeated are endpoints to which SCTP may have repeated an INIT, which it does after a second at the earliest.
	repeated map[model.EndpointKey]bool
}

// endpointRules make the ports of the Pod's endpoints silent or unreachable.
const endpointRules = `table inet endpoints {
	set silent { type inet_service; elements = { %d } }
	chain input {
		type filter hook input priority 0;
		meta l4proto { tcp, udp, sctp } th dport @silent drop
		meta l4proto { tcp, udp, sctp } th dport %d reject with icmpx port-unreachable
	}
}
`

func (k endpointKind) port() uint16 { return 9100 + uint16(k) }

// CheckOutcomes makes connections of each kind to endpoints of each kind, over each protocol and family, from each kind of
// client, and compares the counters with what the clients saw. There are 100,000 connections, 12,000 on a test kernel, which
// makes 1000 a second, and 6000 with -short. SLUICE_OUTCOMES=N makes N.
func (d *Bed) CheckOutcomes(t testing.TB, dp DataPlane) {
	connections := 101_000
	switch n, err := strconv.Atoi(os.Getenv("SLUICE_OUTCOMES")); {
	case err == nil:
		connections = n
	case testing.Short():
		connections = 6000
	case os.Getenv("SLUICE_VM") != "":
		connections = 12_000
	}
	testenv.RequireProgram(t, "nft", "nftables")
	b := &outcomesBed{Bed: d, TB: t, d: dp, want: map[model.EndpointKey]backend.OutcomeCounters{}, repeated: map[model.EndpointKey]bool{}}
	for _, h := range []*testnet.Host{d.Client, d.Pods[1], d.Lab.Node, d.Pods[0]} { // the last one connects to itself
		b.clients = append(b.clients, NewDialer(h))
	}
	b.prepare()
	b.program(false)
	before := b.synRetransmits()
	stop := make(chan struct{})
	var background sync.WaitGroup
	b.flap(&background, stop)
	background.Go(func() { b.reprogram(stop) })
	each := connections / (int(endpointKinds) * len(b.clients) * 4) // protocols and families
	var load sync.WaitGroup
	var made atomic.Int64
	for _, c := range b.clients {
		load.Go(func() {
			for _, v6 := range []bool{false, true} {
				for kind := range endpointKinds {
					for _, proto := range []model.Protocol{model.TCP, model.UDP} {
						made.Add(int64(b.connect(c, kind, v6, proto, each)))
					}
				}
			}
		})
	}
	load.Wait()
	close(stop)
	background.Wait()
	t.Logf("%d connections", made.Load())
	b.direct()
	b.sctp()
	b.expect(b.synRetransmits() - before)
}

// prepare starts the endpoints.
func (b *outcomesBed) prepare() {
	b.Helper()
	pod := b.Pods[0]
	if out, err := pod.Run(fmt.Sprintf(endpointRules, silent.port(), unreachable.port()), "nft", "-f", "-"); err != nil {
		b.Fatalf("%s: %v", out, err)
	}
	if err := pod.Do(func() error {
		for path, v := range map[string]string{"/proc/sys/net/ipv4/icmp_ratemask": "0", "/proc/sys/net/ipv6/icmp/ratemask": "255"} {
			if err := os.WriteFile(path, []byte(v), 0); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	for _, v6 := range []bool{false, true} {
		for _, kind := range []endpointKind{listening, localListening} {
			s, err := b.listen(kind, v6)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(s.close)
			if testnet.SCTP() == nil {
				serve(b, b.hostOf(kind), b.endpoint(kind, v6), model.SCTP, "sctp")
			}
		}
	}
}

func (b *outcomesBed) hostOf(k endpointKind) *testnet.Host {
	if k.local() {
		return b.Lab.Node
	}
	return b.Pods[0]
}

func (b *outcomesBed) endpoint(k endpointKind, v6 bool) netip.AddrPort {
	like := other4
	if v6 {
		like = other6
	}
	if k.local() {
		return netip.AddrPortFrom(like, k.port())
	}
	return netip.AddrPortFrom(b.Pods[0].Addr(like), k.port())
}

// frontend returns the Service address of a kind of endpoint.
func (k endpointKind) frontend(v6 bool) netip.AddrPort {
	if v6 {
		return netip.MustParseAddrPort(fmt.Sprintf("[fd00:10:96::1:%d]:80", 1+k))
	}
	return netip.MustParseAddrPort(fmt.Sprintf("10.96.1.%d:80", 1+k))
}

// program applies the plan with all Services, and with one more if extra.
func (b *outcomesBed) program(extra bool) {
	b.Helper()
	p := &plan.Plan{Frontends: map[plan.Key]*plan.Frontend{}, Global: plan.Global{
		NodePortAddrs:  []netip.Addr{node4, node6},
		PodSources:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/64")},
		MasqueradeMark: 0x4000,
	}}
	add := func(to, endpoint netip.AddrPort, proto model.Protocol, name string) {
		f := &plan.Frontend{
			Key:      plan.Key{Addr: to.Addr(), Port: to.Port(), Protocol: proto},
			Owner:    model.PortName{Service: model.Name{Namespace: "shop", Name: name}, Port: strings.ToLower(proto.String()), Protocol: proto},
			Pool:     plan.Pool{Endpoints: []plan.Endpoint{{Addr: endpoint, Weight: 1}}},
			Outcomes: true, Masquerade: plan.MasqueradeOutside,
		}
		p.Frontends[f.Key] = f
	}
	for kind := range endpointKinds {
		for _, v6 := range []bool{false, true} {
			for _, proto := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
				add(kind.frontend(v6), b.endpoint(kind, v6), proto, "kind-"+strconv.Itoa(int(kind)))
				if kind == listening { // an endpoint that two Services share
					to := netip.AddrPortFrom(kind.frontend(v6).Addr(), 81)
					add(to, b.endpoint(kind, v6), proto, "shared")
				}
			}
		}
	}
	if extra {
		add(netip.MustParseAddrPort("10.96.2.1:80"), netip.MustParseAddrPort("10.244.9.9:80"), model.TCP, "extra")
		delete(p.Frontends, plan.Key{Addr: listening.frontend(false).Addr(), Port: 81, Protocol: model.TCP})
	}
	if err := b.d.Apply(p); err != nil {
		b.Error(err)
	}
}

// reprogram changes other Services, and the second one of an endpoint, until stop is closed.
func (b *outcomesBed) reprogram(stop chan struct{}) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			b.program(false)
			return
		case <-time.After(20 * time.Millisecond):
			b.program(i%2 == 0)
		}
	}
}

// flap opens and closes the flapping endpoints until stop is closed.
func (b *outcomesBed) flap(wg *sync.WaitGroup, stop chan struct{}) {
	for _, v6 := range []bool{false, true} {
		wg.Go(func() {
			for {
				s, err := b.listen(flapping, v6)
				b.opened[familyIndex(v6)].Add(1)
				if err != nil {
					b.Error(err)
					return
				}
				time.Sleep(2 * time.Millisecond)
				s.close()
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
			}
		})
	}
}

func familyIndex(v6 bool) int {
	if v6 {
		return 1
	}
	return 0
}

// untilClosed waits until the flapping endpoint that may have received a datagram is closed. It does not answer what it has
// not read until then.
func (b *outcomesBed) untilClosed(v6 bool) patience {
	opened := &b.opened[familyIndex(v6)]
	return func() func() bool {
		begin := opened.Load()
		return func() bool { return opened.Load() > begin+1 }
	}
}

// connect makes connections and notes what the client saw.
func (b *outcomesBed) connect(c *Dialer, kind endpointKind, v6 bool, proto model.Protocol, n int) int {
	// A refusal by ICMP that comes while connect(2) has the socket is reported after a second, with the next SYN.
	notToldAtOnce := kind == unreachable && proto == model.TCP
	wait := patience(forever)
	switch {
	case kind == silent, notToldAtOnce:
		wait = notAtAll
	case kind == flapping && proto == model.UDP:
		wait = b.untilClosed(v6)
	}
	saw, err := c.connect(proto, kind.frontend(v6), n, wait)
	if err != nil {
		b.Errorf("%s to %s over %s: %v", c.host.Name, kind.frontend(v6), proto, err)
	}
	if notToldAtOnce {
		saw.Refused = saw.Attempts
	}
	b.note(model.EndpointKey{Addr: b.endpoint(kind, v6), Protocol: proto}, saw)
	return n
}

func (b *outcomesBed) note(e model.EndpointKey, saw backend.OutcomeCounters) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.want[e]
	w.Attempts += saw.Attempts
	w.Answered += saw.Answered
	w.Refused += saw.Refused
	b.want[e] = w
}

// direct makes connections that are not Services', which do not count.
func (b *outcomesBed) direct() {
	for _, c := range b.clients[:3] {
		for _, v6 := range []bool{false, true} {
			for _, kind := range []endpointKind{listening, closed} {
				for _, proto := range []model.Protocol{model.TCP, model.UDP} {
					if _, err := c.connect(proto, b.endpoint(kind, v6), 5, forever); err != nil {
						b.Error(err)
					}
				}
			}
		}
	}
}

// sctp makes some connections over SCTP, if the kernel has it.
func (b *outcomesBed) sctp() {
	if err := testnet.SCTP(); err != nil {
		b.Logf("SCTP is not tested: %v", err)
		return
	}
	const each = 5
	for _, c := range b.clients {
		for _, v6 := range []bool{false, true} {
			for _, kind := range []endpointKind{listening, closed, silent, localListening, localClosed} {
				saw, e := backend.OutcomeCounters{}, model.EndpointKey{Addr: b.endpoint(kind, v6), Protocol: model.SCTP}
				for range each {
					timeout := testnet.AnswerTimeout
					if kind == silent {
						timeout = 50 * time.Millisecond
					}
					ctx, cancel := context.WithTimeout(context.Background(), timeout)
					begin := time.Now()
					conn, err := c.host.Dial(ctx, "sctp", kind.frontend(v6))
					if saw.Attempts++; time.Since(begin) > 900*time.Millisecond {
						b.repeated[e] = true
					}
					switch {
					case err == nil:
						saw.Answered++
						conn.Close()
					case testnet.Refused(err):
						saw.Refused++
					case kind != silent:
						b.Errorf("%s to %s over SCTP: %v", c.host.Name, kind.frontend(v6), err)
					}
					cancel()
				}
				b.note(e, saw)
			}
		}
	}
}

// expect compares the counters with what the clients saw. A retransmitted SYN-ACK counts once more.
func (b *outcomesBed) expect(retransmits uint64) {
	b.Helper()
	end := time.Now().Add(testnet.AnswerTimeout)
	for {
		got, err := b.d.ReadOutcomes()
		if err != nil {
			b.Fatal(err)
		}
		wrong := b.differences(got, retransmits)
		if len(wrong) == 0 {
			return
		}
		if time.Now().After(end) { // replies may still be on their way
			b.Fatalf("counters differ from what clients saw:\n%s", strings.Join(wrong, "\n"))
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (b *outcomesBed) differences(got map[model.EndpointKey]backend.OutcomeCounters, retransmits uint64) (wrong []string) {
	for e, g := range got {
		w := b.want[e]
		if e.Protocol != model.TCP {
			retransmits = 0
		}
		if b.repeated[e] { // on a machine that stood still; conntrack forgets an INIT without an answer after 3 s, and its repetition counts
			g.Attempts, g.Answered, g.Refused = min(g.Attempts, w.Attempts), min(g.Answered, w.Answered), min(g.Refused, w.Refused)
		}
		if g.Attempts != w.Attempts || g.Refused != w.Refused || g.Answered < w.Answered || g.Answered > w.Answered+retransmits {
			wrong = append(wrong, fmt.Sprintf("%s: want %+v, got %+v", e, w, g))
		}
	}
	for e, w := range b.want {
		if _, ok := got[e]; !ok {
			wrong = append(wrong, fmt.Sprintf("%s: want %+v, got none", e, w))
		}
	}
	return wrong
}

// synRetransmits returns the number of SYNs and SYN-ACKs that the endpoints' hosts have sent again.
func (b *outcomesBed) synRetransmits() (n uint64) {
	b.Helper()
	for _, h := range []*testnet.Host{b.Pods[0], b.Lab.Node} {
		v, err := SynRetransmits(h)
		if err != nil {
			b.Fatal(err)
		}
		n += v
	}
	return n
}

// SynRetransmits returns the number of SYNs and SYN-ACKs that a host has sent again.
func SynRetransmits(h *testnet.Host) (n uint64, err error) {
	err = h.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		if err != nil {
			return err
		}
		lines := strings.Split(string(text), "\n")
		for i := 0; i+1 < len(lines); i += 2 {
			names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
			for j, name := range names {
				if name == "TCPSynRetrans" {
					n, err = strconv.ParseUint(values[j], 10, 64)
					return err
				}
			}
		}
		return fmt.Errorf("no TCPSynRetrans in /proc/net/netstat of %s", h.Name)
	})
	return n, err
}

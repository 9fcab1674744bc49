package localhostproxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/localhostproxy"
)

const wait = 60 * time.Second

var localhost = []netip.Addr{netip.MustParseAddr("127.0.0.1")}

type rig struct {
	t     *testing.T
	proxy *localhostproxy.Proxy
	mu    sync.Mutex
	now   time.Time
	was   map[plan.Key]*plan.Frontend
}

func newRig(t *testing.T, change func(*localhostproxy.Options)) *rig {
	r := &rig{t: t, now: time.Unix(1, 0), was: map[plan.Key]*plan.Frontend{}}
	o := localhostproxy.Options{
		Now: func() time.Time { r.mu.Lock(); defer r.mu.Unlock(); return r.now }, After: time.After,
		Log: slog.New(slog.DiscardHandler), MaxConnections: 8, MaxPerService: 4, MaxListeners: 8, DialTimeout: wait,
	}
	if change != nil {
		change(&o)
	}
	r.proxy = localhostproxy.New(o)
	t.Cleanup(r.proxy.Close)
	return r
}

func (r *rig) advance(d time.Duration) { r.mu.Lock(); r.now = r.now.Add(d); r.mu.Unlock() }

func (r *rig) update(changes ...*plan.Frontend) {
	res := &planner.Result{Delta: &plan.Delta{}, NodeStatus: planner.NodeStatus{LocalhostAddrs: localhost}}
	for _, f := range changes {
		res.Delta.Changes = append(res.Delta.Changes, plan.Change{Key: f.Key, Old: r.was[f.Key], New: f})
		r.was[f.Key] = f
	}
	r.proxy.Update(res)
}

// server is an endpoint that writes its name, then echoes until the end, and then writes "end".
func server(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, name+"\n")
				if _, err := io.Copy(c, c); err == nil {
					_, _ = io.WriteString(c, "end\n")
				}
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func nodePort(name string, port uint16, endpoints ...plan.Endpoint) *plan.Frontend {
	f := &plan.Frontend{Key: plan.Key{Addr: netip.IPv4Unspecified(), Port: port, Protocol: model.TCP}, Kind: plan.NodePort,
		Owner: model.PortName{Service: model.Name{Namespace: "shop", Name: name}, Port: "http", Protocol: model.TCP}}
	f.Pool = pool(endpoints...)
	return f
}

func pool(endpoints ...plan.Endpoint) plan.Pool {
	p := plan.Pool{Verdict: plan.Reject, Endpoints: endpoints}
	for _, e := range endpoints {
		if e.Weight > 0 {
			p.Verdict = plan.Forward
		}
	}
	return p
}

func (r *rig) until(what string, ok func(localhostproxy.Stats) bool) {
	r.t.Helper()
	testenv.Eventually(r.t, what, func() bool { return ok(r.proxy.Stats()) }, func() string { return fmt.Sprintf("%+v", r.proxy.Stats()) })
}

func (r *rig) listening(n int) {
	r.t.Helper()
	r.until(fmt.Sprint(n, " listeners"), func(s localhostproxy.Stats) bool { return s.Listeners == n })
}

type client struct {
	*net.TCPConn
	r *bufio.Reader
}

// dial connects and returns the endpoint's name.
func (r *rig) dial(port uint16) (client, string, error) {
	r.t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return client{}, "", err
	}
	r.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(wait))
	out := client{c.(*net.TCPConn), bufio.NewReader(c)}
	name, err := out.r.ReadString('\n')
	return out, name, err
}

func (r *rig) mustDial(port uint16) (client, string) {
	r.t.Helper()
	c, name, err := r.dial(port)
	if err != nil {
		r.t.Fatal(err)
	}
	return c, name
}

func isReset(err error) bool { return errors.Is(err, syscall.ECONNRESET) }

func TestLocalhostNodePortForwards(t *testing.T) {
	r := newRig(t, nil)
	port := testenv.FreePort(t)
	a := server(t, "a")
	udp := nodePort("dns", port, plan.Endpoint{Addr: a, Weight: 1})
	udp.Key.Protocol = model.UDP
	r.update(nodePort("web", port, plan.Endpoint{Addr: a, Weight: 1}, plan.Endpoint{Addr: server(t, "b")}), udp)
	r.listening(1)
	if n := r.proxy.Stats().Unsupported; n != 1 {
		t.Errorf("%d NodePorts that are not TCP, want 1", n)
	}
	c, name := r.mustDial(port)
	if name != "a\n" {
		t.Errorf("connected to %q, want the endpoint with weight", name)
	}
	// The end of one direction arrives, and the other one goes on.
	_, _ = io.WriteString(c, "hello\n")
	_ = c.CloseWrite()
	if rest, err := io.ReadAll(c.r); err != nil || string(rest) != "hello\nend\n" {
		t.Errorf("after CloseWrite: %q, %v", rest, err)
	}
	r.until("the connection is gone", func(s localhostproxy.Stats) bool { return s.Open == 0 })

	// A reset of the client reaches the endpoint: its connection ends too.
	c, _ = r.mustDial(port)
	_ = c.SetLinger(0)
	_ = c.Close()
	r.until("the connection is gone", func(s localhostproxy.Stats) bool { return s.Open == 0 })

	// An endpoint that refuses is a reset.
	dead := nodePort("web", port, plan.Endpoint{Addr: netip.AddrPortFrom(localhost[0], testenv.FreePort(t)), Weight: 1})
	r.update(dead)
	if _, _, err := r.dial(port); !isReset(err) {
		t.Errorf("endpoint that refuses: %v, want a reset", err)
	}
	if n := r.proxy.Stats().DialFailures; n != 1 {
		t.Errorf("%d failures, want 1", n)
	}
}

func TestLocalhostResetsArePassedOn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan error, 1)
	go func() {
		for _, serve := range []func(*net.TCPConn){
			func(c *net.TCPConn) { _, err := c.Read(make([]byte, 1)); got <- err },
			func(c *net.TCPConn) { _ = c.SetLinger(0) },
		} {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "x\n")
			serve(c.(*net.TCPConn))
			_ = c.Close()
		}
	}()
	r, port := newRig(t, nil), testenv.FreePort(t)
	r.update(nodePort("web", port, plan.Endpoint{Addr: l.Addr().(*net.TCPAddr).AddrPort(), Weight: 1}))
	r.listening(1)
	c, _ := r.mustDial(port)
	_ = c.SetLinger(0)
	_ = c.Close()
	select {
	case err := <-got:
		if !isReset(err) {
			t.Errorf("the endpoint read: %v, want a reset", err)
		}
	case <-time.After(wait):
		t.Fatal("the endpoint does not see the reset")
	}
	c, _, err = r.dial(port)
	if err == nil {
		_, err = c.r.ReadByte()
	}
	if !isReset(err) {
		t.Errorf("the client read: %v, want a reset", err)
	}
}

func TestLocalhostPoolsFollowTheTrafficPolicy(t *testing.T) {
	r, port := newRig(t, nil), testenv.FreePort(t)
	local, remote := plan.Endpoint{Addr: server(t, "local"), Weight: 1}, plan.Endpoint{Addr: server(t, "remote"), Weight: 1000}
	f := nodePort("web", port, local, remote)
	outside := pool(local)
	f.Outside = &outside
	r.update(f)
	r.listening(1)
	for range 3 {
		if _, name := r.mustDial(port); name != "local\n" {
			t.Errorf("connected to %q", name)
		}
	}
	none := nodePort("web", port, remote)
	none.Outside = &plan.Pool{Verdict: plan.Drop}
	r.update(none)
	if _, _, err := r.dial(port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without a local endpoint: %v, want ECONNREFUSED", err)
	}
	r.update(f)
	r.listening(1)
}

func TestLocalhostAffinityPinsTheListener(t *testing.T) {
	r := newRig(t, func(o *localhostproxy.Options) { o.MaxConnections, o.MaxPerService = 1000, 1000 })
	port := testenv.FreePort(t)
	a, b := plan.Endpoint{Addr: server(t, "a"), Weight: 1}, plan.Endpoint{Addr: server(t, "b"), Weight: 1}
	with := func(endpoints ...plan.Endpoint) *plan.Frontend {
		f := nodePort("web", port, endpoints...)
		f.Affinity = time.Minute
		return f
	}
	r.update(with(a, b))
	r.listening(1)
	_, first := r.mustDial(port)
	for range 20 {
		r.advance(59 * time.Second) // each connection restarts the timeout
		if _, name := r.mustDial(port); name != first {
			t.Fatalf("connected to %q after %q", name, first)
		}
	}
	// Only to endpoints that are still selected.
	pinned, other, name := &a, &b, "b\n"
	if first == "b\n" {
		pinned, other, name = &b, &a, "a\n"
	}
	pinned.Weight = 0
	r.update(with(a, b))
	if _, got := r.mustDial(port); got != name {
		t.Errorf("the endpoint without weight is still used: %q", got)
	}
	pinned.Weight, other.Weight = 1, 1
	r.update(with(a, b))
	if _, got := r.mustDial(port); got != name {
		t.Errorf("the new endpoint is not kept: %q", got)
	}
	// After the timeout, both get connections: 64 choices of one endpoint have a probability of 2^-63.
	seen := map[string]bool{}
	for range 64 {
		r.advance(time.Minute)
		_, got := r.mustDial(port)
		seen[got] = true
		if len(seen) == 2 {
			break
		}
	}
	if len(seen) != 2 {
		t.Errorf("after the timeout: only %v", seen)
	}
}

func TestLocalhostDrainKeepsConnectionsUntilTheDeadline(t *testing.T) {
	r, port := newRig(t, nil), testenv.FreePort(t)
	a, b := server(t, "a"), server(t, "b")
	r.update(nodePort("web", port, plan.Endpoint{Addr: a, Weight: 1}))
	r.listening(1)
	old, _ := r.mustDial(port)
	r.update(nodePort("web", port, plan.Endpoint{Addr: a, Phase: plan.Draining}, plan.Endpoint{Addr: b, Weight: 1}))
	if _, name := r.mustDial(port); name != "b\n" {
		t.Errorf("new connection to %q, want b", name)
	}
	_, _ = io.WriteString(old, "still\n")
	if got, err := old.r.ReadString('\n'); got != "still\n" {
		t.Errorf("connection to the draining endpoint: %q, %v", got, err)
	}
	key := nodePort("web", port).Key
	r.proxy.Update(&planner.Result{Delta: &plan.Delta{}, NodeStatus: planner.NodeStatus{LocalhostAddrs: localhost},
		Resets: []plan.Reset{{Frontend: key, Endpoint: a}}})
	if _, err := old.r.ReadByte(); !isReset(err) {
		t.Errorf("after the deadline: %v, want a reset", err)
	}
	r.until("the other one is open", func(s localhostproxy.Stats) bool { return s.Open == 1 })

	// Without LocalhostAddrs nothing listens, and connections go on.
	r.proxy.Update(&planner.Result{Delta: &plan.Delta{}})
	if _, _, err := r.dial(port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without localhost: %v, want ECONNREFUSED", err)
	}
	if n := r.proxy.Stats().Open; n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

func TestLocalhostPortInUseIsRetried(t *testing.T) {
	r := newRig(t, nil)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).AddrPort().Port()
	e := plan.Endpoint{Addr: server(t, "a"), Weight: 1}
	r.update(nodePort("taken", port, e), nodePort("free", testenv.FreePort(t), e))
	r.until("one of two listens", func(s localhostproxy.Stats) bool { return s.Listeners == 1 && s.Failing == 1 && s.ListenFailures > 0 })
	if s := r.proxy.Stats(); s.FamilyListeners != [2]int{1, 0} || s.FamilyFailures[0] == 0 || s.FamilyFailures[1] != 0 {
		t.Errorf("by family: %v listen, %v failures", s.FamilyListeners, s.FamilyFailures)
	}
	if got, want := r.proxy.FirstFailure(), fmt.Sprintf("NodePort %d of shop/taken:http: listen tcp 127.0.0.1:%d: bind: address already in use", port, port); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	_ = taken.Close()
	r.listening(2)
	if _, name := r.mustDial(port); name != "a\n" {
		t.Errorf("connected to %q", name)
	}
	if got := r.proxy.FirstFailure(); got != "" {
		t.Errorf("still failing: %s", got)
	}
}

// TestLocalhostSocketIsNeverInItsOwnWay closes and opens listeners while the last ones are being opened.
func TestLocalhostSocketIsNeverInItsOwnWay(t *testing.T) {
	r := newRig(t, func(o *localhostproxy.Options) { o.After = func(time.Duration) <-chan time.Time { return nil } })
	a, port := server(t, "a"), testenv.FreePort(t)
	for range 2000 {
		r.update(nodePort("web", port, plan.Endpoint{Addr: a, Weight: 1}))
		r.update(nodePort("web", port))
	}
	r.update(nodePort("web", port, plan.Endpoint{Addr: a, Weight: 1}))
	r.listening(1)
	if s := r.proxy.Stats(); s.ListenFailures > 0 {
		t.Errorf("%d attempts to listen failed", s.ListenFailures)
	}
}

func TestLocalhostConnectionsAreBounded(t *testing.T) {
	r := newRig(t, func(o *localhostproxy.Options) { o.MaxConnections, o.MaxPerService, o.MaxListeners = 3, 2, 2 })
	e := plan.Endpoint{Addr: server(t, "a"), Weight: 1}
	one, two := testenv.FreePort(t), testenv.FreePort(t)
	r.update(nodePort("one", one, e), nodePort("two", two, e))
	r.listening(2)
	c, _ := r.mustDial(one)
	r.mustDial(one)
	if _, _, err := r.dial(one); !isReset(err) {
		t.Errorf("beyond the limit of a Service: %v, want a reset", err)
	}
	r.mustDial(two)
	if _, _, err := r.dial(two); !isReset(err) {
		t.Errorf("beyond the limit of all: %v, want a reset", err)
	}
	if s := r.proxy.Stats(); s.OverService != 1 || s.OverTotal != 1 || s.Open != 3 {
		t.Errorf("%+v", s)
	}
	_ = c.Close()
	r.until("room", func(s localhostproxy.Stats) bool { return s.Open == 2 })
	r.mustDial(two)

	// Listeners are bounded too; one takes the place of another.
	three := nodePort("three", testenv.FreePort(t), e)
	r.update(three)
	r.until("the third does not listen", func(s localhostproxy.Stats) bool { return s.Failing == 1 && s.Listeners == 2 })
	r.update(nodePort("one", one))
	r.until("the third listens", func(s localhostproxy.Stats) bool { return s.Failing == 0 && s.Listeners == 2 })
	r.proxy.Close()
	if s := r.proxy.Stats(); s.Open != 0 || s.Listeners != 0 {
		t.Errorf("after Close: %+v", s)
	}
}

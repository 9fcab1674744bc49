package health_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/health"
	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/plan"
	"github.com/sluice-proxy/sluice/host/planner"
	"github.com/sluice-proxy/sluice/host/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is an engine over a fake kernel, with health checks on real sockets.
type node struct {
	*testing.T
	kernel *fake.Kernel
	broken atomic.Bool // every Apply of the backend fails
	health *health.Health
	url    string // of /healthz and /livez
	feed   chan []model.Change
	away   atomic.Pointer[string] // why cluster state may be old
	late   atomic.Int64           // how far the clock of the health checks is ahead
	codes  chan string            // what was answered, as path and code
	failed chan error
}

// Run implements engine.Source.
func (n *node) Run(ctx context.Context, emit func([]model.Change)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case c := <-n.feed:
			emit(c)
		}
	}
}

// failing fails as a kernel does when n.broken is set: at its first message.
type failing struct {
	backend.Backend
	n *node
}

func (b failing) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	if b.n.broken.Load() {
		defer b.n.kernel.Inject(fake.Fault{At: 1, Err: syscall.ENOBUFS})()
	}
	return b.Backend.Apply(ctx, p, d)
}

func start(t *testing.T, prefixes ...netip.Prefix) *node {
	n := &node{T: t, kernel: fake.NewKernel(fake.Options{}), feed: make(chan []model.Change),
		codes: make(chan string, 1000), failed: make(chan error, 100)}
	log := slog.New(slog.DiscardHandler)
	n.health = health.New(health.Options{
		Now:   func() time.Time { return time.Now().Add(time.Duration(n.late.Load())) },
		After: func(time.Duration) <-chan time.Time { return time.After(10 * time.Millisecond) },
		Log:   log, SyncPeriod: 30 * time.Second,
		StaleReason: func() string {
			if why := n.away.Load(); why != nil {
				return *why
			}
			return ""
		},
		OnAnswer:      func(path string, code int) { n.codes <- path + " " + strconv.Itoa(code) },
		OnListenError: func(_ model.Name, err error) { n.failed <- err },
	})
	server := httptest.NewServer(n.health.Handler())
	n.url = server.URL
	e := engine.New(engine.Options{
		Source: n, Backend: failing{fake.Open(n.kernel), n}, ConnTable: n.kernel, Log: log, Observer: n.health,
		Planner: planner.New(planner.Settings{Node: "n0", MasqueradeMark: 0x4000, NodePortPrefixes: prefixes},
			func(policy.Step) (policy.Plugin, error) { return nil, policy.ErrPending }),
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		server.Close()
		n.health.Close()
	})
	return n
}

func (n *node) emit(changes ...model.Change) {
	n.Helper()
	select {
	case n.feed <- changes:
	case <-time.After(time.Minute):
		n.Fatal("the engine takes no changes")
	}
}

// answer is what a probe got.
type answer struct {
	code   int
	header http.Header
	body   string
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

func get(url string) (answer, error) {
	resp, err := client.Get(url)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(b)}, err
}

// becomes waits until url answers code; the code is all that may take a moment.
func (n *node) becomes(what, url string, code int) answer {
	n.Helper()
	var a answer
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if a, err = get(url); err == nil && a.code == code {
			return a
		}
	}
	n.Fatalf("%s: %s answers %d (%v), want %d: %s", what, url, a.code, err, code, a.body)
	return a
}

// stays checks that url answers nothing but code for a while.
func (n *node) stays(what, url string, code int) {
	n.Helper()
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if a, err := get(url); err != nil || a.code != code {
			n.Fatalf("%s: %s answers %d (%v), want %d all the time", what, url, a.code, err, code)
		}
	}
}

// freePort gives a port that nobody listens on. Another process may take it first; then listening is tried again.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

var web = model.Name{Namespace: "shop", Name: "web"}

func service(port uint16) model.Change {
	return model.Change{Kind: model.ServiceKind, Name: web, Service: &model.Service{
		Name: web, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, ExternalLocal: true, HealthCheckNodePort: port,
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Ports:           []model.ServicePort{{Protocol: model.TCP, Port: 80, NodePort: 30080}},
	}}
}

// endpoints on nodes; "~" before a name: it terminates and still serves.
func endpoints(nodes ...string) model.Change {
	s := &model.EndpointSlice{Name: web, Service: web, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
	for i, name := range nodes {
		name, leaving := strings.CutPrefix(name, "~")
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{
			Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), Node: name, Ready: !leaving, Serving: true, Terminating: leaving,
		})
	}
	return model.Change{Kind: model.SliceKind, Name: web, Slice: s}
}

func nodeIs(n *model.Node) model.Change {
	return model.Change{Kind: model.NodeKind, Name: model.Name{Name: "n0"}, Node: n}
}

var (
	synced  = model.Change{Kind: model.Synced}
	present = nodeIs(&model.Node{Name: "n0"})
)

func at(port uint16) string { return "http://127.0.0.1:" + strconv.Itoa(int(port)) + "/" }

func TestAHealthCheckPortAnswersAsKubeProxyDoes(t *testing.T) {
	n, port := start(t), freePort(t)
	n.emit(service(port), endpoints("n0", "n0", "n1"), present, synced)
	got := n.becomes("two endpoints here", at(port), 200)
	for header, want := range map[string]string{
		"Content-Type": "application/json", "X-Content-Type-Options": "nosniff", "X-Load-Balancing-Endpoint-Weight": "2",
	} {
		if v := got.header.Get(header); v != want {
			t.Errorf("%s: %q, want %q", header, v, want)
		}
	}
	var body map[string]any
	if err := json.Unmarshal([]byte(got.body), &body); err != nil {
		t.Fatal(err)
	}
	want := `{"localEndpoints":2,"service":{"name":"web","namespace":"shop"},"serviceProxyHealthy":true}`
	if text, _ := json.Marshal(body); string(text) != want {
		t.Errorf("body %s, want %s", text, want)
	}
	n.emit(endpoints("n1"))
	got = n.becomes("none here", at(port), 503)
	if v := got.header.Get("X-Load-Balancing-Endpoint-Weight"); v != "0" {
		t.Errorf("weight %s with none here", v)
	}
}

func TestADrainingNodeAnswers503WhileItForwards(t *testing.T) {
	n, port := start(t), freePort(t)
	n.emit(service(port), endpoints("n0", "n1"), present, synced)
	n.becomes("ready", at(port), 200)
	n.emit(endpoints("~n0", "n1"))
	n.becomes("draining", at(port), 503)
	outside := fake.Packet{From: netip.MustParseAddrPort("198.51.100.9:4000"), To: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: model.TCP}
	got := n.kernel.Connect(outside)
	if got.Member != netip.MustParseAddrPort("10.244.0.1:8080") {
		t.Errorf("a connection while draining: %+v, want it at the draining endpoint", got)
	}
	n.stays("draining", at(port), 503)
}

func TestTheFirstLocalEndpointIsToldOnlyOnceTheKernelHoldsIt(t *testing.T) {
	n, port := start(t), freePort(t)
	n.emit(service(port), endpoints("n1"), present, synced)
	n.becomes("none here", at(port), 503)
	n.broken.Store(true)
	n.emit(endpoints("n0", "n1"))
	n.stays("the kernel refuses it", at(port), 503)
	n.broken.Store(false)
	n.becomes("the kernel holds it", at(port), 200)

	// Going down does not wait for the kernel.
	n.broken.Store(true)
	n.emit(endpoints("n1"))
	n.becomes("gone, as the kernel does not know yet", at(port), 503)
	n.stays("gone", at(port), 503)
}

func TestANewServiceIsUnhealthyUntilTheKernelHoldsIt(t *testing.T) {
	n, port := start(t), freePort(t)
	n.broken.Store(true)
	n.emit(service(port), endpoints("n0"), present, synced)
	n.becomes("the first plan is refused", at(port), 503)
	n.becomes("the node is not to be sent to", n.url+health.Healthz, 503)
	n.becomes("but lives", n.url+health.Livez, 200)
	n.stays("the first plan is refused", at(port), 503)
	n.broken.Store(false)
	n.becomes("held", at(port), 200)
	n.becomes("held", n.url+health.Healthz, 200)
}

func TestAHealthCheckPortFollowsItsService(t *testing.T) {
	n := start(t)
	a, b := freePort(t), freePort(t)
	n.emit(service(a), endpoints("n0"), present, synced)
	n.becomes("first port", at(a), 200)
	n.emit(service(b))
	n.becomes("second port", at(b), 200)
	n.closed("the first port", a)
	n.emit(model.Change{Kind: model.ServiceKind, Name: web})
	n.closed("a Service that is gone", b)
	n.emit(service(a))
	n.becomes("it is back", at(a), 200)
}

func TestARenamedServiceTakesItsPortAlong(t *testing.T) {
	n, port := start(t), freePort(t)
	n.emit(service(port), endpoints("n0"), present, synced)
	n.becomes("its old name", at(port), 200)
	svc, slice := service(port), endpoints("n0")
	other := model.Name{Namespace: "shop", Name: "another"} // planned before the old one
	svc.Name, svc.Service.Name = other, other
	slice.Name, slice.Slice.Name, slice.Slice.Service = other, other, other
	n.emit(svc, slice, model.Change{Kind: model.ServiceKind, Name: web}, model.Change{Kind: model.SliceKind, Name: web})
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if a, err := get(at(port)); err == nil && a.code == 200 && strings.Contains(a.body, `"another"`) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("its new name does not answer")
		}
	}
	select {
	case err := <-n.failed:
		t.Errorf("in each other's way: %v", err)
	default:
	}
}

func (n *node) closed(what string, port uint16) {
	n.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if _, err := get(at(port)); errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
	}
	n.Fatalf("%s: still answers on %d", what, port)
}

func TestATakenHealthCheckPortNamesItsServiceAndIsTriedAgain(t *testing.T) {
	squatter, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.Close()
	port := squatter.Addr().(*net.TCPAddr).AddrPort().Port()
	n := start(t)
	n.emit(service(port), endpoints("n0"), present, synced)
	select {
	case err := <-n.failed:
		if !strings.HasPrefix(err.Error(), "Service shop/web: spec.healthCheckNodePort: ") || !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("told: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody is told")
	}
	n.becomes("the rest goes on", n.url+health.Healthz, 200)
	squatter.Close()
	n.becomes("free again", at(port), 200)
}

func TestHealthCheckPortsListenOnTheConfiguredAddressesOnly(t *testing.T) {
	// A loopback address is never a NodePort's, so one that this host does not have: listening on it must be tried.
	n, port := start(t, netip.MustParsePrefix("192.0.2.0/24")), freePort(t)
	n.emit(service(port), endpoints("n0"), nodeIs(&model.Node{Name: "n0", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.77")}}), synced)
	select {
	case err := <-n.failed:
		if !strings.Contains(err.Error(), "listen tcp4 192.0.2.77:"+strconv.Itoa(int(port))) {
			t.Errorf("told: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("not tried")
	}
	if _, err := get(at(port)); err == nil {
		t.Error("answers on an address that is not configured")
	}
}

// TestADualStackServiceCountsEachFamilyByItself needs IPv6 on loopback.
func TestADualStackServiceCountsEachFamilyByItself(t *testing.T) {
	if l, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		t.Skipf("no IPv6 on loopback: %v", err)
	} else {
		l.Close()
	}
	n, port := start(t), freePort(t)
	svc := service(port)
	svc.Service.ClusterIPs = append(svc.Service.ClusterIPs, netip.MustParseAddr("fd00:96::1"))
	v6 := endpoints("n0")
	v6.Name.Name, v6.Slice.Name.Name, v6.Slice.Family = "web6", "web6", model.IPv6
	v6.Slice.Endpoints[0].Addr = netip.MustParseAddr("fd00:244::1")
	n.emit(svc, endpoints("n0", "n0"), v6, present, synced)
	url6 := "http://[::1]:" + strconv.Itoa(int(port)) + "/"
	a4, a6 := n.becomes("IPv4", at(port), 200), n.becomes("IPv6", url6, 200)
	const weight = "X-Load-Balancing-Endpoint-Weight"
	if a4.header.Get(weight) != "2" || a6.header.Get(weight) != "1" {
		t.Errorf("IPv4 %s, IPv6 %s", a4.header.Get(weight), a6.header.Get(weight))
	}
}

func TestHealthzFollowsTheNodeAndLivezDoesNot(t *testing.T) {
	n := start(t)
	healthz, livez := n.url+health.Healthz, n.url+health.Livez
	n.becomes("before anything is known", healthz, 503)
	n.becomes("before anything is known", livez, 200)
	n.emit(service(0), synced)
	n.stays("no Node", healthz, 503)
	n.emit(present)
	n.becomes("the Node", healthz, 200)
	n.emit(nodeIs(&model.Node{Name: "n0", Leaving: true}))
	a := n.becomes("the Node is leaving", healthz, 503)
	var body struct {
		NodeEligible *bool
		Healthy      bool
		LastUpdated  time.Time
		CurrentTime  time.Time
		Status       map[string]struct{ Healthy bool }
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Fatal(err)
	}
	if body.NodeEligible == nil || *body.NodeEligible || !body.Healthy || !body.Status["IPv4"].Healthy ||
		time.Since(body.CurrentTime).Abs() > time.Minute || body.LastUpdated.IsZero() {
		t.Errorf("body %s", a.body)
	}
	a = n.becomes("it lives on", livez, 200)
	if strings.Contains(a.body, "nodeEligible") || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("livez: %v %s", a.header, a.body)
	}
	n.emit(nodeIs(nil))
	n.becomes("the Node is gone", healthz, 503)
	n.emit(present)
	n.becomes("the Node is back", healthz, 200)
	for len(n.codes) > 1 {
		<-n.codes
	}
	if got := <-n.codes; got != health.Healthz+" 200" {
		t.Errorf("counted %q last", got)
	}
}

func TestAnUpdateThatWaitsTwoSyncPeriodsIsUnhealthy(t *testing.T) {
	n, port := start(t), freePort(t)
	healthz, livez := n.url+health.Healthz, n.url+health.Livez
	n.emit(service(port), endpoints("n0"), present, synced)
	n.becomes("held", healthz, 200)
	n.becomes("held", at(port), 200)

	n.late.Store(int64(time.Hour)) // nothing waits: nothing is late
	n.stays("idle for an hour", healthz, 200)

	n.late.Store(0)
	n.broken.Store(true)
	n.emit(endpoints("n0", "n0"))
	n.stays("refused just now", healthz, 200)
	n.late.Store(int64(20 * time.Second))
	n.stays("refused for 20 s", healthz, 200)
	n.late.Store(int64(61 * time.Second))
	n.becomes("refused for 61 s", healthz, 503)
	a := n.becomes("refused for 61 s", livez, 503)
	if !strings.Contains(a.body, `"healthy": false`) {
		t.Errorf("livez: %s", a.body)
	}
	a = n.becomes("refused for 61 s", at(port), 503)
	if !strings.Contains(a.body, `"serviceProxyHealthy": false`) || a.header.Get("X-Load-Balancing-Endpoint-Weight") != "1" {
		t.Errorf("health check port: %v %s", a.header, a.body)
	}
	n.broken.Store(false)
	n.becomes("held at last", healthz, 200)
	n.becomes("held at last", livez, 200)
	n.becomes("held at last", at(port), 200)
}

func TestAClusterThatIsNotSyncedYetIsNotLate(t *testing.T) {
	n := start(t)
	n.emit(service(0), present)
	n.late.Store(int64(time.Hour))
	n.stays("a part of the first state", n.url+health.Livez, 200)
}

func TestAnEngineThatHangsIsUnhealthy(t *testing.T) {
	h := health.New(health.Options{Now: func() time.Time { return time.Unix(1061, 0) }, Log: slog.New(slog.DiscardHandler), SyncPeriod: 30 * time.Second})
	defer h.Close()
	server := httptest.NewServer(h.Handler())
	defer server.Close()
	code := func() int {
		a, err := get(server.URL + health.Livez)
		if err != nil {
			t.Fatal(err)
		}
		return a.code
	}
	// What waits is never taken.
	h.OnEnqueue([]model.Change{synced}, time.Unix(1000, 0))
	if c := code(); c != 503 {
		t.Errorf("an update that is never taken: %d", c)
	}
	// Taken and held, while a later one has come in: that one counts from its own time.
	h.OnDequeue()
	h.OnEnqueue([]model.Change{present}, time.Unix(1002, 0))
	if c := code(); c != 503 {
		t.Errorf("an update that is never held: %d", c)
	}
	h.OnApply(&engine.ApplyResult{At: time.Unix(1055, 0), Synced: true})
	if c := code(); c != 200 {
		t.Errorf("a later update that waits for 59 s: %d", c)
	}
}

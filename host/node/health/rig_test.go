package health_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend"
	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/plan"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/health"
)

func TestMain(m *testing.M) { testenv.MainWithoutLeaks(m) }

// node is an engine with health checks on a fake kernel and real sockets.
type node struct {
	*testing.T
	kernel       *fake.Kernel
	applyFails   atomic.Bool // every Apply of the backend fails
	health       *health.Health
	url          string // of /healthz and /livez
	feed         chan []model.Change
	staleReason  atomic.Pointer[string] // nil or empty: the cluster state is up to date
	clockOffset  atomic.Int64           // added to the clock of the health checks, in ns
	codes        chan string            // responses, as path and code
	listenErrors chan error
	evicted      atomic.Int32 // connections to health check ports
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

// failingBackend rejects the first netlink message if n.applyFails is set.
type failingBackend struct {
	backend.Backend
	n *node
}

func (b failingBackend) Apply(ctx context.Context, p *plan.Plan, d *plan.Delta) (backend.Report, error) {
	if b.n.applyFails.Load() {
		defer b.n.kernel.Inject(fake.Fault{At: 1, Err: syscall.ENOBUFS})()
	}
	return b.Backend.Apply(ctx, p, d)
}

func start(t *testing.T, prefixes ...netip.Prefix) *node {
	n := &node{T: t, kernel: fake.NewKernel(fake.Options{}), feed: make(chan []model.Change),
		codes: make(chan string, 1000), listenErrors: make(chan error, 100)}
	log := slog.New(slog.DiscardHandler)
	n.health = health.New(health.Options{
		Now:   func() time.Time { return time.Now().Add(time.Duration(n.clockOffset.Load())) },
		After: func(time.Duration) <-chan time.Time { return time.After(10 * time.Millisecond) },
		Log:   log, SyncPeriod: 30 * time.Second,
		StaleReason: func() string {
			if why := n.staleReason.Load(); why != nil {
				return *why
			}
			return ""
		},
		OnAnswer:      func(path string, code int) { n.codes <- path + " " + strconv.Itoa(code) },
		OnEvict:       func() { n.evicted.Add(1) },
		OnListenError: func(_ model.Name, err error) { n.listenErrors <- err },
	})
	server := httptest.NewServer(n.health.Handler())
	n.url = server.URL
	e := engine.New(engine.Options{
		Source: n, Backend: failingBackend{fake.Open(n.kernel), n}, ConnTable: n.kernel, Log: log, Observer: n.health,
		Planner: planner.New(planner.Settings{Node: "n0", MasqueradeMark: 0x4000, NodePortPrefixes: prefixes},
			func(string) (policy.Plugin, error) { return nil, policy.ErrPending }),
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

// waitFor waits until url responds with code.
func (n *node) waitFor(what, url string, code int) answer {
	n.Helper()
	var a answer
	var err error
	testenv.Eventually(n, fmt.Sprintf("%s: %s: %d", what, url, code), func() bool {
		a, err = get(url)
		return err == nil && a.code == code
	}, func() string { return fmt.Sprintf("%d (%v): %s", a.code, err, a.body) })
	return a
}

// always checks that url responds with code for 200 ms.
func (n *node) always(what, url string, code int) {
	n.Helper()
	var a answer
	var err error
	testenv.Always(n, 200*time.Millisecond, fmt.Sprintf("%s: %s: %d", what, url, code), func() bool {
		a, err = get(url)
		return err == nil && a.code == code
	}, func() string { return fmt.Sprintf("%d (%v)", a.code, err) })
}

var web = model.Name{Namespace: "shop", Name: "web"}

func service(port uint16) model.Change {
	return model.Change{Kind: model.ServiceKind, Name: web, Service: &model.Service{
		Name: web, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, ExternalLocal: true, HealthCheckNodePort: port,
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Ports:           []model.ServicePort{{Protocol: model.TCP, Port: 80, NodePort: 30080}},
	}}
}

// endpoints returns a slice with one endpoint per node; "~" before a node means terminating and serving.
func endpoints(nodes ...string) model.Change {
	s := &model.EndpointSlice{Name: web, Service: web, Family: model.IPv4, Ports: []model.SlicePort{{Protocol: model.TCP, Port: 8080}}}
	for i, name := range nodes {
		name, terminating := strings.CutPrefix(name, "~")
		s.Endpoints = append(s.Endpoints, model.SliceEndpoint{
			Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), Node: name, Ready: !terminating, Serving: true, Terminating: terminating,
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

package statuspage

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/planner"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/state"
)

// services is a source with so many Services of ten endpoints.
type services int

// Run implements engine.Source.
func (n services) Run(ctx context.Context, emit func([]model.Change)) error {
	var changes []model.Change
	for i := range int(n) {
		name := model.Name{Namespace: fmt.Sprintf("team-%d", i%100), Name: fmt.Sprintf("service-%d", i)}
		slice := &model.EndpointSlice{Name: name, Service: name, Family: model.IPv4, Ports: []model.SlicePort{{Name: "http", Protocol: model.TCP, Port: 8080}}}
		for j := range 10 {
			slice.Endpoints = append(slice.Endpoints, model.SliceEndpoint{
				Addr: netip.AddrFrom4([4]byte{10, byte(128 + j), byte(i >> 8), byte(i)}), Ready: j > 0, Serving: true, Pod: fmt.Sprintf("%s-%d", name.Name, j), Zone: "z0",
			})
		}
		changes = append(changes, model.Change{Kind: model.ServiceKind, Name: name, Service: &model.Service{
			Name: name, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
			Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80}},
		}}, model.Change{Kind: model.SliceKind, Name: name, Slice: slice})
	}
	emit(append(changes, model.Change{Kind: model.NodeKind, Name: model.Name{Name: "n0"}, Node: &model.Node{Name: "n0", Zone: "z0"}}, model.Change{Kind: model.Synced}))
	<-ctx.Done()
	return nil
}

// startPage returns the status page of an engine with so many Services, once it has them.
func startPage(t testing.TB, n int) (*page, *History) {
	t.Helper()
	h := NewHistory()
	e := engine.New(engine.Options{
		Source: services(n), Backend: fake.Open(fake.NewKernel(fake.Options{})), Observer: h, Log: slog.New(slog.DiscardHandler),
		Planner: planner.New(planner.Settings{Node: "n0", MasqueradeMark: 0x4000, Policies: &policy.Set{}}, nil),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	synced := time.Unix(1, 0)
	p := newPage(&state.Agent{
		Engine: e, NodeName: "n0", Node: func() *api.Node { return &api.Node{} }, Status: func(context.Context) *api.Status { return &api.Status{Node: "n0", Synced: &synced} },
		Connections: func(context.Context, map[model.EndpointKey]uint32) error { return nil },
	}, h)
	testenv.Eventually(t, "the page shows the Services", func() bool {
		_, text := ask(p, "/")
		return strings.Contains(text, fmt.Sprintf("%d Services", n))
	})
	return p, h
}

func ask(p *page, target string) (code int, text string) {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	r.Host = "127.0.0.1"
	w := httptest.NewRecorder()
	p.handler().ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// BenchmarkPage measures pages of a node with 10,000 Services of 10 endpoints: the first one after a change, the same again, a
// search and the page of a Service.
func BenchmarkPage(b *testing.B) {
	p, h := startPage(b, 10_000)
	for _, c := range []struct {
		name, target string
		changed      bool
	}{
		{"first", "/", true}, {"again", "/", false}, {"sorted", "/?sort=endpoints&order=desc", false}, {"search", "/?q=service-99+team", false},
		{"service", "/service?namespace=team-7&name=service-7", false}, {"policies", "/policies", true},
	} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				if c.changed {
					h.mu.Lock()
					h.version++
					h.mu.Unlock()
					p.services.next, p.shadows.next = time.Time{}, time.Time{} // as if nobody had asked for a while
				}
				if code, text := ask(p, c.target); code != http.StatusOK {
					b.Fatal(code, text)
				}
			}
		})
	}
}

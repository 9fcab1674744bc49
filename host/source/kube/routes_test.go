package kube

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/gatewayapi"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func route(kind, name string, weight int32) *gatewayapi.Route {
	group, of, port := "", "Service", int32(80)
	return &gatewayapi.Route{
		TypeMeta: metav1.TypeMeta{Kind: kind}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: gatewayapi.RouteSpec{
			ParentRefs: []gatewayapi.ParentRef{{Group: &group, Kind: &of, Name: "web"}},
			Rules:      []gatewayapi.Rule{{BackendRefs: []gatewayapi.BackendRef{{Name: "web-v1", Port: &port, Weight: &weight}}}},
		},
	}
}

// weight returns the weight of the first backend of a route, -1 without the route.
func (r *fixture) weight(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.snap.Routes[model.ObjectName{Kind: kind, Name: model.Name{Namespace: "shop", Name: "web"}}]
	if v == nil {
		return -1
	}
	return int(v.Backends[0].Weight)
}

// TestRoutesAreReadOnceTheServerHasThem: without the Gateway API nothing waits, and one line says so. When it is installed, both
// kinds are watched.
func TestRoutesAreReadOnceTheServerHasThem(t *testing.T) {
	r := newFixture(t, nil)
	r.server.put(svc("web"), slice("web", "10.0.0.1"), route("TCPRoute", "web", 5), route("UDPRoute", "web", 6))
	r.run()
	r.waitSynced()
	if r.weight("TCPRoute") != -1 || r.logCount("continuing without TCPRoutes")+r.logCount("continuing without UDPRoutes") != 1 {
		t.Errorf("without the kinds: %d\n%s", r.weight("TCPRoute"), r.log.String())
	}
	r.server.update(func() { delete(r.server.status, "tcproutes"); delete(r.server.status, "udproutes") })
	testenv.Eventually(t, "both routes", func() bool { return r.weight("TCPRoute") == 5 && r.weight("UDPRoute") == 6 })
	r.server.put(route("TCPRoute", "web", 7))
	testenv.Eventually(t, "the new weight", func() bool { return r.weight("TCPRoute") == 7 })
	r.server.remove("tcproutes", "shop/web")
	testenv.Eventually(t, "no route", func() bool { return r.weight("TCPRoute") == -1 })
	if r.weight("UDPRoute") != 6 {
		t.Error("the route of the other kind is gone with it")
	}
}

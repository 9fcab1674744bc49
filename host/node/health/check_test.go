package health_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/fake"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/health"
)

func TestHealthCheckResponseIsKubeProxys(t *testing.T) {
	n, port := start(t), testenv.FreePort(t)
	n.emit(service(port), endpoints("n0", "n0", "n1"), present, synced)
	got := n.waitFor("two endpoints here", at(port), 200)
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
	got = n.waitFor("none here", at(port), 503)
	if v := got.header.Get("X-Load-Balancing-Endpoint-Weight"); v != "0" {
		t.Errorf("weight %s with none here", v)
	}
}

func TestDrainingNodeIsUnhealthyWhileForwarding(t *testing.T) {
	n, port := start(t), testenv.FreePort(t)
	n.emit(service(port), endpoints("n0", "n1"), present, synced)
	n.waitFor("ready", at(port), 200)
	n.emit(endpoints("~n0", "n1"))
	n.waitFor("draining", at(port), 503)
	outside := fake.Packet{From: netip.MustParseAddrPort("198.51.100.9:4000"), To: netip.MustParseAddrPort("192.0.2.1:80"), Protocol: model.TCP}
	got := n.kernel.Connect(outside)
	if got.Endpoint != netip.MustParseAddrPort("10.244.0.1:8080") {
		t.Errorf("a connection while draining: %+v, want it at the draining endpoint", got)
	}
	n.always("draining", at(port), 503)
}

func TestFirstLocalEndpointCountsOnceProgrammed(t *testing.T) {
	n, port := start(t), testenv.FreePort(t)
	n.emit(service(port), endpoints("n1"), present, synced)
	n.waitFor("none here", at(port), 503)
	n.applyFails.Store(true)
	n.emit(endpoints("n0", "n1"))
	n.always("rejected by the kernel", at(port), 503)
	n.applyFails.Store(false)
	n.waitFor("programmed", at(port), 200)

	// Removal does not wait for the kernel.
	n.applyFails.Store(true)
	n.emit(endpoints("n1"))
	n.waitFor("removed, not programmed yet", at(port), 503)
	n.always("removed", at(port), 503)
}

func TestNewServiceIsUnhealthyUntilProgrammed(t *testing.T) {
	n, port := start(t), testenv.FreePort(t)
	n.applyFails.Store(true)
	n.emit(service(port), endpoints("n0"), present, synced)
	n.waitFor("the first plan is rejected", at(port), 503)
	n.waitFor("the node is not ready for traffic", n.url+health.Healthz, 503)
	n.waitFor("the proxy is alive", n.url+health.Livez, 200)
	n.always("the first plan is rejected", at(port), 503)
	n.applyFails.Store(false)
	n.waitFor("programmed", at(port), 200)
	n.waitFor("programmed", n.url+health.Healthz, 200)
}

func TestHealthCheckPortFollowsService(t *testing.T) {
	n := start(t)
	a, b := testenv.FreePort(t), testenv.FreePort(t)
	n.emit(service(a), endpoints("n0"), present, synced)
	n.waitFor("first port", at(a), 200)
	n.emit(service(b))
	n.waitFor("second port", at(b), 200)
	n.closed("the first port", a)
	n.emit(model.Change{Kind: model.ServiceKind, Name: web})
	n.closed("deleted Service", b)
	n.emit(service(a))
	n.waitFor("recreated", at(a), 200)
}

func TestHealthCheckPortMovesToRecreatedService(t *testing.T) {
	n, port := start(t), testenv.FreePort(t)
	n.emit(service(port), endpoints("n0"), present, synced)
	n.waitFor("old name", at(port), 200)
	svc, slice := service(port), endpoints("n0")
	other := model.Name{Namespace: "shop", Name: "another"} // planned before the old one
	svc.Name, svc.Service.Name = other, other
	slice.Name, slice.Slice.Name, slice.Slice.Service = other, other, other
	n.emit(svc, slice, model.Change{Kind: model.ServiceKind, Name: web}, model.Change{Kind: model.SliceKind, Name: web})
	testenv.Eventually(t, "the new name responds", func() bool {
		a, err := get(at(port))
		return err == nil && a.code == 200 && strings.Contains(a.body, `"another"`)
	})
	select {
	case err := <-n.listenErrors:
		t.Errorf("listen error: %v", err)
	default:
	}
}

func (n *node) closed(what string, port uint16) {
	n.Helper()
	testenv.Eventually(n, fmt.Sprintf("%s: nothing responds on %d", what, port), func() bool {
		_, err := get(at(port))
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

func TestHealthCheckPortInUseNamesServiceAndIsRetried(t *testing.T) {
	squatter, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer squatter.Close()
	port := squatter.Addr().(*net.TCPAddr).AddrPort().Port()
	n := start(t)
	n.emit(service(port), endpoints("n0"), present, synced)
	select {
	case err := <-n.listenErrors:
		if !strings.HasPrefix(err.Error(), "Service shop/web: spec.healthCheckNodePort: ") || !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("reported: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("no error reported")
	}
	n.waitFor("other checks", n.url+health.Healthz, 200)
	squatter.Close()
	n.waitFor("port free again", at(port), 200)
}

func TestHealthCheckPortsListenOnConfiguredAddressesOnly(t *testing.T) {
	// NodePorts are never on loopback, so use an address that this host does not have and expect an attempt to listen.
	n, port := start(t, netip.MustParsePrefix("192.0.2.0/24")), testenv.FreePort(t)
	n.emit(service(port), endpoints("n0"), nodeIs(&model.Node{Name: "n0", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.77")}}), synced)
	select {
	case err := <-n.listenErrors:
		if !strings.Contains(err.Error(), "listen tcp4 192.0.2.77:"+strconv.Itoa(int(port))) {
			t.Errorf("reported: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("did not try to listen")
	}
	if _, err := get(at(port)); err == nil {
		t.Error("responds on an address that is not configured")
	}
}

// requireIPv6 skips a test without IPv6 on loopback.
func requireIPv6(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 on loopback: %v", err)
	}
	l.Close()
}

func TestDualStackServiceCountsEndpointsPerFamily(t *testing.T) {
	requireIPv6(t)
	n, port := start(t), testenv.FreePort(t)
	svc := service(port)
	svc.Service.ClusterIPs = append(svc.Service.ClusterIPs, netip.MustParseAddr("fd00:96::1"))
	v6 := endpoints("n0")
	v6.Name.Name, v6.Slice.Name.Name, v6.Slice.Family = "web6", "web6", model.IPv6
	v6.Slice.Endpoints[0].Addr = netip.MustParseAddr("fd00:244::1")
	n.emit(svc, endpoints("n0", "n0"), v6, present, synced)
	url6 := "http://[::1]:" + strconv.Itoa(int(port)) + "/"
	a4, a6 := n.waitFor("IPv4", at(port), 200), n.waitFor("IPv6", url6, 200)
	const weight = "X-Load-Balancing-Endpoint-Weight"
	if a4.header.Get(weight) != "2" || a6.header.Get(weight) != "1" {
		t.Errorf("IPv4 %s, IPv6 %s", a4.header.Get(weight), a6.header.Get(weight))
	}
}

func TestConnectionsToHealthCheckPortsAreLimited(t *testing.T) {
	n, port := start(t), testenv.FreePort(t)
	n.emit(service(port), endpoints("n0"), present, synced)
	n.waitFor("programmed", at(port), 200)
	const limit, clients = 512, 600
	for range clients { // that send nothing
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	testenv.Eventually(t, "connections are closed", func() bool { return n.evicted.Load() >= clients-limit }, func() string { return fmt.Sprintf("%d of %d", n.evicted.Load(), clients) })
	n.waitFor("a new client", at(port), 200)
}

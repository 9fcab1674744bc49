package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"
)

const web = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
`

// TestPodsAreAddedAndRemoved takes a Service through the lifecycle of its Pods. In every phase sluice is killed and restarted: it
// must write nothing, and open connections must continue. No new connection may fail.
func TestPodsAreAddedAndRemoved(t *testing.T) {
	s := newScene(t, "scale")
	n1, n2 := s.nodes["n1"], s.nodes["n2"]
	s.apply(web)
	a := s.pod("a", "web", n1, "")
	r := s.run("n1", "")
	vip := s.vip("web", false)
	s.expect(n1.client, vip, "a")
	first := s.converse(n1.client, vip)
	stop := s.load(n1.client, vip)

	var b, c *pod
	for _, phase := range []struct {
		name   string
		change func()
		want   string
	}{
		{"scaled up", func() { b, c = s.pod("b", "web", n2, ""), s.pod("c", "web", n1, "") }, "a b c"},
		{"one is not ready", func() { b.ready(false) }, "a c"},
		{"it is ready again", func() { b.ready(true) }, "a b c"},
		{"rolling update: the first new one", func() { s.pod("d", "web", n2, "") }, "a b c d"},
		{"rolling update: an old one terminates", func() { b.terminate() }, "a c d"},
		{"rolling update: the second new one", func() { s.pod("e", "web", n1, "") }, "a c d e"},
		{"rolling update: the other old ones terminate", func() { a.terminate(); c.terminate() }, "d e"},
		{"the old ones are gone", func() { a.remove(); b.remove(); c.remove() }, "d e"},
		{"scaled down", func() { s.must(s.RemovePod(s.ctx, s.ns, "e")) }, "d"},
	} {
		before := s.converse(n1.client, vip)
		phase.change()
		s.expect(n1.client, vip, phase.want)
		t.Logf("%s: %s", phase.name, phase.want)
		if wrote := r.restartedByKill(nil); wrote != "0" {
			t.Errorf("%s: the restart wrote %s messages:\n%s", phase.name, wrote, r.log)
		}
		s.expect(n1.client, vip, phase.want)
		before.expectAlive()
		first.expectAlive()
	}
	stop()

	// After a restart, only what has changed in the meantime is written.
	if wrote := r.restartedByKill(func() {
		s.pod("f", "web", n2, "")
		s.eventually("the slice has f", func() error { return s.inSlice("web", "f") })
		s.expect(n1.client, vip, "d")
	}); wrote == "0" {
		t.Error("the start wrote nothing")
	}
	s.expect(n1.client, vip, "d f")

	// The last Pod terminates and still serves, so it gets all connections. Without any Pod, connections are rejected.
	s.must(s.RemovePod(s.ctx, s.ns, "f"))
	s.must(s.TerminatePod(s.ctx, s.ns, "d"))
	s.eventually("the slice has d, terminating", func() error { return s.terminatingInSlice("web", "d") })
	s.expect(n1.client, vip, "d")
	s.must(s.RemovePod(s.ctx, s.ns, "d"))
	s.expectRefused(n1.client, vip)
	s.expectRefused(n2.client, netip.MustParseAddrPort("172.18.0.11:81")) // rejected by the network itself: validates the check

	s.kubectl("delete", "service", "web")
	s.expectSilent(n1.client, vip) // unallocated address in the ServiceCIDR
	first.expectAlive()
}

// TestKubernetesServiceIsProxied: Pods reach the API server through it.
func TestKubernetesServiceIsProxied(t *testing.T) {
	s := newScene(t, "own")
	s.run("n1", "")
	ca, err := os.ReadFile(s.CAFile())
	s.must(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	s.eventually("10.96.0.1:443", func() error {
		conn, err := s.nodes["n1"].client.Dial(s.ctx, "tcp", netip.MustParseAddrPort("10.96.0.1:443"))
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		return tls.Client(conn, &tls.Config{RootCAs: pool, ServerName: "10.96.0.1"}).HandshakeContext(s.ctx)
	})
}

// TestServiceProxyNameLabelHandsServiceOver adds the label to an existing Service, and removes it again.
func TestServiceProxyNameLabelHandsServiceOver(t *testing.T) {
	s := newScene(t, "given")
	n1 := s.nodes["n1"]
	s.apply(web)
	s.pod("a", "web", n1, "")
	r := s.run("n1", "")
	vip := s.vip("web", false)
	s.expect(n1.client, vip, "a")
	open := s.converse(n1.client, vip)
	for _, label := range []string{"service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"} {
		s.kubectl("label", "service", "web", label+"=other")
		s.expectSilent(n1.client, vip)
		if wrote := r.restartedByKill(nil); wrote != "0" {
			t.Errorf("%s: the restart wrote %s messages", label, wrote)
		}
		s.expectSilent(n1.client, vip)
		s.kubectl("label", "service", "web", label+"-")
		s.expect(n1.client, vip, "a")
		open.expectAlive()
	}
	r.end(syscall.SIGTERM)
}

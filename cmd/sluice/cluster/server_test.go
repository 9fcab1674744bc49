package cluster

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestAPIServerOutageAndRestart: forwarding continues; nothing is written during the outage, and afterwards only what has
// changed.
func TestAPIServerOutageAndRestart(t *testing.T) {
	s := newScene(t, "server")
	n1, n2 := s.nodes["n1"], s.nodes["n2"]
	s.apply(web)
	s.pod("a", "web", n1, "")
	b := s.pod("b", "web", n2, "")
	s.apply(strings.Replace(web, "name: web}", "name: other}", 1))
	r := s.run("n1", "")
	vip, other := s.vip("web", false), s.vip("other", false)
	s.expect(n1.client, vip, "a b")
	s.expect(n1.client, other, "a b")
	open := s.converse(n1.client, vip)
	stop := s.load(n1.client, vip)

	if wrote := r.written(func() {
		s.must(s.RestartAPIServer(s.ctx))
		s.must(s.WaitReady(s.ctx))
		time.Sleep(time.Second) // nothing happens
	}); wrote != "" {
		t.Errorf("written while the API server restarted:\n%s", wrote)
	}
	wrote := r.written(func() {
		b.ready(false)
		s.expect(n1.client, vip, "a")
		s.expect(n1.client, other, "a")
	})
	if wrote == "" || strings.Contains(wrote, "delete chain") || strings.Count(wrote, "\n") > 40 {
		t.Errorf("written for one endpoint of two Services:\n%s", wrote)
	}

	if wrote := r.written(func() {
		s.StopAPIServer()
		r.logged("API server is not responding")
		time.Sleep(time.Second) // nothing happens
		s.expect(n1.client, vip, "a")
		open.expectAlive()

		// Killed during the outage: without cluster state, it leaves the rules alone.
		r.end(syscall.SIGKILL)
		r.start()
		r.logged("API server is not responding")
		s.expect(n1.client, vip, "a")
		time.Sleep(500 * time.Millisecond) // nothing happens
		open.expectAlive()

		s.must(s.StartAPIServer(s.ctx))
		s.must(s.WaitReady(s.ctx))
		r.synced()
	}); wrote != "" {
		t.Errorf("written while the API server was away and when it came back, with nothing changed:\n%s", wrote)
	}
	wrote = r.written(func() {
		b.ready(true)
		s.expect(n1.client, vip, "a b")
		s.expect(n1.client, other, "a b")
	})
	if wrote == "" || strings.Count(wrote, "\n") > 40 {
		t.Errorf("written for one endpoint of two Services:\n%s", wrote)
	}
	stop()
	open.expectAlive()
}

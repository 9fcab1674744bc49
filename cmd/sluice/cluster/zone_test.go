package cluster

import (
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
)

const closest = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, trafficDistribution: PreferSameZone, ports: [{name: http, port: 80, targetPort: 8080}]}
`

// others creates Nodes in both zones whose Pods are behind n1, so that a test can change the zone of n1 alone.
func (s *scene) others() (a, b string) {
	s.Helper()
	for name, zone := range map[string]string{s.ns + "-a": "a", s.ns + "-b": "b"} {
		s.must(s.AddNode(s.ctx, testcluster.Node{Name: name, Zone: zone}))
		s.Cleanup(func() { s.afterwards("delete", "node", name) })
	}
	return s.ns + "-a", s.ns + "-b"
}

func (s *scene) zone(node, zone string) {
	s.Helper()
	s.kubectl("label", "--overwrite", "node", node, "topology.kubernetes.io/zone="+zone)
}

// TestNodeZoneChanges: hints are followed for the current zone of the Node.
func TestNodeZoneChanges(t *testing.T) {
	s := newScene(t, "zone")
	n1 := s.nodes["n1"]
	inA, inB := s.others()
	s.apply(closest)
	s.pod("a", "web", n1, inA)
	s.pod("b", "web", n1, inB)
	s.eventually("hints", func() error { return s.hinted("web", "a", "a") })
	s.eventually("hints", func() error { return s.hinted("web", "b", "b") })
	r := s.run("n1", "")
	vip := s.vip("web", false)
	s.expect(n1.client, vip, "a")
	open := s.converse(n1.client, vip)
	s.Cleanup(func() { s.afterwards("label", "--overwrite", "node", "n1", "topology.kubernetes.io/zone=a") })
	s.zone("n1", "b")
	s.expect(n1.client, vip, "b")
	if wrote := r.restartedByKill(nil); wrote != "0" {
		t.Errorf("the restart wrote %s messages:\n%s", wrote, r.log)
	}
	s.expect(n1.client, vip, "b")
	if wrote := r.restartedByKill(func() { s.zone("n1", "c") }); wrote == "0" {
		t.Errorf("the restart wrote nothing:\n%s", r.log)
	}
	s.expect(n1.client, vip, "a b") // a zone without endpoints: hints are ignored
	s.zone("n1", "a")
	s.expect(n1.client, vip, "a")
	open.expectAlive()
}

// TestTwoNodesInDifferentZones: each node keeps its connections in its zone.
func TestTwoNodesInDifferentZones(t *testing.T) {
	s := newScene(t, "two")
	n1, n2 := s.nodes["n1"], s.nodes["n2"]
	s.apply(closest)
	s.pod("a1", "web", n1, "")
	a2 := s.pod("a2", "web", n1, "")
	s.pod("b1", "web", n2, "")
	b2 := s.pod("b2", "web", n2, "")
	s.eventually("hints", func() error { return s.hinted("web", "b2", "b") })
	one, two := s.run("n1", ""), s.run("n2", "")
	vip := s.vip("web", false)
	s.expect(n1.client, vip, "a1 a2")
	s.expect(n2.client, vip, "b1 b2")
	openA, openB := s.converse(n1.client, vip), s.converse(n2.client, vip)
	stopA, stopB := s.load(n1.client, vip), s.load(n2.client, vip)
	a2.ready(false)
	s.expect(n1.client, vip, "a1")
	b2.terminate()
	s.expect(n2.client, vip, "b1")
	for _, r := range []*run{one, two} {
		if wrote := r.restartedByKill(nil); wrote != "0" {
			t.Errorf("%s: the restart wrote %s messages:\n%s", r.place.name, wrote, r.log)
		}
	}
	a2.ready(true)
	s.expect(n1.client, vip, "a1 a2")
	s.expect(n2.client, vip, "b1")
	stopA()
	stopB()

	// internalTrafficPolicy Local: endpoints on the own node only.
	s.kubectl("patch", "service", "web", "-p", `{"spec":{"internalTrafficPolicy":"Local"}}`)
	b2.remove()
	s.must(s.RemovePod(s.ctx, s.ns, "b1"))
	s.expect(n1.client, vip, "a1 a2")
	s.expectSilent(n2.client, vip)
	openA.expectAlive()
	openB.expectAlive()
}

package kube

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// rareNodeLists prevents further lists of Nodes, so that changes of Nodes are noticed through slices only.
func rareNodeLists(o *Options) {
	after := o.After
	o.After = func(d time.Duration) <-chan time.Time {
		if d >= minListInterval*3/4 {
			return nil
		}
		return after(d)
	}
}

func (r *fixture) node(name string) *model.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snap.Nodes[name]
}

func withUIDAndCPU(n *corev1.Node, uid string, cpu int64) *corev1.Node {
	n.UID = types.UID(uid)
	q := n.Status.Allocatable[corev1.ResourceCPU]
	q.SetMilli(cpu)
	n.Status.Allocatable[corev1.ResourceCPU] = q
	return n
}

func TestOtherNodesAreListedByMetadataAndNeverWatched(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(everyServiceNeedsNodes))
	for i := range 30 {
		r.server.put(withUIDAndCPU(node(fmt.Sprint("n", i), "z1"), fmt.Sprint("uid-", i), 4000))
	}
	r.server.put(svc("web"))
	r.run()
	r.waitSynced()
	r.takeChanges()
	lists := r.server.requestCount("GET /api/v1/nodes?", "metadata.name%21%3D", "resourceVersion=0")
	testenv.Eventually(t, "lists", func() bool {
		return r.server.requestCount("GET /api/v1/nodes?", "metadata.name%21%3D", "resourceVersion=0") > lists+3
	})
	if n := r.server.requestCount("GET /api/v1/nodes?", "metadata.name%21%3D", "watch="); n > 0 {
		t.Errorf("%d watches of other Nodes", n)
	}
	r.wantEmitted("lists of what is known")
	r.server.mu.Lock()
	metadata := 0
	for _, a := range r.server.accepts {
		if a == listMetadata {
			metadata++
		}
	}
	r.server.mu.Unlock()
	if metadata < 3 {
		t.Errorf("%d lists of metadata", metadata)
	}

	// A new Node, one recreated under the same name, and one whose zone has changed.
	r.server.put(withUIDAndCPU(node("n30", "z2"), "uid-30", 8000), withUIDAndCPU(node("n3", "z1"), "uid-3-again", 1000), withUIDAndCPU(node("n4", "z9"), "uid-4", 4000))
	r.server.remove("nodes", "/n5")
	r.waitInSync()
	for name, want := range map[string]model.Node{"n30": {Name: "n30", Zone: "z2", MilliCPU: 8000}, "n3": {Name: "n3", Zone: "z1", MilliCPU: 1000},
		"n4": {Name: "n4", Zone: "z9", MilliCPU: 4000}} {
		if got := r.node(name); got == nil || got.Zone != want.Zone || got.MilliCPU != want.MilliCPU {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	// The CPU of a Node that stays is read again with whole Nodes.
	r.server.put(withUIDAndCPU(node("n6", "z1"), "uid-6", 500))
	testenv.Eventually(t, "the CPU of n6", func() bool { return r.node("n6").MilliCPU == 500 })
}

func TestNodesNamedBySlicesAreLookedUp(t *testing.T) {
	r := newFixture(t, rareNodeLists)
	r.source.SetNeeds(onAnyNode(everyServiceNeedsNodes))
	r.server.put(node("node-b", "z1"), svc("web"), slice("web", "10.0.0.1"))
	r.run()
	r.waitSynced()
	r.takeChanges()
	lists := func() int { return r.server.requestCount("GET /api/v1/nodes?", "metadata.name%21%3D") }
	before := lists()

	on := func(node, zone string) {
		s := slice("web", "10.0.0.1")
		s.Endpoints[0].NodeName, s.Endpoints[0].Zone = &node, &zone
		r.server.put(s)
	}
	r.server.put(withUIDAndCPU(node("new", "z2"), "uid", 3000))
	on("new", "z2")
	testenv.Eventually(t, "a new Node", func() bool { n := r.node("new"); return n != nil && n.Zone == "z2" && n.MilliCPU == 3000 })
	r.server.put(withUIDAndCPU(node("new", "z3"), "uid", 3000))
	on("new", "z3")
	testenv.Eventually(t, "its new zone", func() bool { return r.node("new").Zone == "z3" })

	// A claim that the API server does not confirm is looked up once.
	lookups := func(name string) int { return r.server.requestCount("GET /api/v1/nodes?", "metadata.name%3D"+name+"&") }
	for i := range 3 {
		on("ghost", "z1")
		testenv.Eventually(t, "the lookup", func() bool { return lookups("ghost") > 0 })
		on("new", fmt.Sprint("z", i))
	}
	r.waitForMarker()
	if n := lookups("ghost"); n != 1 {
		t.Errorf("looked up a missing Node %d times", n)
	}
	if r.node("ghost") != nil || r.node("new").Zone != "z3" {
		t.Errorf("slices made Nodes: %+v, %+v", r.node("ghost"), r.node("new"))
	}
	if n := lists(); n != before {
		t.Errorf("%d lists", n-before)
	}
}

func TestNodesAreReadWhileAServiceNeedsThem(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(func(s *model.Service) Needs { return Needs{Nodes: s.Labels["app"] == "zoned"} }))
	r.server.put(node("node-b", "z1"), svc("web"))
	r.run()
	r.waitSynced()
	r.wantEmitted("not needed", "+1 shop/web", "+3 "+ownNodeName, "synced")
	partial := func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.snap.NodesPartial }
	if !partial() || r.server.requestCount("nodes?", "metadata.name%21%3D") > 0 {
		t.Error("Nodes were read, or count as complete")
	}
	r.server.put(svc("zoned"))
	testenv.Eventually(t, "Nodes are complete", func() bool { return !partial() })
	r.waitInSync()
	r.wantEmitted("needed", "+1 shop/zoned", "+3 node-b")
	r.server.remove("services", "shop/zoned")
	testenv.Eventually(t, "gone", func() bool { return r.node("node-b") == nil })
	r.waitInSync()
	if !partial() {
		t.Error("Nodes still count as complete")
	}
}

func TestTruncatedNodeListIsDiscarded(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(everyServiceNeedsNodes))
	for i := range 40 {
		r.server.put(node(fmt.Sprint("n", i), "z1"))
	}
	r.server.put(svc("web"))
	r.server.update(func() { r.server.truncatedLists["nodes"] = 2 })
	r.run()
	r.waitSynced()
	if n := len(r.snap.Nodes); n != 41 {
		t.Fatalf("%d Nodes at the start", n)
	}
	r.takeChanges()
	r.server.update(func() { r.server.truncatedLists["nodes"] = 3 })
	testenv.Eventually(t, "short lists", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return r.server.truncatedLists["nodes"] == 0
	})
	r.waitInSync()
	r.wantEmitted("short lists")
}

func TestForbiddenNodesAreTolerated(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(everyServiceNeedsNodes))
	r.server.put(svc("web"), node("node-b", "z1"))
	r.server.update(func() {
		r.server.fail = func(q *http.Request) int {
			if strings.Contains(q.URL.RawQuery, "metadata.name%21%3D") {
				return http.StatusForbidden
			}
			return 0
		}
	})
	r.run()
	r.waitSynced()
	testenv.Eventually(t, "a warning", func() bool {
		return r.logCount("continuing without other Nodes: policies that need them are not evaluated") == 1
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.snap.NodesPartial || len(r.snap.Nodes) != 1 {
		t.Errorf("Nodes %v, partial: %t", r.snap.Nodes, r.snap.NodesPartial)
	}
}

// TestMissingAndForbiddenKindsAreNamedOnce: the log has one line about the three kinds of sluice.dev, and one about the two of
// the Gateway API, warnings if the server forbids them.
func TestMissingAndForbiddenKindsAreNamedOnce(t *testing.T) {
	for status, level := range map[int]string{http.StatusNotFound: "INFO", http.StatusForbidden: "WARN"} {
		r := newFixture(t, nil)
		r.server.put(svc("web"), slice("web", "10.0.0.1"))
		r.server.update(func() {
			for kind := range r.server.status {
				r.server.status[kind] = status
			}
		})
		r.run()
		r.waitSynced()
		if n := r.logCount("level=" + level + ` msg="continuing without `); n != 2 || r.logCount("continuing without") != n || r.logCount("are not split by routes") != 1 {
			t.Errorf("%d: %d lines\n%s", status, n, r.log.String())
		}
	}
}

// TestNeedsFollowLabelsOfTheNode: what Services need is found out again when the labels of this node's Node change.
func TestNeedsFollowLabelsOfTheNode(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(func(node *model.Node) func(*model.Service) Needs {
		inPool := node != nil && node.Labels["pool"] == "lab"
		return func(*model.Service) Needs { return Needs{Nodes: inPool} }
	})
	r.server.put(svc("web"))
	r.run()
	r.waitSynced()
	if r.source.nodesWanted() {
		t.Fatal("the other Nodes are wanted without the label")
	}
	for _, pool := range []string{"lab", "web", "lab"} {
		own := node(ownNodeName, "z1")
		own.Labels["pool"] = pool
		r.server.put(own)
		testenv.Eventually(t, "needs with the label "+pool, func() bool { return r.source.nodesWanted() == (pool == "lab") })
	}
	r.server.remove("nodes", "/"+ownNodeName)
	testenv.Eventually(t, "the Node is deleted", func() bool { return r.source.publishedNode() == nil })
	if !r.source.nodesWanted() {
		t.Error("the labels do not outlast the Node")
	}
}

package kube

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/model"
)

// rareNodeLists makes a rig whose lists of Nodes are far apart: what comes of a change before the next one is due to the slices.
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
	r.source.SetNeedsNodes(everyService)
	for i := range 30 {
		r.server.put(withUIDAndCPU(node(fmt.Sprint("n", i), "z1"), fmt.Sprint("uid-", i), 4000))
	}
	r.server.put(svc("web"))
	r.run()
	r.waitSynced()
	r.takeChanges()
	lists := r.server.requestCount("GET /api/v1/nodes?", "metadata.name%21%3D", "resourceVersion=0")
	eventually(t, "lists", func() bool {
		return r.server.requestCount("GET /api/v1/nodes?", "metadata.name%21%3D", "resourceVersion=0") > lists+3
	})
	if n := r.server.requestCount("GET /api/v1/nodes?", "metadata.name%21%3D", "watch="); n > 0 {
		t.Errorf("%d watches of other Nodes", n)
	}
	r.wantEmitted("lists of what is known")
	r.server.mu.Lock()
	metadata := 0
	for _, a := range r.server.accepts {
		if a == nodeMetadata {
			metadata++
		}
	}
	r.server.mu.Unlock()
	if metadata < 3 {
		t.Errorf("%d lists of metadata", metadata)
	}

	// A new Node, one that is another one under the same name, and one whose zone has changed.
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
	eventually(t, "the CPU of n6", func() bool { return r.node("n6").MilliCPU == 500 })
}

func TestNodesThatSlicesNameAreAskedForAtOnce(t *testing.T) {
	r := newFixture(t, rareNodeLists)
	r.source.SetNeedsNodes(everyService)
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
	eventually(t, "a new Node", func() bool { n := r.node("new"); return n != nil && n.Zone == "z2" && n.MilliCPU == 3000 })
	r.server.put(withUIDAndCPU(node("new", "z3"), "uid", 3000))
	on("new", "z3")
	eventually(t, "its new zone", func() bool { return r.node("new").Zone == "z3" })

	// What the API server does not confirm is asked for once.
	asked := func(name string) int { return r.server.requestCount("GET /api/v1/nodes?", "metadata.name%3D"+name+"&") }
	for i := range 3 {
		on("ghost", "z1")
		eventually(t, "the question", func() bool { return asked("ghost") > 0 })
		on("new", fmt.Sprint("z", i))
	}
	r.waitForMarker()
	if n := asked("ghost"); n != 1 {
		t.Errorf("asked %d times for a Node that is not there", n)
	}
	if r.node("ghost") != nil || r.node("new").Zone != "z3" {
		t.Errorf("slices made Nodes: %+v, %+v", r.node("ghost"), r.node("new"))
	}
	if n := lists(); n != before {
		t.Errorf("%d lists", n-before)
	}
}

func TestNodesAreReadForAsLongAsAServiceWantsThem(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeedsNodes(func(s *model.Service) bool { return s.Labels["app"] == "zoned" })
	r.server.put(node("node-b", "z1"), svc("web"))
	r.run()
	r.waitSynced()
	r.wantEmitted("nobody wants them", "+1 shop/web", "+3 "+ownNodeName, "synced")
	partial := func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.snap.NodesPartial }
	if !partial() || r.server.requestCount("nodes?", "metadata.name%21%3D") > 0 {
		t.Error("they were read, or count as known")
	}
	r.server.put(svc("zoned"))
	eventually(t, "the Nodes are known", func() bool { return !partial() })
	r.waitInSync()
	r.wantEmitted("one does", "+1 shop/zoned", "+3 node-b")
	r.server.remove("services", "shop/zoned")
	eventually(t, "gone", func() bool { return r.node("node-b") == nil })
	r.waitInSync()
	if !partial() {
		t.Error("they still count as known")
	}
}

func TestAListOfNodesThatEndsEarlyIsNoState(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeedsNodes(everyService)
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
	eventually(t, "short lists", func() bool {
		r.server.mu.Lock()
		defer r.server.mu.Unlock()
		return r.server.truncatedLists["nodes"] == 0
	})
	r.waitInSync()
	r.wantEmitted("short lists")
}

func TestNodesThatMayNotBeReadAreGoneWithout(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeedsNodes(everyService)
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
	eventually(t, "it is told", func() bool {
		return r.logCount("going on without the other Nodes: policies that want to know them are not asked") == 1
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.snap.NodesPartial || len(r.snap.Nodes) != 1 {
		t.Errorf("Nodes %v, partial: %t", r.snap.Nodes, r.snap.NodesPartial)
	}
}

func TestEveryItemOfAListIsGivenOrAnError(t *testing.T) {
	var items []runtime.Object
	var names []string
	for i := range 5 {
		names = append(names, fmt.Sprint("n", i))
		items = append(items, node(names[i], "z1"))
	}
	raw := protobufList(t, items, 7, false)
	read := func(r io.Reader) (got []string, err error) {
		err = forEachItem(r, func(raw []byte) error {
			var n corev1.Node
			if err := n.Unmarshal(raw); err != nil {
				return err
			}
			got = append(got, n.Name)
			return nil
		})
		return got, err
	}
	for _, r := range []io.Reader{bytes.NewReader(raw), iotest.OneByteReader(bytes.NewReader(raw))} {
		if got, err := read(r); err != nil || !slices.Equal(got, names) {
			t.Errorf("%q, %v", got, err)
		}
	}
	if got, err := read(bytes.NewReader(protobufList(t, nil, 7, false))); err != nil || len(got) > 0 {
		t.Errorf("an empty list: %q, %v", got, err)
	}
	end := len(raw) - len(raw)/8 // what follows the list says nothing more of it
	for n := range end {
		if got, err := read(bytes.NewReader(raw[:n])); err == nil {
			t.Fatalf("cut at %d of %d: %q and no error", n, len(raw), got)
		}
	}
	for name, bad := range map[string][]byte{
		"JSON":                 []byte(`{"items": []}`),
		"no list":              []byte(protobufMagic),
		"an item without end":  append([]byte(protobufMagic), 0x12, 0x05, 0x12, 0xff, 0xff, 0xff, 0x0f),
		"a number for a field": append([]byte(protobufMagic), 0x12, 0x02, 0x10, 0x01),
	} {
		if got, err := read(bytes.NewReader(bad)); err == nil {
			t.Errorf("%s: %q and no error", name, got)
		}
	}
}

func FuzzEachItem(f *testing.F) {
	f.Add(protobufList(f, []runtime.Object{node("a", "z"), node("b", "z")}, 7, true))
	f.Add([]byte(protobufMagic))
	f.Fuzz(func(t *testing.T, raw []byte) {
		total := 0
		_ = forEachItem(bytes.NewReader(raw), func(item []byte) error { total += len(item); return nil })
		if total > len(raw) {
			t.Errorf("%d bytes of items in %d", total, len(raw))
		}
	})
}

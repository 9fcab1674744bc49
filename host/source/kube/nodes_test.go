package kube

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	gostrings "strings"
	"testing"
	"testing/iotest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/model"
)

// seldom makes a rig whose lists of Nodes are far apart: what comes of a change before the next one is due to the slices.
func seldom(o *Options) {
	after := o.After
	o.After = func(d time.Duration) <-chan time.Time {
		if d >= listLeast*3/4 {
			return nil
		}
		return after(d)
	}
}

func (r *rig) node(name string) *model.Node {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snap.Nodes[name]
}

func with(n *corev1.Node, uid string, cpu int64) *corev1.Node {
	n.UID = types.UID(uid)
	q := n.Status.Allocatable[corev1.ResourceCPU]
	q.SetMilli(cpu)
	n.Status.Allocatable[corev1.ResourceCPU] = q
	return n
}

func TestOtherNodesAreListedByMetadataAndNeverWatched(t *testing.T) {
	r := newRig(t, nil)
	r.source.SetNeedsNodes(every)
	for i := range 30 {
		r.server.put(with(node(fmt.Sprint("n", i), "z1"), fmt.Sprint("uid-", i), 4000))
	}
	r.server.put(svc("web"))
	r.run()
	r.await()
	r.take()
	lists := r.server.asked("GET /api/v1/nodes?", "metadata.name%21%3D", "resourceVersion=0")
	eventually(t, "lists", func() bool {
		return r.server.asked("GET /api/v1/nodes?", "metadata.name%21%3D", "resourceVersion=0") > lists+3
	})
	if n := r.server.asked("GET /api/v1/nodes?", "metadata.name%21%3D", "watch="); n > 0 {
		t.Errorf("%d watches of other Nodes", n)
	}
	r.want("lists of what is known")
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
	r.server.put(with(node("n30", "z2"), "uid-30", 8000), with(node("n3", "z1"), "uid-3-again", 1000), with(node("n4", "z9"), "uid-4", 4000))
	r.server.remove("nodes", "/n5")
	r.settled()
	for name, want := range map[string]model.Node{"n30": {Name: "n30", Zone: "z2", MilliCPU: 8000}, "n3": {Name: "n3", Zone: "z1", MilliCPU: 1000},
		"n4": {Name: "n4", Zone: "z9", MilliCPU: 4000}} {
		if got := r.node(name); got == nil || got.Zone != want.Zone || got.MilliCPU != want.MilliCPU {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	// The CPU of a Node that stays is read again with whole Nodes.
	r.server.put(with(node("n6", "z1"), "uid-6", 500))
	eventually(t, "the CPU of n6", func() bool { return r.node("n6").MilliCPU == 500 })
}

func TestNodesThatSlicesNameAreAskedForAtOnce(t *testing.T) {
	r := newRig(t, seldom)
	r.source.SetNeedsNodes(every)
	r.server.put(node("node-b", "z1"), svc("web"), slice("web", "10.0.0.1"))
	r.run()
	r.await()
	r.take()
	lists := func() int { return r.server.asked("GET /api/v1/nodes?", "metadata.name%21%3D") }
	before := lists()

	on := func(node, zone string) {
		s := slice("web", "10.0.0.1")
		s.Endpoints[0].NodeName, s.Endpoints[0].Zone = &node, &zone
		r.server.put(s)
	}
	r.server.put(with(node("new", "z2"), "uid", 3000))
	on("new", "z2")
	eventually(t, "a new Node", func() bool { n := r.node("new"); return n != nil && n.Zone == "z2" && n.MilliCPU == 3000 })
	r.server.put(with(node("new", "z3"), "uid", 3000))
	on("new", "z3")
	eventually(t, "its new zone", func() bool { return r.node("new").Zone == "z3" })

	// What the API server does not confirm is asked for once.
	asked := func(name string) int { return r.server.asked("GET /api/v1/nodes?", "metadata.name%3D"+name+"&") }
	for i := range 3 {
		on("ghost", "z1")
		eventually(t, "the question", func() bool { return asked("ghost") > 0 })
		on("new", fmt.Sprint("z", i))
	}
	r.marker()
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
	r := newRig(t, nil)
	r.source.SetNeedsNodes(func(s *model.Service) bool { return s.Labels["app"] == "zoned" })
	r.server.put(node("node-b", "z1"), svc("web"))
	r.run()
	r.await()
	r.want("nobody wants them", "+1 shop/web", "+3 "+me, "synced")
	partial := func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.snap.NodesPartial }
	if !partial() || r.server.asked("nodes?", "metadata.name%21%3D") > 0 {
		t.Error("they were read, or count as known")
	}
	r.server.put(svc("zoned"))
	eventually(t, "the Nodes are known", func() bool { return !partial() })
	r.settled()
	r.want("one does", "+1 shop/zoned", "+3 node-b")
	r.server.remove("services", "shop/zoned")
	eventually(t, "gone", func() bool { return r.node("node-b") == nil })
	r.settled()
	if !partial() {
		t.Error("they still count as known")
	}
}

func TestAListOfNodesThatEndsEarlyIsNoState(t *testing.T) {
	r := newRig(t, nil)
	r.source.SetNeedsNodes(every)
	for i := range 40 {
		r.server.put(node(fmt.Sprint("n", i), "z1"))
	}
	r.server.put(svc("web"))
	r.server.set(func() { r.server.short["nodes"] = 2 })
	r.run()
	r.await()
	if n := len(r.snap.Nodes); n != 41 {
		t.Fatalf("%d Nodes at the start", n)
	}
	r.take()
	r.server.set(func() { r.server.short["nodes"] = 3 })
	eventually(t, "short lists", func() bool { r.server.mu.Lock(); defer r.server.mu.Unlock(); return r.server.short["nodes"] == 0 })
	r.settled()
	r.want("short lists")
}

func TestNodesThatMayNotBeReadAreGoneWithout(t *testing.T) {
	r := newRig(t, nil)
	r.source.SetNeedsNodes(every)
	r.server.put(svc("web"), node("node-b", "z1"))
	r.server.set(func() {
		r.server.fail = func(q *http.Request) int {
			if gostrings.Contains(q.URL.RawQuery, "metadata.name%21%3D") {
				return http.StatusForbidden
			}
			return 0
		}
	})
	r.run()
	r.await()
	eventually(t, "it is told", func() bool {
		return r.logged("going on without the other Nodes: policies that want to know them are not asked") == 1
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
		err = eachItem(r, func(raw []byte) error {
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
		"no list":              []byte(magic),
		"an item without end":  append([]byte(magic), 0x12, 0x05, 0x12, 0xff, 0xff, 0xff, 0x0f),
		"a number for a field": append([]byte(magic), 0x12, 0x02, 0x10, 0x01),
	} {
		if got, err := read(bytes.NewReader(bad)); err == nil {
			t.Errorf("%s: %q and no error", name, got)
		}
	}
}

func FuzzEachItem(f *testing.F) {
	f.Add(protobufList(f, []runtime.Object{node("a", "z"), node("b", "z")}, 7, true))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, raw []byte) {
		total := 0
		_ = eachItem(bytes.NewReader(raw), func(item []byte) error { total += len(item); return nil })
		if total > len(raw) {
			t.Errorf("%d bytes of items in %d", total, len(raw))
		}
	})
}

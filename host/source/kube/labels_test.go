package kube

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// needsOfBound makes Services with a label need something.
func needsOfBound(n Needs) NeedsOn {
	return onAnyNode(func(s *model.Service) Needs {
		if s.Labels["bound"] == "" {
			return Needs{}
		}
		return n
	})
}

func labeled(n *corev1.Node, labels map[string]string) *corev1.Node {
	n = n.DeepCopy()
	maps.Copy(n.Labels, labels)
	return n
}

func namespace(name string, labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

// read reports whether labels have been read.
func (r *fixture) read(of func(*model.Snapshot) model.LabelsRead, names ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		if l := of(r.snap); !l.OnDemand || !l.Has(name) {
			return false
		}
	}
	return true
}

// nodeLists returns how often other Nodes have been listed.
func (r *fixture) nodeLists() int {
	return r.server.requestCount("GET /api/v1/nodes?", "metadata.name%21%3D", "resourceVersion=0")
}

// emitted returns how many changes of a kind were emitted since the last takeChanges.
func (r *fixture) emitted(kind model.Kind) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.changes {
		if c.Kind == kind {
			n++
		}
	}
	return n
}

func nodeLabels(s *model.Snapshot) model.LabelsRead      { return s.NodeLabels }
func namespaceLabels(s *model.Snapshot) model.LabelsRead { return s.NamespaceLabels }

func TestOnlyLabelsOfNodesThatPoliciesSeeAreRead(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(needsOfBound(Needs{NodeLabels: []string{"pool"}}))
	n1 := withUIDAndCPU(node("n1", "z1"), "uid-1", 1000)
	r.server.put(labeled(n1, map[string]string{"pool": "spot", "secret": "x"}), svc("web"))
	r.run()
	r.waitSynced()
	if r.node("n1") != nil || r.read(nodeLabels, "pool") {
		t.Error("other Nodes are read although no policy needs them")
	}
	r.server.put(svc("web", bound))
	testenv.Eventually(t, "the label", func() bool { return r.read(nodeLabels, "pool") })
	if got := r.node("n1").Labels; !maps.Equal(got, map[string]string{"pool": "spot"}) {
		t.Errorf("labels %v", got)
	}
	r.takeChanges()
	r.server.put(labeled(n1, map[string]string{"pool": "spot", "secret": "y"}), labeled(withUIDAndCPU(node("n2", "z1"), "uid-2", 1000), map[string]string{"secret": "z"}))
	testenv.Eventually(t, "the other Node", func() bool { return r.node("n2") != nil })
	r.wantEmitted("a label that no policy sees", "+3 n2")
	r.server.put(labeled(n1, map[string]string{"pool": "on-demand"}))
	r.takeChanges()
	testenv.Eventually(t, "another value", func() bool { return r.node("n1").Labels["pool"] == "on-demand" })

	before := r.nodeLists()
	testenv.Eventually(t, "further lists", func() bool { return r.nodeLists() > before+2 })
	if n := r.emitted(model.NodeLabelsKind); n != 0 {
		t.Errorf("%d changes although the same labels are read", n)
	}

	// Another label is read at once, not when the next list is due.
	r.source.SetNeeds(needsOfBound(Needs{NodeLabels: []string{"pool", "secret"}}))
	testenv.Eventually(t, "another label", func() bool { return r.read(nodeLabels, "pool", "secret") })
	if got := r.node("n2").Labels["secret"]; got != "z" {
		t.Errorf("label %q", got)
	}
	if got := fmt.Sprint(r.source.LabelStats()); got != "[{Nodes 2 0 0} {namespaces 0 0 0} {load 0 0 0}]" {
		t.Error(got)
	}
	r.server.put(svc("web"))
	testenv.Eventually(t, "the end of the need", func() bool { return r.node("n2") == nil && !r.read(nodeLabels, "pool") })
}

func TestLabelsOfNamespacesAreWatchedWhilePoliciesSeeThem(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(needsOfBound(Needs{NamespaceLabels: []string{"env"}}))
	r.server.put(namespace("shop", map[string]string{"env": "prod", "secret": "x"}), namespace("bank", map[string]string{"secret": "y"}), svc("web"))
	r.run()
	r.waitSynced()
	requests := func(parts ...string) int { return r.server.requestCount(append(parts, "GET /api/v1/namespaces?")...) }
	if n := requests(); n > 0 {
		t.Errorf("%d requests although no policy needs namespaces", n)
	}
	r.takeChanges()
	label := func(ns, name string) string {
		r.mu.Lock()
		defer r.mu.Unlock()
		if n := r.snap.Namespaces[ns]; n != nil {
			return n.Labels[name]
		}
		return "-"
	}
	r.server.put(svc("web", bound))
	testenv.Eventually(t, "the label", func() bool { return r.read(namespaceLabels, "env") })
	if got := label("shop", "env") + label("shop", "secret") + label("bank", "env"); got != "prod-" {
		t.Errorf("labels %q", got)
	}
	r.takeChanges()
	r.server.put(namespace("shop", map[string]string{"env": "prod", "secret": "z"}), namespace("bank", map[string]string{"secret": "z"}),
		namespace("desk", map[string]string{"env": "test"}))
	testenv.Eventually(t, "another namespace", func() bool { return label("desk", "env") == "test" })
	r.wantEmitted("labels that no policy sees", "+9 desk/")

	r.source.SetNeeds(needsOfBound(Needs{NamespaceLabels: []string{"env", "secret"}}))
	testenv.Eventually(t, "another label", func() bool { return r.read(namespaceLabels, "env", "secret") })
	if got := label("bank", "secret"); got != "z" {
		t.Errorf("label %q", got)
	}
	r.server.remove("namespaces", "/desk")
	testenv.Eventually(t, "no namespace", func() bool { return label("desk", "env") == "-" })
	r.server.put(svc("web"))
	testenv.Eventually(t, "the end of the need", func() bool { return label("shop", "env") == "-" && !r.read(namespaceLabels, "env") })
}

func TestNamespacesThatCannotBeReadHaveNoLabels(t *testing.T) {
	r := newFixture(t, nil)
	r.server.status["namespaces"] = 403
	r.source.SetNeeds(needsOfBound(Needs{NamespaceLabels: []string{"env"}}))
	r.server.put(svc("web", bound))
	r.run()
	r.waitSynced()
	testenv.Eventually(t, "plugins do not wait", func() bool { return r.read(namespaceLabels, "env") })
	testenv.Eventually(t, "the log says so", func() bool { return r.logCount("component namespaces") == 1 })
}

// TestChangingLabelsCauseFewLists: whoever may choose the labels of a policy cannot have all nodes list Nodes or namespaces all
// the time.
func TestChangingLabelsCauseFewLists(t *testing.T) {
	r := newFixture(t, nil)
	needs := func(i int) {
		label := []string{fmt.Sprint("l", i)}
		r.source.SetNeeds(needsOfBound(Needs{NodeLabels: label, NamespaceLabels: label}))
	}
	needs(0)
	r.server.put(withUIDAndCPU(node("n1", "z1"), "uid-1", 1000), namespace("shop", nil), svc("web", bound))
	r.run()
	r.waitSynced()
	started := r.source.opt.Now()
	last := 0
	for r.source.opt.Now().Sub(started) < 3*valueWatchInterval {
		last++
		needs(last)
		r.waitForMarker()
	}
	name := fmt.Sprint("l", last)
	testenv.Eventually(t, "the last label", func() bool { return r.read(nodeLabels, name) && r.read(namespaceLabels, name) })
	passed := r.source.opt.Now().Sub(started)
	namespaces := r.server.requestCount("GET /api/v1/namespaces?", "resourceVersion") // a list and a watch each
	if most := 2 * (2 + int(passed/valueWatchInterval)); namespaces > most {
		t.Errorf("%d requests for namespaces in %s, at most %d are allowed", namespaces, passed, most)
	}
	if most := 2 + int(passed/podWatchInterval) + int(passed/(minListInterval*3/4)); r.nodeLists() > most || last < 2*most {
		t.Errorf("%d lists of Nodes in %s for %d labels, at most %d are allowed", r.nodeLists(), passed, last, most)
	}
}

// TestManyLabelsDisplaceNone: whoever may choose the labels of a policy can take no label from others.
func TestManyLabelsDisplaceNone(t *testing.T) {
	var d labelDemand
	name := func(i int) model.Name { return model.Name{Name: fmt.Sprint(i)} }
	d.set(name(0), []string{"z"})
	for i := range 2 * maxLabels {
		d.set(name(1+i), []string{fmt.Sprintf("l%02d", i), "z"})
	}
	if n := len(d.wanted); n != maxLabels || d.wanted[n-1] != "z" || len(d.counts) != 2*maxLabels+1 {
		t.Errorf("%d labels of %d, the last is %s", n, len(d.counts), d.wanted[n-1])
	}
	if !d.set(name(1), nil) || d.wanted[0] != "l01" || len(d.wanted) != maxLabels {
		t.Errorf("a label less: %v", d.wanted)
	}
	for i := range 2*maxLabels + 1 {
		d.set(name(i), nil)
	}
	if len(d.wanted)+len(d.counts)+len(d.services) != 0 {
		t.Errorf("%+v", d)
	}
}

package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

func TestServiceAnnotationsAreThoseThatThePolicyDeclares(t *testing.T) {
	r := newFixture(t, nil)
	annotated := func(annotations map[string]string) *corev1.Service {
		return svc("web", func(o *corev1.Service) { o.Annotations = annotations })
	}
	declare := func(keys ...string) {
		r.source.SetNeeds(onAnyNode(func(*model.Service) Needs { return Needs{Annotations: keys} }))
	}
	annotations := func() model.Annotations {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.snap.Services[model.Name{Namespace: "shop", Name: "web"}].Annotations
	}
	r.server.put(annotated(map[string]string{"capacity": "5", "other": "x"}), svc("db"))
	r.run()
	r.waitSynced()
	lists := r.server.fullLists("/services?")
	if got := annotations(); got != "" {
		t.Errorf("no policy needs them: %q", got)
	}
	r.takeChanges()
	r.server.put(annotated(map[string]string{"capacity": "6", "other": "y"}))
	r.waitForMarker()
	r.wantEmitted("an annotation that is not declared")

	declare("capacity")
	if got := annotations(); got != "capacity\x006\x00" {
		t.Errorf("declared: %q", got)
	}
	r.wantEmitted("declared", "+1 shop/web")
	r.server.put(annotated(map[string]string{"capacity": "6", "other": "z"}))
	r.waitForMarker()
	r.wantEmitted("another annotation")
	r.server.put(annotated(map[string]string{"capacity": "7", "other": "z"}))
	testenv.Eventually(t, "the new value", func() bool { return annotations() == "capacity\x007\x00" })
	r.takeChanges()
	declare("capacity", "other")
	if got := annotations(); got != "capacity\x007\x00other\x00z\x00" {
		t.Errorf("both: %q", got)
	}
	if n := r.server.fullLists("/services?") - lists; n != 0 {
		t.Errorf("%d lists", n)
	}
	r.waitInSync()
	r.source.SetNeeds(nil)
	if got := annotations(); got != "" {
		t.Errorf("no longer declared: %q", got)
	}
	r.server.remove("services", "shop/web")
	testenv.Eventually(t, "nothing is kept of a deleted Service", func() bool {
		r.source.annotations.mu.Lock()
		defer r.source.annotations.mu.Unlock()
		return len(r.source.annotations.packed) == 0
	})
}

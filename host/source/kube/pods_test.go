package kube

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/source"
)

// pod makes a Pod of namespace shop with labels, key=value each.
func pod(name string, labels ...string) *corev1.Pod {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{}, Annotations: map[string]string{}}}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		o.Labels[key] = value
	}
	return o
}

// selecting gives a Service a selector.
func selecting(key, value string) func(*corev1.Service) {
	return func(o *corev1.Service) { o.Spec.Selector = map[string]string{key: value} }
}

// needsPods makes Services with a label need keys.
func needsPods(keys source.PodKeys) func(*model.Service) Needs {
	return func(s *model.Service) Needs {
		if s.Labels["bound"] == "" {
			return Needs{}
		}
		return Needs{Pods: keys}
	}
}

func bound(o *corev1.Service) { o.Labels["bound"] = "yes" }

func (r *fixture) pod(name string) *model.Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snap.Pods[model.Name{Namespace: "shop", Name: name}]
}

func (r *fixture) podsOf(service string) model.PodsState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.snap.PodsOf(model.Name{Namespace: "shop", Name: service})
}

func (r *fixture) waitPods(service string, want model.PodsState) {
	r.t.Helper()
	testenv.Eventually(r.t, fmt.Sprintf("the Pods of %s are %s", service, want), func() bool { return r.podsOf(service) == want })
}

func (r *fixture) podRequests(parts ...string) int {
	return r.server.requestCount(append([]string{"/pods?"}, parts...)...)
}

func TestOnlyDeclaredKeysOfPodsOfBoundServicesAreRead(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(needsPods(source.PodKeys{Labels: []string{"track"}, Annotations: []string{"sluice.dev/capacity"}})))
	web := pod("web-1", "app=web", "track=stable", "secret=x")
	web.Annotations["sluice.dev/capacity"], web.Annotations["other"] = "5", "y"
	r.server.put(web, pod("db-1", "app=db", "track=stable"), svc("web", selecting("app", "web")), svc("db", selecting("app", "db")))
	r.run()
	r.waitSynced()
	if n := r.podRequests(); n > 0 || r.podsOf("web") != model.PodsPending {
		t.Errorf("%d requests for Pods that no Service needs, %s", n, r.podsOf("web"))
	}
	r.takeChanges()

	r.server.put(svc("web", selecting("app", "web"), bound))
	r.waitPods("web", model.PodsRead)
	want := &model.Pod{Name: model.Name{Namespace: "shop", Name: "web-1"}, Labels: map[string]string{"track": "stable"},
		Annotations: map[string]string{"sluice.dev/capacity": "5"}}
	if d := cmp.Diff(want, r.pod("web-1")); d != "" || r.pod("db-1") != nil {
		t.Errorf("-want +got\n%s, db: %+v", d, r.pod("db-1"))
	}
	if all, selected := r.podRequests(), r.podRequests("/namespaces/shop/pods?", "labelSelector=app%3Dweb"); all != selected {
		t.Errorf("%d of %d requests are for the Pods of the Service", selected, all)
	}
	r.server.mu.Lock()
	for i, q := range r.server.requests {
		if strings.Contains(q, "/pods?") && !strings.Contains(r.server.accepts[i], "as=PartialObjectMetadata") {
			t.Errorf("whole Pods are requested: %s, %s", q, r.server.accepts[i])
		}
	}
	r.server.mu.Unlock()
	r.takeChanges()

	// What is not declared is no change; what is, is one of that Pod.
	web.Labels["secret"], web.Annotations["other"] = "z", "z"
	r.server.put(web)
	web.Labels["track"] = "canary"
	r.server.put(web)
	testenv.Eventually(t, "the new label", func() bool { return r.pod("web-1").Labels["track"] == "canary" })
	r.wantEmitted("a label", "+6 shop/web-1")
	r.server.remove("pods", "shop/web-1")
	testenv.Eventually(t, "the Pod is gone", func() bool { return r.pod("web-1") == nil })
	r.server.put(pod("web-2", "app=web"))
	testenv.Eventually(t, "another Pod", func() bool { return r.pod("web-2") != nil })
	r.takeChanges()

	r.server.put(svc("web", selecting("app", "web")))
	r.waitPods("web", model.PodsPending)
	testenv.Eventually(t, "no Pod is kept", func() bool { return r.pod("web-2") == nil })
	if s := r.source.PodStats(); s.Watches != 0 || s.Pods != 0 {
		t.Errorf("%+v", s)
	}
}

func TestWholePodsAreReadForRequestsOnly(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(needsPods(source.PodKeys{Full: true})))
	web := pod("web-1", "app=web")
	web.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": quantity.MustParse("250m")}}}}
	web.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(1700000000, 0)}}
	r.server.put(web, svc("web", selecting("app", "web"), bound))
	r.run()
	r.waitSynced()
	r.waitPods("web", model.PodsRead)
	if p := r.pod("web-1"); p == nil || p.MilliCPU != 250 || p.ReadySince != 1700000000000 || p.Labels != nil {
		t.Errorf("%+v", p)
	}
}

func TestManySelectorsShareAWatchOfTheirNamespace(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(needsPods(source.PodKeys{Labels: []string{"track"}})))
	for i := range maxSelectors {
		app := fmt.Sprint("app", i)
		r.server.put(pod(app, "app="+app, "track=a"), svc(app, selecting("app", app), bound))
	}
	r.server.put(svc("same", selecting("app", "app0"), bound), svc("none", bound))
	r.run()
	r.waitSynced()
	r.waitPods("app0", model.PodsRead)
	for i := range maxSelectors {
		r.waitPods(fmt.Sprint("app", i), model.PodsRead)
	}
	r.waitPods("same", model.PodsRead)
	r.waitPods("none", model.PodsRead)
	if s := r.source.PodStats(); s.Watches != maxSelectors || s.Pods != maxSelectors || s.Services[model.PodsRead] != maxSelectors+2 {
		t.Errorf("%+v", s)
	}
	r.server.put(pod("more", "app=more", "track=b"), svc("more", selecting("app", "more"), bound))
	r.waitPods("more", model.PodsRead)
	if s := r.source.PodStats(); s.Watches != 1 || s.Pods != maxSelectors+1 {
		t.Errorf("after one more selector: %+v", s)
	}
	for i := range maxSelectors { // what was read before was never missing
		name := fmt.Sprint("app", i)
		r.mu.Lock()
		missing := slices.ContainsFunc(r.changes, func(c model.Change) bool { return c.Kind == model.PodKind && c.Name.Name == name && c.Pod == nil })
		r.mu.Unlock()
		if missing || r.pod(name) == nil {
			t.Errorf("Pod %s was removed while the watch was replaced", name)
		}
	}
	r.server.remove("services", "shop/more")
	testenv.Eventually(t, "watches by selector again", func() bool { s := r.source.PodStats(); return s.Watches == maxSelectors && s.Pods == maxSelectors })
}

// TestWatchesOfPodsAreBounded: a tenant with many namespaces takes no more watches than the limit, and those that run stay.
func TestWatchesOfPodsAreBounded(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(needsPods(source.PodKeys{Labels: []string{"track"}})))
	in := func(ns string) func(*corev1.Service) { return func(o *corev1.Service) { o.Namespace = ns } }
	r.server.put(svc("web", selecting("app", "web"), bound))
	r.run()
	r.waitSynced()
	r.waitPods("web", model.PodsRead)
	for i := range maxPodWatches + 5 {
		r.server.put(svc("web", selecting("app", "web"), bound, in(fmt.Sprintf("a%03d", i))))
	}
	testenv.Eventually(t, "all Services are settled", func() bool {
		s := r.source.PodStats().Services
		return s[model.PodsRead] == maxPodWatches && s[model.PodsUnavailable] == 6
	})
	if s := r.source.PodStats(); s.Watches != maxPodWatches || r.podsOf("web") != model.PodsRead {
		t.Errorf("%+v, %s", s, r.podsOf("web"))
	}
	if n := r.logCount("too many namespaces"); n != 1 {
		t.Errorf("%d log lines", n)
	}
	for i := range 10 {
		r.server.remove("services", fmt.Sprintf("a%03d/web", i))
	}
	testenv.Eventually(t, "the others take the free watches", func() bool {
		s := r.source.PodStats()
		return s.Services[model.PodsUnavailable] == 0 && s.Services[model.PodsRead] == maxPodWatches-4
	})
}

func TestForbiddenPodsAreUnavailable(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(needsPods(source.PodKeys{Labels: []string{"track"}})))
	r.server.put(svc("web", selecting("app", "web"), bound), svc("db", selecting("app", "db"), bound), pod("web-1", "app=web"))
	r.server.update(func() { r.server.status["pods"] = http.StatusForbidden })
	r.run()
	r.waitSynced()
	r.waitPods("web", model.PodsUnavailable)
	r.waitPods("db", model.PodsUnavailable)
	if n := r.logCount("ClusterRole needs list and watch of pods"); n != 1 {
		t.Errorf("%d log lines name the permission", n)
	}
	if reason := r.source.StaleReason(); reason != "" {
		t.Errorf("stale: %s", reason)
	}
	// It is granted later.
	r.server.update(func() { delete(r.server.status, "pods") })
	r.waitPods("web", model.PodsRead)
	if r.pod("web-1") == nil {
		t.Error("the Pod is missing")
	}
}

// TestNewKeysAreReadWithoutReadingOthersAgain: a reloaded plugin declares another key.
func TestNewKeysAreReadWithoutReadingOthersAgain(t *testing.T) {
	r := newFixture(t, nil)
	keysOf := func(webKeys ...string) func(*model.Service) Needs {
		return func(s *model.Service) Needs {
			if s.Name.Name == "web" {
				return Needs{Pods: source.PodKeys{Labels: webKeys}}
			}
			return Needs{Pods: source.PodKeys{Labels: []string{"track"}}}
		}
	}
	r.source.SetNeeds(onAnyNode(keysOf("track")))
	r.server.put(svc("web", selecting("app", "web")), svc("db", selecting("app", "db")),
		pod("web-1", "app=web", "track=a", "version=2"), pod("db-1", "app=db", "track=b"))
	r.run()
	r.waitSynced()
	r.waitPods("web", model.PodsRead)
	r.waitPods("db", model.PodsRead)
	before := r.podRequests("app%3Ddb")
	r.takeChanges()
	r.source.SetNeeds(onAnyNode(keysOf("track", "version")))
	testenv.Eventually(t, "the new key", func() bool { return r.pod("web-1").Labels["version"] == "2" && r.podsOf("web") == model.PodsRead })
	r.wantEmitted("a new key", "+6 shop/web-1")
	if n := r.podRequests("app%3Ddb"); n != before {
		t.Errorf("%d requests for the Pods of another Service", n-before)
	}
	testenv.Eventually(t, "the old watch has ended", func() bool { return r.source.PodStats().Watches == 2 })
	if r.pod("web-1").Labels["track"] != "a" {
		t.Error("the old key is gone")
	}
}

func TestPodsOfSeveralWatchesAreMerged(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(func(s *model.Service) Needs {
		return Needs{Pods: source.PodKeys{Labels: []string{"only-" + s.Name.Name}}}
	}))
	both := pod("web-1", "app=web", "tier=front", "only-web=1", "only-front=2")
	r.server.put(both, svc("web", selecting("app", "web")), svc("front", selecting("tier", "front")))
	r.run()
	r.waitSynced()
	labels := func(want map[string]string) func() bool {
		return func() bool { p := r.pod("web-1"); return p != nil && cmp.Equal(p.Labels, want) }
	}
	testenv.Eventually(t, "both keys", labels(map[string]string{"only-web": "1", "only-front": "2"}))
	both.Labels["tier"] = "back"
	r.server.put(both)
	testenv.Eventually(t, "it left one selector", labels(map[string]string{"only-web": "1"}))
	both.Labels["tier"], both.Labels["only-front"] = "front", "3"
	r.server.put(both)
	testenv.Eventually(t, "it is back", labels(map[string]string{"only-web": "1", "only-front": "3"}))
	r.server.remove("services", "shop/front")
	testenv.Eventually(t, "one Service is gone", labels(map[string]string{"only-web": "1"}))
	r.server.remove("services", "shop/web")
	testenv.Eventually(t, "both are gone", func() bool { return r.pod("web-1") == nil })
}

// TestHugeMetadataOfPodsIsNotKept: of a value that is too long nothing is kept, and its owner is told which one it is.
func TestHugeMetadataOfPodsIsNotKept(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(needsPods(source.PodKeys{Annotations: []string{"sluice.dev/capacity"}})))
	huge := pod("web-1", "app=web")
	huge.Annotations["sluice.dev/capacity"] = strings.Repeat("x", model.MaxAnnotation+1)
	for i := range 50 {
		huge.Annotations[fmt.Sprint("other", i)] = strings.Repeat("y", 4000)
	}
	longest := pod("web-2", "app=web")
	longest.Annotations["sluice.dev/capacity"] = strings.Repeat("x", model.MaxAnnotation)
	r.server.put(huge, longest, svc("web", selecting("app", "web"), bound))
	r.run()
	r.waitSynced()
	r.waitPods("web", model.PodsRead)
	if p := r.pod("web-1"); p == nil || len(p.Annotations) > 0 {
		t.Errorf("%+v", p)
	}
	if p := r.pod("web-2"); p == nil || len(p.Annotations["sluice.dev/capacity"]) != model.MaxAnnotation {
		t.Errorf("%+v", p)
	}
	if n := r.logCount("metadata.annotations[sluice.dev/capacity]"); n != 1 {
		t.Errorf("%d log lines about the value", n)
	}
}

// TestChangingASelectorRestartsFewWatches: every start of a watch is a list, on every node. A Service whose selector alternates
// must not cause one each time.
func TestChangingASelectorRestartsFewWatches(t *testing.T) {
	var started time.Time
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(needsPods(source.PodKeys{Labels: []string{"track"}})))
	r.server.put(svc("web", selecting("app", "a0"), bound))
	r.run()
	r.waitSynced()
	r.waitPods("web", model.PodsRead)
	started = r.source.opt.Now()
	for i := range 300 {
		r.server.put(svc("web", selecting("app", fmt.Sprint("b", i)), bound))
		if i%3 == 0 {
			r.waitForMarker()
		}
	}
	r.server.put(pod("last", "app=last"), svc("web", selecting("app", "last"), bound))
	testenv.Eventually(t, "the last selector", func() bool { return r.pod("last") != nil })
	distinct := map[string]bool{}
	r.server.mu.Lock()
	for _, q := range r.server.requests {
		if _, rest, ok := strings.Cut(q, "labelSelector=app%3D"); ok && strings.Contains(q, "/pods?") {
			selector, _, _ := strings.Cut(rest, "&")
			distinct[selector] = true
		}
	}
	r.server.mu.Unlock()
	if most := 3 + int(r.source.opt.Now().Sub(started)/podWatchInterval); len(distinct) > most {
		t.Errorf("%d watches were started, at most %d are allowed", len(distinct), most)
	}
}

// TestInitialSyncWaitsForPodsIfNothingFollowsIt: with `run --once`. Otherwise it does not: whether a tenant's Pods can be read
// must not delay the first sync of the node.
func TestInitialSyncWaitsForPodsIfNothingFollowsIt(t *testing.T) {
	for _, wait := range []bool{false, true} {
		r := newFixture(t, func(o *Options) { o.WaitForPods = wait })
		r.source.SetNeeds(onAnyNode(needsPods(source.PodKeys{Labels: []string{"track"}})))
		r.server.put(svc("web", selecting("app", "web"), bound), pod("web-1", "app=web"))
		r.server.update(func() { r.server.status["pods"] = http.StatusServiceUnavailable })
		r.run()
		if wait {
			testenv.Eventually(t, "requests for Pods", func() bool { return r.podRequests() > 2 })
			if r.synced() {
				t.Error("synced without the Pods")
			}
			r.server.update(func() { delete(r.server.status, "pods") })
		}
		r.waitSynced()
		if got := r.podsOf("web") == model.PodsRead; got != wait {
			t.Errorf("wait %t: the Pods have been read: %t", wait, got)
		}
	}
}

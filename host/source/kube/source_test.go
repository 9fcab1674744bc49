package kube

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/source"
)

func TestInitialStateIsOneBatchEndingWithSynced(t *testing.T) {
	r := newFixture(t, nil)
	r.server.put(svc("web"), slice("web", "10.0.0.1", "10.0.0.2"), cidr("kubernetes", "10.96.0.0/16"), node("node-b", "z2"))
	r.run()
	r.waitSynced()
	if r.batches != 1 || r.changes[len(r.changes)-1].Kind != model.Synced {
		t.Errorf("%d batches: %v", r.batches, r.changes)
	}
	r.wantEmitted("a start", "+1 shop/web", "+2 shop/web-x", "+3 "+ownNodeName, "+4 kubernetes", "synced")
	r.waitInSync()
}

// TestInitialStateHasTheNode: the initial sync may look at the store between the moment when it has the Node and the one when
// that is published.
func TestInitialStateHasTheNode(t *testing.T) {
	r := newFixture(t, nil)
	r.server.put(svc("web"), slice("web", "10.0.0.1"))
	s := r.source
	s.ownNode.publish = func(changes []model.Change) {
		testenv.Eventually(t, "the rest", func() bool { return s.services.isSynced() && s.slices.isSynced() && s.serviceCIDRs.isSynced() })
		s.wake()
		time.Sleep(50 * time.Millisecond) // nothing happens: the initial state is not emitted
		s.publish(changes)
	}
	r.run()
	r.waitSynced()
	r.wantEmitted("a start", "+1 shop/web", "+2 shop/web-x", "+3 "+ownNodeName, "synced")
}

func TestNothingIsEmittedBeforeServicesAndSlicesSynced(t *testing.T) {
	for _, path := range []string{"services", "endpointslices"} {
		t.Run(path, func(t *testing.T) {
			r := newFixture(t, nil)
			r.server.put(svc("web"), slice("web", "10.0.0.1"))
			r.server.update(func() { r.server.status[path] = http.StatusServiceUnavailable })
			r.run()
			testenv.Eventually(t, "four requests", func() bool { return r.server.requestCount("/"+path) > 3 })
			time.Sleep(50 * time.Millisecond) // nothing happens
			r.wantEmitted("half of it")
			r.server.update(func() { delete(r.server.status, path) })
			r.waitSynced()
			r.waitInSync()
		})
	}
}

func TestListsAndWatchesSelectProxiedObjects(t *testing.T) {
	for _, noStreams := range []bool{false, true} {
		r := newFixture(t, nil)
		r.server.noStreams = noStreams
		web := svc("web")
		r.server.put(web, svc("other", func(o *corev1.Service) { o.Labels[source.LabelProxyName] = "x" }),
			svc("headless", func(o *corev1.Service) { o.Spec.ClusterIP = "None" }), slice("web", "10.0.0.1"))
		r.run()
		r.waitSynced()
		r.wantEmitted("a start", "+1 shop/web", "+2 shop/web-x", "+3 "+ownNodeName, "synced")
		web.Labels[source.LabelHeadless] = ""
		r.server.put(web)
		testenv.Eventually(t, "the Service is gone", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.snap.Services) == 0 })
		r.wantEmitted("a label", "-1 shop/web")
		const byLabel = "labelSelector=%21service.kubernetes.io%2Fservice-proxy-name%2C%21service.kubernetes.io%2Fheadless"
		if n, all := r.server.requestCount("/services", byLabel, "fieldSelector=spec.clusterIP%21%3DNone"), r.server.requestCount("/services"); n != all || n < 1 {
			t.Errorf("%d of %d requests for Services select", n, all)
		}
		if n, all := r.server.requestCount("/endpointslices", byLabel), r.server.requestCount("/endpointslices"); n != all || n < 1 {
			t.Errorf("%d of %d requests for EndpointSlices select", n, all)
		}
		if n, all := r.server.requestCount("/nodes", "metadata.name%3D"+ownNodeName), r.server.requestCount("/nodes"); n != all {
			t.Errorf("%d of %d requests for Nodes are for this node's own", n, all)
		}
		if noStreams && r.server.requestCount("sendInitialEvents") == 0 {
			t.Error("no stream was tried")
		}
	}
}

func TestUpdatesWithoutEffectAreNotEmitted(t *testing.T) {
	r := newFixture(t, nil)
	web, eps, own := svc("web"), slice("web", "10.0.0.1"), node(ownNodeName, "z1")
	r.server.put(web, eps)
	r.run()
	r.waitSynced()
	r.takeChanges()
	before := r.snap.Slice(model.Name{Namespace: "shop", Name: "web-x"})
	eps.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z"}
	web.Annotations = map[string]string{"a": "b"}
	own.Status.Conditions = []corev1.NodeCondition{{Type: "Ready", Status: "True", LastHeartbeatTime: metav1.Now()}}
	r.server.put(web, eps, own)
	r.waitForMarker()
	r.wantEmitted("annotations and a heartbeat")
	if s := r.source.slices.get(before.Name); s != before {
		t.Error("the source keeps another copy than the one it emitted")
	}
	own.Labels[corev1.LabelTopologyZone] = "z2"
	r.server.put(own)
	testenv.Eventually(t, "the zone", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.snap.Nodes[ownNodeName].Zone == "z2" })
	r.server.remove("endpointslices", "shop/web-x")
	r.server.remove("services", "shop/web")
	r.waitInSync()
	r.wantEmitted("what is gone", "+3 "+ownNodeName, "-2 shop/web-x", "-1 shop/web")
}

// everyNodeReads are the paths of the resources that every node reads and every server has.
var everyNodeReads = []string{"/services?", "/endpointslices?", "/nodes?", "/servicecidrs?"}

func TestBrokenWatchResumesFromLastVersion(t *testing.T) {
	r := newFixture(t, nil)
	r.server.put(svc("web"), slice("web", "10.0.0.1"))
	r.run()
	r.waitSynced()
	r.takeChanges()
	lists := r.server.fullLists(everyNodeReads...)
	for range 3 {
		r.letWatchesAge()
		r.server.endWatches()
		r.server.put(slice("web", "10.0.0.2"))
		r.server.remove("services", "shop/web")
		r.server.put(svc("web2"))
		r.waitInSync()
	}
	if n := r.server.fullLists(everyNodeReads...); n != lists {
		t.Errorf("%d lists instead of %d", n, lists)
	}
}

func TestOutageEmitsNothingAndIsLoggedOnce(t *testing.T) {
	for name, begin := range map[string]func(*fakeServer){
		"no connection":  func(f *fakeServer) { f.unreachable = true },
		"not ready":      func(f *fakeServer) { f.fail = func(*http.Request) int { return http.StatusServiceUnavailable } },
		"not authorized": func(f *fakeServer) { f.fail = func(*http.Request) int { return http.StatusUnauthorized } },
	} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(t, nil)
			r.server.put(svc("web"), slice("web", "10.0.0.1"), svc("old"), cidr("kubernetes", "10.96.0.0/16"))
			r.run()
			r.waitSynced()
			r.takeChanges()
			lists, requests := r.server.fullLists(everyNodeReads...), r.server.requestCount()
			r.letWatchesAge()
			r.server.update(func() { begin(r.server) })
			r.server.endWatches()
			testenv.Eventually(t, "many requests", func() bool { return r.server.requestCount() > requests+40 })
			r.wantEmitted("during the outage")
			// Without reminders, which follow after a minute of the fixture's clock: how many requests that is depends on the
			// machine.
			log := r.log.String()
			reminders := strings.Count(log, " failures=")
			lines := strings.Count(log, "level=WARN") + strings.Count(log, "level=ERROR") - reminders
			if lines != 1 || strings.Contains(log, "resourceVersion=") || strings.Count(log, " resource=") != 1+reminders {
				t.Errorf("%d warnings and errors:\n%s", lines, log)
			}
			r.server.put(slice("web", "10.0.0.1", "10.0.0.2"))
			r.server.remove("services", "shop/old")
			r.server.update(func() { r.server.unreachable, r.server.fail = false, nil })
			r.waitInSync()
			r.wantEmitted("after the outage", "+2 shop/web-x", "-1 shop/old")
			if n := r.server.fullLists(everyNodeReads...); n != lists {
				t.Errorf("%d lists, %d before the outage", n, lists)
			}
			testenv.Eventually(t, "the recovery is logged", func() bool { return r.logCount("again") >= 1 })
		})
	}
}

func TestExpiredVersionEmitsOnlyDifferences(t *testing.T) {
	for _, noStreams := range []bool{false, true} {
		t.Run(fmt.Sprintf("noStreams=%t", noStreams), func(t *testing.T) {
			r := newFixture(t, nil)
			r.server.noStreams = noStreams
			for i := range 20 {
				r.server.put(svc(fmt.Sprint("s", i)), slice(fmt.Sprint("s", i), "10.0.0.1"))
			}
			r.run()
			r.waitSynced()
			r.takeChanges()
			r.letWatchesAge()
			r.server.update(func() { r.server.fail = func(*http.Request) int { return http.StatusServiceUnavailable } })
			r.server.endWatches()
			r.server.remove("services", "shop/s3")
			r.server.remove("endpointslices", "shop/s4-x")
			r.server.put(slice("s5", "10.0.0.5"), svc("s20"))
			r.server.expireHistory()
			r.server.update(func() { r.server.fail = nil })
			r.waitInSync()
			r.wantEmitted("after a restart of the server", "-1 shop/s3", "-2 shop/s4-x", "+2 shop/s5-x", "+1 shop/s20")
		})
	}
}

func TestIncompleteListIsDiscarded(t *testing.T) {
	r := newFixture(t, nil)
	for i := range 10 {
		r.server.put(svc(fmt.Sprint("s", i)), slice(fmt.Sprint("s", i), "10.0.0.1"), cidr(fmt.Sprint("c", i), fmt.Sprintf("10.%d.0.0/16", 96+i)))
	}
	r.server.update(func() {
		r.server.truncatedLists["services"], r.server.truncatedLists["endpointslices"], r.server.brokenStreams["servicecidrs"] = 3, 2, 2
	})
	r.run()
	r.waitSynced()
	for path, n := range r.server.truncatedLists {
		if n != 0 {
			t.Errorf("%s: %d lists less than planned were cut", path, n)
		}
	}
	if len(r.snap.Services) != 10 || len(r.snap.Slices) != 10 || r.batches != 1 {
		t.Errorf("%d Services, %d slices, %d batches", len(r.snap.Services), len(r.snap.Slices), r.batches)
	}
	r.waitInSync()
}

func TestMissingServiceCIDRsAreTolerated(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden} {
		r := newFixture(t, nil)
		r.server.put(svc("web"), slice("web", "10.0.0.1"), cidr("kubernetes", "10.96.0.0/16"))
		r.server.update(func() { r.server.status["servicecidrs"] = status })
		r.run()
		start := time.Now()
		r.waitSynced()
		if took := time.Since(start); took > nodeWait/speedup {
			t.Errorf("waited %s for them", took)
		}
		time.Sleep(100 * time.Millisecond) // time passes: requests are counted
		n := r.server.requestCount("servicecidrs")
		if took := time.Since(start); n > 2+int(took/(100*time.Millisecond)) {
			t.Errorf("%d requests within %s", n, took)
		}
		if n := r.logCount("continuing without ServiceCIDRs"); n != 1 {
			t.Errorf("logged %d times\n%s", n, r.log.String())
		}
	}
}

func TestMissingNodeDelaysStartUpToLimit(t *testing.T) {
	r := newFixture(t, nil)
	r.server.remove("nodes", "/"+ownNodeName)
	r.server.put(svc("web"), slice("web", "10.0.0.1"))
	start := time.Now()
	r.run()
	r.waitSynced()
	if took := time.Since(start); took < nodeWait/speedup {
		t.Errorf("waited %s only", took)
	}
	if r.logCount("Node not found") != 1 {
		t.Error(r.log.String())
	}
	r.takeChanges()
	r.server.put(node(ownNodeName, "z1"))
	r.waitInSync()
	r.wantEmitted("it comes", "+3 "+ownNodeName)
}

func TestNodeWithoutAddressesDelaysStart(t *testing.T) {
	r := newFixture(t, nil)
	own := node(ownNodeName, "z1")
	addresses := own.Status.Addresses
	own.Status.Addresses = nil
	r.server.put(svc("web"), slice("web", "10.0.0.1"), own)
	r.run()
	testenv.Eventually(t, "read", func() bool { return r.source.ownNode.isSynced() && r.source.slices.isSynced() })
	testenv.Always(t, 50*time.Millisecond, "waits", func() bool { return !r.synced() })
	own.Status.Addresses = addresses
	r.server.put(own)
	start := time.Now()
	r.waitSynced()
	if time.Since(start) > nodeWait/speedup/2 {
		t.Error("they were not noticed")
	}
}

func TestMissingPodCIDRsDelayStartAndThenFail(t *testing.T) {
	r := newFixture(t, func(o *Options) { o.RequirePodCIDRs = true })
	r.server.put(svc("web"), slice("web", "10.0.0.1"))
	r.run()
	testenv.Eventually(t, "a warning", func() bool { return r.logCount("Node has no spec.podCIDRs yet") == 1 })
	if r.synced() {
		t.Error("synced without podCIDRs")
	}
	own := node(ownNodeName, "z1")
	own.Spec.PodCIDRs = []string{"10.244.1.0/24"}
	r.server.put(own)
	r.waitSynced()

	r = newFixture(t, func(o *Options) { o.RequirePodCIDRs = true })
	ended := make(chan error)
	go func() { ended <- r.source.Run(t.Context(), r.emit) }()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "Node "+ownNodeName+": no spec.podCIDRs after 5m0s") {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(podCIDRsWait/speedup + time.Minute):
		t.Error("still waits")
	}
	if r.batches > 0 {
		t.Error("something was emitted")
	}
}

// TestRememberedNodeIsNotWaitedFor: what was known of the Node before a restart is as good as a Node. The waits never end.
func TestRememberedNodeIsNotWaitedFor(t *testing.T) {
	incomplete := node(ownNodeName, "z1")
	incomplete.Status.Addresses = nil
	for name, own := range map[string]*corev1.Node{"no Node": nil, "no addresses and podCIDRs": incomplete} {
		for _, late := range []bool{false, true} { // the checkpoint is read while the source waits
			r := newFixture(t, func(o *Options) {
				after := o.After
				o.RequirePodCIDRs, o.After = true, func(d time.Duration) <-chan time.Time {
					if d == nodeWait || d == podCIDRsWait {
						return make(chan time.Time)
					}
					return after(d)
				}
			})
			r.server.put(svc("web"), slice("web", "10.0.0.1"))
			if r.server.remove("nodes", "/"+ownNodeName); own != nil {
				r.server.put(own)
			}
			last := &model.Node{Name: ownNodeName, Labels: map[string]string{"pool": "lab"}, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
			r.source.SetNeeds(func(n *model.Node) func(*model.Service) Needs {
				inPool := n != nil && n.Labels["pool"] == "lab"
				return func(*model.Service) Needs { return Needs{Nodes: inPool} }
			})
			if !late {
				r.source.RememberNode(last)
			}
			r.run()
			if late {
				testenv.Eventually(t, "it waits", func() bool { return r.logCount("waiting for the Node") == 1 })
				r.source.RememberNode(last)
			}
			r.waitSynced()
			if got := r.source.nodesWanted(); got != (own == nil) {
				t.Errorf("%s: other Nodes are wanted: %v", name, got)
			}
		}
	}
}

func TestOtherNodesAreReadWhileNeeded(t *testing.T) {
	r := newFixture(t, nil)
	r.source.SetNeeds(onAnyNode(everyServiceNeedsNodes))
	other := node("node-b", "z2")
	r.server.put(svc("web"), slice("web", "10.0.0.1"), other, node("node-c", "z3"))
	r.run()
	r.waitSynced()
	r.wantEmitted("a start", "+1 shop/web", "+2 shop/web-x", "+3 "+ownNodeName, "+3 node-b", "+3 node-c", "synced")
	if n := r.snap.Nodes["node-b"]; n.Zone != "z2" || n.MilliCPU != 2000 || len(n.Addresses) != 1 || n.Labels != nil {
		t.Errorf("%+v", n)
	}
	other.Spec.Taints = []corev1.Taint{{Key: "x"}}
	r.server.put(other)
	r.waitForMarker()
	r.wantEmitted("what nobody reads")
	r.source.SetNeeds(nil)
	testenv.Eventually(t, "gone", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.snap.Nodes) == 1 })
	r.wantEmitted("not needed", "-3 node-b", "-3 node-c")
	r.server.put(node("node-d", "z4"))
	r.source.SetNeeds(onAnyNode(everyServiceNeedsNodes))
	r.waitInSync()
	r.wantEmitted("needed again", "+3 node-b", "+3 node-c", "+3 node-d")
}

func TestInvalidUpdateKeepsPreviousVersionAndIsLoggedOnce(t *testing.T) {
	r := newFixture(t, nil)
	web, eps := svc("web"), slice("web", "10.0.0.1")
	r.server.put(web, eps, svc("new", func(o *corev1.Service) { o.Spec.ExternalIPs = []string{"nonsense", "192.0.2.7"} }))
	r.run()
	r.waitSynced()
	r.wantEmitted("a start; the new one without its bad field", "+1 shop/web", "+1 shop/new", "+2 shop/web-x", "+3 "+ownNodeName, "synced")
	if ips := r.snap.Services[model.Name{Namespace: "shop", Name: "new"}].ExternalIPs; len(ips) != 1 {
		t.Errorf("external IPs %v", ips)
	}
	web.Spec.ExternalIPs = []string{"nonsense"}
	eps.Endpoints[0].Addresses[0] = "127.0.0.1"
	r.server.put(web, eps)
	r.waitForMarker()
	r.wantEmitted("bad updates")
	web.Annotations = map[string]string{"a": "b"}
	r.server.put(web)
	r.server.expireHistory()
	r.server.endWatches()
	r.waitForMarker()
	r.wantEmitted("bad updates, again")
	if n := r.logCount(`object="Service shop/web" field=spec.externalIPs[0]`); n != 1 || r.logCount("keeping the previous version of the object") != 2 {
		t.Errorf("logged %d times\n%s", n, r.log.String())
	}
	if r.errors != 3 {
		t.Errorf("OnProblems got %d errors", r.errors)
	}
	web.Spec.ExternalIPs = []string{"192.0.2.9"}
	r.server.put(web)
	r.server.remove("services", "shop/new")
	r.server.remove("endpointslices", "shop/web-x")
	r.waitInSync()
	r.wantEmitted("mended and removed", "+1 shop/web", "-1 shop/new", "-2 shop/web-x")
	if r.errors != 0 || r.logCount("invalid object resolved") != 3 {
		t.Errorf("OnProblems got %d errors\n%s", r.errors, r.log.String())
	}
}

func TestServiceThatBecomesExternalNameIsDeleted(t *testing.T) {
	r := newFixture(t, nil)
	web := svc("web")
	r.server.put(web, slice("web", "10.0.0.1"))
	r.run()
	r.waitSynced()
	r.takeChanges()
	web.Spec.Type = corev1.ServiceTypeExternalName
	r.server.put(web)
	r.waitInSync()
	r.wantEmitted("ExternalName", "-1 shop/web")
}

package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
)

// recorderFixture is a recorder whose clock advances as soon as it waits.
type recorderFixture struct {
	*EventRecorder
	t      *testing.T
	server *fakeServer
	stop   func()

	mu    sync.Mutex
	log   bytes.Buffer
	now   time.Time
	waits []time.Duration
}

func (n *recorderFixture) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.log.Write(b)
}

func (n *recorderFixture) warnings() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Count(n.log.String(), "level=WARN")
}

func (n *recorderFixture) clock() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.now
}

func (n *recorderFixture) advance(d time.Duration) <-chan time.Time {
	n.mu.Lock()
	n.now = n.now.Add(d)
	n.waits = append(n.waits, d)
	at := n.now
	n.mu.Unlock()
	c := make(chan time.Time, 1)
	c <- at
	return c
}

// takeWaits returns the waits since the last call.
func (n *recorderFixture) takeWaits() []time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.waits
	n.waits = nil
	return out
}

func newRecorderFixture(t *testing.T, nodes int) *recorderFixture {
	n := &recorderFixture{t: t, server: newFakeServer(t), now: time.Unix(1_700_000_000, 0)}
	for i := range nodes {
		n.server.put(node(fmt.Sprint("node-", i), "z1"))
	}
	n.EventRecorder = NewEventRecorder(n.server.client(), "node-0", slog.New(slog.NewTextHandler(n, &slog.HandlerOptions{Level: slog.LevelDebug})), n.clock, n.advance)
	return n
}

func (n *recorderFixture) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { n.Run(ctx) })
	n.stop = func() { cancel(); wg.Wait() }
	n.t.Cleanup(n.stop)
}

// waitForEvents waits until count Events have been sent and returns them as reason and object.
func (n *recorderFixture) waitForEvents(count int) (out []string) {
	n.t.Helper()
	testenv.Eventually(n.t, fmt.Sprint(count, " Events"), func() bool {
		n.server.mu.Lock()
		defer n.server.mu.Unlock()
		out = nil
		for _, e := range n.server.events {
			out = append(out, e.Reason+" "+e.Regarding.Name)
		}
		return len(out) >= count
	})
	if len(out) != count {
		n.t.Fatalf("%d Events instead of %d: %q", len(out), count, out)
	}
	return out
}

// reportedServices returns Services whose sampled warnings this node sends.
func (n *recorderFixture) reportedServices(count int, nodes int64, reason string) (out []model.Name) {
	for i := 0; len(out) < count; i++ {
		name := model.Name{Namespace: "shop", Name: fmt.Sprint("s", i)}
		if n.isReporter(eventKey{name, reason}, nodes) {
			out = append(out, name)
			n.server.put(svc(name.Name))
		}
	}
	return out
}

func TestEventsAreRetriedAfterAnOutage(t *testing.T) {
	n := newRecorderFixture(t, 3)
	at := n.clock()
	n.server.update(func() { n.server.unreachableRequests = 3 })
	n.NodeEvent(false, ReasonStarting, "sluice test")
	n.run()
	if got := n.waitForEvents(1); got[0] != "Starting node-0" {
		t.Errorf("Events %q", got)
	}
	n.server.mu.Lock()
	e := n.server.events[0]
	n.server.mu.Unlock()
	if !e.EventTime.Time.Equal(at) || e.Namespace != "default" || e.Type != corev1.EventTypeNormal || string(e.Regarding.UID) != "node-0" {
		t.Errorf("%+v", e)
	}
	waits := n.takeWaits()
	for _, w := range waits {
		if w < retryInterval || w >= 2*retryInterval {
			t.Errorf("retried after %s", w)
		}
	}
	if len(waits) != 3 || n.warnings() > 0 {
		t.Errorf("%d waits, %d warnings", len(waits), n.warnings())
	}

	// After an outage longer than all attempts the Event is dropped and the next one sent.
	tries := 0
	n.server.update(func() {
		n.server.fail = func(r *http.Request) int {
			if tries++; r.Method == http.MethodPost && tries <= maxAttempts {
				return http.StatusServiceUnavailable
			}
			return 0
		}
		n.server.requests = nil
	})
	n.NodeEvent(true, ReasonFailedToStartProxierHealthcheck, "port 10256: taken")
	n.NodeEvent(true, ReasonFailedToStartMetricServer, "port 10249: taken")
	if got := n.waitForEvents(2); got[1] != "FailedToStartMetricServer node-0" {
		t.Errorf("Events %q", got)
	}
	if got := n.server.requestCount("POST"); got != maxAttempts+1 {
		t.Errorf("%d attempts", got)
	}
}

func TestMissingEventPermissionIsLoggedOnce(t *testing.T) {
	n := newRecorderFixture(t, 3)
	n.server.update(func() { n.server.status["events"] = http.StatusForbidden })
	n.run()
	for i := range 5 {
		n.NodeEvent(true, ReasonFailedToStartProxierHealthcheck, fmt.Sprint("port ", i))
	}
	testenv.Eventually(t, "five attempts", func() bool { return n.server.requestCount("POST") >= 5 })
	n.stop()
	if w := n.takeWaits(); len(w) > 0 || n.server.requestCount("POST") != 5 || n.warnings() != 1 {
		t.Errorf("waits %v, %d attempts, %d warnings", w, n.server.requestCount("POST"), n.warnings())
	}
}

func TestRepeatedEventIsSuppressed(t *testing.T) {
	n := newRecorderFixture(t, 1)
	n.run()
	say := func(note string) { n.NodeEvent(true, ReasonFailedToStartProxierHealthcheck, note) }
	for range 100 {
		say("port 10256: taken")
	}
	say("port 10257: taken")
	n.waitForEvents(2)
	<-n.advance(repeatInterval - time.Second)
	say("port 10256: taken")
	<-n.advance(time.Second)
	say("port 10256: taken")
	n.waitForEvents(3)
}

func TestEventQueueAndMemoryAreBounded(t *testing.T) {
	n := newRecorderFixture(t, 1)
	say := func(i int) {
		n.ServiceWarning(model.Name{Namespace: fmt.Sprint("shop", i%shareOfNamespace), Name: fmt.Sprint("s", i)}, ReasonFailedToStartServiceHealthcheck, "taken")
	}
	for i := range 2 * queueLength { // Run is not called
		say(i)
	}
	if len(n.queue) != queueLength || len(n.EventRecorder.lastSent) != queueLength {
		t.Fatalf("%d queued, %d remembered", len(n.queue), len(n.EventRecorder.lastSent))
	}
	drain := func() (count int) {
		for ; len(n.queue) > 0; count++ {
			e := <-n.queue
			n.dequeued(&e)
		}
		return count
	}
	drain()
	say(queueLength) // was dropped, so it is not a repetition
	if drain() != 1 {
		t.Error("a dropped Event counts as sent")
	}
	for i := range 2 * maxRemembered {
		say(i)
		drain()
	}
	if len(n.EventRecorder.lastSent) != maxRemembered {
		t.Fatalf("%d remembered", len(n.EventRecorder.lastSent))
	}
	<-n.advance(repeatInterval)
	say(0)
	if drain() != 1 || len(n.EventRecorder.lastSent) != 1 {
		t.Errorf("%d remembered after repeatInterval", len(n.EventRecorder.lastSent))
	}
	if len(n.remembered) != 1 || n.remembered["shop0"] != 1 || len(n.queued) != 0 {
		t.Errorf("remembered %v, queued %v", n.remembered, n.queued)
	}
}

// TestTenantCannotKeepOthersFromTheirEvents: the annotations of 10,000 Services of a namespace change all the time, each time to
// another text.
func TestTenantCannotKeepOthersFromTheirEvents(t *testing.T) {
	n := newRecorderFixture(t, 1)
	sent := map[string]int{}
	drain := func() {
		for len(n.queue) > 0 {
			e := <-n.queue
			n.dequeued(&e)
			sent[e.service.Namespace]++
		}
	}
	flip := func(round int) {
		for i := range 10_000 {
			n.SampledServiceWarning(model.Name{Namespace: "tenant", Name: fmt.Sprint("s", i)}, ReasonPolicyNotFound, fmt.Sprint("no policy ", round))
			if i%100 == 0 {
				drain()
			}
		}
	}
	flip(0)
	for round := range 5 {
		flip(round + 1)
		n.ServiceWarning(model.Name{Namespace: "other", Name: fmt.Sprint("s", round)}, ReasonPolicyNotFound, "typo")
		n.NodeEvent(true, ReasonFailedToStartMetricServer, fmt.Sprint(round))
	}
	drain()
	if sent["tenant"] > maxRemembered/shareOfNamespace || sent["other"] != 5 || sent[""] != 5 {
		t.Errorf("Events by namespace: %v", sent)
	}
}

func TestSampledWarningIsSentByAFewNodes(t *testing.T) {
	const nodes, services = 2000, 60
	reporters := make([]int, services)
	for i := range nodes {
		r := EventRecorder{node: fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i>>8, i&255)}
		for s := range services {
			if r.isReporter(eventKey{model.Name{Namespace: "shop", Name: fmt.Sprint("s", s)}, ReasonFailedToEvaluatePolicy}, nodes) {
				reporters[s]++
			}
		}
	}
	sum, none := 0, 0
	for _, c := range reporters {
		sum += c
		if c == 0 {
			none++
		}
		if c > 15 {
			t.Errorf("%d reporters for one Service", c)
		}
	}
	// Poisson with mean 3: 5 % of Services have no reporter.
	if mean := float64(sum) / services; mean < 2 || mean > 4 || none > services/5 {
		t.Errorf("%.1f reporters per Service, none for %d of %d", mean, none, services)
	}
	// In a cluster of three every node reports.
	for i := range 3 {
		r := EventRecorder{node: fmt.Sprint("node-", i)}
		if !r.isReporter(eventKey{model.Name{Namespace: "shop", Name: "web"}, ReasonFailedToEvaluatePolicy}, 3) {
			t.Errorf("node %d of 3 is not a reporter", i)
		}
	}
}

func TestSampledWarningsAreRateLimitedForTheCluster(t *testing.T) {
	const nodes = 100 // ten seconds between Events of one node
	n := newRecorderFixture(t, nodes)
	var begun time.Time
	services := n.reportedServices(6, nodes, ReasonFailedToEvaluatePolicy)
	others := model.Name{Namespace: "shop", Name: "another-nodes"}
	for i := 0; n.isReporter(eventKey{others, ReasonFailedToEvaluatePolicy}, nodes); i++ {
		others.Name = fmt.Sprint("another-nodes-", i)
	}
	begun = n.clock()
	n.SampledServiceWarning(others, ReasonFailedToEvaluatePolicy, "trap")
	for _, s := range services {
		n.SampledServiceWarning(s, ReasonFailedToEvaluatePolicy, "trap")
	}
	n.run()
	n.waitForEvents(len(services))
	n.stop()
	waits := n.takeWaits()
	if len(waits) != len(services) {
		t.Fatalf("%d waits: %v", len(waits), waits)
	}
	each := nodes * clusterInterval
	if waits[0] >= each {
		t.Errorf("the first one after %s", waits[0])
	}
	if took := n.clock().Sub(begun); took < time.Duration(len(services)-1)*each {
		t.Errorf("%d Events in %s", len(services), took)
	}
	if lists := n.server.requestCount("GET", "nodes?limit=1"); lists != 1 {
		t.Errorf("Nodes were counted %d times", lists)
	}
	<-n.advance(nodeCountTTL)
	if _, err := n.countNodes(t.Context()); err != nil || n.server.requestCount("GET", "nodes?limit=1") != 2 || n.nodeCount != nodes {
		t.Errorf("%v; %d nodes", err, n.nodeCount)
	}
}

func TestEventsAboutDeletedServicesAreDropped(t *testing.T) {
	n := newRecorderFixture(t, 1)
	n.server.put(svc("web", func(o *corev1.Service) { o.UID = "uid-of-web" }))
	n.run()
	n.ServiceWarning(model.Name{Namespace: "shop", Name: "gone"}, ReasonFailedToStartServiceHealthcheck, "taken")
	n.ServiceWarning(model.Name{Namespace: "shop", Name: "web"}, ReasonFailedToStartServiceHealthcheck, strings.Repeat("ü", maxNote))
	n.waitForEvents(1)
	n.server.mu.Lock()
	defer n.server.mu.Unlock()
	e := n.server.events[0]
	if e.Regarding.UID != "uid-of-web" || e.Namespace != "shop" || len(e.Note) > maxNote || !strings.HasSuffix(e.Note, "ü") {
		t.Errorf("%+v", e)
	}
}

package kube

import (
	"context"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// Limits of the recorder.
const (
	repeatInterval = 10 * time.Minute // before this node reports the same again
	queueLength    = 256              // Events that wait to be sent; more are dropped
	maxRemembered  = 4096             // Events whose repeatInterval has not passed; further ones are dropped
	// shareOfNamespace is the part of both limits that is for the Services of one namespace, so that a tenant whose objects
	// change all the time cannot keep others from their Events.
	shareOfNamespace = 4
)

// forgetInterval is the least time between two searches of lastSent for Events that may be repeated.
const forgetInterval = time.Second

// Reasons of Events. The first four are kube-proxy's.
const (
	ReasonStarting                        = "Starting"
	ReasonFailedToStartServiceHealthcheck = "FailedToStartServiceHealthcheck"
	ReasonFailedToStartProxierHealthcheck = "FailedToStartProxierHealthcheck"
	ReasonFailedToStartMetricServer       = "FailedToStartMetricServer"
	ReasonFailedToStartStatusPage         = "FailedToStartStatusPage"
	ReasonFailedToStartStateAPI           = "FailedToStartStateAPI"
	ReasonFailedToEvaluatePolicy          = "FailedToEvaluatePolicy"
	ReasonFailedToEvaluateShadow          = "FailedToEvaluateShadow"
	ReasonFrontendConflict                = "FrontendConflict"
	ReasonServiceLimited                  = "ServiceLimited"
	ReasonFrontendNotProgrammed           = "FrontendNotProgrammed"
	ReasonSessionAffinityFull             = "SessionAffinityFull"
	ReasonShedBounded                     = "ShedBounded"
	ReasonPanicHold                       = "PanicHold"
	ReasonPanicHoldEnded                  = "PanicHoldEnded"
	ReasonServiceSettingsRefused          = "ServiceSettingsRefused"
	ReasonPolicyNotFound                  = "PolicyNotFound"
	ReasonPolicyNotAllowed                = "PolicyNotAllowed"
	ReasonConfigurationRejected           = "ConfigurationRejected"
	ReasonConfigurationApplied            = "ConfigurationApplied"
	ReasonPluginLoadFailed                = "PluginLoadFailed"
	ReasonPluginLoaded                    = "PluginLoaded"
	ReasonPolicyFellBack                  = "PolicyFellBack"
)

// EventRecorder sends Events about this node and about Services. Its methods never block: an Event that cannot be sent is
// dropped, because the log has the same information. A nil EventRecorder records nothing.
type EventRecorder struct {
	client *Client
	node   string
	log    *slog.Logger
	now    func() time.Time
	after  func(time.Duration) <-chan time.Time
	queue  chan event

	mu            sync.Mutex
	lastSent      map[eventFingerprint]time.Time
	remembered    map[string]int // entries of lastSent by namespace, "" for this node
	queued        map[string]int // Events in queue by namespace
	forgotten     time.Time      // when forget was called last
	nodeCount     int64          // of the cluster; 0: not known
	nodeCountedAt time.Time

	// Used by Run only.
	nextSampled     time.Time // no sampled Event before
	forbiddenLogged bool
}

type eventKey struct {
	service model.Name
	reason  string
}

// eventFingerprint identifies Events that are not repeated within repeatInterval. It includes a hash of the note: after
// a fix that leads to another error, that error is reported at once.
type eventFingerprint struct {
	eventKey
	note uint64
}

func (e *event) fingerprint() eventFingerprint {
	h := fnv.New64a()
	_, _ = h.Write([]byte(e.note))
	return eventFingerprint{e.eventKey, h.Sum64()}
}

// event is an Event to be sent.
type event struct {
	eventKey
	eventType, note string // eventType is Normal or Warning
	at              time.Time
	sampled         bool // every node sees the same: only a few of them report it
}

// NewEventRecorder returns a recorder for a node. Run sends its Events.
func NewEventRecorder(c *Client, node string, log *slog.Logger, now func() time.Time, after func(time.Duration) <-chan time.Time) *EventRecorder {
	return &EventRecorder{client: c, node: node, log: log, now: now, after: after, queue: make(chan event, queueLength),
		lastSent: map[eventFingerprint]time.Time{}, remembered: map[string]int{}, queued: map[string]int{}}
}

// NodeEvent records an Event about this node, of type Warning or Normal.
func (r *EventRecorder) NodeEvent(warning bool, reason, note string) {
	e := event{eventKey: eventKey{reason: reason}, eventType: corev1.EventTypeNormal, note: note}
	if warning {
		e.eventType = corev1.EventTypeWarning
	}
	r.enqueue(e)
}

// ServiceWarning records a warning about a Service on this node.
func (r *EventRecorder) ServiceWarning(service model.Name, reason, note string) {
	r.enqueue(event{eventKey: eventKey{service, reason}, eventType: corev1.EventTypeWarning, note: note})
}

// SampledServiceWarning records a warning about a Service that every node of the cluster sees: about reportersPerService
// nodes send it.
func (r *EventRecorder) SampledServiceWarning(service model.Name, reason, note string) {
	r.enqueue(event{eventKey: eventKey{service, reason}, eventType: corev1.EventTypeWarning, note: note, sampled: true})
}

// ServiceNormal records an Event of type Normal about a Service: sampled if every node of the cluster sees the same.
func (r *EventRecorder) ServiceNormal(service model.Name, reason, note string, sampled bool) {
	r.enqueue(event{eventKey: eventKey{service, reason}, eventType: corev1.EventTypeNormal, note: note, sampled: sampled})
}

// enqueue queues an Event unless it is a recent repetition, or other nodes report it.
func (r *EventRecorder) enqueue(e event) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.at, e.note = r.now(), printable.Escape(e.note)
	if e.sampled && r.nodeCount > 0 && !r.isReporter(e.eventKey, r.nodeCount) {
		return
	}
	if last, ok := r.lastSent[e.fingerprint()]; ok && e.at.Sub(last) < repeatInterval {
		return
	}
	namespace := e.service.Namespace
	isFull := func() bool {
		return len(r.lastSent) >= maxRemembered || r.remembered[namespace] >= maxRemembered/shareOfNamespace
	}
	if isFull() && e.at.Sub(r.forgotten) >= forgetInterval {
		r.forget(e.at)
	}
	if isFull() || r.queued[namespace] >= queueLength/shareOfNamespace {
		r.log.Debug("Event dropped: too many of the namespace", "reason", e.reason, "service", e.service)
		return
	}
	select {
	case r.queue <- e:
		if _, ok := r.lastSent[e.fingerprint()]; !ok {
			r.remembered[namespace]++
		}
		r.lastSent[e.fingerprint()] = e.at
		r.queued[namespace]++
	default:
		r.log.Debug("Event dropped: queue is full", "reason", e.reason, "service", e.service)
	}
}

// forget forgets the Events that may be repeated.
func (r *EventRecorder) forget(now time.Time) {
	r.forgotten = now
	for k, at := range r.lastSent {
		if now.Sub(at) < repeatInterval {
			continue
		}
		delete(r.lastSent, k)
		if r.remembered[k.service.Namespace]--; r.remembered[k.service.Namespace] == 0 {
			delete(r.remembered, k.service.Namespace)
		}
	}
}

// dequeued records that an Event has left the queue.
func (r *EventRecorder) dequeued(e *event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queued[e.service.Namespace]--; r.queued[e.service.Namespace] == 0 {
		delete(r.queued, e.service.Namespace)
	}
}

// Run sends Events until ctx ends.
func (r *EventRecorder) Run(ctx context.Context) {
	for {
		var e event
		select {
		case <-ctx.Done():
			return
		case e = <-r.queue:
		}
		r.dequeued(&e)
		if e.sampled && !r.waitForSlot(ctx, e.eventKey) {
			continue
		}
		r.sendWithRetries(ctx, e)
	}
}

package kube

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/model"
)

// What holds Events to what a cluster can bear. A plugin that fails does so for every Service on every node; nobody
// reads that more than a few times.
const (
	reportersPerService = 3                      // nodes of a cluster, about, that tell the same of a Service
	repeatInterval      = 10 * time.Minute       // before this node tells the same of a Service again
	clusterInterval     = 100 * time.Millisecond // between the Events about Services of the whole cluster, so that this times its nodes is between a node's
	minNodeInterval     = time.Second            // between a node's, however small the cluster
	queueLength         = 256                    // Events that wait; more are dropped
	maxRemembered       = 4096                   // Services that were told of and are still quiet; of more nothing is told
	nodeCountTTL        = 30 * time.Minute       // how long the number of nodes is believed
	sendTimeout         = 10 * time.Second
)

// Reasons of Events: those of kube-proxy, and sluice's own.
const (
	ReasonStarting                        = "Starting"
	ReasonFailedToStartServiceHealthcheck = "FailedToStartServiceHealthcheck"
	ReasonFailedToStartProxierHealthcheck = "FailedToStartProxierHealthcheck"
	ReasonFailedToStartMetricServer       = "FailedToStartMetricServer"
	ReasonFailedToEvaluatePolicy          = "FailedToEvaluatePolicy"
	ReasonFrontendConflict                = "FrontendConflict"
	reportingController                   = "sluice.dev/sluice"
	maxNote, maxReporting                 = 1024, 128 // what the API server lets in
)

// Recorder tells the cluster of what a node's operators should know. Its methods never block, and never fail: what
// cannot be told is lost: the log has it too. A nil Recorder tells nobody.
type Recorder struct {
	client *Client
	node   string
	log    *slog.Logger
	now    func() time.Time
	after  func(time.Duration) <-chan time.Time
	queue  chan event

	mu            sync.Mutex
	lastSent      map[eventFingerprint]time.Time
	nodeCount     int64 // of the cluster; 0: not known
	nodeCountedAt time.Time

	// The sender's own: no Event about what all nodes see before pause; whether missing rights were told of.
	nextSampled     time.Time
	forbiddenLogged bool
}

type eventKey struct {
	service model.Name
	reason  string
}

// eventFingerprint is what is not said again for a while. The note's sum is part of it: another text is news to who mends a mistake.
type eventFingerprint struct {
	eventKey
	note uint64
}

func (e *event) fingerprint() eventFingerprint {
	h := fnv.New64a()
	_, _ = h.Write([]byte(e.note))
	return eventFingerprint{e.eventKey, h.Sum64()}
}

// event is one to be sent.
type event struct {
	eventKey
	eventType, note string // kind is Normal or Warning
	at              time.Time
	sampled         bool // the other nodes see the same
}

// NewRecorder makes a recorder for a node; Run sends what it is given.
func NewRecorder(c *Client, node string, log *slog.Logger, now func() time.Time, after func(time.Duration) <-chan time.Time) *Recorder {
	return &Recorder{client: c, node: node, log: log, now: now, after: after, queue: make(chan event, queueLength),
		lastSent: map[eventFingerprint]time.Time{}}
}

// NodeEvent tells something about this node. Warnings repeat after a while only.
func (r *Recorder) NodeEvent(warning bool, reason, note string) {
	e := event{eventKey: eventKey{reason: reason}, eventType: corev1.EventTypeNormal, note: note}
	if warning {
		e.eventType = corev1.EventTypeWarning
	}
	r.enqueue(e)
}

// ServiceWarning warns about a Service on this node.
func (r *Recorder) ServiceWarning(service model.Name, reason, note string) {
	r.enqueue(event{eventKey: eventKey{service, reason}, eventType: corev1.EventTypeWarning, note: note})
}

// SampledServiceWarning warns about a Service where the other nodes see the same: a few of them tell.
func (r *Recorder) SampledServiceWarning(service model.Name, reason, note string) {
	r.enqueue(event{eventKey: eventKey{service, reason}, eventType: corev1.EventTypeWarning, note: note, sampled: true})
}

// enqueue queues an event unless it was told a short while ago, or others tell it.
func (r *Recorder) enqueue(e event) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.at = r.now()
	if e.sampled && r.nodeCount > 0 && !r.isReporter(e.eventKey, r.nodeCount) {
		return
	}
	if last, ok := r.lastSent[e.fingerprint()]; ok && e.at.Sub(last) < repeatInterval {
		return
	}
	if len(r.lastSent) >= maxRemembered {
		for k, at := range r.lastSent {
			if e.at.Sub(at) >= repeatInterval {
				delete(r.lastSent, k)
			}
		}
	}
	if len(r.lastSent) >= maxRemembered {
		return
	}
	select {
	case r.queue <- e:
		r.lastSent[e.fingerprint()] = e.at
	default:
		r.log.Debug("an Event is dropped: too many wait", "reason", e.reason, "service", e.service)
	}
}

// isReporter tells whether this node is one of those that tell: which ones depends on the Service, so that the work is
// spread.
func (r *Recorder) isReporter(k eventKey, nodes int64) bool {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", r.node, k.service, k.reason)
	// FNV leaves its upper bits too alike for texts that differ at the end.
	x := h.Sum64()
	x ^= x >> 32
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 29
	return x%uint64(nodes) < reportersPerService
}

// Run sends Events until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	for {
		var e event
		select {
		case <-ctx.Done():
			return
		case e = <-r.queue:
		}
		if e.sampled && !r.waitForSlot(ctx, e.eventKey) {
			continue
		}
		r.sendWithRetries(ctx, e)
	}
}

// An Event that could not be sent is sent again this often, this far apart and up to as much more: a quarter of an hour,
// which an API server may be away for.
const (
	maxAttempts   = 20
	retryInterval = 30 * time.Second
)

// sendWithRetries sends an Event, again when it was the moment's fault that it could not be.
func (r *Recorder) sendWithRetries(ctx context.Context, e event) {
	for range maxAttempts {
		err := r.send(ctx, e)
		if err == nil || ctx.Err() != nil {
			return
		}
		r.logFailure(e, err)
		if !isTransient(err) || apierrors.IsForbidden(err) || errors.Is(err, errServiceGone) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-r.after(retryInterval + rand.N(retryInterval)):
		}
	}
}

var errServiceGone = errors.New("not there any more")

// logFailure tells of an Event that could not be sent: loudly once when the rights for it are missing, which lasts.
func (r *Recorder) logFailure(e event, err error) {
	level := slog.LevelDebug
	if apierrors.IsForbidden(err) && !r.forbiddenLogged {
		r.forbiddenLogged, level = true, slog.LevelWarn
	}
	r.log.Log(context.Background(), level, "an Event cannot be sent", "reason", e.reason, "err", err)
}

// waitForSlot waits until this node may send an Event that others see reason for too; false: it is not to.
func (r *Recorder) waitForSlot(ctx context.Context, k eventKey) bool {
	nodes, err := r.countNodes(ctx)
	if err != nil {
		r.log.Debug("Events about Services are not sent while the number of nodes is not known", "err", err)
		return false
	}
	if !r.isReporter(k, nodes) {
		return false
	}
	now, each := r.now(), max(minNodeInterval, time.Duration(nodes)*clusterInterval)
	wait := r.nextSampled.Sub(now)
	if wait < 0 {
		wait = rand.N(each) // the other nodes begin at times of their own
	}
	r.nextSampled = now.Add(wait + each)
	select {
	case <-ctx.Done():
		return false
	case <-r.after(wait):
		return true
	}
}

// countNodes asks how many nodes there are, now and then.
func (r *Recorder) countNodes(ctx context.Context) (int64, error) {
	r.mu.Lock()
	nodes, at := r.nodeCount, r.nodeCountedAt
	r.mu.Unlock()
	if nodes > 0 && r.now().Sub(at) < nodeCountTTL {
		return nodes, nil
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	var list corev1.NodeList
	// One Node, and how many more there are.
	if err := r.client.core.Get().Resource("nodes").VersionedParams(&metav1.ListOptions{Limit: 1}, metav1.ParameterCodec).
		Do(ctx).Into(&list); err != nil {
		return 0, fmt.Errorf("count Nodes: %w", err)
	}
	nodes = int64(len(list.Items))
	if list.RemainingItemCount != nil {
		nodes += *list.RemainingItemCount
	}
	nodes = max(nodes, 1)
	r.mu.Lock()
	r.nodeCount, r.nodeCountedAt = nodes, r.now()
	r.mu.Unlock()
	return nodes, nil
}

func (r *Recorder) send(ctx context.Context, e event) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	// kubectl looks for a Node's Events by its name in the place of a UID.
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.node, UID: types.UID(r.node)}
	if e.service != (model.Name{}) {
		uid, err := r.serviceUID(ctx, e.service)
		if err != nil {
			return err
		}
		about = corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: e.service.Namespace, Name: e.service.Name, UID: uid}
	}
	namespace := about.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	object := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%.200s.%016x", about.Name, rand.Uint64())},
		EventTime:  metav1.NewMicroTime(e.at), ReportingController: reportingController,
		ReportingInstance: truncate("sluice-"+r.node, maxReporting), Action: action(e.reason), Reason: e.reason,
		Regarding: about, Note: truncate(e.note, maxNote), Type: e.eventType,
	}
	err := r.client.events.Post().Namespace(namespace).Resource("events").Body(object).Do(ctx).Error()
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("create an Event in namespace %s: %w", namespace, err)
	}
	return err
}

// serviceUID asks for a Service's, by which kubectl looks for its Events.
func (r *Recorder) serviceUID(ctx context.Context, name model.Name) (types.UID, error) {
	var list corev1.ServiceList
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name.Name).String(), ResourceVersion: "0"}
	err := r.client.core.Get().Namespace(name.Namespace).Resource("services").VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(&list)
	if err == nil && len(list.Items) == 0 {
		err = errServiceGone
	}
	if err != nil {
		return "", fmt.Errorf("Service %s: %w", name, err)
	}
	return list.Items[0].UID, nil
}

// action says what was being done.
func action(reason string) string {
	switch reason {
	case ReasonStarting:
		return "StartSluice"
	case ReasonFailedToEvaluatePolicy:
		return "AskPolicy"
	case ReasonFrontendConflict:
		return "ProgramService"
	}
	return "Listen"
}

func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

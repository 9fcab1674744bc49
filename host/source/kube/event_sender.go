package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/core/model"
)

const (
	// An Event is sent up to maxAttempts times, retryInterval to twice that apart: 10 to 20 minutes, to outlast an outage
	// of the API server.
	maxAttempts   = 20
	retryInterval = 30 * time.Second
	sendTimeout   = 10 * time.Second

	reportingController   = "sluice.dev/sluice"
	maxNote, maxReporting = 1024, 128 // the API server's limits, in bytes
)

// sendWithRetries sends an Event, and retries after transient failures.
func (r *EventRecorder) sendWithRetries(ctx context.Context, e event) {
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

var errServiceGone = errors.New("no longer exists")

// logFailure logs an Event that could not be sent. Missing permissions, which will not go away, are a warning, once.
func (r *EventRecorder) logFailure(e event, err error) {
	level := slog.LevelDebug
	if apierrors.IsForbidden(err) && !r.forbiddenLogged {
		r.forbiddenLogged, level = true, slog.LevelWarn
	}
	r.log.Log(context.Background(), level, "failed to send Event", "reason", e.reason, "err", err)
}

func (r *EventRecorder) send(ctx context.Context, e event) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	// kubectl finds a Node's Events by its name in place of the UID.
	regarding := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.node, UID: types.UID(r.node)}
	if e.service != (model.Name{}) {
		uid, err := r.serviceUID(ctx, e.service)
		if err != nil {
			return err
		}
		regarding = corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: e.service.Namespace, Name: e.service.Name, UID: uid}
	}
	namespace := regarding.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	object := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%.200s.%016x", regarding.Name, rand.Uint64())},
		EventTime:  metav1.NewMicroTime(e.at), ReportingController: reportingController,
		ReportingInstance: truncate("sluice-"+r.node, maxReporting), Action: action(e.reason), Reason: e.reason,
		Regarding: regarding, Note: truncate(e.note, maxNote), Type: e.eventType,
	}
	err := r.client.events.Post().Namespace(namespace).Resource("events").Body(object).Do(ctx).Error()
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("create Event in namespace %s: %w", namespace, err)
	}
	return err
}

// serviceUID returns a Service's UID, by which kubectl finds its Events.
func (r *EventRecorder) serviceUID(ctx context.Context, name model.Name) (types.UID, error) {
	var list corev1.ServiceList
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name.Name).String(), ResourceVersion: "0"}
	err := r.client.core.Get().Namespace(name.Namespace).Resource("services").VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(&list)
	if err == nil && len(list.Items) == 0 {
		err = errServiceGone
	}
	if err != nil {
		return "", fmt.Errorf("get UID of Service %s: %w", name, err)
	}
	return list.Items[0].UID, nil
}

// action returns an Event's action: what the controller did.
func action(reason string) string {
	switch reason {
	case ReasonStarting:
		return "StartSluice"
	case ReasonConfigurationRejected, ReasonConfigurationApplied, ReasonPluginLoadFailed, ReasonPluginLoaded:
		return "LoadConfiguration"
	case ReasonFailedToEvaluatePolicy, ReasonFailedToEvaluateShadow, ReasonPolicyFellBack, ReasonShedBounded, ReasonPanicHold, ReasonPanicHoldEnded, ReasonServiceSettingsRefused,
		ReasonPolicyNotFound, ReasonPolicyNotAllowed:
		return "EvaluatePolicy"
	case ReasonFrontendConflict, ReasonServiceLimited, ReasonFrontendNotProgrammed, ReasonSessionAffinityFull:
		return "ProgramService"
	}
	return "Listen"
}

// truncate shortens s to at most n bytes without splitting a rune.
func truncate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

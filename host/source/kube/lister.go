package kube

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"reflect"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Bounds on how often a node asks.
const (
	// relistJitter is over how long the nodes of a cluster spread whole lists that they did not need before: when the server
	// has lost what led from their last version to its own, all of them notice at once.
	relistJitter = 4 * time.Second
	// unavailableRetry is how often a kind that the server has not, or does not show, is asked for.
	unavailableRetry = 10 * time.Minute
)

// lister lists and watches one kind for a reflector. It tells outages, and which failures are only of the moment.
type lister struct {
	resource      resource
	unreachable   *outageTracker // no answer at all
	refused       *outageTracker // an answer, and a bad one
	state         *watchState
	now           func() time.Time
	after         func(time.Duration) <-chan time.Time
	optional      bool               // go on without
	rolesLoaded   func() bool        // the server has given this client something else: it knows roles by now
	onUnavailable func(reason error) // told once when the server has no such kind

	mu         sync.Mutex
	fullListed bool      // a whole list has been asked for before
	served     bool      // the server has given this kind before
	notBefore  time.Time // ask nothing before
}

var (
	_ cache.ListerWatcher            = (*lister)(nil)
	_ cache.ListerWatcherWithContext = (*lister)(nil)
)

// List implements cache.Lister; reflectors use ListWithContext.
func (l *lister) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.Background(), o)
}

// Watch implements cache.Watcher; reflectors use WatchWithContext.
func (l *lister) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.Background(), o)
}

// ListWithContext lists.
func (l *lister) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if err := l.backoff(ctx, true); err != nil {
		return nil, err
	}
	refusalFinal := l.refusalIsFinal()
	list, err := l.resource.list(ctx, o)
	return list, l.record(ctx, err, false, refusalFinal)
}

// WatchWithContext watches, or streams what there is and then watches.
func (l *lister) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if err := l.backoff(ctx, o.SendInitialEvents != nil && *o.SendInitialEvents); err != nil {
		return nil, err
	}
	refusalFinal := l.refusalIsFinal()
	w, err := l.resource.watch(ctx, o)
	if err == nil && reflect.TypeOf(w) == reflect.TypeOf(watch.NewEmptyWatch()) {
		err = errNoResponse
	}
	if err = l.record(ctx, err, true, refusalFinal); err != nil {
		return nil, err
	}
	epoch := l.state.markWatching()
	return newFilteredWatch(w, func() { l.state.markStopped(epoch) }), nil
}

// errNoResponse is what a watch that client-go calls empty is about: it takes a connection that ends or times out before
// there is an answer for one, and after such a one it would list everything anew.
var errNoResponse = errors.New("the connection has ended without an answer")

// causeDecoding is the cause that client-go gives.
const causeDecoding metav1.CauseType = "ClientWatchDecoding"

// filteredWatch is a watch without the events that goodEvent leaves out. Unlike watch.Filter it ends when it is stopped while
// nobody takes its next event.
type filteredWatch struct {
	upstream watch.Interface
	out      chan watch.Event
	stopped  chan struct{}
	once     sync.Once
}

func newFilteredWatch(upstream watch.Interface, onEnd func()) *filteredWatch {
	s := &filteredWatch{upstream: upstream, out: make(chan watch.Event), stopped: make(chan struct{})}
	go func() {
		defer close(s.out)
		defer onEnd()
		for e := range upstream.ResultChan() {
			if !keepEvent(e) {
				continue
			}
			select {
			case s.out <- e:
			case <-s.stopped:
				return
			}
		}
	}()
	return s
}

// ResultChan implements watch.Interface.
func (s *filteredWatch) ResultChan() <-chan watch.Event { return s.out }

// Stop implements watch.Interface.
func (s *filteredWatch) Stop() {
	s.once.Do(func() { close(s.stopped) })
	s.upstream.Stop()
}

// keepEvent leaves out the error that the client itself makes of a connection that breaks in the middle of an event:
// the stream ends then, and is taken up where it ended instead of from the beginning.
func keepEvent(e watch.Event) bool {
	return e.Type != watch.Error || !apierrors.HasStatusCause(apierrors.FromObject(e.Object), causeDecoding)
}

// backoff keeps the pace: the first whole list is asked for at once, later ones spread.
func (l *lister) backoff(ctx context.Context, full bool) error {
	l.mu.Lock()
	wait := l.notBefore.Sub(l.now())
	if full && l.fullListed {
		wait = max(wait, rand.N(relistJitter))
	}
	l.fullListed = l.fullListed || full
	l.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.after(wait):
		return nil
	}
}

// refusalIsFinal tells whether a refusal of the request that comes is what sluice's role says. A server that comes up refuses
// everything until it has read the roles: it is asked again, and what it gave before stays.
func (l *lister) refusalIsFinal() bool {
	l.mu.Lock()
	served := l.served
	l.mu.Unlock()
	return !served && l.rolesLoaded()
}

// record notes what came of a request. A watch that failed for the moment may be tried again from where it was: client-go
// takes only a refused connection for that, and would list everything anew after any other failure.
func (l *lister) record(ctx context.Context, err error, watching, refusalFinal bool) error {
	var status apierrors.APIStatus
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err == nil:
		l.unreachable.recoverAll()
		l.refused.recover(l.resource.name)
		l.mu.Lock()
		l.served = true
		l.mu.Unlock()
	case !errors.As(err, &status):
		l.unreachable.fail(l.resource.name, err)
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
		l.unreachable.recoverAll()
	case l.optional && (apierrors.IsNotFound(err) || refusalFinal && apierrors.IsForbidden(err)):
		l.unreachable.recoverAll()
		l.refused.recover(l.resource.name)
		l.state.markUnavailable()
		l.mu.Lock()
		l.notBefore = l.now().Add(unavailableRetry + rand.N(unavailableRetry))
		l.mu.Unlock()
		l.onUnavailable(err)
		return err
	default:
		l.unreachable.recoverAll()
		l.refused.fail(l.resource.name, err)
	}
	if err != nil && watching && isTransient(err) {
		return retriableError{err}
	}
	return err
}

// isTransient tells whether the same request may go well later.
func isTransient(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // the network's
	}
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return false // the server's state is from a backup
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	default:
		return code >= http.StatusInternalServerError
	}
}

// retriableError is an error that reflectors try again after, from where they were.
type retriableError struct{ error }

// Unwrap gives what reflectors look for before the cause, which has an errno of its own.
func (m retriableError) Unwrap() []error { return []error{syscall.ECONNREFUSED, m.error} }

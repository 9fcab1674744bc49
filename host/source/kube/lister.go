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
	// spread is over how long the nodes of a cluster spread whole lists that they did not need before: when the server
	// has lost what led from their last version to its own, all of them notice at once.
	spread = 4 * time.Second
	// rarely is how often a kind that the server has not, or does not show, is asked for.
	rarely = 10 * time.Minute
)

// lister lists and watches one kind for a reflector. It tells outages, and which failures are only of the moment.
type lister struct {
	from     resource
	server   *outage // no answer at all
	refused  *outage // an answer, and a bad one
	contact  *contact
	now      func() time.Time
	after    func(time.Duration) <-chan time.Time
	optional bool               // go on without
	settled  func() bool        // the server has given this client something else: it knows roles by now
	without  func(reason error) // told once when the server has no such kind

	mu     sync.Mutex
	whole  bool      // a whole list has been asked for before
	given  bool      // the server has given this kind before
	paused time.Time // ask nothing before
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
	if err := l.pause(ctx, true); err != nil {
		return nil, err
	}
	final := l.final()
	list, err := l.from.list(ctx, o)
	return list, l.done(ctx, err, false, final)
}

// WatchWithContext watches, or streams what there is and then watches.
func (l *lister) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if err := l.pause(ctx, o.SendInitialEvents != nil && *o.SendInitialEvents); err != nil {
		return nil, err
	}
	final := l.final()
	w, err := l.from.watch(ctx, o)
	if err == nil && reflect.TypeOf(w) == reflect.TypeOf(watch.NewEmptyWatch()) {
		err = errNoAnswer
	}
	if err = l.done(ctx, err, true, final); err != nil {
		return nil, err
	}
	turn := l.contact.is()
	return newStream(w, func() { l.contact.isNot(turn) }), nil
}

// errNoAnswer is what a watch that client-go calls empty is about: it takes a connection that ends or times out before
// there is an answer for one, and after such a one it would list everything anew.
var errNoAnswer = errors.New("the connection has ended without an answer")

// causeDecoding is the cause that client-go gives.
const causeDecoding metav1.CauseType = "ClientWatchDecoding"

// stream is a watch without the events that goodEvent leaves out. Unlike watch.Filter it ends when it is stopped while
// nobody takes its next event.
type stream struct {
	from watch.Interface
	out  chan watch.Event
	done chan struct{}
	once sync.Once
}

func newStream(from watch.Interface, ended func()) *stream {
	s := &stream{from: from, out: make(chan watch.Event), done: make(chan struct{})}
	go func() {
		defer close(s.out)
		defer ended()
		for e := range from.ResultChan() {
			if !goodEvent(e) {
				continue
			}
			select {
			case s.out <- e:
			case <-s.done:
				return
			}
		}
	}()
	return s
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.out }

// Stop implements watch.Interface.
func (s *stream) Stop() {
	s.once.Do(func() { close(s.done) })
	s.from.Stop()
}

// goodEvent leaves out the error that the client itself makes of a connection that breaks in the middle of an event:
// the stream ends then, and is taken up where it ended instead of from the beginning.
func goodEvent(e watch.Event) bool {
	return e.Type != watch.Error || !apierrors.HasStatusCause(apierrors.FromObject(e.Object), causeDecoding)
}

// pause keeps the pace: the first whole list is asked for at once, later ones spread.
func (l *lister) pause(ctx context.Context, whole bool) error {
	l.mu.Lock()
	wait := l.paused.Sub(l.now())
	if whole && l.whole {
		wait = max(wait, rand.N(spread))
	}
	l.whole = l.whole || whole
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

// final tells whether a refusal of the request that comes is what sluice's role says. A server that comes up refuses
// everything until it has read the roles: it is asked again, and what it gave before stays.
func (l *lister) final() bool {
	l.mu.Lock()
	given := l.given
	l.mu.Unlock()
	return !given && l.settled()
}

// done notes what came of a request. A watch that failed for the moment may be tried again from where it was: client-go
// takes only a refused connection for that, and would list everything anew after any other failure.
func (l *lister) done(ctx context.Context, err error, watching, final bool) error {
	var status apierrors.APIStatus
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err == nil:
		l.server.endsAll()
		l.refused.ends(l.from.name)
		l.mu.Lock()
		l.given = true
		l.mu.Unlock()
	case !errors.As(err, &status):
		l.server.is(l.from.name, err)
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
		l.server.endsAll()
	case l.optional && (apierrors.IsNotFound(err) || final && apierrors.IsForbidden(err)):
		l.server.endsAll()
		l.refused.ends(l.from.name)
		l.contact.none()
		l.mu.Lock()
		l.paused = l.now().Add(rarely + rand.N(rarely))
		l.mu.Unlock()
		l.without(err)
		return err
	default:
		l.server.endsAll()
		l.refused.is(l.from.name, err)
	}
	if err != nil && watching && ofTheMoment(err) {
		return momentary{err}
	}
	return err
}

// ofTheMoment tells whether the same request may go well later.
func ofTheMoment(err error) bool {
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

// momentary is an error that reflectors try again after, from where they were.
type momentary struct{ error }

// Unwrap gives what reflectors look for before the cause, which has an errno of its own.
func (m momentary) Unwrap() []error { return []error{syscall.ECONNREFUSED, m.error} }

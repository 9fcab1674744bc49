package kube

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Limits on how often a node sends requests.
const (
	// relistJitter spreads the lists that follow the first one: when a server has lost the history since the nodes' last
	// resource version, all of them notice at the same time.
	relistJitter = 4 * time.Second
	// unavailableRetry is how often a resource is requested that the server does not have or forbids.
	unavailableRetry = 10 * time.Minute
)

// lister lists and watches one resource for a reflector. It records outages and marks transient failures as retriable.
type lister struct {
	resource      resource
	unreachable   *outageTracker // no response
	refused       *outageTracker // an error response
	state         *watchState
	now           func() time.Time
	after         func(time.Duration) <-chan time.Time
	optional      bool               // continue without it
	rolesLoaded   func() bool        // the server has served another resource to this client, so it has loaded its roles
	onUnavailable func(reason error) // called when the server does not have the resource
	warned        *sync.Once         // of the log line about that
	// readItem decodes and converts an item of a list as it arrives; nil: lists are decoded whole, or a watch begins with one.
	readItem func(raw []byte) (runtime.Object, error)

	mu         sync.Mutex
	fullListed bool      // a full list was requested before
	served     bool      // the server has served this resource before
	notBefore  time.Time // no request before
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

// ListWithContext implements cache.ListerWithContext.
func (l *lister) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if err := l.backoff(ctx, true); err != nil {
		return nil, err
	}
	refusalFinal := l.refusalIsFinal()
	list := l.resource.list
	if l.readItem != nil {
		list = l.listItems
	}
	objects, err := list(ctx, o)
	return objects, l.record(ctx, err, false, refusalFinal)
}

// listItems lists in one response, of which only the converted items are kept. Without a version that the reflector knows, it
// asks for the latest state, as a streamed list does: a restart must not bring back an older one.
func (l *lister) listItems(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	o.Limit = 0
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
	var list metainternalversion.List
	var err error
	list.ListMeta, err = l.resource.streamItems(ctx, runtime.ContentTypeProtobuf, o, func(raw []byte) error {
		item, err := l.readItem(raw)
		list.Items = append(list.Items, item)
		return err
	})
	return &list, err
}

// IsWatchListSemanticsUnSupported is client-go's question to a ListerWatcher: with true, a reflector lists and then watches.
func (l *lister) IsWatchListSemanticsUnSupported() bool { return l.readItem != nil }

// WatchWithContext implements cache.WatcherWithContext. The watch may begin with a streamed list.
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

// errNoResponse replaces client-go's empty watch: client-go returns one when a connection ends or times out before the
// response, and would then list everything again.
var errNoResponse = errors.New("connection closed without a response")

// backoff waits until the next request is due. The first full list is requested at once, later ones after a random delay.
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

// refusalIsFinal reports whether a 403 for the next request would come from sluice's role. An API server forbids
// everything while it starts, until it has loaded the roles: such a response is retried and removes nothing.
func (l *lister) refusalIsFinal() bool {
	l.mu.Lock()
	served := l.served
	l.mu.Unlock()
	return !served && l.rolesLoaded()
}

// dispensable reports whether the first plan does not wait for the roles of a server that forbids the resource: a kind that
// nobody has to install, and that the server has not served before.
func (l *lister) dispensable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.resource.retry != 0 && !l.served
}

// record updates the outages with the result of a request and returns the error for the reflector: transient failures
// of a watch become a retriableError.
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
	case l.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err) && (refusalFinal || l.dispensable())):
		l.unreachable.recoverAll()
		l.refused.recover(l.resource.name)
		l.state.markUnavailable()
		l.mu.Lock()
		retry := cmp.Or(l.resource.retry, unavailableRetry)
		if !refusalFinal && apierrors.IsForbidden(err) {
			retry = time.Second
		}
		l.notBefore = l.now().Add(retry + rand.N(retry))
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

package kube

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// reflectorBackoff is the delay between a reflector's attempts. It grows to a random 15 to 30 s, so that nodes that lose
// their server at the same moment do not retry at the same moment. The first response wakes this node's other
// reflectors.
func reflectorBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 1, Cap: 15 * time.Second, Steps: 12}
}

// runReflector keeps target in sync with the server until ctx ends. The reflector lists and watches; kinds that are not read item
// by item begin with a watch where the server supports it (WatchList). A broken watch resumes where it ended; the resource is
// listed again only when the server no longer has that resource version.
func runReflector[T any](s *Source, wg *sync.WaitGroup, ctx context.Context, res resource, target *store[T]) {
	l, unregister := s.newLister(res, target.setSynced)
	if target.decode != nil {
		l.readItem = target.readItem
	}
	startReflector(s, wg, ctx, l, unregister, target)
}

// startReflector runs a reflector of a lister, and unregister when it has ended.
func startReflector[T any](s *Source, wg *sync.WaitGroup, ctx context.Context, l *lister, unregister func(), target *store[T]) {
	res := &l.resource
	log := klogLogger(s.opt.Log)
	r := cache.NewReflectorWithOptions(l, target.prototype, target, cache.ReflectorOptions{
		Logger: &log, Name: res.name, TypeDescription: res.name, Backoff: s.newBackoff(),
		Clock: interruptibleClock{now: s.opt.Now, done: ctx.Done(), after: s.opt.After, outage: s.unreachable},
	})
	wg.Go(func() {
		defer unregister()
		r.RunWithContext(klog.NewContext(ctx, log))
	})
}

// newLister makes a lister that WatchStatuses includes until unregister is called. onUnavailable is called when the
// server does not have the resource.
func (s *Source) newLister(res resource, onUnavailable func()) (l *lister, unregister func()) {
	l = &lister{
		resource: res, unreachable: s.unreachable, refused: s.refused, state: newWatchState(s.opt.Now), now: s.opt.Now, after: s.opt.After,
		optional: res.optional, rolesLoaded: s.services.isSynced, warned: new(sync.Once),
	}
	l.onUnavailable = func(err error) {
		once, level := l.warned, slog.LevelWarn
		switch { // what is true of one kind of sluice.dev, or of the Gateway API, is true of all
		case res.client == s.opt.Client.gateway:
			once = s.routesWarned
		case res.retry != 0:
			once = s.kindsWarned
		}
		if res.retry != 0 && apierrors.IsNotFound(err) {
			level = slog.LevelInfo // nobody has to install them
		}
		once.Do(func() {
			s.opt.Log.Log(context.Background(), level, "continuing without "+res.name+": "+res.consequence, "server", s.opt.Client.Server(), "reason", shortError(err))
		})
		onUnavailable()
	}
	s.mu.Lock()
	s.listers = append(slices.Clone(s.listers), l)
	s.mu.Unlock()
	return l, func() {
		s.mu.Lock()
		s.listers = slices.DeleteFunc(slices.Clone(s.listers), func(other *lister) bool { return other == l })
		s.mu.Unlock()
		s.refused.recover(res.name)
	}
}

// interruptibleClock ends a wait early when the outage or the context ends: reflectors wait without looking at either.
type interruptibleClock struct {
	clock.RealClock
	now    func() time.Time
	done   <-chan struct{}
	after  func(time.Duration) <-chan time.Time
	outage *outageTracker
}

// Now implements clock.PassiveClock.
func (c interruptibleClock) Now() time.Time { return c.now() }

// Since implements clock.PassiveClock.
func (c interruptibleClock) Since(t time.Time) time.Duration { return c.now().Sub(t) }

// After fires after d, when the outage ends, or when the context is done.
func (c interruptibleClock) After(d time.Duration) <-chan time.Time {
	out, back := make(chan time.Time, 1), c.outage.ended()
	go func() {
		select {
		case t := <-c.after(d):
			out <- t
		case <-back:
			close(out)
		case <-c.done:
			close(out)
		}
	}()
	return out
}

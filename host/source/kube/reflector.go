package kube

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// reflectorBackoff is between the tries of a reflector: after a while each waits 15 to 30 s, so that nodes that lose their server
// in the same moment ask again at times of their own. The first that gets an answer has the others of this node ask too.
func reflectorBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 1, Cap: 15 * time.Second, Steps: 12}
}

// runReflector has a reflector keep a store at what the server has, until ctx ends. It lists and then watches, or has the
// server stream both where it can; the watch goes on from where it was after each break, and everything is listed
// again only when the server no longer knows what came after that.
func runReflector[T any](s *Source, wg *sync.WaitGroup, ctx context.Context, res resource, target *store[T]) {
	l, unregister := s.newLister(res, target.setSynced)
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

// newLister makes one, of which WatchStatuses tells until the end is called. without is called when the server has no such kind.
func (s *Source) newLister(res resource, onUnavailable func()) (l *lister, unregister func()) {
	var once sync.Once
	l = &lister{
		resource: res, unreachable: s.unreachable, refused: s.refused, state: newWatchState(s.opt.Now), now: s.opt.Now, after: s.opt.After,
		optional: res.optional, rolesLoaded: s.services.isSynced,
		onUnavailable: func(err error) {
			once.Do(func() {
				s.opt.Log.Warn("going on without "+res.name+": "+res.consequence, "server", s.opt.Client.Server(), "reason", shortError(err))
			})
			onUnavailable()
		},
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

// interruptibleClock waits no longer than is of use: reflectors wait without looking at their context.
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

// After fires after d, when the server is back, or at the end.
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

package kube

import (
	"context"
	"log/slog"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestForbiddenIsFinalOnceRolesAreLoaded: an API server forbids everything until it has loaded the roles.
func TestForbiddenIsFinalOnceRolesAreLoaded(t *testing.T) {
	cidrs := schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
	forbidden, none := apierrors.NewForbidden(cidrs, "", nil), apierrors.NewNotFound(cidrs, "")
	for name, c := range map[string]struct {
		err            error
		settled, given bool
		without        bool
		retry          time.Duration // of a kind that nobody has to install
	}{
		"forbidden while the server starts":             {forbidden, false, false, false, 0},
		"forbidden, but another resource was served":    {forbidden, true, false, true, 0},
		"forbidden, but it was served before":           {forbidden, true, true, false, 0},
		"not found":                                     {none, false, false, true, 0},
		"a kind of sluice.dev, while the server starts": {forbidden, false, false, true, kindsRetry},
		"a kind of sluice.dev, served before":           {forbidden, true, true, false, kindsRetry},
	} {
		t.Run(name, func(t *testing.T) {
			now := func() time.Time { return time.Unix(1000, 0) }
			without, settled := false, c.given
			l := &lister{
				unreachable: &outageTracker{log: slog.New(slog.DiscardHandler), now: now}, refused: &outageTracker{log: slog.New(slog.DiscardHandler), now: now},
				state: newWatchState(now), resource: resource{retry: c.retry},
				now: now, optional: true, rolesLoaded: func() bool { return settled }, onUnavailable: func(error) { without = true },
			}
			if c.given {
				if err := l.record(context.Background(), nil, false, l.refusalIsFinal()); err != nil {
					t.Fatal(err)
				}
			}
			settled = c.settled
			err := l.record(context.Background(), c.err, true, l.refusalIsFinal())
			if err == nil || without != c.without || l.notBefore.IsZero() == c.without {
				t.Errorf("%v; unavailable: %t, want %t; no request before %v", err, without, c.without, l.notBefore)
			}
			if soon := l.notBefore.Sub(now()) < time.Minute; c.without && soon != !c.settled && c.err == forbidden {
				t.Errorf("asked again at %v", l.notBefore)
			}
		})
	}
}

// TestServicesAndSlicesAreListedFromTheLatestState: a list that is not newer than what was programmed before a restart would
// bring back old endpoints.
func TestServicesAndSlicesAreListedFromTheLatestState(t *testing.T) {
	for _, noStreams := range []bool{false, true} {
		r := newFixture(t, nil)
		r.server.noStreams = noStreams
		r.server.put(svc("web"), slice("web", "10.0.0.1"))
		r.run()
		r.waitSynced()
		for _, path := range []string{"/services?", "/endpointslices?"} {
			lists := r.server.fullLists(path)
			if old, part := r.server.requestCount("GET", path, "resourceVersion=0"), r.server.requestCount("GET", path, "limit="); lists != 1 || old+part > 0 {
				t.Errorf("%s: %d lists, %d of any state, %d of a part", path, lists, old, part)
			}
			if n := r.server.requestCount(path, "sendInitialEvents"); n > 0 {
				t.Errorf("%s: %d watches that begin with a list", path, n)
			}
		}
	}
}

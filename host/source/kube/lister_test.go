package kube

import (
	"context"
	"log/slog"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestARefusalCountsOnceTheServerKnowsRoles: while it comes up, an API server refuses everything to everybody.
func TestARefusalCountsOnceTheServerKnowsRoles(t *testing.T) {
	cidrs := schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
	forbidden, none := apierrors.NewForbidden(cidrs, "", nil), apierrors.NewNotFound(cidrs, "")
	for name, c := range map[string]struct {
		err            error
		settled, given bool
		without        bool
	}{
		"refused while it comes up":             {forbidden, false, false, false},
		"refused, and something else was given": {forbidden, true, false, true},
		"refused, and it was given before":      {forbidden, true, true, false},
		"there is no such kind":                 {none, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			now := func() time.Time { return time.Unix(1000, 0) }
			without, settled := false, c.given
			l := &lister{
				unreachable: &outageTracker{log: slog.New(slog.DiscardHandler), now: now}, refused: &outageTracker{log: slog.New(slog.DiscardHandler), now: now},
				state: newWatchState(now),
				now:   now, optional: true, rolesLoaded: func() bool { return settled }, onUnavailable: func(error) { without = true },
			}
			if c.given {
				if err := l.record(context.Background(), nil, false, l.refusalIsFinal()); err != nil {
					t.Fatal(err)
				}
			}
			settled = c.settled
			err := l.record(context.Background(), c.err, true, l.refusalIsFinal())
			if err == nil || without != c.without || l.notBefore.IsZero() == c.without {
				t.Errorf("%v; going on without: %t, want %t; paused until %v", err, without, c.without, l.notBefore)
			}
		})
	}
}

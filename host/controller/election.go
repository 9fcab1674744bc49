package controller

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const (
	leaseName     = "sluice-controller"
	leaseDuration = 15 * time.Second // for which others wait for the leader
	renewDeadline = 10 * time.Second // after which a leader that cannot renew its Lease stops
	renewEach     = 2 * time.Second
)

// election elects one of several processes by a Lease, as client-go's leaderelection does, which would link the types of all API
// groups into the program that runs on each node.
type election struct {
	leases              rest.Interface
	namespace, identity string
	log                 *slog.Logger
	known               atomic.Bool // the Lease has been read, and is another process's or was taken

	seen     coordinationv1.LeaseSpec // when it changed last
	seenAt   time.Time                // by this process's clock: those of others may differ
	reported string
}

// run calls lead with a context that ends when another process leads, again and again until ctx ends.
func (e *election) run(ctx context.Context, lead func(context.Context)) {
	for ctx.Err() == nil {
		if e.hold(ctx) {
			e.keep(ctx, lead)
		}
		select {
		case <-ctx.Done():
		case <-time.After(renewEach + rand.N(renewEach/2)):
		}
	}
}

// keep leads while the Lease can be renewed, and gives it up at the end.
func (e *election) keep(ctx context.Context, lead func(context.Context)) {
	leading, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); lead(leading) }()
	tick := time.NewTicker(renewEach)
	defer tick.Stop()
	for renewed := time.Now(); time.Since(renewed) < renewDeadline && ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-tick.C:
			if e.hold(ctx) {
				renewed = time.Now()
			} else if e.seen.HolderIdentity != nil && *e.seen.HolderIdentity != e.identity {
				renewed = time.Time{} // another process has it
			}
		}
	}
	stop()
	<-ended
	if ctx.Err() != nil {
		giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = e.update(giving, "") // otherwise others wait for leaseDuration
	}
}

// hold takes or renews the Lease, and reports whether this process has it.
func (e *election) hold(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, renewDeadline/2)
	defer cancel()
	err := e.update(ctx, e.identity)
	if err == nil {
		e.known.Store(true)
	}
	text := ""
	if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		text = err.Error()
	}
	if text != "" && text != e.reported {
		e.log.Warn("the Lease of the controller", "namespace", e.namespace, "name", leaseName, "err", err)
	}
	e.reported = text
	return err == nil && e.seen.HolderIdentity != nil && *e.seen.HolderIdentity == e.identity
}

// update writes the Lease with a holder, unless another process holds it.
func (e *election) update(ctx context.Context, holder string) error {
	lease := &coordinationv1.Lease{}
	err := e.leases.Get().Namespace(e.namespace).Resource("leases").Name(leaseName).Do(ctx).Into(lease)
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return fmt.Errorf("get: %w", err)
	}
	now := time.Now()
	if e.see(&lease.Spec, now); e.heldByOther(now) {
		return nil
	}
	at, seconds := metav1.NewMicroTime(now), int32(leaseDuration/time.Second)
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != holder {
		transitions := int32(0)
		if lease.Spec.LeaseTransitions != nil {
			transitions = *lease.Spec.LeaseTransitions + 1
		}
		lease.Spec.LeaseTransitions, lease.Spec.AcquireTime = &transitions, &at
	}
	lease.Spec.HolderIdentity, lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds = &holder, &at, &seconds
	request := e.leases.Put().Name(leaseName)
	if missing {
		lease.Name, lease.Namespace = leaseName, e.namespace
		request = e.leases.Post()
	}
	if err := request.Namespace(e.namespace).Resource("leases").Body(lease).Do(ctx).Into(lease); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	e.see(&lease.Spec, now)
	return nil
}

// see remembers when the Lease has changed last.
func (e *election) see(s *coordinationv1.LeaseSpec, now time.Time) {
	same := s.RenewTime.Equal(e.seen.RenewTime) && (s.HolderIdentity == nil) == (e.seen.HolderIdentity == nil) && (s.HolderIdentity == nil || *s.HolderIdentity == *e.seen.HolderIdentity)
	if !same || e.seenAt.IsZero() {
		e.seen, e.seenAt = *s.DeepCopy(), now
	}
}

// heldByOther reports whether another process has the Lease and renews it.
func (e *election) heldByOther(now time.Time) bool {
	h := e.seen.HolderIdentity
	return h != nil && *h != "" && *h != e.identity && now.Sub(e.seenAt) < leaseDuration
}

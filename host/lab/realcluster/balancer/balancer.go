// Package balancer is a load balancer for a cluster: it gives Services of type LoadBalancer addresses, and leads what is sent
// there to the nodes unchanged, as load balancers of clouds with ipMode VIP do.
package balancer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// Finalizer keeps a Service until its addresses lead nowhere, as Kubernetes' own controller for clouds has it.
const Finalizer = "service.kubernetes.io/load-balancer-cleanup"

// checkEvery is how often nodes are asked whether they have endpoints of a Service with externalTrafficPolicy Local.
const checkEvery = 500 * time.Millisecond

// Network is what is between clients and nodes.
type Network interface {
	// Spread leads to an address by several nodes, each connection by one; without nodes, it leads nowhere.
	Spread(to netip.Addr, nodes []string) error
	// Healthy reports whether a node answers 200 at a health check port.
	Healthy(ctx context.Context, node string, port int32) bool
}

// Balancer is the load balancer of a cluster.
type Balancer struct {
	Client  kubernetes.Interface
	Network Network
	Ranges  []netip.Prefix // of addresses, one for each IP family
	Log     io.Writer

	services listers.ServiceLister
	nodes    listers.NodeLister
	held     map[types.UID]*held
}

// held is what a Service has.
type held struct {
	addrs []netip.Addr
	nodes []string
}

// Run serves until ctx is done.
func (b *Balancer) Run(ctx context.Context) error {
	b.held = map[types.UID]*held{}
	factory := informers.NewSharedInformerFactory(b.Client, 0)
	b.services, b.nodes = factory.Core().V1().Services().Lister(), factory.Core().V1().Nodes().Lister()
	wake := make(chan struct{}, 1)
	changed := func(any) {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	for _, i := range []cache.SharedIndexInformer{factory.Core().V1().Services().Informer(), factory.Core().V1().Nodes().Informer()} {
		_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, n any) { changed(n) }, DeleteFunc: changed})
		if err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	for kind, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("balancer: watch %s: %w", kind, context.Cause(ctx))
		}
	}
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	for {
		if err := b.sync(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintf(b.Log, "balancer: %v\n", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-check.C:
		}
	}
}

func (b *Balancer) sync(ctx context.Context) error {
	all, err := b.services.List(labels.Everything())
	if err != nil {
		return err
	}
	ready, err := b.readyNodes()
	if err != nil {
		return err
	}
	seen := map[types.UID]bool{}
	var errs []error
	for _, s := range all {
		seen[s.UID] = true
		wanted := s.Spec.Type == v1.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass == nil && s.DeletionTimestamp == nil
		var err error
		switch {
		case wanted:
			err = b.serve(ctx, s, ready)
		case b.held[s.UID] != nil || slices.Contains(s.Finalizers, Finalizer):
			err = b.release(ctx, s)
		}
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) { // these come back as events
			errs = append(errs, fmt.Errorf("Service %s/%s: %w", s.Namespace, s.Name, err))
		}
	}
	for uid, h := range b.held { // deleted by force
		if !seen[uid] {
			errs = append(errs, b.unroute(h))
			delete(b.held, uid)
		}
	}
	return errors.Join(errs...)
}

// readyNodes returns the names of the nodes that balancers may use.
func (b *Balancer) readyNodes() (ready []string, err error) {
	all, err := b.nodes.List(labels.Everything())
	for _, n := range all {
		_, excluded := n.Labels[v1.LabelNodeExcludeBalancers]
		if !excluded && slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue }) {
			ready = append(ready, n.Name)
		}
	}
	slices.Sort(ready)
	return ready, err
}

// serve gives a Service addresses and leads them to its nodes.
func (b *Balancer) serve(ctx context.Context, s *v1.Service, ready []string) error {
	if !slices.Contains(s.Finalizers, Finalizer) {
		s = s.DeepCopy()
		s.Finalizers = append(s.Finalizers, Finalizer)
		_, err := b.Client.CoreV1().Services(s.Namespace).Update(ctx, s, metav1.UpdateOptions{})
		return err
	}
	h := b.held[s.UID]
	if h == nil {
		h = &held{}
		b.held[s.UID] = h
	}
	if err := b.allocate(h, s.Spec.IPFamilies); err != nil {
		return err
	}
	if nodes := b.targets(ctx, s, ready, h.nodes); !slices.Equal(nodes, h.nodes) {
		for _, a := range h.addrs {
			if err := b.Network.Spread(a, nodes); err != nil {
				return err
			}
		}
		h.nodes = nodes
	}
	var ingress []v1.LoadBalancerIngress
	for _, a := range h.addrs {
		ingress = append(ingress, v1.LoadBalancerIngress{IP: a.String()})
	}
	same := func(x, y v1.LoadBalancerIngress) bool { return x.IP == y.IP } // the API server adds ipMode
	if slices.EqualFunc(s.Status.LoadBalancer.Ingress, ingress, same) {
		return nil
	}
	return b.setIngress(ctx, s, ingress)
}

// allocate gives addresses of the families, unless there are any.
func (b *Balancer) allocate(h *held, families []v1.IPFamily) error {
	if len(h.addrs) > 0 {
		return nil
	}
	for _, f := range families {
		i := slices.IndexFunc(b.Ranges, func(p netip.Prefix) bool { return p.Addr().Is6() == (f == v1.IPv6Protocol) })
		if i < 0 {
			return fmt.Errorf("no addresses of family %s", f)
		}
		a := b.Ranges[i].Addr().Next()
		for ; b.taken(a); a = a.Next() {
		}
		if !b.Ranges[i].Contains(a) {
			return fmt.Errorf("all addresses of %s are taken", b.Ranges[i])
		}
		h.addrs = append(h.addrs, a)
	}
	return nil
}

func (b *Balancer) taken(a netip.Addr) bool {
	for _, h := range b.held {
		if slices.Contains(h.addrs, a) {
			return true
		}
	}
	return false
}

// targets returns the nodes for a Service. With affinity to clients it is one, and remains it.
func (b *Balancer) targets(ctx context.Context, s *v1.Service, ready, last []string) []string {
	if s.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal {
		if local := b.healthy(ctx, ready, s.Spec.HealthCheckNodePort); len(local) > 0 {
			ready = local
		}
	}
	if s.Spec.SessionAffinity != v1.ServiceAffinityClientIP || len(ready) == 0 {
		return ready
	}
	if len(last) == 1 && slices.Contains(ready, last[0]) {
		return last
	}
	return ready[:1]
}

func (b *Balancer) healthy(ctx context.Context, nodes []string, port int32) (out []string) {
	ok := make([]bool, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() { ok[i] = b.Network.Healthy(ctx, n, port) })
	}
	all.Wait()
	for i, n := range nodes {
		if ok[i] {
			out = append(out, n)
		}
	}
	return out
}

// release takes what a Service has, and lets it go.
func (b *Balancer) release(ctx context.Context, s *v1.Service) error {
	if h := b.held[s.UID]; h != nil {
		if err := b.unroute(h); err != nil {
			return err
		}
		delete(b.held, s.UID)
	}
	if len(s.Status.LoadBalancer.Ingress) > 0 {
		if err := b.setIngress(ctx, s, nil); err != nil {
			return err
		}
	}
	// The update of the status has changed the resource version.
	patch := fmt.Sprintf(`{"metadata": {"$deleteFromPrimitiveList/finalizers": [%q]}}`, Finalizer)
	_, err := b.Client.CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (b *Balancer) unroute(h *held) (err error) {
	for _, a := range h.addrs {
		err = errors.Join(err, b.Network.Spread(a, nil))
	}
	return err
}

func (b *Balancer) setIngress(ctx context.Context, s *v1.Service, ingress []v1.LoadBalancerIngress) error {
	s = s.DeepCopy()
	s.Status.LoadBalancer.Ingress = ingress
	_, err := b.Client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
	return err
}

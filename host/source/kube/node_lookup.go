package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// Every node sees the same slice name an unknown Node, so the first lookup is delayed by a random time and further ones
// keep an interval; both grow with the number of Nodes.
const (
	lookupJitterPerNode   = 8 * time.Millisecond
	maxLookupJitter       = 40 * time.Second
	lookupIntervalPerNode = 600 * time.Microsecond

	maxClaimedZones = 1 << 14
)

// NodeNow returns a Node as the API server has it now: not from a cache that may be behind. The error says what the API server
// answers, or that there is no such Node.
func (c *Client) NodeNow(ctx context.Context, name string) (*corev1.Node, error) {
	list, err := c.node(name).list(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, errors.New(shortError(err))
	}
	nodes, ok := list.(*corev1.NodeList)
	if !ok || len(nodes.Items) == 0 {
		return nil, fmt.Errorf("Node %s: not found", name)
	}
	return &nodes.Items[0], nil
}

func (r *nodePoller) signalLookups() {
	if len(r.lookups) == 0 {
		return
	}
	select {
	case r.lookupReady <- struct{}{}:
	default:
	}
}

// observeSlice schedules lookups of the Nodes that a slice names and that are unknown, or known in another zone.
func (r *nodePoller) observeSlice(v *model.EndpointSlice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		return
	}
	for i := range v.Endpoints {
		e := &v.Endpoints[i]
		if e.Node == "" || e.Node == r.source.opt.Node {
			continue
		}
		if n := r.known[e.Node]; n != nil && (e.Zone == "" || e.Zone == n.node.Zone) {
			continue
		}
		if claimed, lookedUp := r.claimedZone[e.Node]; lookedUp && claimed == e.Zone || !lookedUp && len(r.claimedZone) >= maxClaimedZones {
			continue // the API server has no such Node, or has it in another zone
		}
		r.claimedZone[e.Node] = e.Zone
		r.lookups[e.Node] = true
	}
	r.signalLookups()
}

// lookupNext looks up one Node and reports whether there are more.
func (r *nodePoller) lookupNext(ctx context.Context) (more bool) {
	r.mu.Lock()
	var name string
	for name = range r.lookups {
		break
	}
	delete(r.lookups, name)
	more = len(r.lookups) > 0
	r.mu.Unlock()
	if name == "" {
		return false
	}
	l := r.lister
	list, err := r.source.opt.Client.node(name).list(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err = l.record(ctx, err, false, false); err != nil {
		return more // the next list has it
	}
	nodes, ok := list.(*corev1.NodeList)
	if !ok || len(nodes.Items) == 0 {
		return more
	}
	n, err := r.convert(&nodes.Items[0])
	if err != nil {
		return more
	}
	r.mu.Lock()
	if n.node.Zone == r.claimedZone[name] {
		delete(r.claimedZone, name)
	}
	r.known[name] = n
	r.mu.Unlock()
	_ = r.source.otherNodes.Update(&converted[model.Node]{name: model.Name{Name: name}, value: &n.node})
	return more
}

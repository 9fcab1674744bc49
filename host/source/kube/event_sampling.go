package kube

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Limits on Events that every node of a cluster has reason to send. A plugin that fails does so for every Service on
// every node; a few Events are enough.
const (
	reportersPerService = 3                      // nodes that report the same about a Service, on average
	clusterInterval     = 100 * time.Millisecond // between the Events of all nodes; a node's own interval is this times the number of nodes
	minNodeInterval     = time.Second            // between the Events of one node, however small the cluster
	nodeCountTTL        = 30 * time.Minute       // how long the number of nodes is cached
)

// isReporter reports whether this node is one of those that send an Event. Which nodes do depends on the Service, so
// that the load is spread.
func (r *EventRecorder) isReporter(k eventKey, nodes int64) bool {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", r.node, k.service, k.reason)
	// FNV's upper bits differ too little for texts that differ at the end.
	x := h.Sum64()
	x ^= x >> 32
	x *= 0x9e3779b97f4a7c15
	x ^= x >> 29
	return x%uint64(nodes) < reportersPerService
}

// waitForSlot waits until this node may send a sampled Event. It reports false when this node is not to send it.
func (r *EventRecorder) waitForSlot(ctx context.Context, k eventKey) bool {
	nodes, err := r.countNodes(ctx)
	if err != nil {
		r.log.Debug("Event about a Service dropped: the number of Nodes is unknown", "err", err)
		return false
	}
	if !r.isReporter(k, nodes) {
		return false
	}
	now, interval := r.now(), max(minNodeInterval, time.Duration(nodes)*clusterInterval)
	wait := r.nextSampled.Sub(now)
	if wait < 0 {
		wait = rand.N(interval) // so that the nodes do not all send at once
	}
	r.nextSampled = now.Add(wait + interval)
	select {
	case <-ctx.Done():
		return false
	case <-r.after(wait):
		return true
	}
}

// countNodes returns the number of Nodes, from a cache if it is younger than nodeCountTTL.
func (r *EventRecorder) countNodes(ctx context.Context) (int64, error) {
	r.mu.Lock()
	nodes, at := r.nodeCount, r.nodeCountedAt
	r.mu.Unlock()
	if nodes > 0 && r.now().Sub(at) < nodeCountTTL {
		return nodes, nil
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	var list corev1.NodeList
	// A list of one Node, with the number of remaining ones.
	if err := r.client.core.Get().Resource("nodes").VersionedParams(&metav1.ListOptions{Limit: 1}, metav1.ParameterCodec).
		Do(ctx).Into(&list); err != nil {
		return 0, fmt.Errorf("count Nodes: %w", err)
	}
	nodes = int64(len(list.Items))
	if list.RemainingItemCount != nil {
		nodes += *list.RemainingItemCount
	}
	nodes = max(nodes, 1)
	r.mu.Lock()
	r.nodeCount, r.nodeCountedAt = nodes, r.now()
	r.mu.Unlock()
	return nodes, nil
}

package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// Load reads a cluster once, as the given node sees it; the other Nodes and Pods only if a Service needs them. Without a node, it
// reads all Nodes with their labels. on may be nil. The problems are those of objects, in the order of the lists.
func Load(ctx context.Context, c *Client, node string, on NeedsOn) (*model.Snapshot, []source.Problem, error) {
	snap := model.NewSnapshot()
	var annotations serviceAnnotations
	own := c.node(node)
	if node == "" {
		own = c.allNodes()
	}
	problems, err := load(ctx, own, nodeKind(), snap, nil)
	if err != nil {
		return nil, nil, err
	}
	var needs func(*model.Service) Needs
	if on != nil {
		needs = on(snap.Nodes[node])
		annotations.needs.Store(&needs)
	}
	if problems, err = load(ctx, c.services(), serviceKind(&annotations), snap, problems); err != nil {
		return nil, nil, err
	}
	if problems, err = load(ctx, c.slices(), sliceKind(), snap, problems); err != nil {
		return nil, nil, err
	}
	if problems, err = load(ctx, c.serviceCIDRs(), cidrKind(), snap, problems); err != nil {
		return nil, nil, err
	}
	if problems, err = loadRoutes(ctx, c, snap, problems); err != nil {
		return nil, nil, err
	}
	d := demand{needs: needs, nodes: map[model.Name]bool{}}
	for name, v := range snap.Services {
		d.observe(name, v)
	}
	nodes := node == "" || len(d.nodes) > 0
	if nodes && node != "" {
		others := otherNodeKind()
		others.narrow = func(n *model.Node) *model.Node {
			n.Labels = only(n.Labels, d.nodeLabels.wanted, newInterner())
			return n
		}
		if problems, err = load(ctx, c.otherNodes(node), others, snap, problems); err != nil {
			return nil, nil, err
		}
	}
	if labels := d.namespaceLabels.wanted; len(labels) > 0 {
		if problems, err = load(ctx, c.namespaces(), namespaceKind(&labelsToRead{reading: labels}), snap, problems); err != nil {
			return nil, nil, err
		}
	}
	if fields := d.load.wanted; len(fields) > 0 {
		if problems, err = load(ctx, c.endpointLoads(), loadKind(&labelsToRead{reading: fields}), snap, problems); err != nil {
			return nil, nil, err
		}
	}
	snap.Apply(model.Change{Kind: model.NodesPartialKind, Value: !nodes})
	if node != "" {
		snap.Apply(model.Change{Kind: model.NodeLabelsKind, Read: d.nodeLabels.wanted})
	}
	snap.Apply(model.Change{Kind: model.NamespaceLabelsKind, Read: d.namespaceLabels.wanted})
	snap.Apply(model.Change{Kind: model.LoadReadKind, Read: d.load.wanted})
	if problems, err = loadPods(ctx, c, &d.pods, snap, problems); err != nil {
		return nil, nil, err
	}
	snap.Apply(model.Change{Kind: model.Synced})
	return snap, problems, nil
}

// loadPods reads the Pods that Services need.
func loadPods(ctx context.Context, c *Client, d *podDemand, into *model.Snapshot, problems []source.Problem) ([]source.Problem, error) {
	into.Apply(model.Change{Kind: model.PodsOnDemandKind, Value: true})
	merged := mergedPods{pods: map[model.Name]*mergedPod{}}
	var refused error
	for _, ns := range slices.Sorted(maps.Keys(d.services)) {
		state := model.PodsRead
		for _, spec := range podWatchSpecs(ns, d.services[ns], maxSelectors) {
			if refused != nil {
				state = model.PodsUnavailable
				continue // one warning is enough
			}
			w, k := &podWatch{podWatchSpec: spec}, podKind(&spec)
			k.change = func(name model.Name, v *model.Pod) model.Change {
				change, _ := merged.set(w, name, v)
				return change
			}
			before := len(problems)
			var err error
			if problems, err = load(ctx, c.pods(&spec), k, into, problems); err != nil {
				return problems, err
			}
			for _, p := range problems[before:] {
				if errors.Is(p.Err, errContinuing) {
					refused, state = p.Err, model.PodsUnavailable
				}
			}
		}
		for name := range d.services[ns] {
			into.Apply(model.Change{Kind: model.PodsReadKind, Name: name, Pods: state})
		}
	}
	return problems, nil
}

// errContinuing marks the problem of a resource that is not available.
var errContinuing = errors.New("continuing without")

func load[T any](ctx context.Context, r resource, k kind[T], into *model.Snapshot, problems []source.Problem) ([]source.Problem, error) {
	list, err := r.list(ctx, metav1.ListOptions{ResourceVersion: "0"})
	switch {
	case r.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)):
		return append(problems, source.Problem{Err: fmt.Errorf("%w %s: %s: %w", errContinuing, r.name, r.consequence, err), Warning: true}), nil
	case err != nil:
		return problems, fmt.Errorf("list %s: %w", r.name, err)
	}
	objects, err := meta.ExtractList(list)
	if err != nil {
		return problems, fmt.Errorf("list %s: %w", r.name, err)
	}
	s := newInterner()
	for _, o := range objects {
		p, err := k.convert(s, o)
		if err != nil {
			return problems, fmt.Errorf("list %s: %w", r.name, err)
		}
		problems = append(problems, p.problems...)
		if p.value != nil {
			if k.narrow != nil {
				p.value = k.narrow(p.value)
			}
			into.Apply(k.change(p.name, p.value))
		}
	}
	return problems, nil
}

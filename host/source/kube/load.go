package kube

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
)

// Load reads a cluster once, as the given node sees it; the other Nodes only if nodes is set. The problems are those of
// objects, in the order of the lists.
func Load(ctx context.Context, c *Client, node string, nodes bool) (*model.Snapshot, []source.Problem, error) {
	snap := model.NewSnapshot()
	problems, err := load(ctx, c.services(), serviceKind(), snap, nil)
	if err != nil {
		return nil, nil, err
	}
	if problems, err = load(ctx, c.slices(), sliceKind(), snap, problems); err != nil {
		return nil, nil, err
	}
	if problems, err = load(ctx, c.node(node), nodeKind(), snap, problems); err != nil {
		return nil, nil, err
	}
	if problems, err = load(ctx, c.serviceCIDRs(), cidrKind(), snap, problems); err != nil {
		return nil, nil, err
	}
	if nodes {
		if problems, err = load(ctx, c.otherNodes(node), otherNodeKind(), snap, problems); err != nil {
			return nil, nil, err
		}
	}
	snap.Apply(model.Change{Kind: model.NodesKind, Partial: !nodes})
	snap.Apply(model.Change{Kind: model.Synced})
	return snap, problems, nil
}

func load[T any](ctx context.Context, r resource, k kind[T], into *model.Snapshot, problems []source.Problem) ([]source.Problem, error) {
	list, err := r.list(ctx, metav1.ListOptions{ResourceVersion: "0"})
	switch {
	case r.optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err)):
		return append(problems, source.Problem{Err: fmt.Errorf("continuing without %s: %s: %w", r.name, r.consequence, err), Warning: true}), nil
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
			into.Apply(k.change(p.name, p.value))
		}
	}
	return problems, nil
}

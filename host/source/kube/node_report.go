package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
)

// ErrReportRefused: the API server refuses a NodeReport, or does not have the kind.
var ErrReportRefused = errors.New("the API server refuses it")

const reportTimeout = 10 * time.Second

// ReportWriter writes the NodeReport of a node. Its methods may not be called concurrently.
type ReportWriter struct {
	Client *Client
	Node   string
	uid    types.UID // of the Node; "": not known
}

// CountNodes returns how many Nodes the cluster has. It reads one.
func (w *ReportWriter) CountNodes(ctx context.Context) (int, error) {
	list, err := w.nodes(ctx, "limit", "1")
	if err != nil {
		return 0, err
	}
	n := len(list.Items)
	if list.RemainingItemCount != nil {
		n += int(*list.RemainingItemCount)
	}
	return n, nil
}

// WriteReport writes the NodeReport of the node, which its Node owns, by server-side apply: that needs no version of the object.
func (w *ReportWriter) WriteReport(ctx context.Context, r *v1alpha1.Report) error {
	if w.uid == "" {
		list, err := w.nodes(ctx, "fieldSelector", "metadata.name="+w.Node)
		if err != nil {
			return err
		}
		if len(list.Items) == 0 {
			return fmt.Errorf("Node %s: not found", w.Node)
		}
		w.uid = list.Items[0].UID
	}
	body, err := json.Marshal(&v1alpha1.NodeReport{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.NodeReportKind},
		ObjectMeta: metav1.ObjectMeta{
			Name: w.Node, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: w.Node, UID: w.uid}},
		},
		Report: *r,
	})
	if err != nil {
		return fmt.Errorf("NodeReport %s: %w", w.Node, err)
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err = w.Client.sluice.Patch(types.ApplyPatchType).Resource("nodereports").Name(w.Node).
		Param("fieldManager", "sluice").Param("force", "true").Body(body).Do(ctx).Error()
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		w.uid = "" // the Node may be another one now
		return fmt.Errorf("NodeReport %s: %w: %w", w.Node, ErrReportRefused, err)
	}
	return fmt.Errorf("NodeReport %s: %w", w.Node, err)
}

// nodes lists Nodes with a parameter.
func (w *ReportWriter) nodes(ctx context.Context, parameter, value string) (*corev1.NodeList, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	list := &corev1.NodeList{}
	if err := w.Client.core.Get().Resource("nodes").Param(parameter, value).Do(ctx).Into(list); err != nil {
		return nil, fmt.Errorf("list Nodes with %s=%s: %w", parameter, value, err)
	}
	return list, nil
}

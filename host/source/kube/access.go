package kube

import (
	"context"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Refused returns the verbs that the API server refuses to this client for a resource of the core, in all namespaces, of those
// that sluice needs to read it: list and watch. Roles of single namespaces do not count.
func (c *Client) Refused(ctx context.Context, resource string) (refused []string, err error) {
	for _, verb := range []string{"list", "watch"} {
		review := authorizationv1.SelfSubjectAccessReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
			Spec:     authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Resource: resource, Verb: verb}},
		}
		if err := c.createReview(ctx, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review); err != nil {
			return nil, err
		}
		if !review.Status.Allowed {
			refused = append(refused, verb)
		}
	}
	return refused, nil
}

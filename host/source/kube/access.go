package kube

import (
	"context"
	"encoding/json"
	"fmt"
)

// accessReview is a SelfSubjectAccessReview, which all clients may create.
type accessReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		ResourceAttributes struct {
			Resource string `json:"resource"`
			Verb     string `json:"verb"`
		} `json:"resourceAttributes"`
	} `json:"spec"`
	Status struct {
		Allowed bool `json:"allowed"`
	} `json:"status"`
}

// RefusedForPods returns the verbs that the API server refuses to this client for the Pods of all namespaces, of those that sluice needs
// to read them: list and watch. Roles of single namespaces do not count.
func (c *Client) RefusedForPods(ctx context.Context) (refused []string, err error) {
	for _, verb := range []string{"list", "watch"} {
		review := accessReview{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"}
		review.Spec.ResourceAttributes.Resource, review.Spec.ResourceAttributes.Verb = "pods", verb
		body, err := json.Marshal(&review)
		if err != nil {
			return nil, err
		}
		answer, err := c.core.Post().AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").
			SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(body).Do(ctx).Raw()
		if err != nil {
			return nil, fmt.Errorf("create a SelfSubjectAccessReview: %w", err)
		}
		review.Status.Allowed = false
		if err := json.Unmarshal(answer, &review); err != nil {
			return nil, fmt.Errorf("decode a SelfSubjectAccessReview: %w", err)
		}
		if !review.Status.Allowed {
			refused = append(refused, verb)
		}
	}
	return refused, nil
}

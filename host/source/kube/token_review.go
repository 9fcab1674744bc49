package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Errors of AuthorizeServiceReader.
var (
	ErrUnauthenticated = errors.New("the API server does not accept the token")
	ErrForbidden       = errors.New("must be allowed to list Services in all namespaces")
)

// AuthorizeServiceReader returns nil if a token is valid for an audience and its user may list the Services of all namespaces, an
// error that wraps ErrUnauthenticated or ErrForbidden if not, and another error if the API server does not answer. It needs the
// permissions of the ClusterRole system:auth-delegator.
func (c *Client) AuthorizeServiceReader(ctx context.Context, token, audience string) error {
	review := authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"},
		Spec:     authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{audience}},
	}
	if err := c.createReview(ctx, "/apis/authentication.k8s.io/v1/tokenreviews", &review); err != nil {
		return err
	}
	// An authenticator that knows no audiences returns none: its tokens are valid for every audience, also this one, and are
	// refused.
	if !review.Status.Authenticated || !slices.Contains(review.Status.Audiences, audience) {
		return ErrUnauthenticated
	}
	user := &review.Status.User
	access := authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: "services"},
		},
	}
	for k, v := range user.Extra {
		access.Spec.Extra[k] = authorizationv1.ExtraValue(v)
	}
	if err := c.createReview(ctx, "/apis/authorization.k8s.io/v1/subjectaccessreviews", &access); err != nil {
		return err
	}
	if !access.Status.Allowed {
		return fmt.Errorf("%s %w", user.Username, ErrForbidden)
	}
	return nil
}

// createReview creates a review, and reads the answer into it.
func (c *Client) createReview(ctx context.Context, path string, review any) error {
	body, err := json.Marshal(review)
	if err != nil {
		return err
	}
	answer, err := c.core.Post().AbsPath(path).SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(body).Do(ctx).Raw()
	if err != nil {
		return fmt.Errorf("create a review: POST %s: %w", path, err)
	}
	if err := json.Unmarshal(answer, review); err != nil {
		return fmt.Errorf("POST %s: decode the answer: %w", path, err)
	}
	return nil
}

package kube

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
)

func TestRefusedForPodsAsksForEachVerb(t *testing.T) {
	for _, test := range []struct {
		allowed, want []string
		status        int
	}{
		{allowed: []string{"list", "watch"}},
		{allowed: []string{"list"}, want: []string{"watch"}},
		{want: []string{"list", "watch"}},
		{status: http.StatusForbidden},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var review authorizationv1.SelfSubjectAccessReview
			err := json.NewDecoder(r.Body).Decode(&review)
			if err != nil || r.URL.Path != "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" || r.Method != http.MethodPost ||
				review.Kind != "SelfSubjectAccessReview" || review.Spec.ResourceAttributes.Resource != "pods" {
				t.Errorf("%s %s: %+v, %v", r.Method, r.URL, review, err)
			}
			w.Header().Set("Content-Type", "application/json")
			if test.status != 0 {
				w.WriteHeader(test.status)
				return
			}
			review.Status.Allowed = slices.Contains(test.allowed, review.Spec.ResourceAttributes.Verb)
			_ = json.NewEncoder(w).Encode(review)
		}))
		c, err := Connect(Connection{Server: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		refused, err := c.Refused(t.Context(), "pods")
		if !slices.Equal(refused, test.want) || (err != nil) != (test.status != 0) {
			t.Errorf("%+v: %v, %v", test, refused, err)
		}
		server.Close()
	}
}

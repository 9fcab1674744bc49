package kube

import (
	"errors"
	"net/http"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// isTransient reports whether the same request may succeed later.
func isTransient(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // a network error
	}
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return false // the server was restored from a backup
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	default:
		return code >= http.StatusInternalServerError
	}
}

// retriableError makes a reflector retry its watch from the last resource version. client-go does that only after a
// refused connection; after any other failure it lists everything again.
type retriableError struct{ error }

// Unwrap returns the error that reflectors look for first, as the cause may contain another errno.
func (m retriableError) Unwrap() []error { return []error{syscall.ECONNREFUSED, m.error} }

package kube

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// maxReason bounds what is told of what a server says, bytes: proxies answer with whole pages.
const maxReason = 320

// shortError is an error in one line: without the address, which is told beside it, and without the pages that some servers
// answer with.
func shortError(err error) string {
	var at *url.Error
	if errors.As(err, &at) {
		err = at.Err
	}
	text := err.Error()
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		text = fmt.Sprintf("%d %s: %s", status.Status().Code, http.StatusText(int(status.Status().Code)), status.Status().Message)
		if apierrors.IsUnauthorized(err) {
			text += " (does it know the token or the certificate?)"
		}
	}
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if len(text) > maxReason {
		text = truncate(text, maxReason) + "…"
	}
	return text
}

// statusClass is what reasons of one sort have in common: an answer's status, or that there is none.
func statusClass(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return fmt.Sprint(status.Status().Code)
	}
	return ""
}

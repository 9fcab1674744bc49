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

// maxShortError limits the length of a reason, in bytes: proxies respond with whole HTML pages.
const maxShortError = 320

// shortError formats an error of an API request as one line, without the URL (the log line has the server) and with
// long response bodies cut.
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
			text += " (is the token or the client certificate valid for this server?)"
		}
	}
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if len(text) > maxShortError {
		text = truncate(text, maxShortError) + "…"
	}
	return text
}

// statusClass is what failures that are logged once have in common: the HTTP status, "" without a response.
func statusClass(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return fmt.Sprint(status.Status().Code)
	}
	return ""
}

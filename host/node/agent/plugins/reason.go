package plugins

import (
	"errors"
	"slices"
)

// Reasons for which a plugin is not in force as it is registered.
const (
	Pulling          = "Pulling" // or loading: nothing has failed
	PullFailed       = "PullFailed"
	ReadFailed       = "ReadFailed"
	SignatureInvalid = "SignatureInvalid"
	DigestMismatch   = "DigestMismatch"
	SelfTestFailed   = "SelfTestFailed"
	SettingsRefused  = "SettingsRefused"
)

// Reason returns why a plugin is not in force, in a word, given Status.Err.
func Reason(err error) string {
	var r reasonError
	switch {
	case errors.As(err, &r):
		return r.reason
	case errors.As(err, new(settingsError)):
		return SettingsRefused
	}
	return SelfTestFailed
}

// OnlyLoading reports whether an error of Load says only that plugins are being pulled or loaded, and none has failed.
func OnlyLoading(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !OnlyLoading(err) })
	}
	return Reason(err) == Pulling
}

// because gives an error a reason, unless it has one.
func because(reason string, err error) error {
	if err == nil || errors.As(err, new(reasonError)) {
		return err
	}
	return reasonError{err, reason}
}

type reasonError struct {
	error
	reason string
}

func (e reasonError) Unwrap() error { return e.error }

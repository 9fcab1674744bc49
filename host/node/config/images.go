package config

import (
	"slices"

	"github.com/sluice-proxy/sluice/host/plugin/imageref"
)

// UnpinnedError is the error of an image without a digest.
type UnpinnedError struct {
	*imageref.TagError
	Images *PluginImages // of the file: how to ask for the digest
}

// Unwrap returns the error of the reference.
func (e *UnpinnedError) Unwrap() error { return e.TagError }

// Unpinned returns the images without a digest of an error of Load.
func Unpinned(err error) (out []*UnpinnedError) {
	switch e := err.(type) {
	case *UnpinnedError:
		return []*UnpinnedError{e}
	case interface{ Unwrap() error }:
		return Unpinned(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			out = append(out, Unpinned(err)...)
		}
	}
	return out
}

// Images returns the images of the plugins that policies use, each once, in the order of the plugins.
func (c *Config) Images() (out []imageref.Ref) {
	for _, p := range c.Plugins {
		if !p.Image.IsZero() && !slices.Contains(out, p.Image) && c.uses(p.Name) {
			out = append(out, p.Image)
		}
	}
	return out
}

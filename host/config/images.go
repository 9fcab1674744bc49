package config

import (
	"fmt"
	"slices"

	"github.com/sluice-proxy/sluice/host/imageref"
)

// Bounds of pluginImages.cacheMiB, which has room for the largest module, and of the registries in plainHTTP.
const minCacheMiB, maxCacheMiB, maxPlainHTTP = 17, 65536, 64

func (p *parser) pluginImages(e *imagesEntry, into *PluginImages) {
	if n := e.CacheMiB; n != nil {
		if *n < minCacheMiB || *n > maxCacheMiB {
			p.errorf("pluginImages.cacheMiB", "%d is not between %d and %d", *n, minCacheMiB, maxCacheMiB)
		}
		into.CacheMiB = int(*n)
	}
	if e.DockerConfig != "" {
		into.DockerConfig = p.path(e.DockerConfig)
	}
	if e.CAFile != "" {
		into.CAFile = p.path(e.CAFile)
	}
	if len(e.PlainHTTP) > maxPlainHTTP {
		p.errorf("pluginImages.plainHTTP", "%d registries, the limit is %d", len(e.PlainHTTP), maxPlainHTTP)
		return
	}
	for i, name := range e.PlainHTTP {
		at := fmt.Sprintf("pluginImages.plainHTTP[%d]", i)
		switch {
		case !imageref.IsRegistry(name):
			p.errorf(at, "%.300q is not a registry, such as registry.lab:5000", name)
		case slices.Contains(into.PlainHTTP, name):
			p.errorf(at, "%q: duplicate", name)
		default:
			into.PlainHTTP = append(into.PlainHTTP, name)
		}
	}
}

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

package main

import (
	"context"
	"time"

	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
)

// Bounds of warnOfTags: images, and the time for all of them.
const (
	maxTags    = 10
	tagTimeout = 30 * time.Second
)

// warnOfTags asks registries for the digests that are missing in a configuration, and prints what to write.
func warnOfTags(ctx context.Context, file string, err error) {
	ctx, cancel := context.WithTimeout(ctx, tagTimeout)
	defer cancel()
	for i, image := range config.Unpinned(err) {
		if i == maxTags {
			return
		}
		ref, err := plugins.ResolveTag(ctx, image)
		if err != nil {
			warn(file + ": the digest is not known: " + err.Error())
			continue
		}
		warn(file + ": write " + ref.String())
	}
}

package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/controller"
	"github.com/sluice-proxy/sluice/host/node/agent/plugins"
	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
)

// readModules reads modules as nodes do.
func readModules(images *config.PluginImages) controller.ReadModule {
	return func(ctx context.Context, source *v1alpha1.PluginSource, key string) (module []byte, reason string, err error) {
		switch {
		case source.Bundled != nil:
			module, err = plugins.ReadModuleFile(filepath.Join(config.BundledDir, source.Bundled.Name+".wasm"))
			if err != nil {
				return nil, plugins.ReadFailed, fmt.Errorf("there is no bundled plugin %.63q: %w", source.Bundled.Name, err)
			}
			return module, "", nil
		case source.Image != nil:
			var ref imageref.Ref
			if ref, err = imageref.Parse(source.Image.Ref); err == nil {
				module, err = plugins.PullVerified(ctx, images, ref, key)
			}
		}
		if err != nil {
			return nil, plugins.Reason(err), err
		}
		return module, "", nil
	}
}

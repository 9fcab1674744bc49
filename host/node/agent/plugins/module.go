package plugins

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/plugin/registry"
)

// readModule reads the module of a plugin, and verifies its digest.
func (s *Set) readModule(ctx context.Context, cfg *config.Config, spec config.Plugin) (module []byte, digest string, err error) {
	if spec.Image.IsZero() {
		module, err = ReadModuleFile(spec.File)
		err = because(ReadFailed, err)
	} else {
		module, err = s.images.read(ctx, cfg, spec.Image)
		err = because(PullFailed, err)
	}
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(module)
	digest = "sha256:" + hex.EncodeToString(sum[:])
	if spec.Digest != "" && spec.Digest != digest {
		return nil, "", because(DigestMismatch, fmt.Errorf("%s: digest is %s, configured is %s", cmp.Or(spec.File, spec.Image.String()), digest, spec.Digest))
	}
	return module, digest, nil
}

// MaxModule bounds the size of a module, in bytes. The loader has stricter limits of its own.
const MaxModule = registry.MaxModule

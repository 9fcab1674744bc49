package plugins

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/sluice-proxy/sluice/host/config"
)

// readModule reads the module file of a plugin and verifies its digest.
func readModule(spec config.Plugin) (module []byte, digest string, err error) {
	info, err := os.Stat(spec.File)
	if err == nil && info.Size() > MaxModule {
		return nil, "", fmt.Errorf("%s: %d bytes exceed the limit of %d", spec.File, info.Size(), MaxModule)
	}
	if err == nil {
		module, err = os.ReadFile(spec.File)
	}
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(module)
	digest = "sha256:" + hex.EncodeToString(sum[:])
	if spec.Digest != "" && spec.Digest != digest {
		return nil, "", fmt.Errorf("%s: digest is %s, configured is %s", spec.File, digest, spec.Digest)
	}
	return module, digest, nil
}

// MaxModule bounds the size of a module file, in bytes. The loader has stricter limits of its own.
const MaxModule = 16 << 20

package plugins

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/sluice-proxy/sluice/host/config"
	"github.com/sluice-proxy/sluice/host/safefile"
)

// readModule reads the module file of a plugin and verifies its digest.
func readModule(spec config.Plugin) (module []byte, digest string, err error) {
	if module, err = safefile.Read(spec.File, MaxModule); err != nil {
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

package plugins

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/sluice-proxy/sluice/host/config"
)

// readModule reads a plugin's file and checks its digest.
func readModule(spec config.Plugin) (module []byte, digest string, err error) {
	info, err := os.Stat(spec.File)
	if err == nil && info.Size() > MaxModule {
		return nil, "", fmt.Errorf("%s: %d bytes: a module may have %d", spec.File, info.Size(), MaxModule)
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
		return nil, "", fmt.Errorf("%s: its digest is %s, the configuration asks for %s", spec.File, digest, spec.Digest)
	}
	return module, digest, nil
}

// MaxModule bounds what is read of a file before the loader looks at it; the loader has limits of its own.
const MaxModule = 16 << 20

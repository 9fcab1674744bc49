package agent

import (
	"fmt"

	"github.com/sluice-proxy/sluice/host/util/safefile"
)

// DefaultCheckpoint is the path of the checkpoint file if none is configured. A reboot deletes it along with the kernel
// state that it describes.
const DefaultCheckpoint = "/run/sluice/checkpoint.json"

// maxCheckpoint bounds the size of a checkpoint: more than a hundred bytes for each of a million endpoints.
const maxCheckpoint = 256 << 20

// checkpointFile is the path of a checkpoint. It implements engine.Checkpoint.
type checkpointFile string

// Load implements engine.Checkpoint.
func (f checkpointFile) Load() ([]byte, error) {
	text, err := safefile.ReadPrivate(string(f), maxCheckpoint)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return text, nil
}

// Store implements engine.Checkpoint. Readers see the old file or the new one.
func (f checkpointFile) Store(text []byte) error {
	if err := safefile.Replace(string(f), text); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

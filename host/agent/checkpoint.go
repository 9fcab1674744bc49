package agent

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
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
	r, err := os.OpenFile(string(f), os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a FIFO would wait for a writer
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	defer r.Close()
	info, err := r.Stat()
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("checkpoint: %s is not a regular file", f)
	}
	tooLarge := fmt.Errorf("checkpoint: %s is larger than %d MiB", f, maxCheckpoint>>20)
	if info.Size() > maxCheckpoint {
		return nil, tooLarge
	}
	text, err := io.ReadAll(io.LimitReader(r, maxCheckpoint+1))
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if len(text) > maxCheckpoint {
		return nil, tooLarge
	}
	return text, nil
}

// Store implements engine.Checkpoint. Readers see the old file or the new one. There is no fsync: a power failure may
// lose it. A partly written file is removed, so that it does not fill up a full disk.
func (f checkpointFile) Store(text []byte) error {
	if err := os.MkdirAll(filepath.Dir(string(f)), 0o755); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	temp := string(f) + ".new"
	err := os.WriteFile(temp, text, 0o600)
	if err == nil {
		err = os.Rename(temp, string(f))
	}
	if err != nil {
		_ = os.Remove(temp)
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

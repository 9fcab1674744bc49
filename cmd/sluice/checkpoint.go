package main

import (
	"fmt"
	"os"
	"path/filepath"
)

const defaultCheckpoint = "/run/sluice/checkpoint.json"

// checkpointFile keeps the engine's checkpoint. It implements engine.Checkpoint.
type checkpointFile string

// Load implements engine.Checkpoint.
func (f checkpointFile) Load() ([]byte, error) { return os.ReadFile(string(f)) }

// Store implements engine.Checkpoint. A reader sees the old file or the new one; a lost power supply may cost it.
func (f checkpointFile) Store(text []byte) error {
	if err := os.MkdirAll(filepath.Dir(string(f)), 0o755); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	temp := string(f) + ".new"
	if err := os.WriteFile(temp, text, 0o600); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if err := os.Rename(temp, string(f)); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

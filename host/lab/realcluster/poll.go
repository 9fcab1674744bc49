package realcluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// patience is how long each step of a start may take on a slow machine.
const patience = 3 * time.Minute

// poll calls f until it returns no error.
func poll(ctx context.Context, what string, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, errors.Join(err, ctx.Err()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

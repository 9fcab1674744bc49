package agent

import (
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/host/backend/nftables/writerlock"
)

// LockDataPlane makes this process the only sluice that writes to the data plane of this network namespace: two would
// undo each other's changes forever.
func LockDataPlane() (unlock func(), err error) {
	unlock, err = writerlock.Acquire(0)
	var held *writerlock.HeldError
	switch {
	case errors.As(err, &held):
		return nil, fmt.Errorf("another sluice is running on this node (%s); stop it first", held.Holder)
	case err != nil:
		return nil, fmt.Errorf("lock the data plane: %w", err)
	}
	return unlock, nil
}

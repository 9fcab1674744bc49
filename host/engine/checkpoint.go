package engine

import (
	"bytes"
	"errors"
	"io/fs"
	"time"

	"github.com/sluice-proxy/sluice/host/core/policy"
)

// checkpointState is what the engine knows about the stored checkpoint.
type checkpointState struct {
	dirty    bool // something was planned since the last save
	stored   []byte
	nextSave time.Time
}

// A save follows a change within saveDelay. Saving takes at most 1/saveShare of the time.
const (
	saveDelay = time.Second
	saveShare = 50
)

// restore loads the checkpoint and reports whether it is usable. Without one, every endpoint counts as first seen now:
// drains start over, and none is cut short.
func (e *Engine) restore() bool {
	if e.Checkpoint == nil {
		return false
	}
	data, err := e.Checkpoint.Load()
	if errors.Is(err, fs.ErrNotExist) {
		e.Log.Info("no checkpoint: first start, or drains in progress start over", "err", err)
		return false
	}
	var epoch policy.Epoch
	var sameBoot bool
	if err == nil {
		epoch, sameBoot, err = e.Planner.Restore(data, newEpoch(e.clock.read()))
	}
	if err != nil {
		e.Log.Warn("checkpoint is unusable: drains in progress start over", "err", err)
		return false
	}
	if e.clock.epoch, e.clock.started = epoch, sameBoot; !sameBoot {
		e.Log.Info("the checkpoint was written before the machine was booted: drains in progress start over")
	}
	e.checkpoint.stored = data
	return true
}

// save stores the checkpoint if a save is due and returns when the next one is, zero if none is. A zero now forces a
// save of unsaved state.
func (e *Engine) save(now time.Time) time.Time {
	c := &e.checkpoint
	if e.Checkpoint == nil || !c.dirty || !e.Planner.Synced() {
		return time.Time{}
	}
	if !now.IsZero() {
		if c.nextSave.IsZero() {
			c.nextSave = now.Add(saveDelay)
		}
		if now.Before(c.nextSave) {
			return c.nextSave
		}
	}
	c.dirty, c.nextSave = false, time.Time{}
	start := time.Now()
	data, err := e.Planner.Save(e.clock.epoch)
	defer func() {
		e.Observer.OnEvent(Event{Kind: CheckpointSaved, At: start, Duration: time.Since(start), Omitted: e.Planner.OmittedStates(), Err: err})
	}()
	if err == nil && bytes.Equal(data, c.stored) {
		return time.Time{}
	}
	if err == nil {
		err = e.Checkpoint.Store(data)
	}
	if err != nil {
		e.Log.Warn("writing the checkpoint failed: after a restart, drains in progress start over", "err", err)
		return time.Time{}
	}
	c.stored = data
	if took := time.Since(start); took*saveShare > saveDelay {
		c.nextSave = start.Add(took * saveShare)
	}
	return time.Time{}
}

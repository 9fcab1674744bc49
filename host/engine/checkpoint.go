package engine

import (
	"bytes"
	"errors"
	"io/fs"
	"time"
)

// memory is what the engine knows of the checkpoint.
type memory struct {
	touched bool // something was planned since the last save
	stored  []byte
	notYet  time.Time // no save before this time
}

// A save follows a change within saveAfter, but takes no more than one part in saveShare of the time.
const (
	saveAfter = time.Second
	saveShare = 50
)

// restore takes the checkpoint in. When it is missing or damaged, that is said, and every endpoint counts as first
// seen now: a drain starts over, and nothing is ever cut short. It tells whether there was a checkpoint to use.
func (e *Engine) restore() bool {
	if e.Checkpoint == nil {
		return false
	}
	text, err := e.Checkpoint.Load()
	if errors.Is(err, fs.ErrNotExist) {
		e.Log.Info("no checkpoint: a first start, or drains that were under way begin anew", "err", err)
		return false
	}
	if err == nil {
		err = e.Planner.Restore(text)
	}
	if err != nil {
		e.Log.Warn("the checkpoint cannot be used: drains that were under way begin anew", "err", err)
		return false
	}
	e.memory.stored = text
	return true
}

// save stores the checkpoint when it is time to and gives the time of the next save, zero for none. A zero now saves
// whatever has not been saved.
func (e *Engine) save(now time.Time) time.Time {
	m := &e.memory
	if e.Checkpoint == nil || !m.touched || !e.Planner.Synced() {
		return time.Time{}
	}
	if !now.IsZero() {
		if m.notYet.IsZero() {
			m.notYet = now.Add(saveAfter)
		}
		if now.Before(m.notYet) {
			return m.notYet
		}
	}
	m.touched, m.notYet = false, time.Time{}
	start := time.Now()
	text, err := e.Planner.Save()
	defer func() {
		e.Observer.OnEvent(Event{Kind: CheckpointSaved, At: start, Duration: time.Since(start), Err: err})
	}()
	if err == nil && bytes.Equal(text, m.stored) {
		return time.Time{}
	}
	if err == nil {
		err = e.Checkpoint.Store(text)
	}
	if err != nil {
		e.Log.Warn("the checkpoint was not written: a restart will begin drains anew", "err", err)
		return time.Time{}
	}
	m.stored = text
	if took := time.Since(start); took*saveShare > saveAfter {
		m.notYet = start.Add(took * saveShare)
	}
	return time.Time{}
}

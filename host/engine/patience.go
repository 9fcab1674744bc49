package engine

import "time"

// patience is how long a restart waits for Options.Ready.
const patience = time.Second

// waits gives until when the first step is put off, zero for not any more. After a restart nothing is urgent: the data
// plane holds the last plan. Without plugins the first plan would be made of decisions as old as the checkpoint.
func (e *Engine) waits(now time.Time) time.Time {
	if e.PluginsReady == nil {
		return time.Time{}
	}
	select {
	case <-e.PluginsReady:
	default:
		if now.Before(e.readyBy) {
			return e.readyBy
		}
	}
	e.PluginsReady = nil // the loop listens to it no more
	return time.Time{}
}

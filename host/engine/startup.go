package engine

import "time"

// pluginWait is how long a restart waits for Options.PluginsReady.
const pluginWait = time.Second

// startupDelay returns until when the first step is delayed, zero if it is not. A restart is not urgent, because the
// data plane still has the last plan. Without plugins, the first plan would use decisions as old as the checkpoint.
func (e *Engine) startupDelay(now time.Time) time.Time {
	if e.PluginsReady == nil {
		return time.Time{}
	}
	select {
	case <-e.PluginsReady:
	default:
		if now.Before(e.startupDeadline) {
			return e.startupDeadline
		}
	}
	e.PluginsReady = nil // stop selecting on it
	return time.Time{}
}

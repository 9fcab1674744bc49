package agent

import (
	"sync"

	"github.com/sluice-proxy/sluice/host/engine"
)

// onFirstSync starts tasks once, when the data plane has everything that was planned.
type onFirstSync struct {
	engine.Observers // none: the other methods do nothing
	start            func(task func())
	tasks            []func()
	once             sync.Once
}

// OnApply implements engine.Observer.
func (f *onFirstSync) OnApply(r *engine.ApplyResult) {
	if r.Synced {
		f.once.Do(func() {
			for _, task := range f.tasks {
				f.start(task)
			}
		})
	}
}

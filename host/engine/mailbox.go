package engine

import (
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/model"
)

// mailbox takes changes from the source without ever making it wait; what comes while the engine is at work is taken
// in one go. A later change of an object replaces an earlier one, so that a burst is no larger than the cluster.
type mailbox struct {
	mu      sync.Mutex
	changes []model.Change
	index   map[changeKey]int
	ready   chan struct{}
	watch   Observer
}

type changeKey struct {
	kind model.Kind
	name model.Name
}

func newMailbox(watch Observer) *mailbox {
	return &mailbox{index: map[changeKey]int{}, ready: make(chan struct{}, 1), watch: watch}
}

func (m *mailbox) put(changes []model.Change) {
	if len(changes) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watch.OnEnqueue(changes, time.Now())
	for _, c := range changes {
		k := changeKey{c.Kind, c.Name}
		if i, ok := m.index[k]; ok {
			m.changes[i] = c
			continue
		}
		m.index[k] = len(m.changes)
		m.changes = append(m.changes, c)
	}
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

func (m *mailbox) take() []model.Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.changes) == 0 {
		return nil
	}
	m.watch.OnDequeue()
	out := m.changes
	m.changes = nil
	m.index = map[changeKey]int{} // not clear: that costs as much as the map was ever large
	return out
}

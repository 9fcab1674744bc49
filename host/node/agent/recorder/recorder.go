// Package recorder writes what the engine's planner is given to files, beside the engine: see host/whatif/recording for their
// format.
package recorder

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/outcomes"
	"github.com/sluice-proxy/sluice/host/engine"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
)

// Options of a Recorder.
type Options struct {
	File string
	// MaxBytes is the size from which a new file is begun; the one before is renamed to File.1, that to File.2, and so on. Files
	// is how many there are at most.
	MaxBytes int64
	Files    int
	Header   recording.Header
	Log      *slog.Logger
}

// Recorder implements engine.Recorder. The engine never waits for it: what cannot be written in time is dropped, and the
// recording goes on with the whole cluster state.
type Recorder struct {
	opts    Options
	wake    chan struct{}
	done    chan struct{} // closed by Close
	ended   chan struct{} // closed when the writer has ended
	close   func()
	maximum int // of queued, see maxQueued

	mu     sync.Mutex
	items  []item
	queued int // what items hold: changes, and endpoints of readings
	// behind: from here on changes are only kept by object, until the writer takes them. That is so at the beginning too.
	behind  bool
	pending []model.Change
	index   map[object]int
	at      time.Time // of the last change; zero: the initial state is not complete
	lost    uint64    // items since behind, without those of the initial state
	keep    recording.Keep
	failed  bool
	stats   Stats
}

// Stats is the state of a recording.
type Stats struct {
	File    string
	Bytes   int64  // written by this process, to all files
	Dropped uint64 // changes and readings that could not be written in time
	Err     error  // why the recording has ended; nil: it has not
}

// item is what the engine has passed at one time.
type item struct {
	at      time.Time
	changes []model.Change
	reading *engine.OutcomeReading
	open    map[model.EndpointKey]uint32
	counted bool // open is valid; nil: not counted any more
}

type object struct {
	kind model.Kind
	name model.Name
}

// maxQueued bounds the queue: changes, and endpoints of readings.
const maxQueued = 1 << 17

// flushInterval is how much of a recording is lost at most if the process is killed.
const flushInterval = 5 * time.Second

// New checks where the files will be, and starts the writer.
func New(o Options) (*Recorder, error) {
	f, err := openFiles(o)
	if err != nil {
		return nil, err
	}
	r := newRecorder(o)
	go func() {
		defer close(r.ended)
		w := &writer{recorder: r, files: f}
		w.run()
	}()
	return r, nil
}

func newRecorder(o Options) *Recorder {
	r := &Recorder{
		opts: o, wake: make(chan struct{}, 1), done: make(chan struct{}), ended: make(chan struct{}), maximum: maxQueued,
		behind: true, index: map[object]int{}, stats: Stats{File: o.File},
	}
	r.close = sync.OnceFunc(func() { close(r.done) })
	return r
}

// Close writes what is queued and closes the file.
func (r *Recorder) Close() {
	r.close()
	<-r.ended
}

// Stats returns the state of the recording.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// SetKeep sets which values of Pods and Services are recorded from now on.
func (r *Recorder) SetKeep(k recording.Keep) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep = k
}

// OnChanges implements engine.Recorder.
func (r *Recorder) OnChanges(at time.Time, changes []model.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.put(item{at: at, changes: changes}, len(changes)) {
		for _, c := range changes {
			k := object{c.Kind, c.Name}
			if i, ok := r.index[k]; ok {
				r.pending[i] = c
				continue
			}
			r.index[k] = len(r.pending)
			r.pending = append(r.pending, c)
		}
		if !at.IsZero() {
			r.at = at
			r.signal()
		}
	}
}

// OnOutcomes implements engine.Recorder.
func (r *Recorder) OnOutcomes(o engine.OutcomeReading) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(item{at: o.At, reading: &o}, 1+len(o.Counters))
}

// OnConnections implements engine.Recorder.
func (r *Recorder) OnConnections(at time.Time, count map[model.EndpointKey]uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(item{at: at, open: count, counted: true}, 1+len(count))
}

// put queues an item of some size. It reports whether the item needs nothing else: it is queued, or the recording has ended.
func (r *Recorder) put(i item, size int) bool {
	if r.failed {
		return true
	}
	if !r.behind && r.queued+size > r.maximum {
		r.behind = true
	}
	if r.behind {
		if !r.at.IsZero() {
			n := uint64(max(1, len(i.changes)))
			r.lost += n
			r.stats.Dropped += n
		}
		return false
	}
	r.items = append(r.items, i)
	r.queued += size
	r.signal()
	return true
}

func (r *Recorder) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// batch is what the writer takes from the queue.
type batch struct {
	items []item
	// behind: then the changes, of which lost items were not queued, at the time at.
	behind  bool
	changes []model.Change
	at      time.Time
	lost    uint64
	keep    recording.Keep
}

// take empties the queue.
func (r *Recorder) take() batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := batch{items: r.items, keep: r.keep}
	r.items, r.queued = nil, 0
	if r.behind && !r.at.IsZero() {
		b.behind, b.changes, b.at, b.lost = true, r.pending, r.at, r.lost
		r.behind, r.pending, r.index, r.lost = false, nil, map[object]int{}, 0
	}
	return b
}

// fail ends the recording.
func (r *Recorder) fail(err error) {
	r.mu.Lock()
	r.failed, r.stats.Err = true, err
	r.items, r.pending, r.index = nil, nil, nil
	r.mu.Unlock()
	r.opts.Log.Error("the recording has ended; sluice goes on without it", "file", r.opts.File, "err", err)
}

// written adds to the bytes that have been written.
func (r *Recorder) written(n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Bytes += n
}

// readingOf converts a reading.
func readingOf(o *engine.OutcomeReading) *recording.Reading {
	out := &recording.Reading{Interval: o.Interval}
	switch o.Stage {
	case engine.CountersRead:
		out.Kind = recording.Read
		out.Counters = make(map[model.EndpointKey]outcomes.Counters, len(o.Counters))
		for k, c := range o.Counters {
			out.Counters[k] = outcomes.Counters(c)
		}
	case engine.CountingBegun:
		out.Kind = recording.Begun
	case engine.CountingStopped:
		out.Kind = recording.Stopped
	case engine.CountersRebased:
		out.Kind = recording.Rebased
	}
	return out
}

var errTooLarge = errors.New("the cluster state alone takes more than half of the maximum size of a file (--record-size)")

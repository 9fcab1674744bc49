package recorder

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/whatif/recording"
)

// writer writes what is queued, in a goroutine of its own.
type writer struct {
	recorder *Recorder
	files    *files
	encoder  *recording.Encoder // nil: the initial state is not complete
	cluster  *model.Snapshot    // of encoder
	keep     recording.Keep
	size     int64 // of the current file, as of the last call of Recorder.written
	// at is the time of the last item, by the planner's clock, and seen when it was taken, by the runtime's.
	at, seen time.Time
}

// run writes until the recorder is closed or an error occurs.
func (w *writer) run() {
	defer w.files.close()
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for {
		closing, flush := false, false
		select {
		case <-w.recorder.wake:
		case <-tick.C:
			flush = true
		case <-w.recorder.done:
			closing = true
		}
		err := w.write(w.recorder.take())
		if err == nil && flush && w.encoder != nil {
			err = w.encoder.Flush(w.now())
		}
		if err == nil && closing && w.encoder != nil {
			err = w.encoder.Close(w.now())
		}
		w.count()
		if err != nil {
			w.recorder.fail(err)
			return
		}
		if closing {
			return
		}
	}
}

// now returns the time by the planner's clock.
func (w *writer) now() time.Time { return w.at.Add(time.Since(w.seen)) }

// write writes a batch.
func (w *writer) write(b batch) error {
	for i := range b.items {
		if err := w.item(&b.items[i]); err != nil {
			return err
		}
	}
	if b.behind {
		if err := w.state(&b); err != nil {
			return err
		}
	} else if w.encoder != nil && !w.keep.Equal(&b.keep) {
		w.keep = b.keep
		if err := w.encoder.State(w.now(), b.keep, 0); err != nil {
			return err
		}
	}
	w.count()
	if w.encoder != nil && w.size > w.recorder.opts.MaxBytes {
		return w.rotate()
	}
	return nil
}

func (w *writer) item(i *item) error {
	w.at, w.seen = i.at, time.Now()
	switch {
	case i.reading != nil:
		return w.encoder.Reading(i.at, readingOf(i.reading))
	case i.counted:
		return w.encoder.Open(i.at, i.open)
	}
	return w.encoder.Changes(i.at, i.changes)
}

// state writes the whole cluster state, at the beginning and after changes have been dropped.
func (w *writer) state(b *batch) error {
	w.at, w.seen = b.at, time.Now()
	if w.encoder == nil {
		w.cluster = model.NewSnapshot()
	}
	for _, c := range b.changes {
		w.cluster.Apply(c)
	}
	w.keep = b.keep
	if w.encoder == nil {
		return w.begin()
	}
	w.recorder.opts.Log.Warn("the recording is late: changes are missing in it", "file", w.recorder.opts.File, "dropped", b.lost)
	return w.encoder.State(b.at, b.keep, b.lost)
}

// begin begins a file, at the time of the last item.
func (w *writer) begin() error {
	out, err := w.files.next()
	if err != nil {
		return err
	}
	w.size = 0
	if w.encoder, err = recording.NewEncoder(out, w.recorder.opts.Header, w.at, w.cluster, w.keep, 0); err != nil {
		return err
	}
	if err := w.encoder.Flush(w.at); err != nil {
		return err
	}
	w.count()
	if w.size > w.recorder.opts.MaxBytes/2 {
		return errTooLarge
	}
	return nil
}

// rotate ends a file and begins the next one.
func (w *writer) rotate() error {
	if err := w.encoder.Close(w.at); err != nil {
		return err
	}
	w.count()
	return w.begin()
}

func (w *writer) count() {
	if w.encoder != nil {
		n := w.encoder.Size()
		w.recorder.written(n - w.size)
		w.size = n
	}
}

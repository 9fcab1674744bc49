package engine

import (
	"context"
	"time"
)

// job is work outside of the loop, one at a time. Its result is a function, which the loop runs.
type job struct {
	results chan func() // receives at most one
	cancel  context.CancelFunc
	running bool
}

func newJob() job { return job{results: make(chan func(), 1)} }

// start runs work in a goroutine, unless one is running. The context of work ends after timeout.
func (j *job) start(ctx context.Context, timeout time.Duration, work func(context.Context) func()) {
	if j.running {
		return
	}
	j.running = true
	ctx, j.cancel = context.WithTimeout(ctx, timeout)
	go func() { j.results <- work(ctx) }()
}

// finish runs the result that was received from results.
func (j *job) finish(result func()) {
	j.cancel()
	j.running = false
	result()
}

// wait waits for the end of the work, which it cancels if interrupt is set, and runs its result.
func (j *job) wait(interrupt bool) {
	if !j.running {
		return
	}
	if interrupt {
		j.cancel()
	}
	j.finish(<-j.results)
}

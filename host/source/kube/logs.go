package kube

import (
	"context"
	"log/slog"
	"sync"
	"time"

	golog "github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// RedirectKlog has what client-go logs by itself logged by log. It is for the whole process, and for its start.
func RedirectKlog(log *slog.Logger) { klog.SetLogger(logr(log)) }

// logr is a logger as client-go takes it.
func logr(log *slog.Logger) klog.Logger {
	return golog.FromSlogHandler(&quiet{log.Handler(), &said{at: map[string]time.Time{}}})
}

// repeated is how often client-go may say the same above debug level.
const repeated = time.Minute

// quiet holds client-go's log to what an operator wants: what it says of failures that outage tells too is for
// debugging, and of the rest each line is told once a minute at most.
type quiet struct {
	slog.Handler
	said *said
}

// said is when lines were told last. There are few different ones: they are texts in client-go.
type said struct {
	mu sync.Mutex
	at map[string]time.Time
}

// Handle implements slog.Handler.
func (q *quiet) Handle(ctx context.Context, r slog.Record) error {
	if r.Level > slog.LevelDebug && (r.Level <= slog.LevelInfo || known(r.Message) || q.said.again(r.Message, r.Time)) {
		r.Level = slog.LevelDebug
	}
	if !q.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q *quiet) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &quiet{q.Handler.WithAttrs(attrs), q.said}
}

// WithGroup implements slog.Handler.
func (q *quiet) WithGroup(name string) slog.Handler {
	return &quiet{q.Handler.WithGroup(name), q.said}
}

// known tells whether a line is about a failure that outage has told.
func known(message string) bool { return message == "Failed to watch" }

// again notes that a line is to be told, and tells whether it was a short while ago.
func (s *said) again(message string, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.at[message]; ok && at.Sub(last) < repeated {
		return true
	}
	s.at[message] = at
	return false
}

package kube

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// RedirectKlog has what client-go logs by itself logged by log. It is for the whole process, and for its start.
func RedirectKlog(log *slog.Logger) { klog.SetLogger(klogLogger(log)) }

// klogLogger is a logger as client-go takes it.
func klogLogger(log *slog.Logger) klog.Logger {
	return logr.FromSlogHandler(&klogHandler{log.Handler(), &lineLimiter{lastLogged: map[string]time.Time{}}})
}

// klogRepeatInterval is how often client-go may say the same above debug level.
const klogRepeatInterval = time.Minute

// klogHandler holds client-go's log to what an operator wants: what it says of failures that outage tells too is for
// debugging, and of the rest each line is told once a minute at most.
type klogHandler struct {
	slog.Handler
	limiter *lineLimiter
}

// lineLimiter is when lines were told last. There are few different ones: they are texts in client-go.
type lineLimiter struct {
	mu         sync.Mutex
	lastLogged map[string]time.Time
}

// Handle implements slog.Handler.
func (q *klogHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level > slog.LevelDebug && (r.Level <= slog.LevelInfo || reportedAsOutage(r.Message) || q.limiter.recentlyLogged(r.Message, r.Time)) {
		r.Level = slog.LevelDebug
	}
	if !q.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q *klogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &klogHandler{q.Handler.WithAttrs(attrs), q.limiter}
}

// WithGroup implements slog.Handler.
func (q *klogHandler) WithGroup(name string) slog.Handler {
	return &klogHandler{q.Handler.WithGroup(name), q.limiter}
}

// reportedAsOutage tells whether a line is about a failure that outage has told.
func reportedAsOutage(message string) bool { return message == "Failed to watch" }

// recentlyLogged notes that a line is to be told, and tells whether it was a short while ago.
func (s *lineLimiter) recentlyLogged(message string, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.lastLogged[message]; ok && at.Sub(last) < klogRepeatInterval {
		return true
	}
	s.lastLogged[message] = at
	return false
}

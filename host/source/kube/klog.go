package kube

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// RedirectKlog sends what client-go logs through klog to log. It affects the whole process; call it once, at the start.
func RedirectKlog(log *slog.Logger) { klog.SetLogger(klogLogger(log)) }

// klogLogger adapts a logger for client-go.
func klogLogger(log *slog.Logger) klog.Logger {
	return logr.FromSlogHandler(&klogHandler{log.Handler(), &lineLimiter{lastLogged: map[string]time.Time{}}})
}

// klogRepeatInterval is how often client-go may log the same line above debug level.
const klogRepeatInterval = time.Minute

// klogHandler reduces client-go's log to what an operator needs: failures that outageTracker reports and client-go's
// info lines are logged at debug level, every other line at most once per klogRepeatInterval.
type klogHandler struct {
	slog.Handler
	limiter *lineLimiter
}

// lineLimiter records when each line was last logged. There are few different lines: they are constants of client-go.
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

// reportedAsOutage reports whether a line is about a failure that outageTracker logs.
func reportedAsOutage(message string) bool { return message == "Failed to watch" }

// recentlyLogged reports whether a line was logged within klogRepeatInterval, and records it if not.
func (s *lineLimiter) recentlyLogged(message string, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.lastLogged[message]; ok && at.Sub(last) < klogRepeatInterval {
		return true
	}
	s.lastLogged[message] = at
	return false
}

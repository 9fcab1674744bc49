package agent

import (
	"bytes"
	"log/slog"
	"sync"

	"github.com/sluice-proxy/sluice/host/node/config"
	"github.com/sluice-proxy/sluice/host/util/printable"
)

// Logs is the level of a running agent's log, and its last lines. The zero value is ready to use.
type Logs struct {
	// Verbosity is that of the command line. It is the least one.
	Verbosity int
	level     slog.LevelVar

	mu   sync.Mutex
	tail []byte // whole lines
}

// maxTail bounds the last lines that Logs keeps, in bytes, and maxTailLine one of them.
const (
	maxTail     = 256 << 10
	maxTailLine = 8 << 10
)

// Level returns the level of the log, for a handler.
func (l *Logs) Level() slog.Leveler { return &l.level }

// SetLevel sets the level, until the configuration's logging.verbosity changes.
func (l *Logs) SetLevel(level slog.Level) { l.level.Set(level) }

// Configure sets the level of a configuration.
func (l *Logs) Configure(cfg *config.Config) {
	level := slog.LevelInfo
	if max(l.Verbosity, cfg.Logging.Verbosity) > 0 {
		level = slog.LevelDebug
	}
	l.level.Set(level)
}

// Write implements io.Writer: it keeps a line of the log, without secrets.
func (l *Logs) Write(line []byte) (int, error) {
	n := len(line)
	line = printable.Redact(line)
	if len(line) > maxTailLine {
		line = append(bytes.Clone(line[:maxTailLine]), "…\n"...)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.tail)+len(line) > maxTail {
		// Half is dropped at once, so that a line costs little.
		rest := l.tail[len(l.tail)/2:]
		if i := bytes.IndexByte(rest, '\n'); i >= 0 {
			rest = rest[i+1:]
		}
		l.tail = append(make([]byte, 0, maxTail), rest...)
	}
	l.tail = append(l.tail, line...)
	return n, nil
}

// Tail returns the last lines.
func (l *Logs) Tail() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.tail)
}

package wasm

import (
	"bytes"
	"log/slog"
	"strings"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// logLimiter is a token bucket for the log lines of a plugin, refilled by the time of requests.
type logLimiter struct {
	tokens  int
	second  int64
	dropped uint64
	started bool
}

const burstSeconds = 10 // seconds of lines at once

func (l *logLimiter) refill(nowMS int64, perSecond int) {
	now := nowMS / 1000
	switch {
	case !l.started:
		l.started, l.tokens = true, perSecond*burstSeconds
	case now > l.second && l.tokens < perSecond*burstSeconds:
		l.tokens = min(perSecond*burstSeconds, l.tokens+perSecond*int(min(now-l.second, burstSeconds)))
	}
	l.second = now
}

func (l *logLimiter) allow() bool {
	if l.started && l.tokens <= 0 {
		l.dropped++
		return false
	}
	l.tokens--
	return true
}

// log logs a line of the guest, subject to the limits per call and per plugin.
func (g *guest) log(level uint32, text []byte) {
	if level != g.partialLevel {
		g.endLine()
	}
	g.logLine(level, text)
}

func (g *guest) logLine(level uint32, text []byte) {
	l := &g.p.limits
	if level >= abi.LogError && g.loggedError == "" && len(bytes.TrimSpace(text)) > 0 {
		g.loggedError = sanitize(text)
	}
	if g.key.second { // the first instance has logged it
		return
	}
	if g.lines >= l.LogLines || g.bytes+len(text) > l.LogBytes {
		g.p.logLimit.dropped++
		return
	}
	g.lines++
	g.bytes += len(text)
	if !g.p.logLimit.allow() {
		return
	}
	to := slog.LevelDebug
	switch {
	case level >= abi.LogError:
		to = slog.LevelError
	case level == abi.LogWarn:
		to = slog.LevelWarn
	case level == abi.LogInfo:
		to = slog.LevelInfo
	}
	g.p.log.Log(g.p.ctx, to, "plugin log", "text", sanitize(text))
}

// writeStream joins the writes to a stream into lines: Go's runtime prints a panic in many small pieces.
func (g *guest) writeStream(level uint32, text []byte) {
	if level != g.partialLevel {
		g.endLine()
		g.partialLevel = level
	}
	for len(text) > 0 {
		line, rest, ended := bytes.Cut(text, []byte{'\n'})
		room := max(0, abi.MaxLogLen-len(g.partialLine))
		g.partialLine = append(g.partialLine, line[:min(room, len(line))]...)
		if ended {
			g.endLine()
		}
		text = rest
	}
}

// endLine charges for the end of a line and logs the line unless it is empty.
func (g *guest) endLine() {
	g.charge(fuelItem)
	if len(g.partialLine) > 0 {
		g.charge(fuelLine)
		g.flush()
	}
}

// flush logs the partial line.
func (g *guest) flush() {
	if len(g.partialLine) > 0 {
		g.logLine(g.partialLevel, g.partialLine)
		g.partialLine = g.partialLine[:0]
	}
}

// sanitize makes text one printable line.
func sanitize(text []byte) string {
	s := strings.ToValidUTF8(string(text), "�")
	s = strings.TrimRight(s, "\r\n \t")
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}

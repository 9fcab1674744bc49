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

// log records a line of the guest, subject to the limits per call.
func (s *sandbox) log(level uint32, text []byte) {
	if level != s.partialLevel {
		s.endLine()
	}
	s.logLine(level, text)
}

func (s *sandbox) logLine(level uint32, text []byte) {
	if level >= abi.LogError && s.loggedError == "" && len(bytes.TrimSpace(text)) > 0 {
		s.loggedError = sanitize(text)
	}
	if s.lines >= s.l.limits.LogLines || s.bytes+len(text) > s.l.limits.LogBytes {
		s.dropped++
		return
	}
	s.lines++
	s.bytes += len(text)
	s.logged = append(s.logged, line{level, sanitize(text)})
}

// logLines logs what a call of a guest has logged, subject to the limit per plugin.
func (p *Plugin) logLines(c *call) {
	p.logLimit.dropped += uint64(c.dropped)
	for _, l := range c.lines {
		if !p.logLimit.allow() {
			continue
		}
		to := slog.LevelDebug
		switch {
		case l.level >= abi.LogError:
			to = slog.LevelError
		case l.level == abi.LogWarn:
			to = slog.LevelWarn
		case l.level == abi.LogInfo:
			to = slog.LevelInfo
		}
		p.log.Log(p.ctx, to, "plugin log", "text", l.text)
	}
}

// writeStream joins the writes to a stream into lines: Go's runtime prints a panic in many small pieces.
func (s *sandbox) writeStream(level uint32, text []byte) {
	if level != s.partialLevel {
		s.endLine()
		s.partialLevel = level
	}
	for len(text) > 0 {
		line, rest, ended := bytes.Cut(text, []byte{'\n'})
		room := max(0, abi.MaxLogLen-len(s.partialLine))
		s.partialLine = append(s.partialLine, line[:min(room, len(line))]...)
		if ended {
			s.endLine()
		}
		text = rest
	}
}

// endLine charges for the end of a line and logs the line unless it is empty.
func (s *sandbox) endLine() {
	s.charge(fuelItem)
	if len(s.partialLine) > 0 {
		s.charge(fuelLine)
		s.flush()
	}
}

// flush logs the partial line.
func (s *sandbox) flush() {
	if len(s.partialLine) > 0 {
		s.logLine(s.partialLevel, s.partialLine)
		s.partialLine = s.partialLine[:0]
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

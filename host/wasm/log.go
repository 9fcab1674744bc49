package wasm

import (
	"bytes"
	"log/slog"
	"strings"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// logging is a plugin's allowance of log lines, refilled by the time of requests.
type logging struct {
	tokens  int
	second  int64
	dropped uint64
	started bool
}

const burst = 10 // seconds of lines that may come at once

func (l *logging) tick(nowMS int64, perSecond int) {
	now := nowMS / 1000
	switch {
	case !l.started:
		l.started, l.tokens = true, perSecond*burst
	case now > l.second && l.tokens < perSecond*burst:
		l.tokens = min(perSecond*burst, l.tokens+perSecond*int(min(now-l.second, burst)))
	}
	l.second = now
}

func (l *logging) take() bool {
	if l.started && l.tokens <= 0 {
		l.dropped++
		return false
	}
	l.tokens--
	return true
}

// say logs a line of the guest, within the limits of the call and of the plugin.
func (g *guest) say(level uint32, text []byte) {
	g.flushTo(level)
	g.line(level, text)
}

func (g *guest) line(level uint32, text []byte) {
	l := &g.p.limits
	if level >= abi.LogError && g.said == "" {
		g.said = clean(text)
	}
	if g.lines >= l.LogLines || g.bytes+len(text) > l.LogBytes {
		g.p.logging.dropped++
		return
	}
	g.lines++
	g.bytes += len(text)
	if !g.p.logging.take() {
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
	g.p.log.Log(g.p.ctx, to, "plugin says", "text", clean(text))
}

// write collects what is written to a stream into lines: Go's runtime writes a panic in many small pieces.
func (g *guest) write(level uint32, text []byte) {
	if level != g.outLevel {
		g.flush()
		g.outLevel = level
	}
	for len(text) > 0 {
		i := bytes.IndexByte(text, '\n')
		if i < 0 {
			room := max(0, abi.MaxLogLen-len(g.out))
			g.out = append(g.out, text[:min(room, len(text))]...)
			return
		}
		room := max(0, abi.MaxLogLen-len(g.out))
		g.out = append(g.out, text[:min(room, i)]...)
		text = text[i+1:]
		g.flush()
	}
}

// flush logs an unfinished line.
func (g *guest) flush() {
	if len(g.out) > 0 {
		g.line(g.outLevel, g.out)
		g.out = g.out[:0]
	}
}

func (g *guest) flushTo(level uint32) {
	if level != g.outLevel {
		g.flush()
	}
}

// clean makes text one printable line.
func clean(text []byte) string {
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

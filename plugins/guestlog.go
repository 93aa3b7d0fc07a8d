package plugins

import (
	"bytes"
	"time"

	"github.com/hashicorp/go-hclog"
)

// guestLog passes a guest's lines on, no faster than its rate: a guest may not
// fill the host's disk.
type guestLog struct {
	log     hclog.Logger
	rate    int
	lineMax int

	tokens  float64
	last    time.Time
	dropped uint64 // since the last line that went through
	total   uint64 // dropped in all
}

func newGuestLog(log hclog.Logger, s *Settings) *guestLog {
	return &guestLog{log: log, rate: s.LogRate, lineMax: s.LogLineMax, tokens: float64(s.LogRate)}
}

// line logs what the guest said while it worked at the given position.
func (g *guestLog) line(level hclog.Level, text []byte, consumer string, position uint64) {
	if level < g.log.GetLevel() {
		return
	}
	now := time.Now()
	if !g.last.IsZero() {
		g.tokens = min(g.tokens+now.Sub(g.last).Seconds()*float64(g.rate), float64(g.rate))
	}
	g.last = now
	if g.tokens < 1 {
		g.dropped++
		g.total++
		return
	}
	g.tokens--
	pairs := []any{"text", clean(text, g.lineMax)}
	if consumer != "" {
		pairs = append(pairs, "consumer", consumer)
	}
	if position != 0 {
		pairs = append(pairs, "position", position)
	}
	if g.dropped > 0 {
		pairs = append(pairs, "dropped_before", g.dropped)
		g.dropped = 0
	}
	g.log.Log(level, "guest", pairs...)
}

var guestLevels = [...]hclog.Level{hclog.Trace, hclog.Debug, hclog.Info, hclog.Warn, hclog.Error}

func guestLevel(level uint32) hclog.Level {
	return guestLevels[min(level, uint32(len(guestLevels)-1))]
}

// lineBuffer makes lines of what a guest writes to a file descriptor. A line
// that is too long is cut, not kept.
type lineBuffer struct{ buf []byte }

func (l *lineBuffer) write(b []byte, limit int, emit func(line []byte)) {
	for len(b) > 0 {
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		// One byte more than the limit shows that it was passed.
		if room := limit + 1 - len(l.buf); len(line) > room {
			line = line[:max(room, 0)]
		}
		l.buf = append(l.buf, line...)
		if ended {
			l.flush(emit)
		}
		b = rest
	}
}

func (l *lineBuffer) flush(emit func(line []byte)) {
	if len(l.buf) > 0 {
		emit(l.buf)
	}
	l.buf = l.buf[:0]
}

// panicLines keeps the lines of a guest's standard error that tell why it
// gave up: from the one that announces it, or else the first.
type panicLines struct {
	lines   [][]byte
	told    bool // the announcement was seen
	stopped bool
}

const panicLinesMax = 4

func (p *panicLines) add(line []byte) {
	announces := bytes.HasPrefix(line, []byte("panic: ")) || bytes.HasPrefix(line, []byte("fatal error: ")) ||
		bytes.Contains(line, []byte("panicked at"))
	switch {
	case p.stopped:
	case announces && !p.told:
		p.told = true
		p.lines = append(p.lines[:0], bytes.Clone(line))
	case p.told && (len(p.lines) >= panicLinesMax || bytes.HasPrefix(line, []byte("goroutine "))):
		p.stopped = true
	case p.told, len(p.lines) == 0:
		p.lines = append(p.lines, bytes.Clone(line))
	}
}

func (p *panicLines) reset() { *p = panicLines{lines: p.lines[:0]} }

func (p *panicLines) text(limit int) string {
	if len(p.lines) == 0 {
		return ""
	}
	return clean(bytes.Join(p.lines, []byte("; ")), limit)
}

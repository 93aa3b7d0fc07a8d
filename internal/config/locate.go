package config

import (
	"strconv"
	"strings"
)

// locate finds the line of every key in a TOML document that has been parsed
// already, so it may trust the syntax. Elements of arrays of tables are told
// apart by an index: "plugin[1].timeout". The TOML library keeps one place per
// spelled key, and so the last one's, for all of them.
func locate(doc string) map[string]int {
	l := locator{s: doc, line: 1, lines: map[string]int{}, count: map[string]int{}}
	l.document()
	return l.lines
}

type locator struct {
	s     string
	i     int
	line  int
	lines map[string]int
	count map[string]int // elements of each array of tables so far
}

func (l *locator) document() {
	prefix := ""
	for {
		l.space(true)
		if l.end() {
			return
		}
		if l.s[l.i] != '[' {
			l.pair(prefix)
			continue
		}
		array := strings.HasPrefix(l.s[l.i:], "[[")
		l.i++
		if array {
			l.i++
		}
		line := l.line
		parts := l.key()
		prefix = ""
		for n, part := range parts {
			prefix = join(prefix, part)
			if n == len(parts)-1 && array {
				l.mark(prefix, line)
				l.count[prefix]++
			}
			if c := l.count[prefix]; c > 0 {
				prefix += "[" + strconv.Itoa(c-1) + "]"
			}
			l.mark(prefix, line)
		}
		for !l.end() && l.s[l.i] != '\n' {
			l.i++
		}
	}
}

func (l *locator) mark(key string, line int) {
	if _, ok := l.lines[key]; !ok {
		l.lines[key] = line
	}
}

func join(prefix, part string) string {
	if prefix == "" {
		return part
	}
	return prefix + "." + part
}

// pair reads key = value, with the line of each part of a dotted key.
func (l *locator) pair(prefix string) {
	line, start := l.line, l.i
	for _, part := range l.key() {
		prefix = join(prefix, part)
		l.mark(prefix, line)
	}
	l.space(false)
	if !l.end() && l.s[l.i] == '=' {
		l.i++
	}
	l.space(false)
	l.value(prefix)
	if l.i == start { // not valid TOML after all: go on rather than stand still
		l.i++
	}
}

func (l *locator) value(path string) {
	if l.end() {
		return
	}
	switch c := l.s[l.i]; c {
	case '"', '\'':
		l.str()
	case '[':
		l.i++
		for n := 0; ; n++ {
			l.space(true)
			for !l.end() && l.s[l.i] == ',' {
				l.i++
				l.space(true)
			}
			if l.end() {
				return
			}
			if l.s[l.i] == ']' {
				l.i++
				return
			}
			el := path + "[" + strconv.Itoa(n) + "]"
			l.mark(el, l.line)
			start := l.i
			l.value(el)
			if l.i == start {
				l.i++
			}
		}
	case '{':
		l.i++
		for {
			l.space(true)
			for !l.end() && l.s[l.i] == ',' {
				l.i++
				l.space(true)
			}
			if l.end() {
				return
			}
			if l.s[l.i] == '}' {
				l.i++
				return
			}
			l.pair(path)
		}
	default:
		for !l.end() && !strings.ContainsRune(",]}#\n", rune(l.s[l.i])) {
			l.i++
		}
	}
}

// key reads a dotted key and gives its parts.
func (l *locator) key() []string {
	var parts []string
	for {
		l.space(false)
		if l.end() {
			return parts
		}
		if c := l.s[l.i]; c == '"' || c == '\'' {
			parts = append(parts, l.str())
		} else {
			start := l.i
			for !l.end() && !strings.ContainsRune(" \t.=]\n", rune(l.s[l.i])) {
				l.i++
			}
			parts = append(parts, l.s[start:l.i])
		}
		l.space(false)
		if l.end() || l.s[l.i] != '.' {
			return parts
		}
		l.i++
	}
}

// str passes one string of any of the four kinds and gives its text, escapes
// left as they are (keys with escapes keep them in their name).
func (l *locator) str() string {
	q := l.s[l.i : l.i+1]
	if strings.HasPrefix(l.s[l.i:], q+q+q) {
		l.i += 3
		start := l.i
		for !l.end() && !strings.HasPrefix(l.s[l.i:], q+q+q) {
			l.step(q)
		}
		text := l.s[start:min(l.i, len(l.s))]
		l.i = min(l.i+3, len(l.s))
		for !l.end() && l.s[l.i:l.i+1] == q { // up to two quotes may end the text itself
			l.i++
		}
		return text
	}
	l.i++
	start := l.i
	for !l.end() && l.s[l.i:l.i+1] != q && l.s[l.i] != '\n' {
		l.step(q)
	}
	text := l.s[start:min(l.i, len(l.s))]
	l.i = min(l.i+1, len(l.s))
	return text
}

func (l *locator) step(q string) {
	if l.s[l.i] == '\\' && q == `"` && l.i+1 < len(l.s) {
		l.i++
	}
	if l.s[l.i] == '\n' {
		l.line++
	}
	l.i++
}

// space passes blanks, and with newlines set also line ends and comments.
func (l *locator) space(newlines bool) {
	for !l.end() {
		switch c := l.s[l.i]; {
		case c == ' ' || c == '\t' || c == '\r':
		case newlines && c == '\n':
			l.line++
		case newlines && c == '#':
			for !l.end() && l.s[l.i] != '\n' {
				l.i++
			}
			continue
		default:
			return
		}
		l.i++
	}
}

func (l *locator) end() bool { return l.i >= len(l.s) }

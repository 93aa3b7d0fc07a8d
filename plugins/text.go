package plugins

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// clean makes bytes of a guest safe to show: at most limit of them, valid
// UTF-8, and nothing in them that moves a terminal's cursor, starts a line of
// its own or turns text around.
func clean(b []byte, limit int) string {
	cut := len(b) > limit
	if cut {
		b = b[:limit]
		// No more than a rune that was cut in two is taken off.
		for i := 0; i < utf8.UTFMax-1 && len(b) > 0; i++ {
			if r, n := utf8.DecodeLastRune(b); r != utf8.RuneError || n != 1 {
				break
			}
			b = b[:len(b)-1]
		}
	}
	plain := true
	for _, c := range b {
		if c < ' ' || c >= 0x7f {
			plain = false
			break
		}
	}
	var s string
	if plain {
		s = string(b)
	} else {
		s = escape(b)
	}
	if cut {
		s += "…"
	}
	return s
}

func escape(b []byte) string {
	var out strings.Builder
	out.Grow(len(b) + 16)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == utf8.RuneError && n == 1:
			out.WriteRune(utf8.RuneError)
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\t':
			out.WriteString(`\t`)
		case !unicode.IsPrint(r):
			q := strconv.QuoteRuneToASCII(r)
			out.WriteString(q[1 : len(q)-1])
		default:
			out.WriteRune(r)
		}
		b = b[n:]
	}
	return out.String()
}

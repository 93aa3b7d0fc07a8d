package json

import "unsafe"

// maxDepth is encoding/json's limit.
const maxDepth = 10000

// Valid reports whether b is one JSON value with nothing but space around it.
// Like encoding/json it does not ask strings to be valid UTF-8.
func Valid(b []byte) bool {
	s := unsafe.String(unsafe.SliceData(b), len(b))
	end := validValue(s, skipSpace(s, 0), 0)
	return end >= 0 && skipSpace(s, end) == len(s)
}

// validValue returns the index behind the valid value at i, or -1.
func validValue(s string, i, depth int) int {
	if i >= len(s) || depth > maxDepth {
		return -1
	}
	switch s[i] {
	case '"':
		return validString(s, i+1)
	case '{':
		return validObject(s, i+1, depth+1)
	case '[':
		return validArray(s, i+1, depth+1)
	case 't':
		return validWord(s, i, "true")
	case 'f':
		return validWord(s, i, "false")
	case 'n':
		return validWord(s, i, "null")
	}
	return skipNumber(s, i)
}

func validWord(s string, i int, word string) int {
	if len(s)-i >= len(word) && s[i:i+len(word)] == word {
		return i + len(word)
	}
	return -1
}

func validString(s string, i int) int {
	for ; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return i + 1
		case c < ' ':
			return -1
		case c == '\\':
			i++
			if i >= len(s) {
				return -1
			}
			switch s[i] {
			case 'b', 'f', 'n', 'r', 't', '"', '\\', '/':
			case 'u':
				if hex4(s[i-1:]) < 0 {
					return -1
				}
				i += 4
			default:
				return -1
			}
		}
	}
	return -1
}

func validObject(s string, i, depth int) int {
	if depth > maxDepth {
		return -1
	}
	i = skipSpace(s, i)
	if i < len(s) && s[i] == '}' {
		return i + 1
	}
	for {
		if i = skipSpace(s, i); i >= len(s) || s[i] != '"' {
			return -1
		}
		if i = validString(s, i+1); i < 0 {
			return -1
		}
		if i = skipSpace(s, i); i >= len(s) || s[i] != ':' {
			return -1
		}
		if i = validValue(s, skipSpace(s, i+1), depth); i < 0 {
			return -1
		}
		if i = skipSpace(s, i); i >= len(s) {
			return -1
		}
		if s[i] == '}' {
			return i + 1
		}
		if s[i] != ',' {
			return -1
		}
		i++
	}
}

func validArray(s string, i, depth int) int {
	if depth > maxDepth {
		return -1
	}
	i = skipSpace(s, i)
	if i < len(s) && s[i] == ']' {
		return i + 1
	}
	for {
		if i = validValue(s, skipSpace(s, i), depth); i < 0 {
			return -1
		}
		if i = skipSpace(s, i); i >= len(s) {
			return -1
		}
		if s[i] == ']' {
			return i + 1
		}
		if s[i] != ',' {
			return -1
		}
		i++
	}
}

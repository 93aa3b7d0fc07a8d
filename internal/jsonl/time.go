package jsonl

import (
	"errors"
	"time"
)

var errTime = errors.New(`must be an RFC 3339 time, such as "2011-10-01T00:38:44.546+02:00"`)

// ParseTime reads an RFC 3339 time as microseconds since 1970, UTC. Digits past
// the microsecond are dropped.
func ParseTime(s []byte) (int64, error) {
	// time.Parse takes more than the standard: a comma, one-digit hours.
	if len(s) < 20 || len(s) > 64 || s[4] != '-' || s[7] != '-' || s[10] != 'T' && s[10] != 't' || s[13] != ':' || s[16] != ':' {
		return 0, errTime
	}
	ok := true
	num := func(from, to int) (n int) {
		for ; from < to; from++ {
			c := s[from]
			if c < '0' || c > '9' {
				ok = false
				return 0
			}
			n = n*10 + int(c-'0')
		}
		return n
	}
	year, month, day := num(0, 4), num(5, 7), num(8, 10)
	hour, minute, second := num(11, 13), num(14, 16), num(17, 19)
	i, micros := 19, 0
	if s[i] == '.' {
		i++
		start, unit := i, 100_000
		for ; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
			micros += unit * int(s[i]-'0')
			unit /= 10
		}
		if i == start {
			return 0, errTime
		}
	}
	offset := 0
	switch rest := s[i:]; {
	case len(rest) == 1 && (rest[0] == 'Z' || rest[0] == 'z'):
	case len(rest) == 6 && (rest[0] == '+' || rest[0] == '-') && rest[3] == ':':
		h, m := num(i+1, i+3), num(i+4, i+6)
		if h > 23 || m > 59 {
			return 0, errTime
		}
		offset = h*3600 + m*60
		if rest[0] == '-' {
			offset = -offset
		}
	default:
		return 0, errTime
	}
	if !ok || hour > 23 || minute > 59 || second > 59 || month < 1 || month > 12 || day < 1 || year < 1 {
		return 0, errTime
	}
	t := time.Date(year, time.Month(month), day, hour, minute, second, 0, time.UTC)
	if t.Day() != day {
		return 0, errTime
	}
	us := (t.Unix()-int64(offset))*1e6 + int64(micros)
	if us < minUS || us > maxUS {
		return 0, errors.New("must lie in the years 0001 to 9999")
	}
	return us, nil
}

var (
	minUS = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	maxUS = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro() - 1
)

// AppendTime appends a time as RFC 3339, UTC, with microseconds.
func AppendTime(dst []byte, us int64) []byte {
	return time.UnixMicro(us).UTC().AppendFormat(dst, "2006-01-02T15:04:05.000000Z")
}

// FormatTime is AppendTime as a string.
func FormatTime(us int64) string { return string(AppendTime(nil, us)) }

package readmodel

// The calendar is the proleptic Gregorian one, in UTC. Years 1000 to 9999 are
// what every engine holds.
const (
	microsPerSecond = 1_000_000
	microsPerDay    = 86_400 * microsPerSecond

	dateMin      = -354285 // 1000-01-01
	dateMax      = 2932896 // 9999-12-31
	timestampMin = dateMin * microsPerDay
	timestampMax = (dateMax+1)*microsPerDay - 1
)

// civil turns days since 1970-01-01 into year, month and day, and days turns
// them back (after Howard Hinnant's chrono algorithms).
func civil(days int64) (year, month, day int) {
	z := days + 719468
	era := floorDiv(z, 146097)
	doe := z - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	y := yoe + era*400
	month = int(mp) + 3
	if month > 12 {
		month -= 12
		y++
	}
	return int(y), month, int(doy-(153*mp+2)/5) + 1
}

func days(year, month, day int) int64 {
	y := int64(year)
	m := int64(month)
	if m <= 2 {
		y--
		m += 12
	}
	era := floorDiv(y, 400)
	yoe := y - era*400
	doy := (153*(m-3)+2)/5 + int64(day) - 1
	doe := yoe*365 + yoe/4 - yoe/100 + doy
	return era*146097 + doe - 719468
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func daysIn(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

func append2(dst []byte, n int) []byte {
	return append(dst, byte('0'+n/10), byte('0'+n%10))
}

// appendDate appends YYYY-MM-DD.
func appendDate(dst []byte, d int64) []byte {
	y, m, day := civil(d)
	dst = append2(append2(dst, y/100), y%100)
	dst = append2(append(dst, '-'), m)
	return append2(append(dst, '-'), day)
}

// appendTime appends HH:MM:SS.ffffff.
func appendTime(dst []byte, us int64) []byte {
	s := int(us / microsPerSecond)
	f := int(us % microsPerSecond)
	dst = append2(dst, s/3600)
	dst = append2(append(dst, ':'), s/60%60)
	dst = append2(append(dst, ':'), s%60)
	dst = append2(append(dst, '.'), f/10000)
	return append2(append2(dst, f/100%100), f%100)
}

// appendTimestamp appends the date, the separator and the time.
func appendTimestamp(dst []byte, us int64, separator byte) []byte {
	d := floorDiv(us, microsPerDay)
	dst = append(appendDate(dst, d), separator)
	return appendTime(dst, us-d*microsPerDay)
}

// parseDate reads YYYY-MM-DD.
func parseDate[T ~string | ~[]byte](s T) (int64, bool) {
	if len(s) != 10 || s[4] != '-' || s[7] != '-' {
		return 0, false
	}
	c, ok1 := number2(s[0], s[1])
	y, ok2 := number2(s[2], s[3])
	m, ok3 := number2(s[5], s[6])
	d, ok4 := number2(s[8], s[9])
	y += c * 100
	if !ok1 || !ok2 || !ok3 || !ok4 || y < 1000 || m < 1 || m > 12 || d < 1 || d > daysIn(y, m) {
		return 0, false
	}
	return days(y, m, d), true
}

func number2(a, b byte) (int, bool) {
	return int(a-'0')*10 + int(b-'0'), isDigit(a) && isDigit(b)
}

// parseTime reads HH:MM:SS[.fraction] and returns how much of s it took. What
// is finer than a microsecond is cut off.
func parseTime[T ~string | ~[]byte](s T) (us int64, n int, ok bool) {
	if len(s) < 8 || s[2] != ':' || s[5] != ':' {
		return 0, 0, false
	}
	h, ok1 := number2(s[0], s[1])
	m, ok2 := number2(s[3], s[4])
	sec, ok3 := number2(s[6], s[7])
	if !ok1 || !ok2 || !ok3 || h > 23 || m > 59 || sec > 59 {
		return 0, 0, false
	}
	n = 8
	fraction, unit := int64(0), int64(microsPerSecond)
	if n < len(s) && s[n] == '.' {
		n++
		start := n
		for n < len(s) && isDigit(s[n]) {
			unit /= 10
			fraction += int64(s[n]-'0') * unit
			n++
		}
		if n == start {
			return 0, 0, false
		}
	}
	return int64(h*3600+m*60+sec)*microsPerSecond + fraction, n, true
}

// parseTimestamp reads RFC 3339, also with a space for the T and, meaning UTC,
// without a zone.
func parseTimestamp[T ~string | ~[]byte](s T) (int64, bool) {
	if len(s) < 19 || s[10] != 'T' && s[10] != 't' && s[10] != ' ' {
		return 0, false
	}
	d, ok := parseDate(s[:10])
	if !ok {
		return 0, false
	}
	us, n, ok := parseTime(s[11:])
	if !ok {
		return 0, false
	}
	offset, ok := parseZone(s[11+n:])
	us += d*microsPerDay - offset
	return us, ok && us >= timestampMin && us <= timestampMax
}

// parseZone reads Z, ±HH:MM or nothing, as microseconds east of UTC.
func parseZone[T ~string | ~[]byte](s T) (int64, bool) {
	switch {
	case len(s) == 0, len(s) == 1 && (s[0] == 'Z' || s[0] == 'z'):
		return 0, true
	case len(s) != 6 || s[3] != ':':
		return 0, false
	}
	h, ok1 := number2(s[1], s[2])
	m, ok2 := number2(s[4], s[5])
	offset := int64(h*60+m) * 60 * microsPerSecond
	if !ok1 || !ok2 || h > 23 || m > 59 {
		return 0, false
	}
	switch s[0] {
	case '+':
		return offset, true
	case '-':
		return -offset, true
	}
	return 0, false
}

package projhost

import (
	"errors"
	"time"

	"github.com/projhost/projhost/sdk/go/json"
)

// Timestamp is a time in microseconds since 1970-01-01 UTC, as the host keeps
// it. The zero value is 1970; use [Null] where a time may be missing.
type Timestamp int64

// TimestampOf converts a time, cutting it to microseconds.
func TimestampOf(t time.Time) Timestamp { return Timestamp(t.UnixMicro()) }

// Time converts to the standard library's time, in UTC.
func (t Timestamp) Time() time.Time { return time.UnixMicro(int64(t)).UTC() }

// Date is the day of the time, in UTC.
func (t Timestamp) Date() Date {
	return Date(floorDiv(int64(t), microsPerDay))
}

// String spells the time as the HTTP interface does:
// "2011-09-30T22:38:44.546000Z".
func (t Timestamp) String() string { return string(t.AppendText(nil)) }

// AppendText appends what String returns.
func (t Timestamp) AppendText(dst []byte) []byte {
	day := t.Date()
	us := int64(t) - int64(day)*microsPerDay
	dst = append(day.AppendText(dst), 'T')
	return append(TimeOfDay(us).AppendText(dst), 'Z')
}

// WriteJSON writes what String returns as a JSON string.
func (t Timestamp) WriteJSON(w *json.Writer) {
	var buf [48]byte
	w.StringBytes(t.AppendText(buf[:0]))
}

const microsPerDay = 24 * 60 * 60 * 1_000_000

var errTimestamp = errors.New("not a time in RFC 3339, such as 2011-10-01T00:38:44.546+02:00")

// ParseTimestamp reads RFC 3339 with any offset; digits behind the microsecond
// are cut.
func ParseTimestamp(s string) (Timestamp, error) {
	if len(s) < len("2006-01-02T15:04:05Z") || s[10] != 'T' && s[10] != 't' {
		return 0, errTimestamp
	}
	day, ok := parseDate(s[:10])
	hour, ok1 := twoDigits(s[11:], 23)
	minute, ok2 := twoDigits(s[14:], 59)
	second, ok3 := twoDigits(s[17:], 59)
	if !ok || !ok1 || !ok2 || !ok3 || s[13] != ':' || s[16] != ':' {
		return 0, errTimestamp
	}
	us, rest, ok := parseFraction(s[19:])
	if !ok {
		return 0, errTimestamp
	}
	offset, ok := parseOffset(rest)
	if !ok {
		return 0, errTimestamp
	}
	seconds := int64(hour)*3600 + int64(minute)*60 + int64(second) - offset
	return Timestamp(int64(day)*microsPerDay + seconds*1_000_000 + us), nil
}

// parseFraction reads ".546" as microseconds and returns what follows.
func parseFraction(s string) (us int64, rest string, ok bool) {
	if s == "" || s[0] != '.' {
		return 0, s, true
	}
	unit := int64(100_000)
	i := 1
	for ; i < len(s) && s[i]-'0' <= 9; i++ {
		us += int64(s[i]-'0') * unit
		unit /= 10
	}
	return us, s[i:], i > 1
}

// parseOffset reads "Z" or "+02:00" as seconds east of UTC.
func parseOffset(s string) (seconds int64, ok bool) {
	if s == "Z" || s == "z" {
		return 0, true
	}
	if len(s) != len("+02:00") || s[0] != '+' && s[0] != '-' || s[3] != ':' {
		return 0, false
	}
	hours, ok1 := twoDigits(s[1:], 23)
	minutes, ok2 := twoDigits(s[4:], 59)
	seconds = int64(hours)*3600 + int64(minutes)*60
	if s[0] == '-' {
		seconds = -seconds
	}
	return seconds, ok1 && ok2
}

// Date is a day, counted from 1970-01-01.
type Date int32

// NewDate returns a day of the Gregorian calendar. Days and months beyond their
// range count on: the 0th of March is the last of February.
func NewDate(year, month, day int) Date {
	m := year*12 + month - 1
	return Date(daysFromCivil(floorDiv(int64(m), 12), floorMod(int64(m), 12)+1) + int64(day) - 1)
}

var errDate = errors.New("not a date such as 2011-10-01")

// ParseDate reads a day in the form 2011-10-01.
func ParseDate(s string) (Date, error) {
	d, ok := parseDate(s)
	if !ok {
		return 0, errDate
	}
	return d, nil
}

func parseDate(s string) (Date, bool) {
	if len(s) != len("2006-01-02") || s[4] != '-' || s[7] != '-' {
		return 0, false
	}
	century, ok := twoDigits(s, 99)
	year, ok1 := twoDigits(s[2:], 99)
	month, ok2 := twoDigits(s[5:], 12)
	day, ok3 := twoDigits(s[8:], 31)
	if !ok || !ok1 || !ok2 || !ok3 || month == 0 || day == 0 {
		return 0, false
	}
	d := NewDate(century*100+year, month, day)
	if _, m, _ := d.Civil(); m != month {
		return 0, false // the 31st of a shorter month
	}
	return d, true
}

// Civil returns year, month and day.
func (d Date) Civil() (year, month, day int) {
	// Howard Hinnant's civil_from_days: eras of 400 years that start on 1 March.
	z := int64(d) + 719468
	era := floorDiv(z, 146097)
	doe := z - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	day = int(doy - (153*mp+2)/5 + 1)
	month = int(mp + 3)
	if month > 12 {
		month -= 12
	}
	year = int(yoe + era*400)
	if month <= 2 {
		year++
	}
	return year, month, day
}

// daysFromCivil is the inverse of Civil for the first of a month.
func daysFromCivil(year, month int64) int64 {
	if month <= 2 {
		year--
		month += 12
	}
	era := floorDiv(year, 400)
	yoe := year - era*400
	doy := (153*(month-3) + 2) / 5
	return era*146097 + yoe*365 + yoe/4 - yoe/100 + doy - 719468
}

// String spells the day as 2011-10-01.
func (d Date) String() string { return string(d.AppendText(nil)) }

// AppendText appends what String returns.
func (d Date) AppendText(dst []byte) []byte {
	year, month, day := d.Civil()
	if year < 0 {
		dst, year = append(dst, '-'), -year
	}
	dst = appendTwo(appendTwo(dst, year/100), year%100)
	dst = appendTwo(append(dst, '-'), month)
	return appendTwo(append(dst, '-'), day)
}

// WriteJSON writes what String returns as a JSON string.
func (d Date) WriteJSON(w *json.Writer) {
	var buf [48]byte
	w.StringBytes(d.AppendText(buf[:0]))
}

// TimeOfDay is a time of day in microseconds since midnight.
type TimeOfDay int64

// String spells the time as 15:04:05.000000.
func (t TimeOfDay) String() string { return string(t.AppendText(nil)) }

// AppendText appends what String returns.
func (t TimeOfDay) AppendText(dst []byte) []byte {
	seconds, us := int(t/1_000_000), int(t%1_000_000)
	dst = appendTwo(dst, seconds/3600)
	dst = appendTwo(append(dst, ':'), seconds/60%60)
	dst = appendTwo(append(dst, ':'), seconds%60)
	dst = appendTwo(append(dst, '.'), us/10_000)
	return appendTwo(appendTwo(dst, us/100%100), us%100)
}

// WriteJSON writes what String returns as a JSON string.
func (t TimeOfDay) WriteJSON(w *json.Writer) {
	var buf [48]byte
	w.StringBytes(t.AppendText(buf[:0]))
}

// UUID is a UUID's 16 bytes.
type UUID [16]byte

var errUUID = errors.New("not a UUID such as 96f9a74e-4bb1-5940-b42b-1789908e7cf0")

// ParseUUID reads the form with hyphens.
func ParseUUID(s string) (UUID, error) {
	var id UUID
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, errUUID
	}
	at := 0
	for i := range id {
		if s[at] == '-' {
			at++
		}
		high, low := hexValue(s[at]), hexValue(s[at+1])
		if high < 0 || low < 0 {
			return UUID{}, errUUID
		}
		id[i] = byte(high<<4 | low)
		at += 2
	}
	return id, nil
}

// String spells the UUID with hyphens, in lower case.
func (id UUID) String() string { return string(id.AppendText(nil)) }

// AppendText appends what String returns.
func (id UUID) AppendText(dst []byte) []byte {
	const hex = "0123456789abcdef"
	for i, b := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, hex[b>>4], hex[b&15])
	}
	return dst
}

// WriteJSON writes what String returns as a JSON string.
func (id UUID) WriteJSON(w *json.Writer) {
	var buf [48]byte
	w.StringBytes(id.AppendText(buf[:0]))
}

// JSON is a JSON document kept byte for byte. Nil is null.
type JSON []byte

// Null is a value that may be missing: null in the table.
type Null[T any] struct {
	V     T
	Valid bool // false: null, V is not looked at
}

// Some returns a value that is there.
func Some[T any](v T) Null[T] { return Null[T]{V: v, Valid: true} }

// Or returns the value, or other where it is null.
func (n Null[T]) Or(other T) T {
	if n.Valid {
		return n.V
	}
	return other
}

func (Null[T]) isNull() {}

func twoDigits(s string, most int) (int, bool) {
	tens, ones := s[0]-'0', s[1]-'0'
	n := int(tens)*10 + int(ones)
	return n, tens <= 9 && ones <= 9 && n <= most
}

func appendTwo(dst []byte, n int) []byte { return append(dst, byte('0'+n/10%10), byte('0'+n%10)) }

func hexValue(c byte) int {
	switch {
	case c-'0' <= 9:
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }

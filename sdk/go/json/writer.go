package json

import (
	"math"
	"strconv"
	"unicode/utf8"
	"unsafe"

	"github.com/projhost/projhost/sdk/go/internal/fast"
)

// Writer writes one JSON document, members in the order they are given. The
// zero Writer is ready; Reset makes it ready again and keeps its memory.
//
//	var w json.Writer
//	w.BeginObject()
//	w.Name("status").String("open")
//	w.Name("lines").Int(3)
//	w.EndObject()
//
// Commas come by themselves. The caller keeps the brackets balanced and gives
// each member its name: Writer does not check it.
type Writer struct {
	buf []byte
}

// Reset empties the writer. What Bytes returned before is overwritten.
func (w *Writer) Reset() { w.buf = w.buf[:0] }

// Bytes returns the document, valid until the next call of a method.
func (w *Writer) Bytes() []byte { return w.buf }

// BeginObject opens an object.
func (w *Writer) BeginObject() { w.comma(); w.buf = append(w.buf, '{') }

// EndObject closes the object.
func (w *Writer) EndObject() { w.buf = append(w.buf, '}') }

// BeginArray opens an array.
func (w *Writer) BeginArray() { w.comma(); w.buf = append(w.buf, '[') }

// EndArray closes the array.
func (w *Writer) EndArray() { w.buf = append(w.buf, ']') }

// Name writes a member's name; its value must follow.
func (w *Writer) Name(name string) *Writer {
	w.quote(name, ':')
	return w
}

// String writes a string.
func (w *Writer) String(s string) { w.quote(s, 0) }

// quote writes a string and perhaps a byte behind it. Room is made once, and
// what needs no escapes is copied at once: in a guest that is most of the cost.
func (w *Writer) quote(s string, behind byte) {
	if !fast.Plain(s) {
		w.comma()
		if w.buf = AppendString(w.buf, s); behind != 0 {
			w.buf = append(w.buf, behind)
		}
		return
	}
	n, b := len(w.buf), w.buf
	if cap(b)-n < len(s)+4 {
		b = append(b, make([]byte, len(s)+4)...)
	}
	b = b[:n+len(s)+4]
	if n > 0 {
		if c := b[n-1]; c != '{' && c != '[' && c != ':' {
			b[n] = ','
			n++
		}
	}
	b[n] = '"'
	n += 1 + copy(b[n+1:], s)
	b[n] = '"'
	n++
	if behind != 0 {
		b[n] = behind
		n++
	}
	w.buf = b[:n]
}

// StringBytes writes a string whose bytes lie in a buffer.
func (w *Writer) StringBytes(b []byte) { w.String(unsafe.String(unsafe.SliceData(b), len(b))) }

// Int writes an integer.
func (w *Writer) Int(n int64) { w.comma(); w.buf = strconv.AppendInt(w.buf, n, 10) }

// Float writes a number in its shortest form; NaN and the infinities, which
// JSON does not have, become null.
func (w *Writer) Float(f float64) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		w.Null()
		return
	}
	w.comma()
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	w.buf = strconv.AppendFloat(w.buf, f, format, -1, 64)
}

// Bool writes true or false.
func (w *Writer) Bool(b bool) { w.comma(); w.buf = strconv.AppendBool(w.buf, b) }

// Null writes null.
func (w *Writer) Null() { w.comma(); w.buf = append(w.buf, "null"...) }

// Raw writes a value that is JSON already, for instance a part of a message or
// the text of a decimal.
func (w *Writer) Raw(value string) { w.comma(); w.buf = append(w.buf, value...) }

// Value writes a value read from a document, null where it is absent.
func (w *Writer) Value(v Value) {
	if !v.Exists() {
		w.Null()
		return
	}
	w.Raw(v.Raw())
}

// comma separates what follows from what was written: every value ends in a
// byte that none of the openers is.
func (w *Writer) comma() {
	if n := len(w.buf); n > 0 {
		if c := w.buf[n-1]; c != '{' && c != '[' && c != ':' {
			w.buf = append(w.buf, ',')
		}
	}
}

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD; nothing is escaped but what JSON demands.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	if fast.Plain(s) {
		return append(append(dst, s...), '"')
	}
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			if r, size := utf8.DecodeRuneInString(s[i:]); r != utf8.RuneError || size != 1 {
				i += size
				continue
			}
		} else if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		dst = appendEscaped(dst, c)
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

func appendEscaped(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	if c >= utf8.RuneSelf {
		return append(dst, "\ufffd"...)
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

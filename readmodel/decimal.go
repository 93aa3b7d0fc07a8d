package readmodel

import (
	"encoding/binary"
	"math/bits"

	"github.com/projhost/projhost/abi"
)

// Limits of decimals: what every engine holds (MySQL sets the scale).
const (
	PrecisionMax = 38
	ScaleMax     = 30
)

// numeral is the text of a decimal number taken apart: sign, the digits before
// the point without leading zeros, and those after it without trailing zeros.
type numeral struct {
	negative bool
	whole    []byte
	fraction []byte
}

// parseNumeral reads -?digits[.digits].
func parseNumeral(text []byte) (numeral, bool) {
	var n numeral
	i := 0
	if i < len(text) && text[i] == '-' {
		n.negative = true
		i++
	}
	start := i
	for i < len(text) && isDigit(text[i]) {
		i++
	}
	n.whole = text[start:i]
	if len(n.whole) == 0 {
		return n, false
	}
	if i < len(text) {
		if text[i] != '.' || i+1 == len(text) {
			return n, false
		}
		n.fraction = text[i+1:]
		for _, c := range n.fraction {
			if !isDigit(c) {
				return n, false
			}
		}
	}
	for len(n.whole) > 0 && n.whole[0] == '0' {
		n.whole = n.whole[1:]
	}
	for len(n.fraction) > 0 && n.fraction[len(n.fraction)-1] == '0' {
		n.fraction = n.fraction[:len(n.fraction)-1]
	}
	return n, true
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// appendDecimal appends the canonical form of a decimal: no plus sign, no
// superfluous zeros before the point, all of the scale's digits after it, and
// no minus sign at zero. Zeros beyond the scale do not count, since the value
// is the same without them; any other digit there is refused, never rounded.
func (c *Column) appendDecimal(dst []byte, text []byte) ([]byte, string) {
	n, ok := parseNumeral(text)
	if !ok {
		return dst, "not a decimal number of the form -12.34"
	}
	return c.appendNumeral(dst, n)
}

func (c *Column) appendNumeral(dst []byte, n numeral) ([]byte, string) {
	if len(n.fraction) > c.Scale {
		return dst, c.describe() + " holds fewer digits after the point; round it in the plugin"
	}
	if len(n.whole) > c.Precision-c.Scale {
		return dst, "the number is too large for " + c.describe()
	}
	start := len(dst)
	dst = append(dst, byte(abi.TagDecimal), 0, 0, 0, 0)
	if n.negative && len(n.whole)+len(n.fraction) > 0 {
		dst = append(dst, '-')
	}
	if len(n.whole) == 0 {
		dst = append(dst, '0')
	} else {
		dst = append(dst, n.whole...)
	}
	if c.Scale > 0 {
		dst = append(dst, '.')
		dst = append(dst, n.fraction...)
		for i := len(n.fraction); i < c.Scale; i++ {
			dst = append(dst, '0')
		}
	}
	binary.LittleEndian.PutUint32(dst[start+1:], uint32(len(dst)-start-5))
	return dst, ""
}

// fixed is a decimal as sign and unscaled magnitude. 38 digits fit 127 bits,
// so the sum of two magnitudes never overflows 128.
type fixed struct {
	negative bool
	hi, lo   uint64
}

// parseFixed reads a decimal of at most scale digits after the point and 38
// digits in all.
func parseFixed(n numeral, scale int) fixed {
	f := fixed{negative: n.negative}
	for _, c := range n.whole {
		f.push(c)
	}
	for _, c := range n.fraction {
		f.push(c)
	}
	for i := len(n.fraction); i < scale; i++ {
		f.push('0')
	}
	return f
}

func (f *fixed) push(digit byte) {
	over, lo := bits.Mul64(f.lo, 10)
	lo, carry := bits.Add64(lo, uint64(digit-'0'), 0)
	f.hi = f.hi*10 + over + carry
	f.lo = lo
}

func (f fixed) less(g fixed) bool { return f.hi < g.hi || f.hi == g.hi && f.lo < g.lo }

func (f fixed) add(g fixed) fixed {
	if f.negative == g.negative {
		lo, carry := bits.Add64(f.lo, g.lo, 0)
		hi, _ := bits.Add64(f.hi, g.hi, carry)
		return fixed{f.negative, hi, lo}
	}
	if f.less(g) {
		f, g = g, f
	}
	lo, borrow := bits.Sub64(f.lo, g.lo, 0)
	hi, _ := bits.Sub64(f.hi, g.hi, borrow)
	return fixed{f.negative, hi, lo}
}

// digits writes the magnitude's decimal digits to the end of buf and returns
// them, without leading zeros.
func (f fixed) digits(buf *[40]byte) []byte {
	i := len(buf)
	for f.hi != 0 || f.lo != 0 {
		hi := f.hi / 10
		lo, digit := bits.Div64(f.hi%10, f.lo, 10)
		f.hi, f.lo = hi, lo
		i--
		buf[i] = byte('0' + digit)
	}
	return buf[i:]
}

// appendFixed appends f in the column's canonical form.
func (c *Column) appendFixed(dst []byte, f fixed) ([]byte, string) {
	var buf [40]byte
	d := f.digits(&buf)
	if len(d) > c.Precision {
		return dst, "the sum is too large for " + c.describe()
	}
	n := numeral{negative: f.negative}
	if len(d) > c.Scale {
		n.whole = d[:len(d)-c.Scale]
		n.fraction = d[len(d)-c.Scale:]
		return c.appendNumeral(dst, n)
	}
	var padded [ScaleMax]byte
	for i := range c.Scale - len(d) {
		padded[i] = '0'
	}
	copy(padded[c.Scale-len(d):c.Scale], d)
	n.fraction = padded[:c.Scale]
	if len(d) == 0 {
		n.negative = false
	}
	return c.appendNumeral(dst, n)
}

// narrowPrecision is the most digits whose unscaled value fits an int64.
const narrowPrecision = 18

// sortKey is the value's place among all of its column for an engine that has
// no exact decimal type: the unscaled value as int64 up to 18 digits, else 16
// bytes that sort by byte: the unscaled value as a 128-bit two's complement
// integer, big-endian, with its sign bit flipped.
func (c *Column) sortKey(canonical []byte) any {
	n, _ := parseNumeral(canonical)
	f := parseFixed(n, c.Scale)
	if c.Precision <= narrowPrecision {
		if f.negative {
			return -int64(f.lo)
		}
		return int64(f.lo)
	}
	hi, lo := f.hi, f.lo
	if f.negative {
		var borrow uint64
		lo, borrow = bits.Sub64(0, lo, 0)
		hi, _ = bits.Sub64(0, hi, borrow)
	}
	b := make([]byte, 16)
	binary.BigEndian.PutUint64(b, hi^1<<63)
	binary.BigEndian.PutUint64(b[8:], lo)
	return b
}

// plainNumber rewrites a JSON number, which may have an exponent, as
// -?digits[.digits]. It refuses what no column could hold anyway, so that a
// short text cannot ask for a long one.
func plainNumber(number []byte) ([]byte, bool) {
	mantissa, exponent := number, 0
	for i, c := range number {
		if c == 'e' || c == 'E' {
			mantissa = number[:i]
			e, ok := parseExponent(number[i+1:])
			if !ok {
				return nil, false
			}
			exponent = e
			break
		}
	}
	if exponent == 0 {
		return mantissa, true
	}
	n, ok := parseNumeral(mantissa)
	if !ok {
		return nil, false
	}
	digits := make([]byte, 0, len(n.whole)+len(n.fraction)+64)
	digits = append(append(digits, n.whole...), n.fraction...)
	point := len(n.whole) + exponent
	for len(digits) > 0 && digits[0] == '0' {
		digits = digits[1:]
		point--
	}
	if len(digits) == 0 {
		return []byte("0"), true
	}
	if point > 400 || point < -400 {
		return nil, false
	}
	var out []byte
	if n.negative {
		out = append(out, '-')
	}
	for i := range max(point, 1) {
		switch {
		case i < point && i < len(digits):
			out = append(out, digits[i])
		default:
			out = append(out, '0')
		}
	}
	if point < len(digits) {
		out = append(out, '.')
		for i := point; i < 0; i++ {
			out = append(out, '0')
		}
		out = append(out, digits[max(point, 0):]...)
	}
	return out, true
}

func parseExponent(b []byte) (int, bool) {
	negative := false
	if len(b) > 0 && (b[0] == '+' || b[0] == '-') {
		negative = b[0] == '-'
		b = b[1:]
	}
	if len(b) == 0 {
		return 0, false
	}
	e := 0
	for _, c := range b {
		if !isDigit(c) {
			return 0, false
		}
		if e < 1_000_000 { // far beyond any column: keep the number small, not exact
			e = e*10 + int(c-'0')
		}
	}
	if negative {
		e = -e
	}
	return e, true
}

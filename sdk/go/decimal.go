package projhost

import (
	"errors"
	"math/bits"
	"strconv"

	"github.com/projhost/projhost/sdk/go/json"
)

// MaxDigits is how many significant digits a [Decimal] holds.
const MaxDigits = 38

// Decimal is an exact decimal number of up to 38 digits: an integer and the
// number of its digits behind the point. The zero value is 0. Decimals are
// values: operators return new ones.
//
// A result of more than 38 digits panics, which fails the message with that
// reason; no digit is ever lost in silence, and no float is involved.
type Decimal struct {
	hi, lo uint64 // magnitude, below 10^38
	scale  uint8
	neg    bool // never for 0
}

// errDecimal is not told apart further: the text is in the caller's error.
var errDecimal = errors.New("not a decimal number of at most 38 digits")

const overflow = "decimal: the result has more than 38 digits"

// NewDecimal returns unscaled × 10^-scale: NewDecimal(1250, 2) is 12.50.
// It panics unless 0 ≤ scale ≤ 38.
func NewDecimal(unscaled int64, scale int) Decimal {
	if scale < 0 || scale > MaxDigits {
		panic("decimal: the scale must be between 0 and 38")
	}
	d := Decimal{lo: uint64(unscaled), scale: uint8(scale)}
	if unscaled < 0 {
		d.lo, d.neg = -d.lo, true
	}
	return d
}

// ParseDecimal reads a text such as "-12.50" or "1.25e3", as JSON spells
// numbers (leading zeros and a plus sign are allowed). Digits behind the point
// are kept, also zeros: the scale of "12.50" is 2.
func ParseDecimal(s string) (Decimal, error) {
	var d Decimal
	i := 0
	if i < len(s) && (s[i] == '-' || s[i] == '+') {
		d.neg = s[i] == '-'
		i++
	}
	digits, point := 0, -1
	for ; i < len(s); i++ {
		c := s[i] - '0'
		if c <= 9 {
			digits++
			if d.hi == 0 && d.lo < 1<<60 {
				d.lo = d.lo*10 + uint64(c) // as times10Plus, without the call
			} else if !d.times10Plus(uint64(c)) {
				return Decimal{}, errDecimal
			}
			continue
		}
		if s[i] != '.' || point >= 0 {
			break
		}
		point = digits
	}
	if digits == 0 || point == 0 || point == digits {
		return Decimal{}, errDecimal
	}
	scale := 0
	if point >= 0 {
		scale = digits - point
	}
	if i < len(s) {
		exponent, err := decimalExponent(s[i:])
		if err != nil {
			return Decimal{}, err
		}
		scale -= exponent
	}
	for ; scale < 0; scale++ {
		if d.isZero() {
			scale = 0
			break
		}
		if !d.times10Plus(0) {
			return Decimal{}, errDecimal
		}
	}
	if scale > MaxDigits {
		return Decimal{}, errDecimal
	}
	d.scale = uint8(scale)
	d.neg = d.neg && !d.isZero()
	return d, nil
}

// decimalExponent reads "e3", "E-2".
func decimalExponent(s string) (int, error) {
	if len(s) < 2 || s[0] != 'e' && s[0] != 'E' {
		return 0, errDecimal
	}
	n, err := strconv.Atoi(s[1:])
	if err != nil || n > 1000 || n < -1000 {
		return 0, errDecimal
	}
	return n, nil
}

// MustDecimal is [ParseDecimal] for constants: it panics on a bad text.
func MustDecimal(s string) Decimal {
	d, err := ParseDecimal(s)
	if err != nil {
		panic("decimal " + strconv.Quote(s) + ": " + err.Error())
	}
	return d
}

// DecimalOf reads a decimal out of a JSON document, where amounts are spelled as
// strings or as numbers.
func DecimalOf(v json.Value) (Decimal, error) {
	// Escapes in the string of a number are allowed, and never used.
	if raw := v.Raw(); len(raw) > 2 && raw[0] == '"' && raw[len(raw)-1] == '"' {
		if d, err := ParseDecimal(raw[1 : len(raw)-1]); err == nil {
			return d, nil
		}
	}
	var text string
	var err error
	if v.Kind() == json.String {
		text, err = v.Text()
	} else {
		text, err = v.Number()
	}
	if err != nil {
		return Decimal{}, err
	}
	d, err := ParseDecimal(text)
	if err != nil {
		return Decimal{}, &json.Error{Want: "a decimal number", Have: v.Kind().String() + ": " + v.Raw()}
	}
	return d, nil
}

func (d *Decimal) isZero() bool { return d.hi|d.lo == 0 }

// times10Plus multiplies the magnitude by ten and adds a digit; false if that
// is 10^38 or more.
func (d *Decimal) times10Plus(digit uint64) bool {
	if d.hi == 0 && d.lo < 1<<60 {
		d.lo = d.lo*10 + digit
		return true
	}
	carry, lo := bits.Mul64(d.lo, 10)
	over, hi := bits.Mul64(d.hi, 10)
	lo, c := bits.Add64(lo, digit, 0)
	hi, c2 := bits.Add64(hi, carry, c)
	if over|c2 != 0 || !below10to38(hi, lo) {
		return false
	}
	d.hi, d.lo = hi, lo
	return true
}

// 10^38 = 5421010862427522170 × 2^64 + 687399551400673280.
func below10to38(hi, lo uint64) bool {
	return hi < 5421010862427522170 || hi == 5421010862427522170 && lo < 687399551400673280
}

// divBy10 divides the magnitude by ten and returns the remainder.
func (d *Decimal) divBy10() (rest uint64) {
	d.hi, rest = d.hi/10, d.hi%10
	d.lo, rest = bits.Div64(rest, d.lo, 10)
	return rest
}

// Scale is the number of digits behind the point.
func (d Decimal) Scale() int { return int(d.scale) }

// Sign is -1, 0 or 1.
func (d Decimal) Sign() int {
	switch {
	case d.isZero():
		return 0
	case d.neg:
		return -1
	}
	return 1
}

// IsZero reports whether d is 0, whatever its scale.
func (d Decimal) IsZero() bool { return d.isZero() }

// Neg returns -d.
func (d Decimal) Neg() Decimal {
	d.neg = !d.neg && !d.isZero()
	return d
}

// Add returns d + e with the larger of the two scales, less the zeros at the end
// that 38 digits have no room for.
func (d Decimal) Add(e Decimal) Decimal {
	if d.scale != e.scale {
		a, ok := d.Rescale(int(max(d.scale, e.scale)))
		b, ok2 := e.Rescale(int(max(d.scale, e.scale)))
		if !ok || !ok2 {
			return addScaled(d, e)
		}
		d, e = a, b
	}
	if d.neg != e.neg {
		return subMagnitude(d, e)
	}
	lo, c := bits.Add64(d.lo, e.lo, 0)
	hi, _ := bits.Add64(d.hi, e.hi, c)
	if !below10to38(hi, lo) {
		return addScaled(d, e)
	}
	d.hi, d.lo = hi, lo
	return d
}

// Sub returns d - e, as Add.
func (d Decimal) Sub(e Decimal) Decimal { return d.Add(e.Neg()) }

// subMagnitude returns d with the magnitude of e taken off, for d and e of one
// scale and different signs.
func subMagnitude(d, e Decimal) Decimal {
	if cmpMagnitude(d, e) < 0 {
		d, e = e, d
	}
	var borrow uint64
	d.lo, borrow = bits.Sub64(d.lo, e.lo, 0)
	d.hi, _ = bits.Sub64(d.hi, e.hi, borrow)
	d.neg = d.neg && !d.isZero()
	return d
}

// Mul returns d × e; its scale is the sum of the two scales, less the zeros at
// the end that 38 digits have no room for.
func (d Decimal) Mul(e Decimal) Decimal {
	product := mul256(d, e)
	return product.decimal(int(d.scale)+int(e.scale), d.neg != e.neg)
}

// dropZero takes a zero off the end of the digits behind the point.
func (d *Decimal) dropZero() bool {
	if d.scale == 0 {
		return false
	}
	q := *d
	if q.divBy10() != 0 {
		return false
	}
	q.scale--
	*d = q
	return true
}

// Cmp compares by value: -1, 0 or 1. 1.5 and 1.50 are equal.
func (d Decimal) Cmp(e Decimal) int {
	if s, t := d.Sign(), e.Sign(); s != t {
		return cmpInt(s, t)
	}
	// Zeros at the end could make the common scale overflow: drop those first.
	for d.scale > e.scale && d.dropZero() {
	}
	for e.scale > d.scale && e.dropZero() {
	}
	c := 0
	switch {
	case d.scale == e.scale:
		c = cmpMagnitude(d, e)
	case d.scale < e.scale:
		c = cmpScaled(d, e)
	default:
		c = -cmpScaled(e, d)
	}
	if d.neg {
		return -c
	}
	return c
}

// cmpScaled compares magnitudes, d having fewer digits behind the point: a d
// that cannot be spelled with as many as e is the larger.
func cmpScaled(d, e Decimal) int {
	for d.scale < e.scale {
		if !d.times10Plus(0) {
			return 1
		}
		d.scale++
	}
	return cmpMagnitude(d, e)
}

func cmpMagnitude(d, e Decimal) int {
	switch {
	case d.hi != e.hi:
		if d.hi < e.hi {
			return -1
		}
		return 1
	case d.lo != e.lo:
		if d.lo < e.lo {
			return -1
		}
		return 1
	}
	return 0
}

func cmpInt(a, b int) int {
	if a < b {
		return -1
	}
	return 1
}

// Rescale returns the same value with scale digits behind the point; false where
// it has more digits than that, or more than 38 in all.
func (d Decimal) Rescale(scale int) (Decimal, bool) {
	for int(d.scale) < scale {
		if !d.times10Plus(0) {
			return Decimal{}, false
		}
		d.scale++
	}
	for int(d.scale) > scale {
		if scale < 0 || !d.dropZero() {
			return Decimal{}, false
		}
	}
	return d, true
}

// Rounding tells what [Decimal.Round] does with the digits it drops.
type Rounding uint8

// The ways to round.
const (
	HalfEven Rounding = iota // to the nearest, a half to the even neighbour
	HalfUp                   // to the nearest, a half away from zero
	Down                     // towards zero
)

// Round returns d with scale digits behind the point, rounded where it has more.
func (d Decimal) Round(scale int, how Rounding) Decimal {
	if scale < 0 || scale > MaxDigits {
		panic("decimal: the scale must be between 0 and 38")
	}
	if int(d.scale) <= scale {
		r, ok := d.Rescale(scale)
		if !ok {
			panic(overflow)
		}
		return r
	}
	var last uint64 // the first dropped digit
	rest := false   // whether any digit behind it is not zero
	for int(d.scale) > scale {
		rest = rest || last != 0
		last = d.divBy10()
		d.scale--
	}
	up := last > 5 || last == 5 && (rest || how == HalfUp || d.lo&1 == 1)
	if how != Down && up {
		var carry uint64
		d.lo, carry = bits.Add64(d.lo, 1, 0)
		d.hi += carry
	}
	d.neg = d.neg && !d.isZero()
	return d
}

// Int64 returns d as an integer; false if it has a fraction or does not fit.
func (d Decimal) Int64() (int64, bool) {
	d, ok := d.Rescale(0)
	if !ok || d.hi != 0 {
		return 0, false
	}
	if d.neg {
		return int64(-d.lo), d.lo <= 1<<63
	}
	return int64(d.lo), d.lo < 1<<63
}

// String returns the decimal's text, with as many digits behind the point as its
// scale: "-12.50".
func (d Decimal) String() string { return string(d.AppendText(nil)) }

// AppendText appends what String returns.
func (d Decimal) AppendText(dst []byte) []byte {
	if d.neg {
		dst = append(dst, '-')
	}
	if d.hi != 0 {
		return d.appendLong(dst)
	}
	if d.scale == 0 {
		return strconv.AppendUint(dst, d.lo, 10)
	}
	// The digits go straight to their places, from the last one on, two at a time.
	from, scale := len(dst), int(d.scale)
	size := max(digitsOf(d.lo), scale+1) + 1
	if cap(dst)-from < size {
		dst = append(dst, make([]byte, size)...)
	}
	dst = dst[:from+size]
	b, n := dst[from:], d.lo
	point := size - 1 - scale
	for i := size; i > 0; {
		if i -= 2; i > point || i < point-1 && i >= 0 {
			q := n / 100
			if n < 1<<32 {
				q = n * 1374389535 >> 37 // a division costs a guest ten multiplications
			}
			pair := (n - q*100) * 2
			b[i], b[i+1] = digitPairs[pair], digitPairs[pair+1]
			n = q
			continue
		}
		// Next to the point, or the first digit of an odd number of them.
		i++
		if i == point {
			b[i] = '.'
			continue
		}
		q := n / 10
		b[i] = byte('0' + n - q*10)
		n = q
	}
	return dst
}

// digitsOf is the number of decimal digits of n, 1 for 0.
func digitsOf(n uint64) int {
	t := bits.Len64(n|1) * 1233 >> 12 // log10(2) ≈ 1233/4096
	if n >= powersOf10[t] {
		t++
	}
	return max(t, 1)
}

var powersOf10 = [20]uint64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19}

const digitPairs = "00010203040506070809" +
	"10111213141516171819" +
	"20212223242526272829" +
	"30313233343536373839" +
	"40414243444546474849" +
	"50515253545556575859" +
	"60616263646566676869" +
	"70717273747576777879" +
	"80818283848586878889" +
	"90919293949596979899"

// WriteJSON writes the decimal as a JSON string: JSON's numbers go through floats
// in too many hands.
func (d Decimal) WriteJSON(w *json.Writer) {
	var buf [48]byte
	w.StringBytes(d.AppendText(buf[:0]))
}

// appendLong is AppendText of a decimal of more than 64 bits.
func (d Decimal) appendLong(dst []byte) []byte {
	var digits [MaxDigits + 1]byte
	b := d.appendDigits(digits[:0])
	point := len(b) - int(d.scale)
	if d.scale == 0 {
		return append(dst, b...)
	}
	if point > 0 {
		dst = append(dst, b[:point]...)
	} else {
		dst = append(dst, '0')
	}
	dst = append(dst, '.')
	for ; point < 0; point++ {
		dst = append(dst, '0')
	}
	return append(dst, b[max(point, 0):]...)
}

// appendDigits appends the magnitude, which is above 64 bits and below
// 10^38 = (10^19)².
func (d Decimal) appendDigits(dst []byte) []byte {
	// 10^19 is above 2^63, so the quotient of a number below 10^38 fits.
	const tenTo19 = 10_000_000_000_000_000_000
	high, low := bits.Div64(d.hi, d.lo, tenTo19)
	dst = strconv.AppendUint(dst, high, 10)
	from := len(dst)
	dst = append(dst, "0000000000000000000"...)
	for i := len(dst) - 1; i >= from; i-- {
		dst[i] = byte('0' + low%10)
		low /= 10
	}
	return dst
}

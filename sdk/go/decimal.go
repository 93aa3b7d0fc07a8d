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
				d.lo = d.lo*10 + uint64(c)
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

// Add returns d + e with the larger of the two scales.
func (d Decimal) Add(e Decimal) Decimal {
	d, e = align(d, e)
	if d.neg != e.neg {
		return subMagnitude(d, e)
	}
	lo, c := bits.Add64(d.lo, e.lo, 0)
	hi, _ := bits.Add64(d.hi, e.hi, c)
	if !below10to38(hi, lo) {
		panic(overflow)
	}
	d.hi, d.lo = hi, lo
	return d
}

// Sub returns d - e with the larger of the two scales.
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
	neg := d.neg != e.neg
	scale := int(d.scale) + int(e.scale)
	// Zeros at the end of a factor are no digits of the product.
	for !mulFits(d, e) || scale > MaxDigits {
		switch {
		case d.dropZero(), e.dropZero():
			scale--
		default:
			panic(overflow)
		}
	}
	hi, lo := bits.Mul64(d.lo, e.lo)
	// One of the high halves is zero, or mulFits had refused.
	hi += d.hi*e.lo + d.lo*e.hi
	r := Decimal{hi: hi, lo: lo, scale: uint8(scale)}
	r.neg = neg && !r.isZero()
	return r
}

// mulFits tells whether the product of the magnitudes is below 10^38.
func mulFits(d, e Decimal) bool {
	if d.isZero() || e.isZero() {
		return true
	}
	if d.hi != 0 && e.hi != 0 {
		return false
	}
	over1, cross1 := bits.Mul64(d.hi, e.lo)
	over2, cross2 := bits.Mul64(d.lo, e.hi)
	hi, lo := bits.Mul64(d.lo, e.lo)
	hi, c1 := bits.Add64(hi, cross1, 0)
	hi, c2 := bits.Add64(hi, cross2, 0)
	return over1|over2|c1|c2 == 0 && below10to38(hi, lo)
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

// align brings both to the larger scale.
func align(d, e Decimal) (Decimal, Decimal) {
	for d.scale < e.scale {
		if !d.times10Plus(0) {
			panic(overflow)
		}
		d.scale++
	}
	for e.scale < d.scale {
		if !e.times10Plus(0) {
			panic(overflow)
		}
		e.scale++
	}
	return d, e
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
	var digits [MaxDigits + 1]byte
	b := d.appendDigits(digits[:0])
	if d.neg {
		dst = append(dst, '-')
	}
	point := len(b) - int(d.scale)
	if point <= 0 {
		dst = append(dst, '0')
	} else {
		dst = append(dst, b[:point]...)
	}
	if d.scale == 0 {
		return dst
	}
	dst = append(dst, '.')
	for ; point < 0; point++ {
		dst = append(dst, '0')
	}
	return append(dst, b[max(point, 0):]...)
}

// appendDigits appends the magnitude, which is below 10^38 = (10^19)².
func (d Decimal) appendDigits(dst []byte) []byte {
	if d.hi == 0 {
		return strconv.AppendUint(dst, d.lo, 10)
	}
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

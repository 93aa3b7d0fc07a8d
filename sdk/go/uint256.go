package projhost

import "math/bits"

// addScaled adds what differs in scale or has no room in 38 digits at once.
func addScaled(d, e Decimal) Decimal {
	if d.scale > e.scale {
		d, e = e, d
	}
	a, b := uint256{d.lo, d.hi}, uint256{e.lo, e.hi}
	for range e.scale - d.scale {
		a.times10()
	}
	if d.neg == e.neg {
		a.add(&b)
		return a.decimal(int(e.scale), d.neg)
	}
	if a.less(&b) {
		b.sub(&a)
		return b.decimal(int(e.scale), e.neg)
	}
	a.sub(&b)
	return a.decimal(int(e.scale), d.neg)
}

// uint256 has room for the product of two magnitudes and for one brought to any
// scale. The lowest word comes first.
type uint256 [4]uint64

// decimal shortens a number to 38 digits by the zeros at its end.
func (x *uint256) decimal(scale int, neg bool) Decimal {
	for x[3]|x[2] != 0 || !below10to38(x[1], x[0]) || scale > MaxDigits {
		if scale == 0 || !x.divBy10() {
			panic(overflow)
		}
		scale--
	}
	d := Decimal{hi: x[1], lo: x[0], scale: uint8(scale)}
	d.neg = neg && !d.isZero()
	return d
}

func (x *uint256) times10() {
	var carry uint64
	for i := range x {
		high, low := bits.Mul64(x[i], 10)
		var c uint64
		x[i], c = bits.Add64(low, carry, 0)
		carry = high + c
	}
}

// divBy10 divides by ten where nothing is left over.
func (x *uint256) divBy10() bool {
	q, rest := *x, uint64(0)
	for i := 3; i >= 0; i-- {
		q[i], rest = bits.Div64(rest, q[i], 10)
	}
	if rest != 0 {
		return false
	}
	*x = q
	return true
}

func (x *uint256) add(y *uint256) {
	var carry uint64
	for i := range x {
		x[i], carry = bits.Add64(x[i], y[i], carry)
	}
}

func (x *uint256) sub(y *uint256) {
	var borrow uint64
	for i := range x {
		x[i], borrow = bits.Sub64(x[i], y[i], borrow)
	}
}

func (x *uint256) less(y *uint256) bool {
	for i := 3; i >= 0; i-- {
		if x[i] != y[i] {
			return x[i] < y[i]
		}
	}
	return false
}

// mul256 multiplies the magnitudes.
func mul256(d, e Decimal) (p uint256) {
	p[1], p[0] = bits.Mul64(d.lo, e.lo)
	if d.hi|e.hi == 0 {
		return p
	}
	var carry uint64
	high, low := bits.Mul64(d.hi, e.lo)
	p[1], carry = bits.Add64(p[1], low, 0)
	p[2], carry = bits.Add64(p[2], high, carry)
	p[3] += carry
	high, low = bits.Mul64(d.lo, e.hi)
	p[1], carry = bits.Add64(p[1], low, 0)
	p[2], carry = bits.Add64(p[2], high, carry)
	p[3] += carry
	high, low = bits.Mul64(d.hi, e.hi)
	p[2], carry = bits.Add64(p[2], low, 0)
	p[3], _ = bits.Add64(p[3], high, carry)
	return p
}

package projhost

import (
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/sdk/go/json"
)

func TestDecimalText(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0", "-0": "0", "0.00": "0.00", "-0.00": "0.00", "7": "7", "+7": "7", "007": "7",
		"12.5": "12.5", "-12.50": "-12.50", "0.001": "0.001", "100.05": "100.05", "1000": "1000",
		"1e3": "1000", "1.25E2": "125", "1.25e1": "12.5", "125e-2": "1.25", "0e900": "0", "1e-38": "0." + strings.Repeat("0", 37) + "1",
		"18446744073709551615":                     "18446744073709551615",
		"18446744073709551616":                     "18446744073709551616",
		"-184467440737095516.16":                   "-184467440737095516.16",
		strings.Repeat("9", 38):                    strings.Repeat("9", 38),
		"0." + strings.Repeat("9", 38):             "0." + strings.Repeat("9", 38),
		"10000000000000000000.0000000000000000001": "10000000000000000000.0000000000000000001",
	} {
		if text == "10000000000000000000.0000000000000000001" {
			_, err := ParseDecimal(text) // 39 digits
			require.Error(t, err, text)
			continue
		}
		d, err := ParseDecimal(text)
		require.NoError(t, err, text)
		require.Equal(t, want, d.String(), text)
	}
	for _, text := range []string{"", "-", ".", "1.", ".5", "1e", "1e+", "e5", "1.2.3", "1 ", " 1", "0x1", "1e39", "1e-39", "NaN", "--1",
		"1" + strings.Repeat("0", 38), "0." + strings.Repeat("0", 38) + "1", "1e99999999999"} {
		_, err := ParseDecimal(text)
		require.Error(t, err, text)
	}
}

// FuzzDecimal holds every operation to math/big.
func FuzzDecimal(f *testing.F) {
	f.Add("12.50", "-0.0000000000000000001", uint8(2))
	f.Add("99999999999999999999999999999999999999", "1", uint8(0))
	f.Add("18446744073709551615.5", "-18446744073709551616.50", uint8(1))
	f.Add("-2.5", "2.5", uint8(0))
	f.Add("1e20", "1e-20", uint8(38))
	f.Add("18446744029709051615.5", "700000000000000000", uint8(17))
	f.Add("0.00000000000000001", "1000000000000000000000", uint8(0))
	f.Fuzz(func(t *testing.T, a, b string, scale uint8) {
		x, errX := ParseDecimal(a)
		y, errY := ParseDecimal(b)
		if errX != nil || errY != nil {
			return
		}
		scale %= MaxDigits + 1
		bx, by := rat(t, x), rat(t, y)
		if want, ok := new(big.Rat).SetString(a); ok && !strings.ContainsAny(a, "_") {
			require.Zero(t, want.Cmp(bx), "%s is read as %s", a, x)
		}
		require.Equal(t, x, MustDecimal(x.String()))
		require.Equal(t, bx.Cmp(by), x.Cmp(y), "%s and %s", x, y)
		require.Equal(t, bx.Sign(), x.Sign())
		check := func(name string, want *big.Rat, compute func() Decimal) {
			got, ok := caught(compute)
			if ok {
				require.Zero(t, want.Cmp(rat(t, got)), "%s %s %s = %s", x, name, y, got)
				return
			}
			require.Falsef(t, fits(want), "%s %s %s panics although it fits", x, name, y)
		}
		check("+", new(big.Rat).Add(bx, by), func() Decimal { return x.Add(y) })
		check("-", new(big.Rat).Sub(bx, by), func() Decimal { return x.Sub(y) })
		check("×", new(big.Rat).Mul(bx, by), func() Decimal { return x.Mul(y) })
		if r, ok := x.Rescale(int(scale)); ok {
			require.Zero(t, bx.Cmp(rat(t, r)))
			require.Equal(t, int(scale), r.Scale())
		} else {
			require.False(t, fitsAt(bx, int(scale)), "%s does not rescale to %d", x, scale)
		}
		for _, how := range []Rounding{HalfEven, HalfUp, Down} {
			if r, ok := caught(func() Decimal { return x.Round(int(scale), how) }); ok {
				require.Zero(t, round(bx, int(scale), how).Cmp(rat(t, r)), "%s rounds to %s", x, r)
			}
		}
		if n, ok := x.Int64(); ok {
			require.Zero(t, bx.Cmp(new(big.Rat).SetInt64(n)))
		} else {
			require.False(t, bx.IsInt() && bx.Num().IsInt64(), "%s is an int64", x)
		}
	})
}

func rat(t *testing.T, d Decimal) *big.Rat {
	r, ok := new(big.Rat).SetString(d.String())
	require.True(t, ok, d.String())
	return r
}

func caught(compute func() Decimal) (d Decimal, ok bool) {
	defer func() { ok = recover() == nil }()
	return compute(), true
}

// fits tells whether r can be spelled with no more than 38 digits.
func fits(r *big.Rat) bool {
	for scale := range MaxDigits + 1 {
		if fitsAt(r, scale) {
			return true
		}
	}
	return false
}

// fitsAt tells whether r can be spelled with that many digits behind the point.
func fitsAt(r *big.Rat, scale int) bool {
	n := new(big.Int).Mul(r.Num(), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil))
	q, m := new(big.Int).QuoRem(n, r.Denom(), new(big.Int))
	return m.Sign() == 0 && len(q.Abs(q).String()) <= MaxDigits
}

func round(r *big.Rat, scale int, how Rounding) *big.Rat {
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale)), nil)
	n := new(big.Int).Mul(r.Num(), unit)
	q, m := new(big.Int).QuoRem(n, r.Denom(), new(big.Int))
	half := new(big.Int).Mul(m.Abs(m), big.NewInt(2)).Cmp(r.Denom())
	if how != Down && (half > 0 || half == 0 && (how == HalfUp || q.Bit(0) == 1)) {
		q.Add(q, big.NewInt(int64(r.Sign())))
	}
	return new(big.Rat).SetFrac(q, unit)
}

func TestDecimalOfJSON(t *testing.T) {
	for doc, want := range map[string]string{`"12.50"`: "12.50", `12.5`: "12.5", `-3`: "-3", `"1\u0032"`: "12", `1e2`: "100"} {
		d, err := DecimalOf(json.ParseString(doc))
		require.NoError(t, err, doc)
		require.Equal(t, want, d.String())
	}
	for _, doc := range []string{``, `null`, `true`, `"x"`, `""`, `[1]`, `"12`} {
		_, err := DecimalOf(json.ParseString(doc))
		require.Error(t, err, doc)
	}
}

func TestDecimalsDoNotAllocate(t *testing.T) {
	var buf [64]byte
	a, b := MustDecimal("1234.56"), MustDecimal("-0.5")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		d, err := ParseDecimal("1000.25")
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Add(b).Mul(d).Round(2, HalfEven).AppendText(buf[:0])) == 0 {
			t.Fatal("no text")
		}
	}))
}

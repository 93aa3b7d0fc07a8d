package fast

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// Every length and every place of the byte that matters, in the middle of a
// buffer, so that a load beyond the bounds meets bytes that would change the
// answer.
func TestEveryLengthAndPlace(t *testing.T) {
	for n := range 40 {
		plain := strings.Repeat("x", n)
		framed := `"\` + plain + `"\`
		s := framed[2 : 2+n]
		require.True(t, Equal(s, strings.Clone(s)), n)
		require.False(t, Equal(s, s+"x"), n)
		require.True(t, Plain(s), n)
		require.Equal(t, n, StringEnd(s, 0), n)
		for i := range n {
			for c := range 256 {
				b := []byte(plain)
				b[i] = byte(c)
				other := `"\` + string(b) + `"\`
				s := other[2 : 2+n]
				if Equal(s, plain) != (s == plain) {
					t.Fatalf("Equal(%q, %q)", s, plain)
				}
				if Plain(s) != (c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\') {
					t.Fatalf("Plain(%q)", s)
				}
				want := strings.IndexAny(s, `"\`)
				if want < 0 {
					want = n
				}
				for from := range i + 1 {
					if got := StringEnd(s, from); got != want {
						t.Fatalf("StringEnd(%q, %d) = %d", s, from, got)
					}
				}
			}
		}
	}
}

func FuzzStringEnd(f *testing.F) {
	f.Add("a\x21\x23\x5b\x5d\"", 0)
	f.Fuzz(func(t *testing.T, s string, from int) {
		if from < 0 || from > len(s) {
			return
		}
		want := strings.IndexAny(s[from:], `"\`)
		if want < 0 {
			want = len(s) - from
		}
		require.Equal(t, from+want, StringEnd(s, from))
		require.Equal(t, strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r >= utf8.RuneSelf || r == '"' || r == '\\' }) < 0, Plain(s))
	})
}

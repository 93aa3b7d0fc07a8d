package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestCheckTellsOffsetAndReason(t *testing.T) {
	for in, want := range map[string]string{
		``:                     `malformed JSON at byte 0: the text ends where a value is expected`,
		` {"a" 1}`:             `malformed JSON at byte 6: '1' where ':' is expected`,
		`{"a":1,}`:             `malformed JSON at byte 7: '}' where the name of a member is expected`,
		`{"a":1 "b":2}`:        `malformed JSON at byte 7: '"' where ',' or '}' is expected`,
		`[1 2]`:                `malformed JSON at byte 3: '2' where ',' or ']' is expected`,
		`[1,]`:                 `malformed JSON at byte 3: ']' where a value is expected`,
		`{"a":01}`:             `malformed JSON at byte 6: '1' where ',' or '}' is expected`,
		`{"a":1.}`:             `malformed JSON at byte 7: '}' where a digit is expected`,
		`-`:                    `malformed JSON at byte 1: the end where a digit is expected`,
		`1e`:                   `malformed JSON at byte 2: the end where a digit is expected`,
		`"abc`:                 `malformed JSON at byte 4: the text ends within the string that begins at byte 0`,
		`"\`:                   `malformed JSON at byte 2: the text ends within the string that begins at byte 0`,
		`"\u12`:                `malformed JSON at byte 5: the text ends within a string`,
		`"\x"`:                 `malformed JSON at byte 2: 'x' after a backslash`,
		`"\u00g0"`:             `malformed JSON at byte 5: \u is not followed by four hex digits`,
		"\"a\tb\"":             `malformed JSON at byte 2: a control character in a string (write it as an escape)`,
		"\"\xff\"":             `malformed JSON at byte 1: not valid UTF-8`,
		`nul`:                  `malformed JSON at byte 3: the end in what began as null`,
		`true false`:           `malformed JSON at byte 5: 'f' after the value`,
		`'a'`:                  `malformed JSON at byte 0: '\'' where a value is expected`,
		deep(DepthMax + 1):     `malformed JSON at byte 1000: nested deeper than 1000`,
		`{"a":` + deep(1000):   `malformed JSON at byte 1004: nested deeper than 1000`,
		"{\"a\":1}\n{\"b\":2}": `malformed JSON at byte 8: '{' after the value`,
	} {
		require.EqualError(t, Check([]byte(in)), want, "%.40q", in)
	}
	require.NoError(t, Check([]byte(deep(DepthMax))))
}

func deep(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func TestMembersAreViewsOfTheText(t *testing.T) {
	in := " { \"a\" : {\"x\": [1,  2] } , \"b\\u0041\\n\\ud83d\\ude00\":\t\"\\/\" ,\"c\":-1.5e+3} "
	var got []string
	err := Members([]byte(in), func(name, value []byte, off int) error {
		require.Equal(t, string(value), in[off:off+len(value)])
		got = append(got, string(name), string(value))
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []string{"a", `{"x": [1,  2] }`, "bA\n😀", `"\/"`, "c", "-1.5e+3"}, got)

	require.EqualError(t, Members([]byte(" [1]"), nil), "malformed JSON at byte 1: an object is expected, found an array")
	require.EqualError(t, Members([]byte("{} x"), nil), "malformed JSON at byte 3: 'x' after the object")
	require.EqualError(t, Members([]byte(`{"\ud800":1}`), func([]byte, []byte, int) error { return nil }),
		"malformed JSON at byte 1: the name of a member has half of a surrogate pair, which is no character")
	require.EqualError(t, Elements([]byte(`{}`), nil), "malformed JSON at byte 0: an array is expected, found an object")
	var els []string
	require.NoError(t, Elements([]byte("[1, {} ,null]"), func(v []byte, _ int) error { els = append(els, string(v)); return nil }))
	require.Equal(t, []string{"1", "{}", "null"}, els)
}

// What is not passed by its caller a cursor passes itself.
func TestCursorGoesAsDeepAsItsCaller(t *testing.T) {
	c, err := Read([]byte(` {"list": [ {"a":1} , 2, [3,{}]] ,"skipped":{"x":[true]},"n": 5 } `))
	require.NoError(t, err)
	var got []string
	value := func() error {
		v, err := c.Value()
		got = append(got, string(v))
		return err
	}
	require.Equal(t, "an object", c.Kind())
	require.NoError(t, c.Members(func(name []byte) error {
		got = append(got, string(name), c.Kind())
		switch string(name) {
		case "list":
			return c.Elements(func() error {
				if c.Kind() == "an object" {
					return c.Members(func(name []byte) error {
						got = append(got, string(name))
						return value()
					})
				}
				return value()
			})
		case "n":
			return value()
		}
		return nil
	}))
	require.Equal(t, 1, c.Left())
	require.NoError(t, c.End("object"))
	require.Equal(t, []string{"list", "an array", "a", "1", "2", "[3,{}]", "skipped", "an object", "n", "a number", "5"}, got)

	// The depth is that of the text, however much of it the caller passes.
	for _, levels := range []int{0, 1, 500, 999} {
		for n, want := range map[int]string{DepthMax: "", DepthMax + 1: "malformed JSON at byte 1000: nested deeper than 1000"} {
			c, err := Read([]byte(deep(n)))
			require.NoError(t, err)
			var down func(levels int) error
			down = func(levels int) error {
				return c.Elements(func() error {
					if levels == 0 {
						return nil
					}
					return down(levels - 1)
				})
			}
			if err = down(levels); want == "" {
				require.NoError(t, err)
				require.Zero(t, c.Left())
			} else {
				require.EqualError(t, err, want)
			}
		}
	}
	stop := errors.New("stop")
	c, err = Read([]byte(`[1,2`))
	require.NoError(t, err)
	require.ErrorIs(t, c.Elements(func() error { return stop }), stop)
}

// Every string that the eight bytes at a time could miss something in.
func TestStringsOfAllLengths(t *testing.T) {
	for length := range 40 {
		for at := range length {
			for c := range 256 {
				s := []byte(`"` + strings.Repeat("x", length) + `"`)
				s[1+at] = byte(c)
				if want := json.Valid(s) && utf8.Valid(s); (Check(s) == nil) != want {
					t.Fatalf("%q: %v, the library says %v", s, Check(s), want)
				}
			}
		}
	}
}

func TestScalars(t *testing.T) {
	s, err := String([]byte(`"a\"\\\/\b\f\n\r\t\u00e4"`))
	require.NoError(t, err)
	require.Equal(t, "a\"\\/\b\f\n\r\tä", s)
	_, err = String([]byte(`"\udc00\ud800"`))
	require.ErrorIs(t, err, ErrLoneSurrogate)
	_, err = String([]byte(`1`))
	require.ErrorIs(t, err, ErrNotString)
	n, err := Int([]byte("-42"), 64)
	require.NoError(t, err)
	require.Equal(t, int64(-42), n)
	for _, v := range []string{"1.0", "1e2", `"1"`, "null"} {
		_, err = Int([]byte(v), 64)
		require.ErrorIs(t, err, ErrNotInteger, v)
	}
	_, err = Int([]byte("2147483648"), 32)
	require.ErrorIs(t, err, ErrRange)
}

// The standard library is the oracle; it differs in taking invalid UTF-8.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e-3,"x\u00e4"],"b":null}`, `[]`, ` true `, `"\ud83d\ude00"`, `{"a":1,"a":2}`, `[[[[`, "\xff", "1 2"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := Check(b)
		want := json.Valid(b) && utf8.Valid(b)
		if (err == nil) != want && !bytes.Contains(b, []byte("[[[[[[[[")) && !bytes.Contains(b, []byte(`{"":{"":{"":`)) {
			t.Fatalf("%q: %v, the library says %v", b, err, want)
		}
		if se, ok := err.(*SyntaxError); ok && (se.Offset < 0 || se.Offset > len(b)) {
			t.Fatalf("offset %d of %d", se.Offset, len(b))
		}
		var names []string
		err = Members(b, func(name, value []byte, off int) error {
			if Check(value) != nil || !bytes.Equal(value, b[off:off+len(value)]) {
				t.Fatalf("member %q of %q", value, b)
			}
			_, _ = String(value)
			_, _ = Int(value, 32)
			names = append(names, string(name))
			return nil
		})
		if err == nil {
			var m map[string]json.RawMessage
			if json.Unmarshal(b, &m) != nil {
				t.Fatalf("%q is no object", b)
			}
			for _, n := range names {
				if _, ok := m[n]; !ok {
					t.Fatalf("member %q of %q is not there", n, b)
				}
			}
		}
	})
}

// A cursor that is led through a text, here and there leaving a value to be
// passed, finds the same to be wrong with it as a check of the whole.
func FuzzCursor(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e-3,"x\u00e4"],"b":null,"c":{"d":[[],{}]}}`, `[]`, ` true `, `[{"a":1,"a":2},[[{}]]]`, `[[[[`, "{\"a\":[\xff]}", "[1 2]", `{"\ud800":1}`} {
		f.Add([]byte(s), uint64(5))
	}
	f.Fuzz(func(t *testing.T, b []byte, choices uint64) {
		c, err := Read(b)
		var pass func() error
		pass = func() error {
			before := c.Left()
			choices = choices*6364136223846793005 + 1442695040888963407
			switch {
			case choices>>62 == 0:
				return nil
			case c.Kind() == "an object" && choices>>62 > 1:
				return c.Members(func([]byte) error { return pass() })
			case c.Kind() == "an array" && choices>>62 > 1:
				return c.Elements(pass)
			}
			v, err := c.Value()
			if err == nil && (Check(v) != nil || !bytes.Equal(v, b[len(b)-before:][:len(v)]) || c.Left() != before-len(v)) {
				t.Fatalf("%q: value %q", b, v)
			}
			return err
		}
		if err == nil {
			err = pass()
		}
		if err == nil && c.Left() == len(bytes.TrimLeft(b, " \t\n\r")) {
			_, err = c.Value() // left to us
		}
		if err == nil {
			err = c.End("value")
		}
		if whole := Check(b); fmt.Sprint(err) != fmt.Sprint(whole) && !strings.Contains(fmt.Sprint(err), "surrogate") {
			t.Fatalf("%q: %v, but %v", b, err, whole)
		}
	})
}

func BenchmarkMembers(b *testing.B) {
	line := []byte(`{"id":"96f9a74e-4bb1-5940-b42b-1789908e7cf0","aggregate_type":"loan-application","aggregate_id":"173688","type":"A_SUBMITTED","data":{"org:resource":"112","lifecycle:transition":"COMPLETE","case":{"REG_DATE":"2011-10-01T00:38:44.546+02:00","AMOUNT_REQ":"20000"}},"metadata":{"activity_state":"COMPLETE"},"occurred_at":"2011-10-01T00:38:44.546+02:00"}`)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		_ = Members(line, func(name, value []byte, off int) error { return nil })
	}
}

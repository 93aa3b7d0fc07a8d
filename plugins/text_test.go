package plugins

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"":                        "",
		"plain":                   "plain",
		"größer 日本":               "größer 日本",
		"a\nb\tc":                 `a\nb\tc`,
		"red \x1b[31m":            `red \x1b[31m`,
		"null \x00":               `null \x00`,
		"\xff\xfe":                "\ufffd\ufffd",
		"turned \u202e around":    `turned \u202e around`,
		"next line \u0085\u2028":  `next line \u0085\u2028`,
		strings.Repeat("x", 21):   strings.Repeat("x", 20) + "…",
		strings.Repeat("x", 20):   strings.Repeat("x", 20),
		"1234567890123456789ä456": "1234567890123456789…",
	} {
		require.Equal(t, want, clean([]byte(in), 20+len(in)*boolInt(len(in) < 20)), "%q", in)
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func FuzzClean(f *testing.F) {
	f.Add([]byte("a\x1b[0m\u202e\xff日"), 5)
	f.Fuzz(func(t *testing.T, b []byte, limit int) {
		if limit < 0 || limit > 1<<16 {
			return
		}
		s := clean(b, limit)
		require.True(t, utf8.ValidString(s))
		for _, r := range s {
			require.True(t, unicode.IsPrint(r) || r == utf8.RuneError, "%q", r)
		}
		require.LessOrEqual(t, utf8.RuneCountInString(s), 10*limit+1)
	})
}

func TestDemangle(t *testing.T) {
	for in, want := range map[string]string{
		"main.crash":    "main.crash",
		"ph_apply":      "ph_apply",
		"_ZN3foo3barEv": "foo::bar",
		"_Z5crashi":     "crash",
		"_ZN4core9panicking5panic17h0123456789abcdefE":                                                "core::panicking::panic",
		"_ZN60_$LT$alloc..vec..Vec$LT$T$C$A$GT$$u20$as$u20$core..Clone$GT$5clone17h0123456789abcdefE": "<alloc::vec::Vec<T,A> as core::Clone>::clone",
		"_ZN":        "_ZN",
		"_ZN99xE":    "_ZN99xE",
		"_ZNSt3__16": "_ZNSt3__16",
		"_RNvC1a1b":  "_RNvC1a1b",
		"_Z":         "_Z",
	} {
		require.Equal(t, want, demangle(in))
	}
}

func TestTrapText(t *testing.T) {
	exports := map[uint32]string{7: "ph_apply"}
	engine := func(what string, frames ...string) error {
		return errors.New(what + "\nwasm stack trace:\n\t" + strings.Join(frames, "\n\t"))
	}
	for want, err := range map[string]error{
		"unreachable in f, called by ph_apply":             engine("wasm error: unreachable", ".f(i32,i32) i32", ".$7(i32,i32) i32"),
		"unreachable in main.(*T).f, called by function 9": engine("wasm error: unreachable", "guest.main.(*T).f(i32)", "guest.$9()"),
		"stack overflow: calls are nested too deeply":      errors.New("stack overflow"),
		"stack overflow: calls are nested too deeply in a": engine("wasm error: stack overflow", ".a()"),
		"whoops in a": engine("whoops (recovered by wazero)", ".a()"),
		"unreachable in a, called by b, c, d, e, f": engine("wasm error: unreachable", ".a()", ".b()", ".c()", ".d()", ".e()", ".f()", ".g()"),
		"exit(4) in proc_exit, called by a":         fmt.Errorf("%w\nwasm stack trace:\n\t.proc_exit(i32)\n\t.a()", &exited{4}),
		`unreachable in evil\x1b[2J`:                engine("wasm error: unreachable", ".evil\x1b[2J()"),
	} {
		require.Equal(t, want, trapText(err, exports))
	}
}

func FuzzTrapText(f *testing.F) {
	f.Add("wasm error: unreachable\nwasm stack trace:\n\t.f(i32) i32\n\t.$7()")
	f.Add("wasm stack trace:\n\t._ZN3fooE(")
	f.Fuzz(func(t *testing.T, text string) {
		s := trapText(errors.New(text), map[uint32]string{7: "x"})
		require.True(t, utf8.ValidString(s))
		require.NotContains(t, s, "\n")
	})
}

func TestErrorTexts(t *testing.T) {
	f := &Failure{Index: 3, Code: abi.CodeTrap, Message: "panic: boom", Trap: "unreachable in f"}
	require.EqualError(t, f, "entry 3: trap: panic: boom (unreachable in f)")
	require.EqualError(t, &Failure{Code: abi.StatusReject, Message: "no"}, "entry 0: rejected by the plugin: no")
	require.EqualError(t, &Failure{Code: abi.CodeTrap, Message: "x", Trap: "x"}, "entry 0: trap: x")
	require.EqualError(t, &RejectError{Name: "p", Reasons: []string{"a"}}, "plugin p is rejected: a")
	require.EqualError(t, &RejectError{Name: "p", Reasons: []string{"a", "b"}}, "plugin p is rejected for 2 reasons:\n  - a\n  - b")
	require.ErrorIs(t, HostFault(errDatabase), errDatabase)
	require.NoError(t, HostFault(nil))
	for code := range abi.Status(130) {
		require.NotEmpty(t, codeText(code))
	}
}

func logged(t *testing.T, s Settings, mode Mode, data ...string) (string, Stats) {
	t.Helper()
	var log bytes.Buffer
	e, err := NewEngine("", hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Trace, DisableTime: true}), mode)
	require.NoError(t, err)
	defer e.Close(t.Context())
	m, err := e.Load(t.Context(), hostile(t, "misuse"), s)
	require.NoError(t, err)
	i := newInstance(t, m)
	_, _, err = i.Apply(t.Context(), 0, entries(data...), newRecorder())
	require.NoError(t, err)
	return log.String(), i.Stats()
}

// A guest's lines carry who said them and where, and come no faster than the
// rate.
func TestGuestLog(t *testing.T) {
	bothModes(t, func(t *testing.T, mode Mode) {
		s := testSettings()
		s.LogRate = 10
		out, stats := logged(t, s, mode, "i", "whello\x1b[0m")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.GreaterOrEqual(t, len(lines), 10)
		require.Less(t, len(lines), 100, "1000 lines at once, and a rate of 10 a second")
		require.Equal(t, `[INFO]  plugins: guest: plugin=tested text=hello\x1b[0m consumer=projection/rows position=101`, lines[0])
		require.EqualValues(t, 1000-len(lines), stats.Dropped)

		s.LogRate = 0
		out, stats = logged(t, s, mode, "whello")
		require.Empty(t, out)
		require.EqualValues(t, 1000, stats.Dropped)

		s = testSettings()
		out, _ = logged(t, s, mode, "S")
		require.Equal(t, `[WARN]  plugins: guest: plugin=tested text="first line" consumer=projection/rows position=100
[WARN]  plugins: guest: plugin=tested text="thread 'main' panicked at src/lib.rs:5:9:" consumer=projection/rows position=100
[WARN]  plugins: guest: plugin=tested text="index out of bounds" consumer=projection/rows position=100
`, out)
	})
}

func TestSetLogger(t *testing.T) {
	var log bytes.Buffer
	i := misuse(t, Interpret)
	i.SetLogger(hclog.New(&hclog.LoggerOptions{Output: &log}).With("lane", 3))
	for range 2 {
		_, _, fail := apply(t, i, entries("S"))
		require.NotNil(t, fail)
	}
	_, _, fail := apply(t, i, entries("g"))
	require.Nil(t, fail)
	_, _, fail = apply(t, i, entries("S"))
	require.NotNil(t, fail)
	require.Equal(t, 3, strings.Count(log.String(), `lane=3 text="first line"`), "also after the guest was made anew")
}

func TestLineBuffer(t *testing.T) {
	var l lineBuffer
	var got []string
	emit := func(line []byte) { got = append(got, string(line)) }
	l.write([]byte("one\ntw"), 5, emit)
	l.write([]byte("o\n\nlonger than five"), 5, emit)
	l.write([]byte(" and more\nlast"), 5, emit)
	l.flush(emit)
	l.flush(emit)
	require.Equal(t, []string{"one", "two", "longer", "last"}, got, "one byte too many shows that a line was cut")
}

func TestPanicLines(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{"", ""},
		{"only this\nand that", "only this"},
		{"chatter\npanic: boom\ngoroutine 1 [running]:\nmain.f()", "panic: boom"},
		{"fatal error: out of memory\nruntime: x", "fatal error: out of memory; runtime: x"},
		{"panic: one\n2\n3\n4\n5\n6", "panic: one; 2; 3; 4"},
		{"panic: one\npanic: two", "panic: one; panic: two"},
	} {
		var p panicLines
		for line := range strings.SplitSeq(test.in, "\n") {
			if line != "" {
				p.add([]byte(line))
			}
		}
		require.Equal(t, test.want, p.text(200), test.in)
	}
}

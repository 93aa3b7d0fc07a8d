package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var identifierCases = []testCase{
	{"CompareExactly", identifierExact},
	{"OddOnesComeBackAsTheyWere", identifierOdd},
	{"LengthCountsCharacters", identifierLength},
	{"BadOnesAreRefused", identifierBad},
}

// identifiers that some collation would take for one another.
var identifiers = []string{
	"a", "A", "á", "Á", "a\u0301", "å", "a\u030a", "ä", "a\u0308", "ss", "ß", "ẞ", "SS", "i", "I", "ı", "İ", "k", "\u212a",
	" a", "a\t", "a\n", "a\u00a0", "a\u200b", "\u00ad", "a\u00ad", "-", "a-", "0", "00", "٠", "1", "１", "ab", "a b", "a  b", "æ", "ae",
	"😀", "😁", "\ufffd", "\U0010ffff", "\uffff", "'", "''", `"`, "%", "_", `\`, "?", "$1", "a/b", "../..", "null", "NULL",
}

func identifierExact(t *testing.T, d *db) {
	for i, name := range identifiers {
		res := d.append(name, "x", store.NewStream, eventN(2*i))
		require.EqualValues(t, 1, res.Version, "aggregate type %q", name)
		res = d.append("x", name, store.NewStream, eventN(2*i+1))
		require.EqualValues(t, 1, res.Version, "aggregate id %q", name)
	}
	d.reopen()
	for i, name := range identifiers {
		list := d.stream(name, "x")
		require.Len(t, list, 1, "aggregate type %q", name)
		require.Equal(t, id(2*i), list[0].ID)
		require.Equal(t, name, list[0].AggregateType)
		list = d.stream("x", name)
		require.Len(t, list, 1, "aggregate id %q", name)
		require.Equal(t, id(2*i+1), list[0].ID)
		require.Equal(t, name, list[0].AggregateID)
	}
	require.Empty(t, d.stream("x", "b"))
}

func identifierOdd(t *testing.T, d *db) {
	for i, name := range identifiers {
		e := eventN(i)
		e.Type = name
		d.append("account", "A-1", store.AnyVersion, e)
	}
	for i, e := range d.stream("account", "A-1") {
		require.Equal(t, identifiers[i], e.Type)
	}
}

func identifierLength(t *testing.T, d *db) {
	n := 0
	for _, char := range []string{"a", "ä", "€", "😀"} {
		name := long(char, store.IdentifierMax)
		e := eventN(n)
		e.Type = name
		d.append(name, name, store.NewStream, e)
		n++
		list := d.stream(name, name)
		require.Len(t, list, 1)
		require.Equal(t, name, list[0].AggregateType)
		require.Equal(t, name, list[0].AggregateID)
		require.Equal(t, name, list[0].Type)
		// What the last character tells apart is told apart.
		other := long(char, store.IdentifierMax-1) + "b"
		d.append(name, other, store.NewStream, eventN(n))
		n++
		require.Len(t, d.stream(name, other), 1)
		d.refuses(name + "a")
	}
}

func identifierBad(t *testing.T, d *db) {
	for _, name := range []string{"", " ", "a ", "a\x00", "\x00", "a\x00b", "\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80"} {
		d.refuses(name)
	}
	d.requireEmpty()
}

// refuses checks that no role of an append takes the name.
func (d *db) refuses(name string) {
	d.t.Helper()
	typed := event("x")
	typed.Type = name
	for _, c := range []store.Commit{
		appendTo(name, "x", store.AnyVersion, event("x")),
		appendTo("x", name, store.AnyVersion, event("x")),
		appendTo("x", "x", store.AnyVersion, typed),
	} {
		_, err := d.Commit(d.ctx(), c)
		requireInvalid(d.t, err, "bad_request", 0)
	}
	for _, list := range [][]store.ImportEvent{imports(name, "x", 0, 1), imports("x", name, 0, 1)} {
		_, err := d.Import(d.ctx(), list)
		requireInvalid(d.t, err, "bad_request", 0)
	}
	err := d.SaveSnapshot(d.ctx(), store.Snapshot{AggregateType: "x", AggregateID: name, Sequence: 1, Data: []byte(`1`)})
	requireInvalid(d.t, err, "bad_request", -1)
}

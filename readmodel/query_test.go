package readmodel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

func TestQueryRefuses(t *testing.T) {
	every, lines := everyKind(t)
	compile := func(table *Table, q Query) error {
		_, err := SQLite.CompileQuery("x", table, 1, q)
		return err
	}
	for _, q := range []Query{{Order: "t"}, {Order: "doc"}, {Order: "nope"}, {Where: []Cond{{Column: "raw", Text: "x"}}}, {Where: []Cond{{Column: ""}}},
		{Order: "ph_epoch"}, {Order: `i"; DROP TABLE x`}, {Order: "child"}} {
		var unknown *UnknownFieldError
		err := compile(every, q)
		require.ErrorAs(t, err, &unknown)
		require.Equal(t, []string{"key", "short", "i", "d", "big", "narrow", "f", "b", "day", "clock", "at", "id"}, unknown.Allowed)
		require.ErrorContains(t, err, "only by key, short, i")
	}
	var unknown *UnknownFieldError
	require.ErrorAs(t, compile(lines, Query{Order: "child"}), &unknown)
	require.Equal(t, []string{"key", "n", "note"}, unknown.Allowed, "the child key has no index of its own")
	require.NoError(t, compile(lines, Query{Order: "Child", Parent: "k"}))
	require.NoError(t, compile(lines, Query{Order: "child", Where: []Cond{{Column: "key", Text: "k"}}}))

	var value *ValueError
	require.ErrorAs(t, compile(every, Query{Where: []Cond{{Column: "i", Text: "five"}}}), &value)
	require.Equal(t, "i", value.Column)
	require.ErrorAs(t, compile(every, Query{Where: []Cond{{Column: "key", Text: "a "}}}), &value)
	require.ErrorAs(t, compile(every, Query{Where: []Cond{{Column: "key", Null: true}}}), &value)
	require.ErrorAs(t, compile(every, Query{Parent: "k"}), &value)
	require.ErrorAs(t, compile(lines, Query{Parent: "k\x00"}), &value)
}

func TestCursorRefuses(t *testing.T) {
	tables, err := NewTables([]abi.Table{{Name: "t", Columns: []abi.Column{
		{Name: "i", Kind: "int", Index: true}, {Name: "j", Kind: "int", Index: true}, {Name: "d", Kind: "date", Index: true}}}})
	require.NoError(t, err)
	every := tables[0]
	row, err := every.Upsert(nil)
	require.NoError(t, err)
	q := Query{Order: "i", Limit: 1, Build: 7}
	c, err := SQLite.CompileQuery("x", every, 1, q)
	require.NoError(t, err)
	stored := StoredRow{Key: Key{Key: "k"}, Row: row}
	rows, next, err := c.Page([]StoredRow{stored, stored})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	_, none, err := c.Page(rows)
	require.NoError(t, err)
	require.Empty(t, none)

	refuse := func(q Query, expired bool, why string) {
		t.Helper()
		_, err := SQLite.CompileQuery("x", every, 1, q)
		var cursor *CursorError
		require.ErrorAs(t, err, &cursor)
		require.Equal(t, expired, cursor.Expired)
		require.ErrorContains(t, err, why)
	}
	with := func(change func(q *Query)) Query {
		q := q
		q.After = next
		change(&q)
		return q
	}
	_, err = SQLite.CompileQuery("x", every, 1, with(func(q *Query) { q.Limit = 100 }))
	require.NoError(t, err, "a page may have another size than the one before")
	refuse(with(func(q *Query) { q.Build = 8 }), true, "rebuilt since")
	refuse(with(func(q *Query) { q.Desc = true }), false, "another table, order or direction")
	refuse(with(func(q *Query) { q.Order = "d" }), false, "another table, order or direction")
	refuse(with(func(q *Query) { q.Order = "j" }), false, "another table, order or direction")
	refuse(with(func(q *Query) { q.Order = "" }), false, "another table, order or direction")
	refuse(with(func(q *Query) { q.After = next[:len(next)-2] }), false, "malformed")
	refuse(with(func(q *Query) { q.After = next + "AA" }), false, "malformed")
	refuse(with(func(q *Query) { q.After = "!" }), false, "malformed")
}

// A value of the cursor's that the column cannot hold is no place in its order.
func TestCursorIsCanonical(t *testing.T) {
	c := Column{Kind: Decimal, Precision: 5, Scale: 2}
	for _, v := range []abi.Value{abi.Decimal("1.5"), abi.Decimal("-0.00"), abi.Decimal("1000.00"), abi.Int(1), abi.Null()} {
		_, _, ok := c.canonicalPrefix(abi.AppendValue(nil, v))
		require.False(t, ok, "%+v", v)
	}
	encoded, rest, ok := c.canonicalPrefix(append(abi.AppendValue(nil, abi.Decimal("1.50")), 9))
	require.True(t, ok)
	require.Equal(t, []byte{9}, rest)
	require.Equal(t, abi.AppendValue(nil, abi.Decimal("1.50")), encoded)
}

// A key instead of a cursor needs an order by key.
func TestAfterKey(t *testing.T) {
	every, lines := everyKind(t)
	compile := func(table *Table, q Query) error {
		_, err := SQLite.CompileQuery("x", table, 1, q)
		return err
	}
	require.NoError(t, compile(every, Query{AfterKey: "k", Desc: true}))
	require.NoError(t, compile(every, Query{AfterKey: "k", Order: "key"}))
	var cursor *CursorError
	require.ErrorAs(t, compile(every, Query{Order: "i", AfterKey: "k"}), &cursor)
	require.ErrorAs(t, compile(lines, Query{AfterKey: "k"}), &cursor)
	var value *ValueError
	require.ErrorAs(t, compile(every, Query{AfterKey: "k "}), &value)
}

package storetest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/big"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

var readModelCases = []testCase{
	{"LoadRowsFindsWhatExists", readModelLoad},
	{"LoadRowsTakesListsOfAnyLength", readModelLoadLengths},
	{"RowsOfALowerEpochAreAbsent", readModelEpoch},
	{"ChildrenComeInOrderPageByPage", readModelChildren},
	{"UniqueValueFindsItsRow", readModelUnique},
	{"EmptyMeansNoRowAtAll", readModelEmpty},
	{"DeletingAParentDeletesItsChildren", readModelDeleteParent},
	{"ChildrenOutliveNothingButTheirDeletion", readModelChildOrder},
	{"ViewIsOneMoment", readModelViewMoment},
	{"ViewTellsPositions", readModelViewPositions},
	{"ViewEndsWithItsContext", readModelViewEnds},
	{"ManyViewsOneAfterTheOther", readModelManyViews},
	{"UnknownTablesAndRowsAreNotFound", readModelUnknown},
	{"TablesOfOtherConsumersAreUnknown", readModelOthersTables},
	{"QueryOrdersEveryKindWithNullsLast", readModelOrder},
	{"QueryFiltersByEquality", readModelFilter},
	{"QueryRefusesUndeclaredFields", readModelUnknownField},
	{"QueryPagesWhileRowsChange", readModelPagesWhileChanging},
	{"CursorOfAnotherBuildHasExpired", readModelCursorExpired},
	{"CursorMustFitTheQuery", readModelCursorFits},
}

func readModelLoad(t *testing.T, d *db) {
	l := filled(d)
	key := func(k string) readmodel.Key { return readmodel.Key{Key: k} }
	a, b := stored(l.account("a", 1, "x")), stored(l.account("b", 2, ""))
	require.Equal(t, []store.StoredRow{a, b}, l.load("accounts", key("b"), key("none"), key("a"), key("A")))
	require.Equal(t, []store.StoredRow{a}, l.load("accounts", key("a"), key("a")), "a key that is given twice is one row")
	require.Empty(t, l.load("accounts", key("none")))
	require.Empty(t, l.load("accounts"))
	e := stored(l.entry("a", "1", 5))
	child := func(k, c string) readmodel.Key { return readmodel.Key{Key: k, Child: c} }
	require.Equal(t, []store.StoredRow{e}, l.load("entries", child("a", "2"), child("a", "1"), child("b", "1"), child("1", "a")))
}

func readModelLoadLengths(t *testing.T, d *db) {
	l := d.lane("i", 3)
	var writes, entries []readmodel.Write
	for i := range 400 {
		writes = append(writes, l.account(fmt.Sprintf("k%03d", i), int64(i), ""))
		entries = append(entries, l.entry(fmt.Sprintf("k%03d", i/4), fmt.Sprintf("c%03d", i), int64(i)))
	}
	b := l.batch(7, 3)
	l.write(b, "accounts", writes...)
	l.write(b, "entries", entries...)
	l.apply(b)
	for _, n := range []int{1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 256, 257, 399, 400} {
		requireRows(t, writes[:n], l.load("accounts", keysOf(writes[:n])...))
		requireRows(t, entries[400-n:], l.load("entries", keysOf(entries[400-n:])...))
	}
}

func readModelEpoch(t *testing.T, d *db) {
	l := filled(d)
	ref := l.ref("accounts")
	ref.Epoch++
	rows, err := d.LoadRows(d.ctx(), ref, []store.RowKey{{Key: "a"}})
	require.NoError(t, err)
	require.Empty(t, rows)
	ref = l.ref("entries")
	ref.Epoch++
	rows, err = d.LoadRows(d.ctx(), ref, []store.RowKey{{Key: "a", Child: "1"}})
	require.NoError(t, err)
	require.Empty(t, rows)
	rows, err = d.ListChildren(d.ctx(), ref, "a", "", 10)
	require.NoError(t, err)
	require.Empty(t, rows)
}

func readModelEmpty(t *testing.T, d *db) {
	l := d.lane("i", 3)
	empty := func(table string, epoch int64) bool {
		ref := l.ref(table)
		ref.Epoch = epoch
		is, err := d.Empty(d.ctx(), ref)
		require.NoError(t, err)
		return is
	}
	require.True(t, empty("accounts", 0))
	b := l.batch(7, 3)
	l.write(b, "accounts", l.account("a", 1, ""))
	l.apply(b)
	require.False(t, empty("accounts", 0))
	require.False(t, empty("accounts", 1), "a row of a lower epoch is a row")
	require.True(t, empty("entries", 0))
	b = l.batch(8, 3)
	l.write(b, "accounts", remove("a"))
	l.write(b, "entries", l.entry("b", "1", 1))
	l.apply(b)
	require.True(t, empty("accounts", 0))
	require.False(t, empty("entries", 0))
}

func readModelUnique(t *testing.T, d *db) {
	l := d.laneOf(declare(t, "users", abi.Table{Name: "users", Columns: []abi.Column{
		{Name: "name", Kind: abi.ColumnText, Max: 100, Unique: true},
		{Name: "credit", Kind: abi.ColumnDecimal, Precision: 10, Scale: 2, Unique: true},
		{Name: "born", Kind: abi.ColumnDate, Unique: true},
	}}), "i", 3)
	user := func(key, name, credit string, born int64) readmodel.Write {
		return put(key, l.row("users", abi.ColumnValue{Column: 0, Value: textValue(name)},
			abi.ColumnValue{Column: 1, Value: abi.Value{Tag: abi.TagDecimal, B: []byte(credit)}},
			abi.ColumnValue{Column: 2, Value: abi.Value{Tag: abi.TagDate, I: born}}), 1)
	}
	a, b := user("a", "x", "9.50", 10), user("b", "X", "10", -10)
	batch := l.batch(7, 3)
	l.write(batch, "users", a, b)
	l.apply(batch)
	ref, later := l.ref("users"), l.ref("users")
	later.Epoch++
	for column := range ref.Table.Columns {
		for _, w := range []readmodel.Write{a, b} {
			found, err := d.FindUnique(d.ctx(), ref, column, w.Row)
			require.NoError(t, err)
			require.Equal(t, stored(w), found)
			_, err = d.FindUnique(d.ctx(), later, column, w.Row)
			require.ErrorIs(t, err, store.ErrNotFound, "a row of a lower epoch is absent")
		}
		_, err := d.FindUnique(d.ctx(), ref, column, user("c", "x ", "9.51", 11).Row)
		require.ErrorIs(t, err, store.ErrNotFound)
	}
}

func readModelChildren(t *testing.T, d *db) {
	l := d.lane("i", 3)
	var writes, others []readmodel.Write
	for i := range 25 {
		writes = append(writes, l.entry("k", fmt.Sprintf("c%02d", i), int64(i)))
		others = append(others, l.entry("kk", fmt.Sprintf("c%02d", i), int64(i)), l.entry("K", fmt.Sprintf("c%02d", i), int64(i)))
	}
	b := l.batch(7, 3)
	l.write(b, "entries", append(others, writes...)...)
	l.apply(b)
	v, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	defer v.Close()
	for _, limit := range []int{1, 7, 25, 100} {
		var listed, viewed []store.StoredRow
		for after := ""; ; {
			page, err := d.ListChildren(d.ctx(), l.ref("entries"), "k", after, limit)
			require.NoError(t, err)
			again, err := v.Children(d.ctx(), "entries", "k", after, limit)
			require.NoError(t, err)
			require.Equal(t, page, again)
			require.LessOrEqual(t, len(page), limit)
			listed, viewed = append(listed, page...), append(viewed, again...)
			if len(page) < limit {
				break
			}
			after = page[len(page)-1].Child
		}
		requireRows(t, writes, listed)
		requireRows(t, writes, viewed)
	}
	_, err = d.ListChildren(d.ctx(), l.ref("accounts"), "k", "", 10)
	require.Error(t, err, "accounts have no parent")
	_, err = v.Children(d.ctx(), "accounts", "k", "", 10)
	require.Error(t, err)
}

func readModelDeleteParent(t *testing.T, d *db) {
	l := d.lane("i", 3)
	b := l.batch(7, 3)
	l.write(b, "accounts", l.account("a", 1, ""), l.account("aa", 2, ""), l.account("A", 3, ""))
	l.write(b, "entries", l.entry("a", "1", 1), l.entry("a", "2", 2), l.entry("aa", "1", 3), l.entry("A", "1", 4), l.entry("orphan", "1", 5))
	l.apply(b)
	b = l.batch(8, 3)
	l.write(b, "accounts", remove("a"), remove("none"))
	l.apply(b)
	require.Equal(t, []store.StoredRow{stored(l.account("A", 3, "")), stored(l.account("aa", 2, ""))}, l.all("accounts"))
	require.Equal(t, []store.StoredRow{stored(l.entry("A", "1", 4)), stored(l.entry("aa", "1", 3)), stored(l.entry("orphan", "1", 5))}, l.all("entries"),
		"children of other keys stay, and a child needs no parent")
	b = l.batch(9, 3)
	l.write(b, "accounts", remove("orphan"))
	l.apply(b)
	require.Len(t, l.all("entries"), 2, "the children of a parent that is absent go as well")
}

// Writes of a batch are final rows: what is written is there afterwards,
// whatever the batch deletes around it, and in whatever order its tables come.
func readModelChildOrder(t *testing.T, d *db) {
	l := d.lane("i", 3)
	position := int64(7)
	for _, parentFirst := range []bool{true, false} {
		b := l.batch(position, 3)
		l.write(b, "accounts", l.account("a", 1, ""))
		l.write(b, "entries", l.entry("a", "1", 1), l.entry("a", "2", 2), l.entry("b", "1", 1))
		l.apply(b)

		b = l.batch(position+1, 3)
		l.write(b, "accounts", remove("a"))
		l.write(b, "entries", l.entry("a", "2", 20), l.entry("a", "3", 30), l.entry("b", "2", 2), remove("b", "1"))
		if !parentFirst {
			slices.Reverse(b.Tables)
		}
		l.apply(b)
		require.Empty(t, l.all("accounts"))
		require.Equal(t, []store.StoredRow{stored(l.entry("a", "2", 20)), stored(l.entry("a", "3", 30)), stored(l.entry("b", "2", 2))}, l.all("entries"))

		b = l.batch(position+2, 3)
		b.Tables = []store.TableWrites{{Table: l.ref("entries"), DeleteChildrenOf: []string{"a", "b", "none"},
			Writes: []readmodel.Write{l.entry("a", "3", 33)}}}
		l.apply(b)
		require.Equal(t, []store.StoredRow{stored(l.entry("a", "3", 33))}, l.all("entries"))
		position += 10
	}
}

func readModelViewMoment(t *testing.T, d *db) {
	l := filled(d)
	v, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	defer v.Close()
	b := l.batch(9, 3)
	l.write(b, "accounts", l.account("a", 11, "later"), remove("b"), l.account("c", 3, "later"))
	l.write(b, "entries", remove("a", "1"))
	l.apply(b)
	require.NoError(t, d.Halt(d.ctx(), l.c.ID, l.leases[0], testHalt(9)))

	row, err := v.Get(d.ctx(), "accounts", store.RowKey{Key: "a"})
	require.NoError(t, err)
	require.Equal(t, stored(l.account("a", 1, "x")), row)
	rows, next, err := v.Query(d.ctx(), "accounts", store.Query{Limit: 10})
	require.NoError(t, err)
	require.Empty(t, next)
	require.Equal(t, []store.StoredRow{stored(l.account("a", 1, "x")), stored(l.account("b", 2, ""))}, rows)
	rows, err = v.Children(d.ctx(), "entries", "a", "", 10)
	require.NoError(t, err)
	require.Equal(t, []store.StoredRow{stored(l.entry("a", "1", 5))}, rows)
	position, err := v.Position(store.EventsTopic, 3)
	require.NoError(t, err)
	require.EqualValues(t, 7, position)
	require.Equal(t, store.StateRunning, v.Consumer().State)
	require.NoError(t, v.Close())

	v, err = d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	defer v.Close()
	require.Equal(t, store.StateHalted, v.Consumer().State)
	position, err = v.Position(store.EventsTopic, 3)
	require.NoError(t, err)
	require.EqualValues(t, 9, position)
	row, err = v.Get(d.ctx(), "accounts", store.RowKey{Key: "a"})
	require.NoError(t, err)
	require.Equal(t, stored(l.account("a", 11, "later")), row)
}

func readModelViewPositions(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 3})
	l := d.lane("i")
	lowest := func() map[string]int64 {
		t.Helper()
		v, err := d.View(d.ctx(), l.c.ID)
		require.NoError(t, err)
		defer v.Close()
		positions, err := v.Positions()
		require.NoError(t, err)
		return positions
	}
	require.Equal(t, map[string]int64{store.EventsTopic: 0}, lowest())
	l.apply(l.batch(7, 0, 2))
	require.Equal(t, map[string]int64{store.EventsTopic: 0}, lowest())
	l.apply(l.batch(9, 1))
	require.Equal(t, map[string]int64{store.EventsTopic: 7}, lowest())
	v, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	defer v.Close()
	_, err = v.Position(store.EventsTopic, 3)
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = v.Position("nowhere", 0)
	require.ErrorIs(t, err, store.ErrNotFound)
}

// A view that is forgotten ends with its context, and gives back what it held.
func readModelViewEnds(t *testing.T, d *db) {
	l := filled(d)
	for range 50 {
		ctx, cancel := context.WithCancel(d.ctx())
		v, err := d.View(ctx, l.c.ID)
		require.NoError(t, err)
		_, err = v.Get(ctx, "accounts", store.RowKey{Key: "a"})
		require.NoError(t, err)
		cancel()
		_, err = v.Get(d.ctx(), "accounts", store.RowKey{Key: "a"})
		if err != nil { // the end may be noticed a moment later
			require.ErrorIs(t, err, context.Canceled)
		}
	}
	require.Len(t, l.all("accounts"), 2)
	v, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	require.NoError(t, v.Close())
	require.NoError(t, v.Close(), "closing twice is no error")
	_, err = v.Get(d.ctx(), "accounts", store.RowKey{Key: "a"})
	require.Error(t, err)
	_, _, err = v.Query(d.ctx(), "accounts", store.Query{Limit: 1})
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = d.View(ctx, l.c.ID)
	require.ErrorIs(t, err, context.Canceled)
}

func readModelManyViews(t *testing.T, d *db) {
	l := filled(d)
	for range 100 {
		v, err := d.View(d.ctx(), l.c.ID)
		require.NoError(t, err)
		_, _, err = v.Query(d.ctx(), "accounts", store.Query{Limit: 1})
		require.NoError(t, err)
		_, _, err = v.Query(d.ctx(), "accounts", store.Query{Limit: 1, Order: "nothing"})
		require.Error(t, err)
		require.NoError(t, v.Close())
	}
}

func readModelUnknown(t *testing.T, d *db) {
	l := filled(d)
	v, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	defer v.Close()
	_, err = v.Get(d.ctx(), "accounts", store.RowKey{Key: "none"})
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = v.Get(d.ctx(), "none", store.RowKey{Key: "a"})
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = v.Children(d.ctx(), "none", "a", "", 1)
	require.ErrorIs(t, err, store.ErrNotFound)
	_, _, err = v.Query(d.ctx(), "none", store.Query{Limit: 1})
	require.ErrorIs(t, err, store.ErrNotFound)
	row, err := v.Get(d.ctx(), "ACCOUNTS", store.RowKey{Key: "a"})
	require.NoError(t, err, "names of tables are compared without case")
	require.Equal(t, stored(l.account("a", 1, "x")), row)
	none, err := v.Children(d.ctx(), "entries", "none", "", 1)
	require.NoError(t, err)
	require.Empty(t, none)
}

func readModelOthersTables(t *testing.T, d *db) {
	filled(d)
	other := d.subscribe(declare(t, "other", declareOther()...))
	v, err := d.View(d.ctx(), other.ID)
	require.NoError(t, err)
	defer v.Close()
	_, err = v.Get(d.ctx(), "accounts", store.RowKey{Key: "a"})
	require.ErrorIs(t, err, store.ErrNotFound)
}

// compareValues is the order of two values of one kind that have a value.
func compareValues(a, b abi.Value) int {
	switch a.Tag {
	case abi.TagDecimal:
		x, _ := new(big.Rat).SetString(string(a.B))
		y, _ := new(big.Rat).SetString(string(b.B))
		return x.Cmp(y)
	case abi.TagFloat:
		return cmp.Compare(a.F, b.F)
	case abi.TagFalse, abi.TagTrue:
		return cmp.Compare(a.Tag, b.Tag)
	case abi.TagInt, abi.TagDate, abi.TagTime, abi.TagTimestamp:
		return cmp.Compare(a.I, b.I)
	}
	return bytes.Compare(a.B, b.B)
}

// ordered sorts rows as a query does: by the column, values first and nulls
// last in both directions, then by key.
func ordered(t require.TestingT, table *readmodel.Table, writes []readmodel.Write, column int, desc bool) []readmodel.Write {
	value := func(w readmodel.Write) abi.Value {
		values, err := table.Values(w.Row, nil)
		require.NoError(t, err)
		return values[column]
	}
	list := slices.Clone(writes)
	slices.SortFunc(list, func(x, y readmodel.Write) int {
		a, b := value(x), value(y)
		if an, bn := a.Tag == abi.TagNull, b.Tag == abi.TagNull; an || bn {
			if an != bn {
				if an {
					return 1
				}
				return -1
			}
			a, b = abi.Value{}, abi.Value{}
		}
		c := cmp.Or(compareValues(a, b), strings.Compare(x.Key.Key, y.Key.Key), strings.Compare(x.Child, y.Child))
		if desc {
			return -c
		}
		return c
	})
	return list
}

// pages reads a query to its end.
func pages(d *db, id store.ConsumerID, table string, q store.Query) (rows []store.StoredRow) {
	d.t.Helper()
	for {
		v, err := d.View(d.ctx(), id)
		require.NoError(d.t, err)
		page, next, err := v.Query(d.ctx(), table, q)
		require.NoError(d.t, err)
		require.NoError(d.t, v.Close())
		require.LessOrEqual(d.t, len(page), q.Limit)
		rows = append(rows, page...)
		if next == "" {
			return rows
		}
		require.Len(d.t, page, q.Limit, "a page that is not the last is full")
		q.After = next
	}
}

func readModelOrder(t *testing.T, d *db) {
	l := d.laneOf(declare(t, "values", abi.Table{Name: "values", Columns: valueColumns()}), "i", 3)
	table := l.c.Tables[0].Table
	// Every nasty value, nulls, and some values twice.
	writes := nastyRows(t, table)
	for _, w := range nastyRows(t, table) {
		if rand.New(rand.NewSource(int64(len(w.Row)))).Intn(3) == 0 {
			w.Key.Key = "again " + w.Key.Key
			writes = append(writes, w)
		}
	}
	b := l.batch(7, 3)
	l.write(b, "values", writes...)
	l.apply(b)
	for i, c := range table.Columns {
		if !c.Index {
			continue
		}
		for _, desc := range []bool{false, true} {
			want := ordered(t, table, writes, i, desc)
			for _, limit := range []int{11, 1000} {
				requireRows(t, want, pages(d, l.c.ID, "values", store.Query{Order: c.Name, Desc: desc, Limit: limit}))
			}
		}
	}
	slices.SortFunc(writes, func(x, y readmodel.Write) int { return strings.Compare(y.Key.Key, x.Key.Key) })
	requireRows(t, writes, pages(d, l.c.ID, "values", store.Query{Desc: true, Limit: 7}))
}

func readModelFilter(t *testing.T, d *db) {
	l := d.lane("i", 3)
	var writes []readmodel.Write
	owners := []string{"x", "X", "x ", "é", "e\u0301", "", "%", "x"}
	for i, owner := range owners {
		w := l.account(fmt.Sprint("k", i), int64(i), owner)
		if i%2 == 0 {
			row, err := l.ref("accounts").Table.Patch(w.Row, []abi.ColumnValue{{Column: colRank, Value: abi.Value{Tag: abi.TagDecimal, B: []byte("1.5")}}})
			require.NoError(t, err)
			w.Row = row
		}
		writes = append(writes, w)
	}
	b := l.batch(7, 3)
	l.write(b, "accounts", writes...)
	l.apply(b)
	find := func(where ...readmodel.Cond) (keys []string) {
		t.Helper()
		for _, row := range pages(d, l.c.ID, "accounts", store.Query{Where: where, Limit: 1}) {
			keys = append(keys, row.Key.Key)
		}
		return keys
	}
	require.Equal(t, []string{"k0", "k7"}, find(readmodel.Cond{Column: "owner", Text: "x"}))
	require.Equal(t, []string{"k1"}, find(readmodel.Cond{Column: "OWNER", Text: "X"}))
	require.Equal(t, []string{"k2"}, find(readmodel.Cond{Column: "owner", Text: "x "}))
	require.Equal(t, []string{"k3"}, find(readmodel.Cond{Column: "owner", Text: "é"}))
	require.Equal(t, []string{"k6"}, find(readmodel.Cond{Column: "owner", Text: "%"}))
	require.Equal(t, []string{"k5"}, find(readmodel.Cond{Column: "owner", Null: true}))
	require.Empty(t, find(readmodel.Cond{Column: "owner", Text: "' OR 1=1 --"}))
	require.Equal(t, []string{"k0", "k2", "k4", "k6"}, find(readmodel.Cond{Column: "rank", Text: "1.50"}), "decimals compare by value")
	require.Equal(t, []string{"k0"}, find(readmodel.Cond{Column: "rank", Text: "1.5"}, readmodel.Cond{Column: "owner", Text: "x"}))
	require.Equal(t, []string{"k4"}, find(readmodel.Cond{Column: "key", Text: "k4"}))
}

func readModelUnknownField(t *testing.T, d *db) {
	l := filled(d)
	v, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	defer v.Close()
	for _, q := range []store.Query{
		{Order: "balance", Limit: 1}, // declared, without an index
		{Order: "ph_epoch", Limit: 1},
		{Order: "owner; DROP TABLE accounts", Limit: 1},
		{Where: []readmodel.Cond{{Column: "nothing", Text: "1"}}, Limit: 1},
	} {
		_, _, err := v.Query(d.ctx(), "accounts", q)
		var unknown *readmodel.UnknownFieldError
		require.ErrorAs(t, err, &unknown)
		require.Equal(t, []string{"key", "owner", "rank"}, unknown.Allowed)
	}
	_, _, err = v.Query(d.ctx(), "accounts", store.Query{Where: []readmodel.Cond{{Column: "rank", Text: "much"}}, Limit: 1})
	var value *readmodel.ValueError
	require.ErrorAs(t, err, &value)
}

// A page begins after the last row of the one before, whatever was written in
// between: no row that stays is told twice or left out.
func readModelPagesWhileChanging(t *testing.T, d *db) {
	l := d.lane("i", 3)
	var writes []readmodel.Write
	for i := range 40 {
		writes = append(writes, l.account(fmt.Sprintf("k%02d", i), int64(i), ""))
	}
	b := l.batch(7, 3)
	l.write(b, "accounts", writes...)
	l.apply(b)
	seen := map[string]int{}
	q := store.Query{Limit: 3}
	for position := int64(8); ; position++ {
		v, err := d.View(d.ctx(), l.c.ID)
		require.NoError(t, err)
		page, next, err := v.Query(d.ctx(), "accounts", q)
		require.NoError(t, err)
		require.NoError(t, v.Close())
		for _, row := range page {
			seen[row.Key.Key]++
		}
		if next == "" {
			break
		}
		q.After = next
		// The last row seen goes, new ones come on both sides of it.
		b := l.batch(position, 3)
		last := page[len(page)-1].Key.Key
		l.write(b, "accounts", remove(last), l.account("a"+last, 1, ""), l.account(last+"x", 1, ""))
		l.apply(b)
	}
	for _, w := range writes {
		require.Equal(t, 1, seen[w.Key.Key], "row %s", w.Key.Key)
	}
}

func readModelCursorExpired(t *testing.T, d *db) {
	l := filled(d)
	v, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	defer v.Close()
	_, next, err := v.Query(d.ctx(), "accounts", store.Query{Limit: 1})
	require.NoError(t, err)
	require.NotEmpty(t, next)

	other := d.fresh(Config{})
	other.subscribe(declare(t, "filler", declareOther()...)) // takes the first number of a build
	o := filled(other)
	require.NotEqual(t, l.c.Build, o.c.Build)
	ov, err := other.View(other.ctx(), o.c.ID)
	require.NoError(t, err)
	defer ov.Close()
	_, _, err = ov.Query(other.ctx(), "accounts", store.Query{Limit: 1, After: next})
	var cursor *readmodel.CursorError
	require.ErrorAs(t, err, &cursor)
	require.True(t, cursor.Expired)
}

func readModelCursorFits(t *testing.T, d *db) {
	l := filled(d)
	v, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	defer v.Close()
	_, next, err := v.Query(d.ctx(), "accounts", store.Query{Limit: 1, Order: "owner"})
	require.NoError(t, err)
	for _, q := range []store.Query{
		{Limit: 1, Order: "owner", Desc: true, After: next},
		{Limit: 1, Order: "rank", After: next},
		{Limit: 1, Order: "owner", After: next + "x"},
		{Limit: 1, Order: "owner", After: "%"},
	} {
		_, _, err := v.Query(d.ctx(), "accounts", q)
		var cursor *readmodel.CursorError
		require.ErrorAs(t, err, &cursor)
		require.False(t, cursor.Expired)
	}
	rows, next, err := v.Query(d.ctx(), "accounts", store.Query{Limit: 5, Order: "owner", After: next})
	require.NoError(t, err)
	require.Empty(t, next)
	require.Equal(t, []store.StoredRow{stored(l.account("b", 2, ""))}, rows)
}

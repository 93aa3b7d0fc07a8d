package readmodel

import (
	"cmp"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the statements run on a real engine
	"pgregory.net/rapid"

	"github.com/projhost/projhost/abi"
)

// database is a read-model table in a real SQLite.
type database struct {
	t     interface{ Fatal(...any) }
	db    *sql.DB
	table *Table
	s     *Statements
}

func openSQLite(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+t.TempDir()+"/test.db?_pragma=journal_mode(wal)&_pragma=synchronous(off)")
	require.NoError(t, err)
	db.SetMaxOpenConns(1)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func newDatabase(t testing.TB, db *sql.DB, table *Table) *database {
	t.Helper()
	physical := PhysicalName("", table.Name, 1)
	d := &database{t, db, table, SQLite.Statements(physical, table)}
	for _, q := range slices.Concat(SQLite.CreateTable(physical, table), SQLite.CreateIndexes(physical, table),
		SQLite.CreateView(PublicName("", table.Name), physical, table)) {
		d.exec(q)
	}
	return d
}

func (d *database) exec(query string, args ...any) {
	if _, err := d.db.Exec(query, args...); err != nil {
		d.t.Fatal(fmt.Errorf("%s: %w", query, err))
	}
}

func (d *database) write(epoch int64, writes ...Write) {
	for i := range writes {
		w := &writes[i]
		if w.Row == nil {
			d.exec(d.s.Delete, d.s.KeyArgs(nil, w.Key)...)
			continue
		}
		args, err := d.s.RowArgs(nil, w, epoch)
		if err != nil {
			d.t.Fatal(err)
		}
		d.exec(d.s.Upsert, args...)
	}
}

func (d *database) read(query string, args ...any) []StoredRow {
	rows, err := d.db.Query(query, args...)
	if err != nil {
		d.t.Fatal(fmt.Errorf("%s: %w", query, err))
	}
	defer rows.Close()
	sc := d.s.NewScanner()
	var out []StoredRow
	for rows.Next() {
		if err := rows.Scan(sc.Dest()...); err != nil {
			d.t.Fatal(err)
		}
		row, err := sc.Row()
		if err != nil {
			d.t.Fatal(err)
		}
		out = append(out, row)
	}
	if err := rows.Err(); err != nil {
		d.t.Fatal(err)
	}
	return out
}

// Promise: a row read back is, byte for byte, the row that was written (P10).
func TestSQLiteGivesRowsBack(t *testing.T) {
	every, _ := everyKind(t)
	d := newDatabase(t, openSQLite(t), every)
	nasty := make([][]abi.Value, len(every.Columns))
	for i := range every.Columns {
		switch c := &every.Columns[i]; c.Kind {
		case Text:
			for _, s := range append(nastyTexts, strings.Repeat("😀", 5), strings.Repeat("x", 10)) {
				nasty[i] = append(nasty[i], abi.Text(s))
			}
		case Int:
			for _, n := range nastyInts {
				nasty[i] = append(nasty[i], abi.Int(n))
			}
		case Decimal:
			most := strings.Repeat("9", c.Precision-c.Scale) + "." + strings.Repeat("9", c.Scale)
			for _, s := range []string{"0", "-0", "1", "10", "9", "100", "-1", "-100", most, "-" + most, "0." + strings.Repeat("0", c.Scale-1) + "1"} {
				nasty[i] = append(nasty[i], abi.Decimal(s))
			}
		case Float:
			for _, f := range nastyFloats {
				nasty[i] = append(nasty[i], abi.Float(f))
			}
		case Bool:
			nasty[i] = []abi.Value{abi.Bool(true), abi.Bool(false)}
		case Date:
			nasty[i] = []abi.Value{abi.Date(dateMin), abi.Date(dateMax), abi.Date(0), abi.Date(-1), abi.Date(11016)}
		case Time:
			nasty[i] = []abi.Value{abi.Time(0), abi.Time(microsPerDay - 1), abi.Time(1)}
		case Timestamp:
			nasty[i] = []abi.Value{abi.Timestamp(timestampMin), abi.Timestamp(timestampMax), abi.Timestamp(-1), abi.Timestamp(0), abi.Timestamp(1)}
		case UUID:
			nasty[i] = []abi.Value{abi.UUID(make([]byte, 16)), abi.UUID([]byte(strings.Repeat("\xff", 16)))}
		case Bytes:
			nasty[i] = []abi.Value{abi.Bytes([]byte{}), abi.Bytes([]byte{0}), abi.Bytes([]byte("\xff\x00text"))}
		case JSON:
			for _, s := range nastyJSON {
				nasty[i] = append(nasty[i], abi.JSON([]byte(s)))
			}
		}
		nasty[i] = slices.DeleteFunc(append(nasty[i], abi.Null()), func(v abi.Value) bool {
			_, reason := canon(&every.Columns[i], v)
			return reason != ""
		})
	}
	for round := range 30 {
		var cols []abi.ColumnValue
		for i, values := range nasty {
			cols = append(cols, abi.ColumnValue{Column: uint16(i), Value: values[min(round, len(values)-1)]})
		}
		row, err := every.Upsert(cols)
		require.NoError(t, err)
		want := StoredRow{Key: Key{Key: fmt.Sprint("k", round)}, Row: row, Position: int64(round), UpdatedUS: -int64(round)}
		d.write(3, Write{Key: want.Key, Row: row, Position: want.Position, UpdatedUS: want.UpdatedUS})
		got := d.read(d.s.Get, want.Key.Key, 3)
		require.Len(t, got, 1)
		require.Equal(t, string(every.AppendJSON(nil, row)), string(every.AppendJSON(nil, got[0].Row)))
		require.Equal(t, want, got[0])
		require.Empty(t, d.read(d.s.Get, want.Key.Key, 4), "a row of a lower epoch is absent")
	}
	rapid.Check(t, func(t *rapid.T) {
		d := *d
		d.t = t
		row := drawRow(t, every, "row")
		d.write(3, Write{Key: Key{Key: "k"}, Row: row})
		if got := d.read(d.s.Get, "k", 3); len(got) != 1 || string(got[0].Row) != string(row) {
			t.Fatalf("%s came back as %v", every.AppendJSON(nil, row), got)
		}
	})
}

// What a user sees who reads the public view with SQL.
func TestSQLiteViewIsReadable(t *testing.T) {
	every, _ := everyKind(t)
	d := newDatabase(t, openSQLite(t), every)
	row, err := every.Upsert(op(t, every, "t", abi.Text("ä"), "i", abi.Int(-3), "d", abi.Decimal("1234.5"), "big", abi.Decimal("-1"),
		"f", abi.Float(2), "b", abi.Bool(true), "day", abi.Date(15248), "clock", abi.Time(3723_500000), "at", abi.Timestamp(1317422324_546000),
		"id", abi.UUID([]byte("0123456789abcdef")), "raw", abi.Bytes([]byte("\x01")), "doc", abi.JSON([]byte(`{"a": [1]}`))))
	require.NoError(t, err)
	d.write(1, Write{Key: Key{Key: "k"}, Row: row, Position: 7, UpdatedUS: 8})

	var got string
	require.NoError(t, d.db.QueryRow(`SELECT json_array(key, t, i, d, big, f, b, day, clock, at, id, hex(raw), json_extract(doc, '$.a[0]'), ph_position, ph_updated_us,
		datetime(at), date(at) = day, at > datetime('2011-09-30'), CAST(d AS REAL) > 1000) FROM every`).Scan(&got))
	require.Equal(t, `["k","ä",-3,"1234.50","-1.0000000000",2.0,1,"2011-10-01","01:02:03.500000","2011-09-30 22:38:44.546000",`+
		`"30313233-3435-3637-3839-616263646566","01",1,7,8,"2011-09-30 22:38:44",0,1,1]`, got)

	// The view follows another build in place.
	for _, q := range slices.Concat(SQLite.CreateTable("every__b2", every), SQLite.CreateView("every", "every__b2", every)) {
		d.exec(q)
	}
	var n int
	require.NoError(t, d.db.QueryRow(`SELECT count(*) FROM every`).Scan(&n))
	require.Zero(t, n)
	d.exec(SQLite.DropView("every"))
	d.exec(SQLite.DropTable("every__b1"))
	d.exec(SQLite.DropTable("every__b1"))
}

func TestSQLiteStatements(t *testing.T) {
	_, lines := everyKind(t)
	d := newDatabase(t, openSQLite(t), lines)
	row := func(n int) Row {
		r, err := lines.Upsert(op(t, lines, "n", abi.Int(int64(n))))
		require.NoError(t, err)
		return r
	}
	var keys []Key
	for _, parent := range []string{"a", "b"} {
		for i := range 10 {
			k := Key{parent, fmt.Sprint("c", i)}
			keys = append(keys, k)
			d.write(1, Write{Key: k, Row: row(i)})
		}
	}
	names := func(rows []StoredRow) (out []string) {
		for _, r := range rows {
			out = append(out, r.Key.Key+"/"+r.Child)
		}
		slices.Sort(out)
		return out
	}
	require.Equal(t, []string{"a/c3", "a/c4"}, names(d.read(d.s.List, "a", "c2", 1, 2)))
	require.Len(t, d.read(d.s.List, "a", "", 1, 100), 10)

	asked := []Key{keys[0], {"a", "nope"}, keys[11], {"nope", "c1"}, keys[5]}
	size := SelectSize(len(asked))
	require.Equal(t, 16, size)
	require.Equal(t, []string{"a/c0", "a/c5", "b/c1"}, names(d.read(d.s.SelectKeys(size), d.s.SelectArgs(nil, asked, size, 1)...)))
	require.Empty(t, d.read(d.s.SelectKeys(size), d.s.SelectArgs(nil, asked, size, 2)...))

	d.write(1, Write{Key: keys[0]})
	d.exec(d.s.DeleteChildren, "b")
	require.Len(t, d.read(d.s.List, "a", "", 1, 100), 9)
	require.Empty(t, d.read(d.s.List, "b", "", 1, 100))
}

func TestSelectSize(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 4, 4: 4, 5: 16, 64: 64, 65: 256, 256: 256, 1000: 256} {
		require.Equal(t, want, SelectSize(n), "%d keys", n)
	}
}

// Every statement finds its rows by an index, also one with many keys.
func TestSQLiteUsesIndexes(t *testing.T) {
	every, lines := everyKind(t)
	db := openSQLite(t)
	plan := func(query string, args ...any) string {
		rows, err := db.Query("EXPLAIN QUERY PLAN "+query, args...)
		require.NoError(t, err, query)
		defer rows.Close()
		var lines []string
		for rows.Next() {
			var id, parent, x int
			var detail string
			require.NoError(t, rows.Scan(&id, &parent, &x, &detail))
			lines = append(lines, detail)
		}
		return strings.Join(lines, "\n")
	}
	for _, table := range []*Table{every, lines} {
		d := newDatabase(t, db, table)
		queries := []string{d.s.Get, d.s.Delete, d.s.SelectKeys(64)}
		if table.Parent != nil {
			queries = append(queries, d.s.List, d.s.DeleteChildren)
		}
		for _, q := range queries {
			p := plan(q, make([]any, strings.Count(q, "?"))...)
			require.Contains(t, p, "SEARCH", q)
			require.NotContains(t, p, "SCAN", q)
			require.NotContains(t, p, "TEMP B-TREE", q)
		}
		for _, q := range []Query{{}, {Order: "i"}, {Order: "n"}, {Order: "big", Desc: true}, {Order: "note", Where: []Cond{{Column: "note", Text: "x"}}}} {
			q.Limit = 10
			c, err := SQLite.CompileQuery(d.s.Physical, table, 1, q)
			if err != nil {
				continue
			}
			// Only the union of the sections, a page long, is sorted.
			for _, line := range strings.Split(plan(c.SQL, c.Args...), "\n") {
				require.False(t, strings.HasPrefix(line, "SCAN "+d.s.Physical) && !strings.Contains(line, "USING INDEX") && q.Order != "", "%s\n%s", line, c.SQL)
			}
		}
	}
}

// A value that moves from one row of a unique column to another is no clash,
// and a clash is an error instead of an overwritten row.
func TestSQLiteUnique(t *testing.T) {
	tables, err := NewTables([]abi.Table{{Name: "users", Columns: []abi.Column{
		{Name: "email", Kind: "text", Max: 100, Unique: true}, {Name: "balance", Kind: "decimal", Precision: 30, Scale: 2, Unique: true}}}})
	require.NoError(t, err)
	users := tables[0]
	d := newDatabase(t, openSQLite(t), users)
	require.Empty(t, d.s.Upsert, "no statement may take another unique index for the key")
	insert := func(key, email, balance string) error {
		row, err := users.Upsert(op(t, users, "email", abi.Text(email), "balance", abi.Decimal(balance)))
		require.NoError(t, err)
		args, err := d.s.RowArgs(nil, &Write{Key: Key{Key: key}, Row: row}, 1)
		require.NoError(t, err)
		_, err = d.db.Exec(d.s.Insert, args...)
		return err
	}
	require.NoError(t, insert("A", "x", "1"))
	require.NoError(t, insert("B", "y", "2"))
	require.Error(t, insert("C", "x", "3"))
	require.Error(t, insert("C", "z", "1"))
	// A and B swap their addresses.
	d.exec(d.s.Delete, "A")
	d.exec(d.s.Delete, "B")
	require.NoError(t, insert("A", "y", "1"))
	require.NoError(t, insert("B", "x", "2"))
}

// Promise: paging through a table in any order gives every row exactly once,
// sorted, rows without a value last, whatever the direction (P10).
func TestSQLitePagesAreTheSort(t *testing.T) {
	every, lines := everyKind(t)
	db := openSQLite(t)
	databases := map[*Table]*database{every: newDatabase(t, db, every), lines: newDatabase(t, db, lines)}
	rapid.Check(t, func(t *rapid.T) {
		table := rapid.SampledFrom([]*Table{every, lines}).Draw(t, "table")
		d := *databases[table]
		d.t = t
		d.exec("BEGIN")
		defer d.exec("ROLLBACK")
		keys := rapid.SampledFrom([]string{"a", "A", "ä", "b", "b\u0301", "\uffff", "😀", "10", "9"})
		stored := map[Key]StoredRow{}
		for range rapid.IntRange(0, 25).Draw(t, "rows") {
			k := Key{Key: keys.Draw(t, "key")}
			if table.Parent != nil {
				k.Child = keys.Draw(t, "child")
			} else {
				k.Key += keys.Draw(t, "key")
			}
			row := drawRow(t, table, "row")
			epoch := int64(rapid.SampledFrom([]int{2, 2, 2, 1}).Draw(t, "epoch"))
			d.write(epoch, Write{Key: k, Row: row})
			if delete(stored, k); epoch == 2 {
				stored[k] = StoredRow{Key: k, Row: row}
			}
		}
		q := Query{Limit: rapid.IntRange(1, 7).Draw(t, "limit"), Desc: rapid.Bool().Draw(t, "desc"), Build: 1,
			Order: rapid.SampledFrom(append(table.Fields(), "")).Draw(t, "order")}
		if table.Parent != nil && (q.Order == ChildColumn || rapid.Bool().Draw(t, "of one parent")) {
			q.Parent = keys.Draw(t, "parent")
		}
		if rapid.Bool().Draw(t, "filter") && len(stored) > 0 {
			if c := drawCond(t, table, stored); c.Column != ChildColumn || q.Parent != "" {
				q.Where = []Cond{c}
			}
		}
		want := sorted(t, table, stored, q)
		var got []StoredRow
		for {
			c, err := SQLite.CompileQuery(d.s.Physical, table, 2, q)
			if err != nil {
				t.Fatal(err)
			}
			page, next, err := c.Page(d.read(c.SQL, c.Args...))
			if err != nil {
				t.Fatal(err)
			}
			if len(page) > q.Limit || next != "" && len(page) != q.Limit {
				t.Fatalf("a page of %d rows, limit %d, next %q", len(page), q.Limit, next)
			}
			if got = append(got, page...); next == "" {
				break
			}
			if len(got) > len(stored) {
				t.Fatalf("more rows than there are")
			}
			q.After = next
		}
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i].Key != want[i].Key || string(got[i].Row) != string(want[i].Row) {
				t.Fatalf("query %+v\nrow %d: got %v\nwant %v", q, i, show(table, got), show(table, want))
			}
		}
	})
}

func drawCond(t *rapid.T, table *Table, stored map[Key]StoredRow) Cond {
	name := rapid.SampledFrom(table.Fields()).Draw(t, "field")
	k := rapid.SampledFrom(slices.SortedFunc(mapsKeys(stored), func(a, b Key) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Child, b.Child)) })).Draw(t, "like")
	switch name {
	case KeyColumn:
		return Cond{Column: "KEY", Text: k.Key}
	case ChildColumn:
		return Cond{Column: name, Text: k.Child}
	}
	i, _ := table.ColumnByName(name)
	values, err := table.Values(stored[k].Row, nil)
	if err != nil {
		t.Fatal(err)
	}
	return Cond{Column: strings.ToUpper(name), Text: string(AppendText(nil, values[i])), Null: values[i].Tag == abi.TagNull}
}

func mapsKeys(m map[Key]StoredRow) func(yield func(Key) bool) {
	return func(yield func(Key) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// sorted is what a query should give, by other means than SQL.
func sorted(t *rapid.T, table *Table, stored map[Key]StoredRow, q Query) []StoredRow {
	var rows []StoredRow
	for _, r := range stored {
		if q.Parent != "" && r.Key.Key != q.Parent || len(q.Where) > 0 && !matches(t, table, r, q.Where[0]) {
			continue
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b StoredRow) int {
		sign := 1
		if q.Desc {
			sign = -1
		}
		tie := sign * cmp.Or(cmp.Compare(a.Key.Key, b.Key.Key), cmp.Compare(a.Child, b.Child))
		switch strings.ToLower(q.Order) {
		case "", KeyColumn:
			return tie
		case ChildColumn:
			return cmp.Or(sign*cmp.Compare(a.Child, b.Child), tie)
		}
		i, _ := table.ColumnByName(q.Order)
		x, y := valueOf(t, table, a, i), valueOf(t, table, b, i)
		if x.Tag == abi.TagNull || y.Tag == abi.TagNull {
			return cmp.Or(-cmp.Compare(min(x.Tag, 1), min(y.Tag, 1)), tie)
		}
		return cmp.Or(sign*compareValues(x, y), tie)
	})
	return rows
}

func valueOf(t *rapid.T, table *Table, r StoredRow, i int) abi.Value {
	values, err := table.Values(r.Row, nil)
	if err != nil {
		t.Fatal(err)
	}
	return values[i]
}

func matches(t *rapid.T, table *Table, r StoredRow, c Cond) bool {
	switch strings.ToLower(c.Column) {
	case KeyColumn:
		return r.Key.Key == c.Text
	case ChildColumn:
		return r.Child == c.Text
	}
	i, _ := table.ColumnByName(c.Column)
	v := valueOf(t, table, r, i)
	return c.Null == (v.Tag == abi.TagNull) && (c.Null || string(AppendText(nil, v)) == c.Text)
}

// compareValues orders canonical values of one column as the documentation
// says, decimals by big arithmetic.
func compareValues(x, y abi.Value) int {
	switch x.Tag {
	case abi.TagDecimal:
		return rat(x).Cmp(rat(y))
	case abi.TagFloat:
		return cmp.Compare(x.F, y.F)
	case abi.TagFalse, abi.TagTrue:
		return cmp.Compare(x.Tag, y.Tag)
	case abi.TagText, abi.TagUUID:
		return cmp.Compare(string(x.B), string(y.B))
	}
	return cmp.Compare(x.I, y.I)
}

func show(table *Table, rows []StoredRow) string {
	var b strings.Builder
	for _, r := range rows {
		fmt.Fprintf(&b, "\n%q %q %s", r.Key.Key, r.Child, table.AppendJSON(nil, r.Row))
	}
	return b.String()
}

// A row that somebody else wrote is left alone, is there for every epoch, and
// tells what is wrong with it if it is not as declared.
func TestSQLiteForeignRows(t *testing.T) {
	every, _ := everyKind(t)
	d := newDatabase(t, openSQLite(t), every)
	d.exec(`INSERT INTO every__b1 (key, i, d, day, b) VALUES ('theirs', 5, '7.5', '2020-02-29', 1)`)
	rows := d.read(d.s.Get, "theirs", int64(math.MaxInt64))
	require.Len(t, rows, 1)
	require.Zero(t, rows[0].Position)
	require.Contains(t, string(every.AppendJSON(nil, rows[0].Row)), `"d":"7.50"`)

	for column, value := range map[string]any{"i": "five", "d": "1.005", "day": "2021-02-29", "b": 2, "id": "x", "f": "y", "at": "now", "t": []byte("ä")} {
		d.exec(`INSERT OR REPLACE INTO every__b1 (key, `+column+`) VALUES ('bad', ?)`, value)
		q, err := d.db.Query(d.s.Get, "bad", 1)
		require.NoError(t, err)
		sc := d.s.NewScanner()
		require.True(t, q.Next())
		require.NoError(t, q.Scan(sc.Dest()...))
		_, err = sc.Row()
		require.NoError(t, q.Close())
		if column == "t" {
			require.NoError(t, err, "bytes that are the text are the text")
			continue
		}
		var row *RowError
		require.ErrorAs(t, err, &row, column)
		require.Equal(t, column, row.Column)
		require.Equal(t, "bad", row.Key.Key)
	}
}

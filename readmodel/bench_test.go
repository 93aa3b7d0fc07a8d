package readmodel

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

// loans is the table of a loan application, the measure of the hot path.
func loans(t testing.TB) (*Table, []abi.ColumnValue) {
	t.Helper()
	tables, err := NewTables([]abi.Table{{Name: "applications", Columns: []abi.Column{
		{Name: "amount", Kind: "decimal", Precision: 19, Scale: 2},
		{Name: "status", Kind: "text", Max: 40, Index: true},
		{Name: "offers", Kind: "int"},
		{Name: "events", Kind: "int"},
		{Name: "last_at", Kind: "timestamp"},
		{Name: "state", Kind: "json"},
	}}})
	require.NoError(t, err)
	return tables[0], op(t, tables[0], "amount", abi.Decimal("20000"), "status", abi.Text("A_PARTLYSUBMITTED"), "offers", abi.Int(1),
		"events", abi.Int(12), "last_at", abi.Timestamp(1317422324_546000),
		"state", abi.JSON([]byte(`{"amount":20000.00,"status":"A_PARTLYSUBMITTED","offers":1,"events":12,"last_resource":"112"}`)))
}

func BenchmarkUpsert(b *testing.B) {
	table, cols := loans(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := table.Upsert(cols); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPatch(b *testing.B) {
	table, cols := loans(b)
	row, err := table.Upsert(cols)
	require.NoError(b, err)
	for name, cols := range map[string][]abi.ColumnValue{"all": cols, "two": cols[3:5]} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := table.Patch(row, cols); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAdd(b *testing.B) {
	table, cols := loans(b)
	row, err := table.Upsert(cols)
	require.NoError(b, err)
	for name, cols := range map[string][]abi.ColumnValue{
		"int": op(b, table, "events", abi.Int(1)), "decimal": op(b, table, "amount", abi.Decimal("12.5"))} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := table.Add(row, cols); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	table, cols := loans(b)
	row, err := table.Upsert(cols)
	require.NoError(b, err)
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = table.AppendJSON(buf[:0], row)
	}
}

func BenchmarkRowArgs(b *testing.B) {
	table, cols := loans(b)
	row, err := table.Upsert(cols)
	require.NoError(b, err)
	s := SQLite.Statements("t", table)
	w := Write{Key: Key{Key: "173688"}, Row: row, Position: 262199, UpdatedUS: 1317422324_546000}
	var args []any
	b.ReportAllocs()
	for b.Loop() {
		if args, err = s.RowArgs(args[:0], &w, 1); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkScanner(b *testing.B) {
	table, cols := loans(b)
	row, err := table.Upsert(cols)
	require.NoError(b, err)
	s := SQLite.Statements("t", table)
	args, err := s.RowArgs(nil, &Write{Key: Key{Key: "173688"}, Row: row}, 1)
	require.NoError(b, err)
	sc := s.NewScanner()
	b.ReportAllocs()
	for b.Loop() {
		for i := range sc.Columns() {
			sc.Set(i, args[i])
		}
		if _, err := sc.Row(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkValidJSON(b *testing.B) {
	_, cols := loans(b)
	doc := cols[5].Value.B
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		if !validJSON(doc) {
			b.Fatal("invalid")
		}
	}
}

// BenchmarkSQLiteWrite writes rows one prepared upsert each, a thousand a
// transaction in the order of their keys, into tables laid out in both ways:
// new keys that come in no order, and then the same keys again.
func BenchmarkSQLiteWrite(b *testing.B) {
	const batch, batches = 1000, 10
	for _, size := range []int{100, 800, 3000} {
		for _, layout := range []string{"", " WITHOUT ROWID"} {
			b.Run(fmt.Sprintf("%d bytes%s", size, layout), func(b *testing.B) {
				table, cols := loans(b)
				cols[5].Value = abi.JSON([]byte(`"` + strings.Repeat("x", size) + `"`))
				row, err := table.Upsert(cols)
				require.NoError(b, err)
				s := SQLite.Statements("t", table)
				var args []any
				var took [2]time.Duration
				for b.Loop() {
					db := openSQLite(b)
					ddl := SQLite.CreateTable("t", table)
					ddl[0] += layout
					for _, q := range append(ddl, SQLite.CreateIndexes("t", table)...) {
						_, err := db.Exec(q)
						require.NoError(b, err)
					}
					for pass := range took {
						start := time.Now()
						for n := range batches {
							tx, err := db.Begin()
							require.NoError(b, err)
							stmt, err := tx.Prepare(s.Upsert)
							require.NoError(b, err)
							for _, k := range randomKeys(n, batch) {
								w := Write{Key: k, Row: row}
								if args, err = s.RowArgs(args[:0], &w, 1); err != nil {
									b.Fatal(err)
								}
								if _, err := stmt.Exec(args...); err != nil {
									b.Fatal(err)
								}
							}
							require.NoError(b, tx.Commit())
						}
						took[pass] += time.Since(start)
					}
				}
				for pass, name := range []string{"ns/insert", "ns/update"} {
					b.ReportMetric(float64(took[pass].Nanoseconds())/float64(b.N*batch*batches), name)
				}
			})
		}
	}
}

// randomKeys are the n-th of several sets of keys that come in no order; within
// a set they are sorted, as a batch's rows are.
func randomKeys(n, count int) []Key {
	keys := make([]Key, count)
	for i := range keys {
		sum := sha256.Sum256([]byte{byte(n), byte(i), byte(i >> 8)})
		keys[i].Key = hex.EncodeToString(sum[:16])
	}
	slices.SortFunc(keys, func(a, b Key) int { return strings.Compare(a.Key, b.Key) })
	return keys
}

// BenchmarkSQLiteRead reads rows by lists of keys of each statement size.
func BenchmarkSQLiteRead(b *testing.B) {
	table, cols := loans(b)
	d := newDatabase(b, openSQLite(b), table)
	row, err := table.Upsert(cols)
	require.NoError(b, err)
	d.exec("BEGIN")
	for i := range 10000 {
		d.write(1, Write{Key: Key{Key: fmt.Sprint(i)}, Row: row})
	}
	d.exec("COMMIT")
	for _, size := range SelectSizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			stmt, err := d.db.Prepare(d.s.SelectKeys(size))
			require.NoError(b, err)
			defer stmt.Close()
			sc := d.s.NewScanner()
			keys := make([]Key, size)
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				for i := range keys {
					keys[i].Key = fmt.Sprint((n*size + i) * 7919 % 10000)
				}
				rows, err := stmt.Query(d.s.SelectArgs(nil, keys, size, 1)...)
				require.NoError(b, err)
				for rows.Next() {
					if err := rows.Scan(sc.Dest()...); err != nil {
						b.Fatal(err)
					}
					if _, err := sc.Row(); err != nil {
						b.Fatal(err)
					}
				}
				require.NoError(b, rows.Close())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(size), "ns/row")
		})
	}
}

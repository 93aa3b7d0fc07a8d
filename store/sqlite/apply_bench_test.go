package sqlite

import (
	"cmp"
	"context"
	"database/sql/driver"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// Benchmarks of applying, on the table of the demo: 13,087 applications for
// loans, each row some 250 bytes, one index. A batch changes random rows of
// them, so nearly every page of the table is written anew: real batches, whose
// keys come in the order of time, do better. What one costs beyond the rows are
// the fence over 256 leases and the checkpoints that move.

// loans declares the table.
func loans(t testing.TB) []*readmodel.Table {
	tables, err := readmodel.NewTables([]abi.Table{{Name: "applications", Columns: []abi.Column{
		{Name: "amount", Kind: abi.ColumnDecimal, Precision: 19, Scale: 2},
		{Name: "status", Kind: abi.ColumnText, Max: 64, Index: true},
		{Name: "offers", Kind: abi.ColumnInt},
		{Name: "events", Kind: abi.ColumnInt},
		{Name: "first_at", Kind: abi.ColumnTimestamp},
		{Name: "last_at", Kind: abi.ColumnTimestamp},
		{Name: "last_resource", Kind: abi.ColumnText, Max: 64},
		{Name: "state", Kind: abi.ColumnJSON},
	}}})
	require.NoError(t, err)
	return tables
}

// loan is a row as a program of one's own would hold it.
type loan struct {
	amount, status      string
	offers, events      int64
	firstAt, lastAt     string
	lastResource, state string
	firstAtUS, lastAtUS int64
}

func randomLoan(rng *rand.Rand) loan {
	statuses := [...]string{"A_SUBMITTED", "A_PARTLYSUBMITTED", "A_PREACCEPTED", "A_ACCEPTED", "A_FINALIZED", "A_CANCELLED"}
	l := loan{amount: fmt.Sprintf("%d.00", rng.Intn(50000)), status: statuses[rng.Intn(len(statuses))], offers: rng.Int63n(5), events: rng.Int63n(60),
		firstAt: "2011-09-30 22:38:44.546000", firstAtUS: 1317422324546000,
		lastAt: "2011-10-13 08:37:29.226000", lastAtUS: 1318495049226000, lastResource: "11200"}
	l.state = fmt.Sprintf(`{"amount":%q,"status":%q,"offers":%d,"events":%d,"last_resource":"11200"}`, l.amount, l.status, l.offers, l.events)
	return l
}

func (l *loan) row(t testing.TB, table *readmodel.Table) readmodel.Row {
	text := func(tag abi.Tag, s string) abi.Value { return abi.Value{Tag: tag, B: []byte(s)} }
	row, err := table.Upsert([]abi.ColumnValue{
		{Column: 0, Value: text(abi.TagDecimal, l.amount)},
		{Column: 1, Value: text(abi.TagText, l.status)},
		{Column: 2, Value: abi.Value{Tag: abi.TagInt, I: l.offers}},
		{Column: 3, Value: abi.Value{Tag: abi.TagInt, I: l.events}},
		{Column: 4, Value: abi.Value{Tag: abi.TagTimestamp, I: l.firstAtUS}},
		{Column: 5, Value: abi.Value{Tag: abi.TagTimestamp, I: l.lastAtUS}},
		{Column: 6, Value: text(abi.TagText, l.lastResource)},
		{Column: 7, Value: text(abi.TagJSON, l.state)},
	})
	require.NoError(t, err)
	return row
}

const benchKeys = 13087

// bench is a projection whose rows are all there.
type bench struct {
	s      *Store
	c      store.Consumer
	leases []store.Lease
	keys   []string
	loans  []loan
	rows   []readmodel.Row
	rng    *rand.Rand
	at     int64 // every checkpoint's position
}

func newBench(t testing.TB) *bench {
	b := &bench{s: openTest(t, Options{}), rng: rand.New(rand.NewSource(1))}
	b.c = subscribe(t, b.s, store.Declaration{ID: store.ConsumerID{Type: "projection", Name: "applications"},
		Topics: []string{store.EventsTopic}, Tables: loans(t)})
	require.NoError(t, b.s.Join(t.Context(), store.Instance{ID: "i"}))
	all := make([]int, b.s.info.Partitions)
	for p := range all {
		all[p] = p
	}
	var err error
	b.leases, err = b.s.Claim(t.Context(), "i", b.c.Build, all)
	require.NoError(t, err)
	for i := range benchKeys {
		b.keys = append(b.keys, fmt.Sprint(173688+3*i))
	}
	slices.Sort(b.keys)
	for range 4096 {
		l := randomLoan(b.rng)
		b.loans = append(b.loans, l)
		b.rows = append(b.rows, l.row(t, b.c.Tables[0].Table))
	}
	require.NoError(t, b.s.Apply(t.Context(), b.batch(b.pick(benchKeys), len(all))))
	return b
}

// change is a row to write: a key's and a row's number.
type change struct{ key, row int }

func (b *bench) pick(n int) []change {
	picked := make([]change, n)
	for i, k := range b.rng.Perm(benchKeys)[:n] {
		picked[i] = change{k, b.rng.Intn(len(b.rows))}
	}
	slices.SortFunc(picked, func(x, y change) int { return cmp.Compare(x.key, y.key) })
	return picked
}

// batch makes the changes a batch that moves the first checkpoints by one.
func (b *bench) batch(changes []change, moves int) *store.Batch {
	writes := make([]readmodel.Write, len(changes))
	for i, c := range changes {
		writes[i] = readmodel.Write{Key: readmodel.Key{Key: b.keys[c.key]}, Row: b.rows[c.row], Position: b.at + 1, UpdatedUS: 1317422324546000}
	}
	batch := &store.Batch{Consumer: b.c.ID, Build: b.c.Build, InstanceID: "i", Incarnation: b.s.Incarnation(), Leases: b.leases,
		Tables: []store.TableWrites{{Table: b.c.Tables[0], Writes: writes}}}
	for p := range moves {
		batch.Checkpoints = append(batch.Checkpoints, store.CheckpointMove{Topic: store.EventsTopic, Partition: p, From: b.at, To: b.at + 1})
	}
	b.at++
	return batch
}

var benchSizes = []struct{ rows, moves int }{{1, 1}, {100, 256}, {500, 256}, {1000, 256}}

// BenchmarkApply is the way of a batch through the store.
func BenchmarkApply(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("rows=%d/checkpoints=%d", size.rows, size.moves), func(b *testing.B) {
			x := newBench(b)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				x.at = max(x.at, 1)
				batch := x.batch(x.pick(size.rows), size.moves)
				b.StartTimer()
				if err := x.s.Apply(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*size.rows)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkApplyNative is the fastest loop that we could write by hand on the
// same driver for the same work: the same rows from a program's own structs,
// guards, checkpoints and durability. many is the rows of one INSERT.
func BenchmarkApplyNative(b *testing.B) {
	for _, many := range []int{1, 8, 32} {
		for _, size := range benchSizes {
			b.Run(fmt.Sprintf("many=%d/rows=%d/checkpoints=%d", many, size.rows, size.moves), func(b *testing.B) {
				x := newBench(b)
				n := newNative(b, x, many)
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					b.StopTimer()
					changes := x.pick(size.rows)
					b.StartTimer()
					n.apply(b, changes, size.moves)
				}
				b.ReportMetric(float64(b.N*size.rows)/b.Elapsed().Seconds(), "rows/s")
			})
		}
	}
}

type native struct {
	x                                     *bench
	begin, fence, one, many, move, commit driverStmt
	n                                     int
	args                                  []driver.NamedValue
	leases                                string
	at                                    []int64
}

const nativeColumns = 12

func newNative(b *testing.B, x *bench, many int) *native {
	c, err := x.s.openWriter()
	require.NoError(b, err)
	b.Cleanup(func() { _ = c.close() })
	prepare := func(text string) driverStmt {
		s, err := c.prepare(text)
		require.NoError(b, err)
		return s.ds
	}
	upsert := x.s.plan(&x.c.Tables[0]).Upsert
	head, rest, _ := strings.Cut(upsert, " VALUES (")
	tuple, tail, _ := strings.Cut(rest, ")")
	n := &native{x: x, n: many, leases: leaseList(x.leases),
		begin: prepare("BEGIN IMMEDIATE"), fence: prepare(x.s.q.guardLeases), one: prepare(upsert),
		many: prepare(head + " VALUES " + strings.Repeat(", ("+tuple+")", many)[2:] + tail),
		move: prepare(`UPDATE ph_checkpoints SET position = CASE WHEN position = ? AND epoch = 0 THEN ? END,
			effects_through = max(effects_through, ?) WHERE build = ? AND topic = 'events' AND partition = ?`),
		commit: prepare("COMMIT")}
	for i := range many * nativeColumns {
		n.args = append(n.args, driver.NamedValue{Ordinal: i + 1})
	}
	for range x.leases {
		n.at = append(n.at, x.at)
	}
	return n
}

func (n *native) exec(b *testing.B, s driverStmt, args []driver.NamedValue) {
	if _, err := s.ExecContext(context.Background(), args); err != nil {
		b.Fatal(err)
	}
}

func (n *native) apply(b *testing.B, changes []change, moves int) {
	n.exec(b, n.begin, nil)
	a := n.args
	a[0].Value, a[1].Value, a[2].Value, a[3].Value = int64(len(n.x.leases)), n.leases, n.x.c.Build, "i"
	n.exec(b, n.fence, a[:4])
	for len(changes) >= n.n {
		for i := range n.n {
			n.bind(a[i*nativeColumns:], changes[i])
		}
		n.exec(b, n.many, a)
		changes = changes[n.n:]
	}
	for _, c := range changes {
		n.bind(a, c)
		n.exec(b, n.one, a[:nativeColumns])
	}
	for p := range moves {
		a[0].Value, a[1].Value, a[2].Value, a[3].Value, a[4].Value = n.at[p], n.at[p]+1, n.at[p]+1, n.x.c.Build, int64(p)
		n.exec(b, n.move, a[:5])
		n.at[p]++
	}
	n.exec(b, n.commit, nil)
}

func (n *native) bind(a []driver.NamedValue, c change) {
	l := &n.x.loans[c.row]
	a[0].Value, a[1].Value, a[2].Value, a[3].Value = n.x.keys[c.key], l.amount, l.status, l.offers
	a[4].Value, a[5].Value, a[6].Value, a[7].Value = l.events, l.firstAt, l.lastAt, l.lastResource
	a[8].Value, a[9].Value, a[10].Value, a[11].Value = l.state, n.x.at, int64(1317422324546000), int64(0)
}

// BenchmarkLoadRows is the preload of a batch that finds nothing in the cache.
func BenchmarkLoadRows(b *testing.B) {
	for _, size := range []int{1, 64, 1000} {
		b.Run(fmt.Sprintf("keys=%d", size), func(b *testing.B) {
			x := newBench(b)
			keys := make([]store.RowKey, size)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				for i, c := range x.pick(size) {
					keys[i].Key = x.keys[c.key]
				}
				b.StartTimer()
				rows, err := x.s.LoadRows(b.Context(), x.c.Tables[0], keys)
				if err != nil || len(rows) != size {
					b.Fatalf("%d rows, %v", len(rows), err)
				}
			}
			b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}

// BenchmarkView is what an HTTP request for one row, or for a page, costs.
func BenchmarkView(b *testing.B) {
	for _, page := range []int{0, 100} {
		b.Run(fmt.Sprintf("page=%d", page), func(b *testing.B) {
			x := newBench(b)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				v, err := x.s.View(b.Context(), x.c.ID)
				if err != nil {
					b.Fatal(err)
				}
				if page == 0 {
					_, err = v.Get(b.Context(), "applications", store.RowKey{Key: x.keys[i*7919%benchKeys]})
				} else {
					_, _, err = v.Query(b.Context(), "applications", store.Query{Order: "status", Limit: page})
				}
				if err != nil {
					b.Fatal(err)
				}
				_ = v.Close()
			}
		})
	}
}

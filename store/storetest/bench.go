package storetest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// Bench measures what a host asks of a driver while it works: the same
// workload on every one.
//
//	func BenchmarkStore(b *testing.B) { storetest.Bench(b, open) }
func Bench(b *testing.B, open Open) {
	x := &benches{open: open}
	b.Run("Append", x.append)
	b.Run("Commit", x.commit)
	b.Run("Import", x.imports)
	b.Run("ReadPage", x.readPage)
	b.Run("Apply", x.apply)
	b.Run("LoadRows", x.loadRows)
	b.Run("View", x.view)
	b.Run("Survey", x.survey)
}

type benches struct{ open Open }

// store opens an empty database for one measurement.
func (x *benches) store(b *testing.B) store.Store {
	s := x.open(b, Config{Database: fmt.Sprintf("b%d", databases.Add(1))})
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	return s
}

// The events are of 10,000 accounts, with 200 bytes of data and ids without
// order, as an import derives them.
const benchAccounts = 10_000

func benchEvent(r *rand.Rand, n int) store.NewEvent {
	e := store.NewEvent{
		HasID: true, Type: "Deposited",
		Data:       fmt.Appendf(nil, `{"account":"account-%d","amount":"%d.%02d","currency":"EUR","reference":"%032x","channel":"online","note":"the payment of an invoice, as it may be","n":%d}`, n%benchAccounts, n%1000, n%100, n, n),
		OccurredUS: 1_700_000_000_000_000 + int64(n), HasOccurred: true,
	}
	binary.LittleEndian.PutUint64(e.ID[:], r.Uint64())
	binary.LittleEndian.PutUint64(e.ID[8:], r.Uint64())
	return e
}

func benchImports(from, to int) []store.ImportEvent {
	r := rand.New(rand.NewPCG(1, uint64(from)))
	var list []store.ImportEvent
	for n := from; n < to; n++ {
		list = append(list, store.ImportEvent{AggregateType: "account", AggregateID: fmt.Sprint("account-", n%benchAccounts), NewEvent: benchEvent(r, n)})
	}
	return list
}

func perSecond(b *testing.B, n int, unit string) {
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), unit+"/s")
}

// append appends one event a commit.
func (x *benches) append(b *testing.B) {
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := x.store(b)
			var n atomic.Int64
			b.SetParallelism((writers + 1) / 2)
			if writers == 1 {
				for b.Loop() {
					benchAppend(b, s, int(n.Add(1)), 1)
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						benchAppend(b, s, int(n.Add(1)), 1)
					}
				})
			}
			perSecond(b, b.N, "events")
		})
	}
}

func benchAppend(b *testing.B, s store.Store, n, size int) {
	r := rand.New(rand.NewPCG(2, uint64(n)))
	st := store.StreamAppend{AggregateType: "account", AggregateID: fmt.Sprint("account-", n%benchAccounts), ExpectedVersion: store.AnyVersion}
	for i := range size {
		st.Events = append(st.Events, benchEvent(r, n*size+i))
	}
	if _, err := s.Commit(b.Context(), store.Commit{Streams: []store.StreamAppend{st}}); err != nil {
		b.Error(err)
	}
}

// commit appends many events a commit.
func (x *benches) commit(b *testing.B) {
	for _, size := range []int{100, 1000} {
		b.Run(fmt.Sprintf("events=%d", size), func(b *testing.B) {
			s := x.store(b)
			n := 0
			for b.Loop() {
				benchAppend(b, s, n, size)
				n++
			}
			perSecond(b, n*size, "events")
		})
	}
}

// imports stores calls of 1,000 and 5,000 events into a database that has
// 100,000 already: its indexes are no longer in one page.
func (x *benches) imports(b *testing.B) {
	for _, size := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("events=%d", size), func(b *testing.B) {
			s := x.store(b)
			at := 0
			next := func() {
				b.StopTimer()
				list := benchImports(at, at+size)
				at += size
				b.StartTimer()
				_, err := s.Import(b.Context(), list)
				require.NoError(b, err)
			}
			for at < 100_000 {
				next()
			}
			n := 0
			for b.Loop() {
				next()
				n += size
			}
			perSecond(b, n, "events")
		})
	}
}

// readPage reads the topic from its start, again and again.
func (x *benches) readPage(b *testing.B) {
	s := x.store(b)
	const total = 100_000
	for n := 0; n < total; n += 5000 {
		_, err := s.Import(b.Context(), benchImports(n, n+5000))
		require.NoError(b, err)
	}
	all, err := readAll(b.Context(), s, store.PageQuery{Limit: 5000})
	require.NoError(b, err)
	require.Len(b, all, total)
	for _, limit := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("events=%d", limit), func(b *testing.B) {
			b.ReportAllocs()
			// As the host asks: no page is over a size.
			q := store.PageQuery{Topic: store.EventsTopic, Limit: limit, MaxBytes: limit << 10}
			n := 0
			for b.Loop() {
				p, err := s.ReadPage(b.Context(), q)
				require.NoError(b, err)
				n += len(p.Events)
				if q.After = p.To; len(p.Events) < limit {
					q.After = 0
				}
			}
			perSecond(b, n, "events")
		})
	}
	b.Run("partition", func(b *testing.B) {
		q := store.PageQuery{Topic: store.EventsTopic, Limit: 1000, Partitions: []int{0}}
		n := 0
		for b.Loop() {
			p, err := s.ReadPage(b.Context(), q)
			require.NoError(b, err)
			n += len(p.Events)
			q.Partitions[0] = (q.Partitions[0] + 1) % 256
		}
		perSecond(b, n, "events")
	})
	// What hosts that share a consumer read: each a part of all, over the whole log.
	for _, hosts := range []int{2, 4} {
		b.Run(fmt.Sprintf("share=1:%d", hosts), func(b *testing.B) {
			q := store.PageQuery{Topic: store.EventsTopic, Limit: 4000, MaxBytes: 1 << 20}
			for p := 0; p < 256; p += hosts {
				q.Partitions = append(q.Partitions, p)
			}
			passed := int64(0)
			for b.Loop() {
				p, err := s.ReadPage(b.Context(), q)
				require.NoError(b, err)
				passed += p.To - p.From
				if q.After = p.To; p.To == p.End {
					q.After = 0
				}
			}
			perSecond(b, int(passed), "events")
		})
	}
}

// applying is a projection of loan applications whose rows are all there: each
// some 250 bytes, with one index. A batch changes random rows of them, so nearly
// every page of the table is written anew: real batches, whose keys come in the
// order of time, do better. What one costs beyond the rows are the fence over
// 256 leases and the checkpoints that move.
type applying struct {
	s      store.Store
	c      store.Consumer
	leases []store.Lease
	keys   []string
	rows   []readmodel.Row
	rng    *rand.Rand
	at     int64 // every checkpoint's position
}

const benchKeys = 13_087

func benchTables(t testing.TB) []*readmodel.Table {
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

// benchRow is a random row of the table.
func benchRow(t testing.TB, rng *rand.Rand, table *readmodel.Table) readmodel.Row {
	statuses := [...]string{"A_SUBMITTED", "A_PARTLYSUBMITTED", "A_PREACCEPTED", "A_ACCEPTED", "A_FINALIZED", "A_CANCELLED"}
	text := func(tag abi.Tag, s string) abi.Value { return abi.Value{Tag: tag, B: []byte(s)} }
	amount, status, offers := fmt.Sprintf("%d.00", rng.IntN(50000)), statuses[rng.IntN(len(statuses))], rng.Int64N(5)
	row, err := table.Upsert([]abi.ColumnValue{
		{Column: 0, Value: text(abi.TagDecimal, amount)},
		{Column: 1, Value: text(abi.TagText, status)},
		{Column: 2, Value: abi.Value{Tag: abi.TagInt, I: offers}},
		{Column: 3, Value: abi.Value{Tag: abi.TagInt, I: rng.Int64N(60)}},
		{Column: 4, Value: abi.Value{Tag: abi.TagTimestamp, I: 1317422324546000}},
		{Column: 5, Value: abi.Value{Tag: abi.TagTimestamp, I: 1318495049226000}},
		{Column: 6, Value: text(abi.TagText, "11200")},
		{Column: 7, Value: text(abi.TagJSON, fmt.Sprintf(`{"amount":%q,"status":%q,"offers":%d,"last_resource":"11200"}`, amount, status, offers))},
	})
	require.NoError(t, err)
	return row
}

func (x *benches) applying(b *testing.B) *applying {
	a := &applying{s: x.store(b), rng: rand.New(rand.NewPCG(1, 1))}
	info, err := a.s.Info(b.Context())
	require.NoError(b, err)
	a.c, err = a.s.Subscribe(b.Context(), store.Declaration{ID: store.ConsumerID{Type: "projection", Name: "applications"},
		Topics: []string{store.EventsTopic}, Tables: benchTables(b)})
	require.NoError(b, err)
	require.NoError(b, a.s.Join(b.Context(), store.Instance{ID: "i"}))
	all := make([]int, info.Partitions)
	for p := range all {
		all[p] = p
	}
	a.leases, _, err = a.s.Claim(b.Context(), "i", a.c.Build, all)
	require.NoError(b, err)
	for i := range benchKeys {
		a.keys = append(a.keys, fmt.Sprint(173688+3*i))
	}
	slices.Sort(a.keys)
	for range 4096 {
		a.rows = append(a.rows, benchRow(b, a.rng, a.c.Tables[0].Table))
	}
	for first := 0; first < benchKeys; first += 5000 {
		keys := make([]int, 0, 5000)
		for k := first; k < min(first+5000, benchKeys); k++ {
			keys = append(keys, k)
		}
		require.NoError(b, a.s.Apply(b.Context(), a.batch(keys, len(all))))
	}
	return a
}

// pick takes n keys at random, in order.
func (a *applying) pick(n int) []int {
	keys := a.rng.Perm(benchKeys)[:n]
	slices.SortFunc(keys, func(x, y int) int { return cmp.Compare(x, y) })
	return keys
}

// batch writes rows of keys and moves the first checkpoints by one.
func (a *applying) batch(keys []int, moves int) *store.Batch {
	writes := make([]readmodel.Write, len(keys))
	for i, k := range keys {
		writes[i] = readmodel.Write{Key: readmodel.Key{Key: a.keys[k]}, Row: a.rows[a.rng.IntN(len(a.rows))], Position: a.at + 1, UpdatedUS: 1317422324546000}
	}
	batch := &store.Batch{Consumer: a.c.ID, Build: a.c.Build, InstanceID: "i", Incarnation: a.s.Incarnation(), Leases: a.leases,
		Tables: []store.TableWrites{{Table: a.c.Tables[0], Writes: writes}}}
	for p := range moves {
		batch.Checkpoints = append(batch.Checkpoints, store.CheckpointMove{Topic: store.EventsTopic, Partition: p, From: a.at, To: a.at + 1})
	}
	a.at++
	return batch
}

// apply is the way of a batch through the store.
func (x *benches) apply(b *testing.B) {
	for _, size := range []struct{ rows, moves int }{{1, 1}, {100, 256}, {1000, 256}, {5000, 256}} {
		b.Run(fmt.Sprintf("rows=%d/checkpoints=%d", size.rows, size.moves), func(b *testing.B) {
			a := x.applying(b)
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				b.StopTimer()
				batch := a.batch(a.pick(size.rows), size.moves)
				b.StartTimer()
				if err := a.s.Apply(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
			perSecond(b, b.N*size.rows, "rows")
		})
	}
}

// loadRows is the preload of a batch that finds nothing in the cache.
func (x *benches) loadRows(b *testing.B) {
	a := x.applying(b)
	for _, size := range []int{1, 64, 1000} {
		b.Run(fmt.Sprintf("keys=%d", size), func(b *testing.B) {
			keys := make([]store.RowKey, size)
			b.ReportAllocs()
			for range b.N {
				b.StopTimer()
				for i, k := range a.pick(size) {
					keys[i].Key = a.keys[k]
				}
				b.StartTimer()
				rows, err := a.s.LoadRows(b.Context(), a.c.Tables[0], keys)
				if err != nil || len(rows) != size {
					b.Fatalf("%d rows, %v", len(rows), err)
				}
			}
			perSecond(b, b.N*size, "rows")
		})
	}
}

// view is what an HTTP request for one row, or for a page, costs.
func (x *benches) view(b *testing.B) {
	a := x.applying(b)
	for _, page := range []int{0, 100} {
		b.Run(fmt.Sprintf("page=%d", page), func(b *testing.B) {
			b.ReportAllocs()
			for i := range b.N {
				v, err := a.s.View(b.Context(), a.c.ID)
				if err != nil {
					b.Fatal(err)
				}
				if page == 0 {
					_, err = v.Get(b.Context(), "applications", store.RowKey{Key: a.keys[i*7919%benchKeys]})
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

// survey is the look at a cluster of 4 hosts that share 50 consumers.
func (x *benches) survey(b *testing.B) {
	const hosts, consumers = 4, 50
	s := x.store(b)
	info, err := s.Info(b.Context())
	require.NoError(b, err)
	var builds []int64
	var list []store.Enlistment
	for i := range consumers {
		c, err := s.Subscribe(b.Context(), store.Declaration{ID: store.ConsumerID{Type: "projection", Name: fmt.Sprint("p", i)},
			Topics: []string{store.EventsTopic}})
		require.NoError(b, err)
		builds, list = append(builds, c.Build), append(list, store.Enlistment{Build: c.Build})
	}
	for h := range hosts {
		id := fmt.Sprintf("6f1c2c9e-2b1d-7c3e-8f00-%012d", h)
		require.NoError(b, s.Join(b.Context(), store.Instance{ID: id, HostName: fmt.Sprint("host", h)}))
		require.NoError(b, s.Enlist(b.Context(), id, list))
		var partitions []int
		for p := h; p < info.Partitions; p += hosts {
			partitions = append(partitions, p)
		}
		for _, build := range builds {
			_, _, err := s.Claim(b.Context(), id, build, partitions)
			require.NoError(b, err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		v, err := s.Survey(b.Context(), builds)
		if err != nil || len(v.Owners) != consumers || len(v.Members) != hosts*consumers {
			b.Fatalf("%d builds, %d members, %v", len(v.Owners), len(v.Members), err)
		}
	}
}

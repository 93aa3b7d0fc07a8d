package sqlite

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

// The benchmarks' workload: 200-byte events of 10,000 accounts, ids without
// order as an import derives them.
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

func perSecond(b *testing.B, events int) {
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkAppend appends one event a commit, each synced.
func BenchmarkAppend(b *testing.B) {
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s := openTest(b, Options{})
			var n atomic.Int64
			b.SetParallelism((writers + 1) / 2)
			if writers == 1 {
				for b.Loop() {
					appendBench(b, s, int(n.Add(1)), 1)
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						appendBench(b, s, int(n.Add(1)), 1)
					}
				})
			}
			perSecond(b, b.N)
		})
	}
}

func appendBench(b *testing.B, s *Store, n, size int) {
	r := rand.New(rand.NewPCG(2, uint64(n)))
	st := store.StreamAppend{AggregateType: "account", AggregateID: fmt.Sprint("account-", n%benchAccounts), ExpectedVersion: store.AnyVersion}
	for i := range size {
		st.Events = append(st.Events, benchEvent(r, n*size+i))
	}
	if _, err := s.Commit(b.Context(), store.Commit{Streams: []store.StreamAppend{st}}); err != nil {
		b.Error(err)
	}
}

func BenchmarkCommit(b *testing.B) {
	for _, size := range []int{100, 1000} {
		b.Run(fmt.Sprintf("events=%d", size), func(b *testing.B) {
			s := openTest(b, Options{})
			n := 0
			for b.Loop() {
				appendBench(b, s, n, size)
				n++
			}
			perSecond(b, n*size)
		})
	}
}

// BenchmarkImport stores calls of 1,000 and 5,000 events into a database that
// has 100,000 already: its indexes are no longer in one page.
func BenchmarkImport(b *testing.B) {
	for _, size := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("events=%d", size), func(b *testing.B) {
			s := openTest(b, Options{})
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
			perSecond(b, n)
		})
	}
}

func BenchmarkReadPage(b *testing.B) {
	s := openTest(b, Options{})
	const total = 100_000
	for n := 0; n < total; n += 5000 {
		_, err := s.Import(b.Context(), benchImports(n, n+5000))
		require.NoError(b, err)
	}
	for _, limit := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("events=%d", limit), func(b *testing.B) {
			b.ReportAllocs()
			q := store.PageQuery{Topic: store.EventsTopic, Limit: limit, Partition: -1}
			n := 0
			for b.Loop() {
				p, err := s.ReadPage(b.Context(), q)
				require.NoError(b, err)
				n += len(p.Events)
				if q.After = p.To; len(p.Events) < limit {
					q.After = 0
				}
			}
			perSecond(b, n)
		})
	}
	b.Run("partition", func(b *testing.B) {
		q := store.PageQuery{Topic: store.EventsTopic, Limit: 1000, Partition: 0}
		n := 0
		for b.Loop() {
			p, err := s.ReadPage(b.Context(), q)
			require.NoError(b, err)
			n += len(p.Events)
			q.Partition = (q.Partition + 1) % 256
		}
		perSecond(b, n)
	})
}

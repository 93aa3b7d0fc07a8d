package sqlite

import (
	"fmt"
	"math/rand"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// loans is the table of the demo: applications for loans.
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

func loanRow(t testing.TB, table *readmodel.Table, rng *rand.Rand) readmodel.Row {
	statuses := [...]string{"A_SUBMITTED", "A_PARTLYSUBMITTED", "A_PREACCEPTED", "A_ACCEPTED", "A_FINALIZED", "A_CANCELLED"}
	status, offers, events := statuses[rng.Intn(len(statuses))], rng.Int63n(5), rng.Int63n(60)
	row, err := table.Upsert([]abi.ColumnValue{
		{Column: 0, Value: abi.Value{Tag: abi.TagDecimal, B: fmt.Appendf(nil, "%d.00", rng.Intn(50000))}},
		{Column: 1, Value: abi.Value{Tag: abi.TagText, B: []byte(status)}},
		{Column: 2, Value: abi.Value{Tag: abi.TagInt, I: offers}},
		{Column: 3, Value: abi.Value{Tag: abi.TagInt, I: events}},
		{Column: 4, Value: abi.Value{Tag: abi.TagTimestamp, I: 1317422324546000}},
		{Column: 5, Value: abi.Value{Tag: abi.TagTimestamp, I: 1317422324546000 + rng.Int63n(1e12)}},
		{Column: 6, Value: abi.Value{Tag: abi.TagText, B: []byte("11200")}},
		{Column: 7, Value: abi.Value{Tag: abi.TagJSON, B: fmt.Appendf(nil, `{"amount":"20000.00","status":%q,"offers":%d,"events":%d,"last_resource":"11200"}`, status, offers, events)}},
	})
	require.NoError(t, err)
	return row
}

type bench struct {
	s     *Store
	c     store.Consumer
	batch store.Batch
	keys  []string
	rows  []readmodel.Row
	rng   *rand.Rand
	moves int
}

const benchKeys = 13087 // applications in the loan file

func newBench(t testing.TB, moves int) *bench {
	b := &bench{s: openTest(t, Options{}), rng: rand.New(rand.NewSource(1)), moves: moves}
	var err error
	b.c, err = b.s.Subscribe(t.Context(), store.Declaration{
		ID: store.ConsumerID{Type: "projection", Name: "applications"}, Topics: []string{store.EventsTopic}, Tables: loans(t)})
	require.NoError(t, err)
	require.NoError(t, b.s.Join(t.Context(), store.Instance{ID: "i", HostName: "h"}))
	all := make([]int, 256)
	for p := range all {
		all[p] = p
	}
	leases, err := b.s.Claim(t.Context(), "i", b.c.Build, all)
	require.NoError(t, err)
	require.Len(t, leases, 256)
	b.batch = store.Batch{Consumer: b.c.ID, Build: b.c.Build, InstanceID: "i", Incarnation: b.s.Incarnation(), Leases: leases}
	for i := range benchKeys {
		b.keys = append(b.keys, fmt.Sprint(173688+3*i))
	}
	sort.Strings(b.keys)
	for range 4096 {
		b.rows = append(b.rows, loanRow(t, b.c.Tables[0].Table, b.rng))
	}
	return b
}

// next makes the next batch of n rows.
func (b *bench) next(n int) *store.Batch {
	picked := b.rng.Perm(benchKeys)[:n]
	sort.Ints(picked)
	writes := make([]readmodel.Write, n)
	for i, k := range picked {
		writes[i] = readmodel.Write{Key: readmodel.Key{Key: b.keys[k]}, Row: b.rows[b.rng.Intn(len(b.rows))], Position: int64(i), UpdatedUS: 1317422324546000}
	}
	b.batch.Tables = []store.TableWrites{{Table: b.c.Tables[0], Writes: writes}}
	from := int64(0)
	if len(b.batch.Checkpoints) > 0 {
		from = b.batch.Checkpoints[0].To
	}
	b.batch.Checkpoints = b.batch.Checkpoints[:0]
	for p := range b.moves {
		b.batch.Checkpoints = append(b.batch.Checkpoints, store.CheckpointMove{Topic: store.EventsTopic, Partition: p, From: from, To: from + 1})
	}
	return &b.batch
}

func BenchmarkApply(b *testing.B) {
	for _, rows := range []int{1, 100, 500, 1000} {
		for _, moves := range []int{1, 256} {
			b.Run(fmt.Sprintf("rows=%d/checkpoints=%d", rows, moves), func(b *testing.B) {
				x := newBench(b, moves)
				b.ReportAllocs()
				b.ResetTimer()
				for range b.N {
					b.StopTimer()
					batch := x.next(rows)
					b.StartTimer()
					require.NoError(b, x.s.Apply(b.Context(), batch))
				}
				b.ReportMetric(float64(b.N*rows)/b.Elapsed().Seconds(), "rows/s")
			})
		}
	}
}

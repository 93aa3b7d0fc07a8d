package lane

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/host/reader"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// discard is a store that takes everything and has nothing.
type discard struct{ *fake.Store }

func (discard) Apply(context.Context, *store.Batch) error { return nil }
func (discard) LoadRows(context.Context, store.TableRef, []store.RowKey) ([]store.StoredRow, error) {
	return nil, nil
}

// BenchmarkLane is the lane alone: preload, get, fold and seal of batches of
// 5000 messages over 10,000 keys, with a guest and a store that cost nothing.
func BenchmarkLane(b *testing.B) {
	const batch = 5000
	r := newRig(b)
	handle := func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
		c.Begin(abi.OpAdd, tableOwn, "", "")
		c.Ops.Int(0, 1)
		return abi.StatusOK, nil
	}
	cfg := r.cfg
	one := declared()
	one.Tables = one.Tables[:1]
	tables, err := readmodel.NewTables(one.Tables)
	require.NoError(b, err)
	cfg.Consumer, cfg.Declared, cfg.Build = id, one, r.con.Build
	cfg.Topics, cfg.Tables, cfg.Start = []string{store.EventsTopic}, []store.TableRef{{Table: tables[0]}}, []int64{0}
	cfg.Checkpoints, cfg.Fence, cfg.CacheBytes = [][]int64{make([]int64, testPartitions)}, -1, 64<<20
	for p := range testPartitions {
		cfg.Partitions = append(cfg.Partitions, p)
	}
	l := New(cfg, Deps{
		Store: discard{r.st}, Observer: r, Lease: func(p int) store.Lease { return store.Lease{Partition: p} },
		NewGuest: func(context.Context) (Guest, error) {
			return &fake.Guest{Handle: handle, Shapes: declared().Shape}, nil
		},
	})
	events := make([]store.Event, batch)
	entries := make([]reader.Entry, batch)
	at, n := int64(0), 0
	b.ReportAllocs()
	for b.Loop() {
		from := at
		for i := range events {
			at++
			n++
			events[i] = store.Event{Position: at, AggregateType: "account", AggregateID: fmt.Sprintf("account-%d", n*7919%10_000), Type: "deposited"}
			key := events[i].AggregateID
			entries[i] = reader.Entry{Event: &events[i], Key: key, Partition: uint16(partition.Of(key, testPartitions)), Type: abi.TypeByName}
		}
		require.NoError(b, l.queue.Push(b.Context(), reader.Slice{From: from, To: at, End: at, Entries: entries}))
		if more, err := l.take(); err != nil || !more {
			b.Fatal(more, err)
		}
		for l.next < len(l.work) {
			if err := l.step(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		l.seal()
		l.rows.commit()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/message")
}

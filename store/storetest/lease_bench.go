package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

// LeaseCheck measures what it costs an apply to check its leases: batches are
// applied as ever and by unchecked, which leaves nothing but the check out, in
// turns and on the same tables. Only a benchmark inside a driver can do that.
//
// It reports the medians of both, and the difference in percent of an apply.
func LeaseCheck(b *testing.B, open Open, unchecked func(ctx context.Context, s store.Store, batch *store.Batch) error) {
	x := &benches{open: open}
	for _, size := range []struct{ rows, moves int }{{1, 1}, {100, 64}, {1000, 256}, {5000, 256}} {
		b.Run(fmt.Sprintf("rows=%d/leases=%d", size.rows, size.moves), func(b *testing.B) {
			a := x.applying(b)
			ways := [...]func(context.Context, store.Store, *store.Batch) error{
				func(ctx context.Context, s store.Store, batch *store.Batch) error { return s.Apply(ctx, batch) },
				unchecked,
			}
			a.leases = a.leases[:size.moves] // a lane checks those of the partitions that move
			var took [len(ways)][]time.Duration
			for i := range b.N {
				for turn := range ways {
					way := (i + turn) % len(ways)
					batch := a.batch(a.pick(size.rows), size.moves)
					start := time.Now()
					if err := ways[way](b.Context(), a.s, batch); err != nil {
						b.Fatal(err)
					}
					took[way] = append(took[way], time.Since(start))
				}
			}
			checked, without := middle(took[0]), middle(took[1])
			b.ReportMetric(float64(checked.Nanoseconds())/1e3, "µs/apply")
			b.ReportMetric(float64(without.Nanoseconds())/1e3, "unchecked-µs/apply")
			b.ReportMetric(100*float64(checked-without)/float64(checked), "%check")
			// What was left out is a check: with a lease that is not held, one way
			// refuses the batch and the other does not.
			batch := a.batch(a.pick(size.rows), size.moves)
			batch.Leases = slices.Clone(batch.Leases)
			batch.Leases[0].Generation++
			require.ErrorIs(b, ways[0](b.Context(), a.s, batch), store.ErrFenced)
			require.NoError(b, ways[1](b.Context(), a.s, batch))
		})
	}
}

func middle(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

package partition_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

// leases gives out what has no owner or the caller as its owner.
type leases struct {
	store.Leases
	owner      []string
	generation []int64
	fail       error
}

func (l *leases) Claim(_ context.Context, instance string, build int64, partitions []int) ([]store.Lease, error) {
	if l.fail != nil {
		return nil, l.fail
	}
	var out []store.Lease
	for _, p := range partitions {
		if l.owner[p] != "" && l.owner[p] != instance {
			continue
		}
		l.owner[p] = instance
		l.generation[p]++
		out = append(out, store.Lease{Build: build, Partition: p, Generation: l.generation[p]})
	}
	return out, nil
}

func (l *leases) Release(_ context.Context, instance string, leases []store.Lease) error {
	for _, r := range leases {
		if l.owner[r.Partition] == instance && l.generation[r.Partition] == r.Generation {
			l.owner[r.Partition] = ""
		}
	}
	return nil
}

// Each claim is of all partitions under their next generations, also for the
// same instance; it is not complete while others hold some.
func TestClaim(t *testing.T) {
	t.Parallel()
	st := &leases{owner: make([]string, 4), generation: make([]int64, 4)}
	a := partition.NewHolder(st, "a", 4)
	require.Equal(t, "a", a.Instance())
	require.Equal(t, 4, a.Count())
	first, err := a.Claim(t.Context(), 9)
	require.NoError(t, err)
	second, err := a.Claim(t.Context(), 9)
	require.NoError(t, err)
	for p := range 4 {
		require.Equal(t, store.Lease{Build: 9, Partition: p, Generation: 1}, first.Lease(p))
		require.Equal(t, store.Lease{Build: 9, Partition: p, Generation: 2}, second.Lease(p))
	}

	st.owner[0], st.owner[2] = "", ""
	b := partition.NewHolder(st, "b", 4)
	_, err = b.Claim(t.Context(), 9)
	var taken *partition.TakenError
	require.ErrorAs(t, err, &taken)
	require.Equal(t, []int{1, 3}, taken.Taken)
	require.Equal(t, []string{"", "a", "", "a"}, st.owner, "a part is of no use, and may be what another waits for")
	st.owner[1], st.owner[3] = "", ""
	third, err := b.Claim(t.Context(), 9)
	require.NoError(t, err)
	require.Equal(t, int64(4), third.Lease(0).Generation)
	require.Equal(t, int64(3), third.Lease(1).Generation)

	st.fail = errors.New("down")
	_, err = b.Claim(t.Context(), 9)
	require.ErrorIs(t, err, st.fail)
}

package sqlserver

import (
	"database/sql/driver"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// H35: whatever locks what other hosts want is one batch.
func TestLeasesAreTakenInOneBatch(t *testing.T) {
	t.Parallel()
	s, srv := openFake(t, func(e sent) (*reply, error) {
		switch {
		case strings.HasPrefix(e.text, "SELECT id FROM"):
			return rows([]driver.Value{"old"}), nil
		case strings.HasPrefix(e.text, "SELECT count(*)"):
			return rows([]driver.Value{int64(1)}), nil
		}
		return nil, nil
	})
	ctx := t.Context()
	require.NoError(t, s.Join(ctx, store.Instance{ID: "i-1", HostName: "h", MaxPartitions: 7}))
	_, err := s.Reap(ctx)
	require.NoError(t, err)
	require.NoError(t, s.Enlist(ctx, "i-1", []store.Enlistment{{Build: 9}, {Build: 8, SingleOwner: true}}))
	srv.log = slices.DeleteFunc(srv.log, func(e sent) bool { return strings.HasPrefix(e.text, "SELECT") })
	require.Len(t, srv.log, 3)
	leases, _, err := s.Claim(ctx, "i-1", 7, []int{9, 3})
	require.NoError(t, err)
	require.Empty(t, leases, "the server says that none was free")
	held := []store.Lease{{Build: 7, Partition: 3, Generation: 5}, {Build: 7, Partition: 3, Generation: 4}, {Build: 8, Partition: 3, Generation: 1}, {Build: 8, Partition: 3, Generation: 1}}
	require.NoError(t, s.Release(ctx, "i-1", held))
	require.NoError(t, s.Release(ctx, "i-1", nil))
	require.NoError(t, s.Leave(ctx, "i-1"))
	require.NoError(t, s.Halt(ctx, store.ConsumerID{Type: "projection", Name: "x"}, held[0], store.Halt{Reason: store.HaltApplyError, AtUS: 5}))
	_, err = s.ClearHalt(ctx, store.ConsumerID{Type: "projection", Name: "x"})
	require.NoError(t, err)
	require.NoError(t, s.engine.WriteAll(ctx, "steps", []sqlstore.Step{{Text: "INSERT INTO a VALUES (@p1, @p2, @p3)", Args: []any{"ä", nil, int64(1)}},
		{Text: "UPDATE b SET n = n"}, {Text: "UPDATE a SET n = @p2 WHERE k = @p1", Args: []any{int64(2), int64(3)}}}))
	require.Len(t, srv.log, 9)
	golden(t, "leases.sql", strings.Join(srv.texts(), "\n"))
	require.Equal(t, `[9,3]`, textOf(srv.log[3].args["partitions"]))
	require.Equal(t, `[{"b":7,"p":3,"g":5},{"b":8,"p":3,"g":1},{"b":8,"p":3,"g":1}]`, textOf(srv.log[4].args["leases"]))
	require.EqualValues(t, 1, srv.log[8].args["p3"])
	require.EqualValues(t, 2, srv.log[8].args["p4"])
	require.EqualValues(t, 3, srv.log[8].args["p5"])
	for _, e := range srv.log {
		require.Equal(t, 1, strings.Count(e.text, "BEGIN TRANSACTION"), e.text)
		require.Equal(t, 1, strings.Count(e.text, "COMMIT TRANSACTION"), e.text)
	}
}

func TestLeasesThatAreNotToBeHad(t *testing.T) {
	t.Parallel()
	number := int32(0)
	s, srv := openFake(t, func(sent) (*reply, error) { return nil, failure(number) })
	ctx := t.Context()
	number = errJoined
	_, _, err := s.Claim(ctx, "i-1", 7, []int{3})
	require.ErrorIs(t, err, store.ErrNotFound)
	require.ErrorContains(t, err, "claim: instance i-1")
	number = errFenced
	id := store.ConsumerID{Type: "projection", Name: "x"}
	require.Equal(t, store.ErrFenced, s.Halt(ctx, id, store.Lease{Build: 7, Partition: 3, Generation: 5}, store.Halt{AtUS: 5}))
	number = 1205
	isTransient(false)(t, s.Leave(ctx, "i-1"))
	require.Greater(t, len(srv.log), 3, "the server gave up, and was asked again")
}

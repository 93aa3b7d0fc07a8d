package mysql

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// through opens a store on a proxy, with as few connections as it can work with,
// so that the cuts hit the ones in use.
func through(t *testing.T) (*Store, *dbtest.Proxy) {
	proxy := dbtest.NewProxy(t, dbtest.MySQL(t))
	s := open(t, Options{DSN: proxy.DSN, MaxOpenConns: 2})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, proxy
}

// withID is an event with an id by number.
func withID(n int) store.NewEvent {
	return store.NewEvent{ID: store.ID{0: 1, 14: byte(n >> 8), 15: byte(n)}, HasID: true, Type: "Counted", Data: fmt.Appendf(nil, `{"n":%d}`, n)}
}

// cuts are every message in both directions, until none is left to cut at.
func cuts(t *testing.T, proxy *dbtest.Proxy, step func(name string)) {
	for d, name := range map[dbtest.Direction]string{dbtest.ToServer: "message to the server", dbtest.ToClient: "message to the client"} {
		for n := 1; ; n++ {
			before := proxy.Cuts()
			proxy.CutAt(d, n)
			step(fmt.Sprint(name, " ", n))
			proxy.Disarm()
			if proxy.Cuts() == before {
				require.Greater(t, n, 4, "nothing was cut")
				break
			}
			require.Less(t, n, 60)
		}
	}
}

// Cut at every message: an append is stored whole or not at all, the error says if
// that is not known, and it can be repeated.
func TestAppendSurvivesACutAtEveryStatement(t *testing.T) {
	t.Parallel()
	s, proxy := through(t)
	_, err := s.Commit(t.Context(), appendTo("other", 0, event("0")))
	require.NoError(t, err)
	n, stored, unknown := 0, 1, 0
	cuts(t, proxy, func(name string) {
		c := store.Commit{
			Streams: []store.StreamAppend{
				{AggregateType: "account", AggregateID: name, ExpectedVersion: 0, Events: []store.NewEvent{withID(n), withID(n + 1)}},
				{AggregateType: "account", AggregateID: "other", ExpectedVersion: store.AnyVersion, Events: []store.NewEvent{withID(n + 2)}}},
			Snapshots: []store.Snapshot{{AggregateType: "account", AggregateID: name, Sequence: 2, Data: []byte(`{}`)}},
		}
		n += 3
		incarnation := s.Incarnation()
		res, err := s.Commit(t.Context(), c)
		proxy.Disarm()
		var transient *store.TransientError
		if err != nil {
			require.ErrorAs(t, err, &transient, name)
		}
		version, e := s.StreamVersion(t.Context(), "account", name)
		require.NoError(t, e)
		require.Contains(t, []int64{0, 2}, version, "%s: a part is stored", name)
		if err == nil {
			require.EqualValues(t, 2, version)
		} else if transient.OutcomeUnknown {
			unknown++
			require.Greater(t, s.Incarnation(), incarnation)
		} else {
			require.Zero(t, version, "%s: told as not stored: %v", name, err)
		}
		again, err := s.Commit(t.Context(), c)
		require.NoError(t, err, name)
		require.Equal(t, version == 2, again.Streams[0].Replayed)
		if res.Streams != nil {
			require.Equal(t, res.Streams[1].LastPosition, again.Streams[1].LastPosition)
		}
		_, err = s.LoadSnapshot(t.Context(), "account", name)
		require.NoError(t, err)
		stored += 3
		list := all(t, s, store.PageQuery{Limit: 1000})
		require.Len(t, list, stored)
		require.EqualValues(t, stored, list[stored-1].Position, "no gap")
	})
	require.Positive(t, unknown)
}

// lane is a consumer with one table and leases on some partitions.
type lane struct {
	s         *Store
	c         store.Consumer
	leases    []store.Lease
	positions map[int]int64
}

func newLane(t testing.TB, s *Store, instance string, tables []*readmodel.Table, partitions ...int) *lane {
	t.Helper()
	id := store.ConsumerID{Type: "projection", Name: "p"}
	c, err := s.Subscribe(t.Context(), store.Declaration{ID: id, Topics: []string{store.EventsTopic}, Tables: tables,
		Fingerprint: store.Fingerprint{Version: 1, Inputs: "i", Keys: "k", Tables: "t", Logic: "l"}, Plugin: "p", Digest: "sha256:0"})
	require.NoError(t, err)
	require.NoError(t, s.Join(t.Context(), store.Instance{ID: instance, HostName: "host"}))
	require.NoError(t, s.Enlist(t.Context(), instance, []store.Enlistment{{Build: c.Build}}))
	leases, _, err := s.Claim(t.Context(), instance, c.Build, partitions)
	require.NoError(t, err)
	require.Len(t, leases, len(partitions))
	return &lane{s: s, c: c, leases: leases, positions: map[int]int64{}}
}

// batch moves the checkpoints of all partitions to a position.
func (l *lane) batch(instance string, to int64) *store.Batch {
	b := &store.Batch{Consumer: l.c.ID, Build: l.c.Build, Epoch: l.c.Epoch, InstanceID: instance, Incarnation: l.s.Incarnation(), Leases: l.leases}
	for _, lease := range l.leases {
		b.Checkpoints = append(b.Checkpoints, store.CheckpointMove{Topic: store.EventsTopic, Partition: lease.Partition, From: l.positions[lease.Partition], To: to})
	}
	return b
}

func (l *lane) moved(b *store.Batch) {
	for _, c := range b.Checkpoints {
		l.positions[c.Partition] = c.To
	}
}

func tables(t testing.TB, list ...abi.Table) []*readmodel.Table {
	t.Helper()
	made, err := readmodel.NewTables(list)
	require.NoError(t, err)
	return made
}

// Cut at every message of an apply: what Settle says is what is there.
func TestApplySurvivesACutAtEveryStatement(t *testing.T) {
	t.Parallel()
	s, proxy := through(t)
	made := tables(t, abi.Table{Name: "accounts", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}},
		abi.Table{Name: "users", Columns: []abi.Column{{Name: "mail", Kind: abi.ColumnText, Max: 50, Unique: true}}})
	l := newLane(t, s, "i", made, 3, 4)
	to, unknown := int64(0), 0
	cuts(t, proxy, func(name string) {
		to++
		b := l.batch("i", to)
		for i, value := range []abi.Value{{Tag: abi.TagInt, I: to}, {Tag: abi.TagText, B: fmt.Append(nil, to)}} {
			row, err := made[i].Upsert([]abi.ColumnValue{{Column: 0, Value: value}})
			require.NoError(t, err)
			b.Tables = append(b.Tables, store.TableWrites{Table: l.c.Tables[i],
				Writes: []readmodel.Write{{Key: readmodel.Key{Key: "a"}, Row: row, Position: to}}})
		}
		err := s.Apply(t.Context(), b)
		proxy.Disarm()
		var transient *store.TransientError
		outcome, e := s.Settle(t.Context(), b)
		require.NoError(t, e)
		switch {
		case err == nil:
			require.Equal(t, store.OutcomeCommitted, outcome, name)
		case errors.As(err, &transient) && transient.OutcomeUnknown:
			unknown++
			require.Contains(t, []store.Outcome{store.OutcomeCommitted, store.OutcomeNotCommitted}, outcome, name)
		default:
			require.ErrorAs(t, err, &transient, name)
			require.Equal(t, store.OutcomeNotCommitted, outcome, name)
		}
		if outcome == store.OutcomeNotCommitted {
			b.Incarnation = s.Incarnation() // the lane has read anew
			require.NoError(t, s.Apply(t.Context(), b), name)
		}
		l.moved(b)
		for i, ref := range l.c.Tables {
			rows, err := s.LoadRows(t.Context(), ref, []store.RowKey{{Key: "a"}})
			require.NoError(t, err)
			require.Len(t, rows, 1)
			require.Equal(t, b.Tables[i].Writes[0].Row, rows[0].Row, name)
		}
	})
	require.Positive(t, unknown)
}

// A connection that was dead before its first statement is replaced and nobody
// notices.
func TestDeadIdleConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	s, proxy := through(t)
	for i := range 5 {
		_, err := s.Commit(t.Context(), appendTo("A-1", int64(i), event("1")))
		require.NoError(t, err)
		proxy.Cut()
		_, err = s.ReadPage(t.Context(), store.PageQuery{Topic: store.EventsTopic, Limit: 10})
		require.NoError(t, err)
		proxy.Cut()
	}
	require.EqualValues(t, 1, s.Incarnation())
}

// Killed in the middle of appends: what was acknowledged is there, nothing is
// there twice, and positions have no gap.
func TestServerKilledAmidAppends(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("not run: -short (starts a server and kills it)")
	}
	server := dbtest.NewMariaDB(t)
	s := open(t, Options{DSN: server.DSN})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	const writers = 8
	acknowledged := make([]int, writers) // events of the writer's stream
	for round := range 2 {
		incarnation := s.Incarnation()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for ctx.Err() == nil {
					n := acknowledged[w]
					_, err := s.Commit(context.Background(), appendTo(fmt.Sprint(w), int64(n), withID(w*10_000+n), withID(w*10_000+n+1)))
					if err != nil {
						var transient *store.TransientError
						if !errors.As(err, &transient) {
							t.Errorf("append: %v", err)
							return
						}
						continue // tried again with the same ids, also while the server is down
					}
					acknowledged[w] += 2
				}
			})
		}
		waitFor(t, func() bool { return topic(t, s).End > int64(100*(round+1)) })
		server.Kill()
		server.Start()
		waitFor(t, func() bool {
			got, err := s.Topic(t.Context(), store.EventsTopic)
			return err == nil && got.End > int64(100*(round+1)+50)
		})
		cancel()
		wg.Wait()
		require.Greater(t, s.Incarnation(), incarnation)
		list := all(t, s, store.PageQuery{Limit: 500})
		versions := map[string]int64{}
		for i, e := range list {
			require.EqualValues(t, i+1, e.Position, "positions have no gap")
			versions[e.AggregateID]++
			require.Equal(t, versions[e.AggregateID], e.Sequence)
		}
		for w, n := range acknowledged {
			require.EqualValues(t, n, versions[fmt.Sprint(w)], "writer %d", w)
		}
		require.EqualValues(t, len(list), topic(t, s).End)
	}
}

// waitFor waits for what other goroutines bring about.
func waitFor(t testing.TB, done func() bool) {
	t.Helper()
	require.Eventually(t, done, 60*time.Second, 5*time.Millisecond)
}

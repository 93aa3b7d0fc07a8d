package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
)

// What the high-water mark promises, seen by those who append and read.

// markPatience bounds what is waited for; only a failure uses it up.
const markPatience = time.Minute

// host opens a store as one of several hosts of a database.
func host(t testing.TB, dsn string, change ...func(*Options)) *Store {
	t.Helper()
	opt := Options{DSN: dsn, TablePrefix: "ph_", MaxOpenConns: 8, Logf: t.Logf}
	for _, f := range change {
		f(&opt)
	}
	s, err := Open(t.Context(), opt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func rawConn(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func rawExec(t testing.TB, dsn, text string) {
	t.Helper()
	_, err := rawConn(t, dsn).Exec(t.Context(), text)
	require.NoError(t, err)
}

var streams atomic.Int64

// oneEvent is an append of a new stream.
func oneEvent() store.Commit {
	return store.Commit{Streams: []store.StreamAppend{{AggregateType: "order", AggregateID: fmt.Sprint("o-", streams.Add(1)),
		Events: []store.NewEvent{{Type: "placed", Data: []byte(`{"n":1}`)}}}}}
}

// rawInsert is an append of somebody who knows the tables.
const rawInsert = `INSERT INTO ph_events (sequence, occurred_us, id, partition_key, revision, codec_version, aggregate_type, aggregate_id, type, codec, data)
	VALUES (1, 0, gen_random_uuid(), 0, 0, 1, 'foreign', gen_random_uuid()::text, 'made', 'json', '{}') RETURNING position`

// reader follows a topic page by page and keeps what it was given.
type reader struct {
	s      *Store
	again  bool // it begins anew when the incarnation rises, as the host does
	cursor int64
	inc    uint64
	got    map[store.ID]int
	last   int64
}

func (r *reader) page(ctx context.Context) (n int, err error) {
	page, err := r.s.ReadPage(ctx, store.PageQuery{Topic: store.EventsTopic, After: r.cursor, Limit: 500})
	if err != nil {
		return 0, err
	}
	if r.got == nil || r.again && page.Incarnation != r.inc {
		again := r.got != nil
		r.got, r.inc = map[store.ID]int{}, page.Incarnation
		if again {
			r.cursor, r.last = 0, 0
			return 1, nil
		}
	}
	for _, e := range page.Events {
		if e.Position <= r.last {
			return 0, fmt.Errorf("position %d after %d", e.Position, r.last)
		}
		r.last = e.Position
		r.got[e.ID]++
	}
	r.cursor = page.To
	return len(page.Events), nil
}

// follow reads until stop is closed and then to the end.
func (r *reader) follow(stop <-chan struct{}, end func() int64) error {
	ctx := context.Background()
	for deadline := (time.Time{}); ; {
		wake := r.s.Wake(store.EventsTopic)
		n, err := r.page(ctx)
		var transient *store.TransientError
		if err != nil && !errors.As(err, &transient) {
			return err
		}
		select {
		case <-stop:
			if deadline.IsZero() {
				deadline = time.Now().Add(markPatience)
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("the reader is at %d, the end is %d (%v)", r.cursor, end(), err)
			}
			if err == nil && n == 0 && r.cursor >= end() {
				return nil
			}
		default:
		}
		if n == 0 {
			select {
			case <-wake:
			case <-time.After(250 * time.Millisecond): // the host's poll
			}
		}
	}
}

func TestPagesFollowTheMark(t *testing.T) {
	t.Parallel()
	dsn := dbtest.Postgres(t)
	here, there := host(t, dsn), host(t, dsn)
	foreign := rawConn(t, dsn)
	var open int64
	tx, err := foreign.Begin(t.Context())
	require.NoError(t, err)
	require.NoError(t, tx.QueryRow(t.Context(), rawInsert).Scan(&open))
	res, err := here.Commit(t.Context(), oneEvent())
	require.NoError(t, err)
	appended := res.Streams[0].LastPosition
	require.Greater(t, appended, open)
	for _, s := range []*Store{here, there} {
		page, err := s.ReadPage(t.Context(), store.PageQuery{Topic: store.EventsTopic})
		require.NoError(t, err)
		require.Empty(t, page.Events)
		require.Less(t, page.To, open)
	}
	topic, err := here.Topic(t.Context(), store.EventsTopic)
	require.NoError(t, err)
	require.Less(t, topic.HighWaterMark, open)
	require.GreaterOrEqual(t, topic.End, appended)
	require.NoError(t, tx.Commit(t.Context()))
	for _, s := range []*Store{here, there} {
		r := &reader{s: s}
		stop := make(chan struct{})
		close(stop)
		require.NoError(t, r.follow(stop, func() int64 { return appended }))
		require.Len(t, r.got, 2)
	}
}

func TestWhoHoldsTheMarkIsTold(t *testing.T) {
	t.Parallel()
	dsn := dbtest.Postgres(t)
	s := host(t, dsn)
	c := rawConn(t, dsn)
	_, err := c.Exec(t.Context(), "SET application_name = 'importer'; BEGIN")
	require.NoError(t, err)
	_, err = c.Exec(t.Context(), rawInsert)
	require.NoError(t, err)
	var holder *store.MarkHolder
	require.Eventually(t, func() bool {
		topics, err := s.ListTopics(t.Context())
		require.NoError(t, err)
		holder = topics[0].Holder
		return holder != nil
	}, markPatience, 20*time.Millisecond)
	require.EqualValues(t, c.PgConn().PID(), holder.PID)
	require.Equal(t, "importer", holder.Application)
	_, err = c.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		topic, err := s.Topic(t.Context(), store.EventsTopic)
		require.NoError(t, err)
		return topic.Holder == nil && topic.HighWaterMark == topic.End
	}, markPatience, 20*time.Millisecond)
}

func TestWhyTheMarkStandsStillIsTold(t *testing.T) {
	t.Parallel()
	dsn := dbtest.Postgres(t)
	s := host(t, dsn)
	reason := func() string {
		topic, err := s.Topic(t.Context(), store.EventsTopic)
		require.NoError(t, err)
		return topic.Reason
	}
	require.Empty(t, reason())
	rawExec(t, dsn, `ALTER SEQUENCE ph_events_position_seq CACHE 20`)
	_, err := s.Commit(t.Context(), oneEvent()) // it is looked at when something happens
	require.NoError(t, err)
	require.Eventually(t, func() bool { return reason() != "" }, markPatience, 10*time.Millisecond)
	require.Contains(t, reason(), "CACHE 1")
	require.ErrorContains(t, s.Check(t.Context()), reason())
	rawExec(t, dsn, `ALTER SEQUENCE ph_events_position_seq CACHE 1`)
	require.Eventually(t, func() bool { return reason() == "" }, markPatience, 10*time.Millisecond)
}

func TestAppendBehindTheMarkIsRefused(t *testing.T) {
	// The sequence is set back under a running host, as by a restore: what is
	// appended would lie where every reader has been.
	t.Parallel()
	dsn := dbtest.Postgres(t)
	s := host(t, dsn)
	var last int64
	for range 5 {
		res, err := s.Commit(t.Context(), oneEvent())
		require.NoError(t, err)
		last = res.Streams[0].LastPosition
	}
	require.Eventually(t, func() bool { return s.detector.State().Mark >= last }, markPatience, time.Millisecond)
	// Holes above the last event, so that no unique key stands in the way.
	rawExec(t, dsn, fmt.Sprintf(`SELECT setval('ph_events_position_seq', %d)`, last+100))
	require.Eventually(t, func() bool { return s.detector.Mark() == last+100 }, markPatience, time.Millisecond)
	rawExec(t, dsn, fmt.Sprintf(`SELECT setval('ph_events_position_seq', %d)`, last+10))
	var transient *store.TransientError
	_, err := s.Commit(t.Context(), oneEvent())
	require.ErrorAs(t, err, &transient)
	require.Contains(t, transient.Hint, "behind the high-water mark")
	require.False(t, transient.OutcomeUnknown)
	_, err = s.Import(t.Context(), []store.ImportEvent{{AggregateType: "order", AggregateID: "imported",
		NewEvent: store.NewEvent{ID: store.ID{1}, HasID: true, Type: "placed", Data: []byte(`{}`)}}})
	require.ErrorAs(t, err, &transient)
	require.Contains(t, transient.Hint, "behind the high-water mark")
	require.Eventually(t, func() bool { return s.Check(t.Context()) != nil }, markPatience, 10*time.Millisecond)
	require.ErrorContains(t, s.Check(t.Context()), "setval")

	other := host(t, dsn) // a start mends it
	res, err := s.Commit(t.Context(), oneEvent())
	require.NoError(t, err)
	require.Greater(t, res.Streams[0].FirstPosition, last+100)
	require.Eventually(t, func() bool { return s.Check(t.Context()) == nil }, markPatience, 10*time.Millisecond)
	for _, h := range []*Store{s, other} {
		r := &reader{s: h}
		stop := make(chan struct{})
		close(stop)
		require.NoError(t, r.follow(stop, func() int64 { return res.Streams[0].LastPosition }))
		require.Len(t, r.got, 6)
	}
}

func TestPositionModeOfAnotherDetectorIsRefused(t *testing.T) {
	t.Parallel()
	dsn := dbtest.Postgres(t)
	host(t, dsn)
	rawExec(t, dsn, `UPDATE ph_partition_metadata SET position_mode = 'xid'`)
	_, err := Open(t.Context(), Options{DSN: dsn, TablePrefix: "ph_"})
	require.ErrorContains(t, err, "xid")
	require.ErrorContains(t, err, "sequence")
}

func TestSequenceOfAnotherKindStopsTheStart(t *testing.T) {
	t.Parallel()
	dsn := dbtest.Postgres(t)
	host(t, dsn)
	rawExec(t, dsn, `ALTER SEQUENCE ph_events_position_seq CACHE 20`)
	_, err := Open(t.Context(), Options{DSN: dsn, TablePrefix: "ph_"})
	require.ErrorContains(t, err, "CACHE 1")
}

// crowdOf appends with n writers until stop is closed and gives the ids of what
// was acknowledged. Some of them know the tables and pause and roll back.
func crowdOf(t *testing.T, hosts []*Store, dsn string, n int, stop <-chan struct{}) map[store.ID]bool {
	var mu sync.Mutex
	acknowledged := map[store.ID]bool{}
	var writers sync.WaitGroup
	for i := range n {
		s := hosts[i%len(hosts)]
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				res, err := s.Commit(context.Background(), oneEvent())
				var transient *store.TransientError
				switch {
				case errors.As(err, &transient):
					continue
				case err != nil:
					t.Error(err)
					return
				}
				mu.Lock()
				for _, id := range res.Streams[0].IDs {
					acknowledged[id] = true
				}
				mu.Unlock()
			}
		})
	}
	for range n / 4 {
		c, err := pgx.Connect(t.Context(), dsn)
		require.NoError(t, err)
		writers.Go(func() {
			defer func() { _ = c.Close(context.Background()) }()
			ctx := context.Background()
			for !c.IsClosed() {
				select {
				case <-stop:
					return
				default:
				}
				_, _ = c.Exec(ctx, "BEGIN")
				_, _ = c.Exec(ctx, rawInsert)
				time.Sleep(rand.N(15 * time.Millisecond)) // a slow appender is what it is
				_, _ = c.Exec(ctx, []string{"COMMIT", "ROLLBACK"}[rand.IntN(2)])
			}
		})
	}
	writers.Wait()
	return acknowledged
}

func TestStressOfTwoHostsSkipsNothing(t *testing.T) {
	dsn := dbtest.Postgres(t)
	hosts := []*Store{host(t, dsn), host(t, dsn)}
	stressHosts(t, hosts, dsn)
}

func TestStressThroughAPoolerSkipsNothing(t *testing.T) {
	dsn := dbtest.Postgres(t)
	pooled := dbtest.PgBouncer(t, dsn)
	direct := func(o *Options) { o.DirectDSN = dsn }
	stressHosts(t, []*Store{host(t, pooled, direct), host(t, pooled, direct)}, dsn)
}

func stressHosts(t *testing.T, hosts []*Store, dsn string) {
	length := 4 * time.Second
	if testing.Short() {
		length = time.Second
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	var end atomic.Int64
	var followers sync.WaitGroup
	readers := []*reader{{s: hosts[0]}, {s: hosts[1]}, {s: hosts[1], again: true}}
	for _, r := range readers {
		followers.Go(func() {
			if err := r.follow(ended, end.Load); err != nil {
				t.Error(err)
			}
		})
	}
	time.AfterFunc(length, func() { close(stop) })
	acknowledged := crowdOf(t, hosts, dsn, 16, stop)
	res, err := hosts[0].Commit(t.Context(), oneEvent())
	require.NoError(t, err)
	end.Store(res.Streams[0].LastPosition)
	close(ended)
	followers.Wait()
	stored := storedIDs(t, dsn)
	for id := range acknowledged {
		require.True(t, stored[id], "an append that was acknowledged is not stored")
	}
	for i, r := range readers {
		for id := range stored {
			require.Equalf(t, 1, r.got[id], "reader %d, event %s", i, id)
		}
	}
	st := hosts[0].detector.State()
	t.Logf("%d appends acknowledged, %d events stored, none skipped; %d looks of %v", len(acknowledged), len(stored), st.Cycles, st.Cost)
}

func storedIDs(t testing.TB, dsn string) map[store.ID]bool {
	t.Helper()
	rows, err := rawConn(t, dsn).Query(t.Context(), "SELECT id FROM ph_events")
	require.NoError(t, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	require.NoError(t, err)
	ids := map[store.ID]bool{}
	for _, id := range list {
		ids[id] = true
	}
	return ids
}

func TestServerKilledInMidAppendSkipsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	server := dbtest.NewPostgres(t, "wal_writer_delay=10s")
	s := host(t, server.DSN)
	// The second reader is one outside, that goes on where it was.
	readers := []*reader{{s: s, again: true}, {s: s}}
	ended := make(chan struct{})
	var end atomic.Int64
	var followers sync.WaitGroup
	for _, r := range readers {
		followers.Go(func() {
			if err := r.follow(ended, end.Load); err != nil {
				t.Error(err)
			}
		})
	}
	acknowledged := map[store.ID]bool{}
	before := s.Incarnation()
	for range 3 {
		stop := make(chan struct{})
		killed := make(chan struct{})
		time.AfterFunc(700*time.Millisecond, func() {
			server.Kill()
			close(stop)
			close(killed)
		})
		for id := range crowdOf(t, []*Store{s}, server.DSN, 8, stop) {
			acknowledged[id] = true
		}
		<-killed
		server.Start()
		require.Eventually(t, func() bool { return s.detector.State().Err == nil }, markPatience, 10*time.Millisecond)
	}
	require.Greater(t, s.Incarnation(), before+2, "each crash is another database")
	res, err := commitUntil(t, s)
	require.NoError(t, err)
	end.Store(res.Streams[0].LastPosition)
	close(ended)
	followers.Wait()
	stored := storedIDs(t, server.DSN)
	require.NotEmpty(t, acknowledged)
	for id := range acknowledged {
		require.True(t, stored[id], "an append that was acknowledged is not stored")
	}
	for i, r := range readers {
		for id := range stored {
			require.Equalf(t, 1, r.got[id], "reader %d, event %s", i, id)
		}
	}
	t.Logf("%d appends acknowledged over 3 crashes, %d events stored, none skipped", len(acknowledged), len(stored))
}

// commitUntil appends an event as soon as the server takes it.
func commitUntil(t *testing.T, s *Store) (res store.CommitResult, err error) {
	for deadline := time.Now().Add(markPatience); time.Now().Before(deadline); {
		if res, err = s.Commit(t.Context(), oneEvent()); err == nil {
			return res, nil
		}
	}
	return res, err
}

// BenchmarkVisibility is the time from the answer to an append until a reader
// that waits has its page.
func BenchmarkVisibility(b *testing.B) {
	dsn := dbtest.Postgres(b)
	here, there := host(b, dsn), host(b, dsn)
	for name, s := range map[string]*Store{"same host": here, "other host": there} {
		b.Run(name, func(b *testing.B) {
			var times []time.Duration
			r := &reader{s: s}
			for b.Loop() {
				time.Sleep(rand.N(10 * time.Millisecond)) // 200 a second, not in step with the detector
				res, err := here.Commit(b.Context(), oneEvent())
				require.NoError(b, err)
				began := time.Now()
				for r.cursor < res.Streams[0].LastPosition {
					wake := s.Wake(store.EventsTopic)
					n, err := r.page(b.Context())
					require.NoError(b, err)
					if n == 0 && r.cursor < res.Streams[0].LastPosition {
						<-wake
					}
				}
				times = append(times, time.Since(began))
			}
			slices.Sort(times)
			b.ReportMetric(times[len(times)/2].Seconds()*1000, "p50-ms")
			b.ReportMetric(times[len(times)*99/100].Seconds()*1000, "p99-ms")
		})
	}
}

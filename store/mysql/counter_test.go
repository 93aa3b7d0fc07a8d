package mysql

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

func event(data string) store.NewEvent {
	return store.NewEvent{Type: "Counted", Data: []byte(data)}
}

func appendTo(aggregate string, expected int64, events ...store.NewEvent) store.Commit {
	return store.Commit{Streams: []store.StreamAppend{{AggregateType: "account", AggregateID: aggregate, ExpectedVersion: expected, Events: events}}}
}

func topic(t testing.TB, s *Store) store.Topic {
	t.Helper()
	topic, err := s.Topic(context.Background(), store.EventsTopic)
	require.NoError(t, err)
	return topic
}

// all reads the topic page by page.
func all(t testing.TB, s *Store, q store.PageQuery) (list []store.Event) {
	t.Helper()
	q.Topic = store.EventsTopic
	for {
		p, err := s.ReadPage(context.Background(), q)
		require.NoError(t, err)
		list = append(list, p.Events...)
		if p.To == p.From {
			return list
		}
		q.After = p.To
	}
}

// Roll-backs give their positions back, so there is no gap that a reader would
// have to wait at, and readers that follow the counter lose nothing (P4).
func TestPositionsHaveNoGaps(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t)})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	const writers, rounds, readers = 16, 25, 4
	var writing, reading sync.WaitGroup
	var mu sync.Mutex
	acknowledged := map[int64]store.ID{}
	for w := range writers {
		writing.Go(func() {
			for r := range rounds {
				c := appendTo(fmt.Sprint(w), store.AnyVersion, event("1"), event("2"))
				ctx, cancel := context.WithCancel(context.Background())
				roll := rand.IntN(10)
				switch roll {
				case 0: // refused after the draw
					c.Streams = append(c.Streams, store.StreamAppend{AggregateType: "account", AggregateID: "first", ExpectedVersion: 0, Events: []store.NewEvent{event("3")}})
				case 1: // the caller goes
					time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
				}
				res, err := s.Commit(ctx, c)
				cancel()
				if err != nil && roll > 1 {
					t.Errorf("writer %d, round %d: %v", w, r, err)
				}
				if err == nil {
					mu.Lock()
					for i, id := range res.Streams[0].IDs {
						acknowledged[res.Streams[0].FirstPosition+int64(i)] = id
					}
					mu.Unlock()
				}
			}
		})
	}
	done := make(chan struct{})
	followed := make([][]store.Event, readers)
	for i := range readers {
		reading.Go(func() {
			q := store.PageQuery{Topic: store.EventsTopic, Limit: 1 + 20*i}
			for last := false; ; {
				p, err := s.ReadPage(context.Background(), q)
				if err != nil {
					t.Errorf("follow: %v", err)
					return
				}
				followed[i] = append(followed[i], p.Events...)
				if q.After = p.To; p.From < p.To {
					continue
				}
				if last {
					return
				}
				select {
				case <-done:
					last = true
				default:
				}
			}
		})
	}
	_, err := s.Commit(t.Context(), appendTo("first", store.AnyVersion, event("0")))
	require.NoError(t, err)
	writing.Wait()
	close(done)
	reading.Wait()

	list := all(t, s, store.PageQuery{Limit: 1000})
	for i, e := range list {
		require.EqualValues(t, i+1, e.Position)
		if id, ok := acknowledged[e.Position]; ok {
			require.Equal(t, id, e.ID)
			delete(acknowledged, e.Position)
		}
	}
	require.Empty(t, acknowledged, "acknowledged and not there")
	got := topic(t, s)
	require.EqualValues(t, len(list), got.End)
	require.EqualValues(t, len(list), got.HighWaterMark)
	for i := range followed {
		require.Equal(t, list, followed[i], "reader %d", i)
	}
}

// The mark is the committed counter: what is drawn and not committed yet is not
// read past.
func TestMarkIsTheCommittedCounter(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t)})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	_, err := s.Commit(t.Context(), appendTo("A-1", 0, event("1"), event("2")))
	require.NoError(t, err)
	c := conns(t, s, 1)[0]
	patient(t, s, c)
	exec(t, c, "START TRANSACTION")
	exec(t, c, s.q.draw, 5)
	require.EqualValues(t, 2, topic(t, s).HighWaterMark)
	appended := make(chan error, 1)
	go func() {
		_, err := s.Commit(context.Background(), appendTo("A-1", 2, event("3")))
		appended <- err
	}()
	p, err := s.ReadPage(t.Context(), store.PageQuery{Topic: store.EventsTopic, Limit: 10})
	require.NoError(t, err)
	require.Len(t, p.Events, 2)
	require.EqualValues(t, 2, p.End)
	select {
	case err := <-appended:
		require.Fail(t, "an append passed another's draw", "%v", err)
	default:
	}
	exec(t, c, "ROLLBACK")
	require.NoError(t, <-appended)
	require.EqualValues(t, 3, topic(t, s).End)
}

// Pages go past rows that somebody has taken out by hand.
func TestPagesGoPastWhatWasDeletedByHand(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t)})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	var events []store.NewEvent
	for i := range 20 {
		events = append(events, event(fmt.Sprint(i)))
	}
	_, err := s.Commit(t.Context(), appendTo("A-1", 0, events...))
	require.NoError(t, err)
	exec(t, conns(t, s, 1)[0], "DELETE FROM ph_events WHERE position IN (1, 7, 8, 20)")
	for _, limit := range []int{1, 3, 6, 16, 17, 100} {
		list := all(t, s, store.PageQuery{Limit: limit})
		require.Len(t, list, 16)
		p, err := s.ReadPage(t.Context(), store.PageQuery{Topic: store.EventsTopic, Limit: limit, After: 15})
		require.NoError(t, err)
		require.NotEmpty(t, p.Events)
	}
}

// A page of few large events among many small ones keeps to its bytes, and what
// it does not want of an answer is not read to the end.
func TestPagesKeepToTheirBytes(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t)})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	var imports []store.ImportEvent
	large := slices.Repeat([]byte("x"), 200_000)
	for i := range 900 {
		e := store.ImportEvent{AggregateType: "account", AggregateID: fmt.Sprint(i % 7), NewEvent: event("1")}
		if i%3 == 2 && i > 300 && i < 600 {
			e.Data = append(append([]byte(`"`), large...), '"')
		}
		e.ID, e.HasID = store.ID{15: byte(i), 14: byte(i >> 8), 0: 1}, true
		imports = append(imports, e)
	}
	_, err := s.Import(t.Context(), imports)
	require.NoError(t, err)
	const maxBytes = 1_000_000
	var list []store.Event
	for after := int64(0); ; {
		p, err := s.ReadPage(t.Context(), store.PageQuery{Topic: store.EventsTopic, After: after, Limit: 400, MaxBytes: maxBytes})
		require.NoError(t, err)
		if p.From == p.To {
			break
		}
		size := 0
		for _, e := range p.Events {
			size += len(e.Data)
		}
		require.LessOrEqual(t, size, maxBytes)
		if p.To < p.End && len(p.Events) < 400 {
			next := imports[p.To]
			require.Greater(t, size+len(next.Data), maxBytes, "the page ends before it is full")
		}
		list, after = append(list, p.Events...), p.To
	}
	require.Len(t, list, len(imports))
	for i, e := range list {
		require.Equal(t, imports[i].ID, e.ID)
		require.Equal(t, imports[i].Data, e.Data)
	}
	require.EqualValues(t, 1, s.Incarnation(), "giving a connection up is no loss")
}

// A commit larger than one statement may be is cut and stored whole.
func TestLargeCommitsAreCut(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t)})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	var events []store.NewEvent
	for i := range 40 {
		e := event(`"` + string(slices.Repeat([]byte{'"' - 1, '\'', '!'}, 150_000)) + `"`)
		if i%2 == 1 {
			e.Codec, e.Data = "raw", slices.Repeat([]byte{0, '\'', '\\', '"', '\n', 0xff}, 100_000)
		}
		events = append(events, e)
	}
	_, err := s.Commit(t.Context(), appendTo("A-1", 0, events...))
	require.NoError(t, err)
	list, err := s.ReadStream(t.Context(), "account", "A-1", 1, 100)
	require.NoError(t, err)
	require.Len(t, list, len(events))
	for i, e := range list {
		require.Equal(t, events[i].Data, e.Data)
	}
	require.EqualValues(t, 40, topic(t, s).End)
}

// Ways of an append that the fast one does not know.
func TestAppendsThatLoseARaceAreDecidedAnew(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t)})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for w := wayFast; w <= wayLocked; w++ {
		aggregate := fmt.Sprint("way ", w)
		_, err := s.Commit(t.Context(), appendTo(aggregate, 0, event("1")))
		require.NoError(t, err)
		try := func(c store.Commit) (store.CommitResult, error) {
			ids := make([]store.ID, len(c.Streams[0].Events))
			for i := range ids {
				if ids[i] = c.Streams[0].Events[i].ID; ids[i] == (store.ID{}) {
					ids[i] = store.ID{0: byte(w) + 1, 1: byte(i), 2: byte(len(ids)), 3: byte(rand.IntN(255)), 4: byte(rand.IntN(255)), 5: byte(rand.IntN(255))}
				}
			}
			var res store.CommitResult
			err := s.engine.write(t.Context(), "append", func(se *session) (err error) {
				res, err = s.newAppend(t.Context(), se).commit(&c, ids, w)
				return err
			})
			return res, err
		}
		res, err := try(appendTo(aggregate, 1, event("2"), event("3")))
		require.NoError(t, err)
		require.EqualValues(t, 3, res.Streams[0].Version)
		require.Equal(t, topic(t, s).End, res.Streams[0].LastPosition)
		for _, expected := range []int64{0, 2, 7} {
			_, err = try(appendTo(aggregate, expected, event("4")))
			var conflict *store.ConflictError
			require.Equal(t, w == wayFast, errors.Is(err, errRaced), "%v", err)
			require.Equal(t, w != wayFast, errors.As(err, &conflict), "%v", err)
		}
		res, err = try(appendTo(aggregate, store.AnyVersion, event("4")))
		require.NoError(t, err)
		require.EqualValues(t, 4, res.Streams[0].Version)
	}
	list := all(t, s, store.PageQuery{Limit: 5})
	require.Len(t, list, 3*4)
	require.EqualValues(t, 12, topic(t, s).End)
}

// A page touches the rows it gives and no others, however long the topic is.
func TestPagesTouchOnlyTheirRows(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: dbtest.MySQL(t), Partitions: 4})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	const length = 4000
	imports := make([]store.ImportEvent, length)
	for i := range imports {
		imports[i] = store.ImportEvent{AggregateType: "account", AggregateID: fmt.Sprint(i % 50), NewEvent: withID(i)}
	}
	_, err := s.Import(t.Context(), imports)
	require.NoError(t, err)
	exec(t, conns(t, s, 1)[0], "ANALYZE TABLE ph_events")
	for _, q := range []store.PageQuery{{}, {After: length / 2}, {Partitions: []int{2}}, {Partitions: []int{1}, After: length / 2}, {Partitions: []int{0, 3}, After: length / 2}} {
		q.Topic, q.Limit = store.EventsTopic, 10
		err := s.engine.read(t.Context(), "read", func(se *session) error {
			if _, err := se.Exec(t.Context(), "FLUSH STATUS"); err != nil {
				return err
			}
			p := pageRead{s: s, q: q, page: store.Page{To: -1, End: length}, after: q.After}
			if err := p.piece(t.Context(), se); err != nil {
				return err
			}
			require.Len(t, p.page.Events, 10)
			touched := int64(0)
			err := each(t.Context(), se, "SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler_read%' OR Variable_name LIKE 'Sort_rows'", nil, func(r sqlstore.Rows) error {
				var name string
				var n int64
				err := r.Scan(&name, &n)
				touched += n
				return err
			})
			require.Less(t, touched, int64(60), "partitions %v after %d", q.Partitions, q.After)
			return err
		})
		require.NoError(t, err)
	}
}

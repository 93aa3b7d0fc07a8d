package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var readCases = []testCase{
	{"StreamInSequenceOrder", readStream},
	{"TopicsAreListed", readTopics},
	{"EmptyTopic", readEmptyTopic},
	{"PagesAreContiguous", readContiguous},
	{"PageStopsAtItsLimits", readLimits},
	{"PageOfAPartition", readPartition},
	{"BadRequestsAreRefused", readBad},
	{"PastTheEndIsEmpty", readPastEnd},
	{"NoGapUnderConcurrentAppends", readNoGap},
	{"NothingUncommittedIsSeen", readUncommitted},
	{"WakeAtAppend", readWake},
	{"IncarnationStaysWithoutLoss", readIncarnation},
}

func readStream(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, events(0, 10)...)
	d.append("account", "A-2", store.NewStream, events(10, 12)...)
	for _, c := range []struct {
		from        int64
		limit       int
		first, last int64
	}{{1, 100, 1, 10}, {0, 100, 1, 10}, {4, 3, 4, 6}, {10, 5, 10, 10}, {9, 2, 9, 10}} {
		list, err := d.ReadStream(d.ctx(), "account", "A-1", c.from, c.limit)
		require.NoError(t, err)
		require.Len(t, list, int(c.last-c.first+1), "from %d, limit %d", c.from, c.limit)
		for i, e := range list {
			require.Equal(t, c.first+int64(i), e.Sequence)
			require.Equal(t, "A-1", e.AggregateID)
		}
	}
	for _, unknown := range []struct{ typ, id string }{{"account", "A-3"}, {"customer", "A-1"}} {
		list, err := d.ReadStream(d.ctx(), unknown.typ, unknown.id, 1, 10)
		require.NoError(t, err)
		require.Empty(t, list)
	}
	list, err := d.ReadStream(d.ctx(), "account", "A-1", 11, 10)
	require.NoError(t, err)
	require.Empty(t, list)
}

func readTopics(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, events(0, 3)...)
	list, err := d.ListTopics(d.ctx())
	require.NoError(t, err)
	require.NotEmpty(t, list)
	found := false
	for _, topic := range list {
		one, err := d.Topic(d.ctx(), topic.Name)
		require.NoError(t, err)
		require.Equal(t, topic.Kind, one.Kind)
		if topic.Name == store.EventsTopic {
			found = true
			require.Equal(t, "events", topic.Kind)
			require.Zero(t, topic.Start)
			require.Equal(t, d.stream("account", "A-1")[2].Position, topic.End)
			require.LessOrEqual(t, topic.HighWaterMark, topic.End)
			require.Contains(t, []int64{-1, 3}, topic.Messages)
		}
	}
	require.True(t, found)
	_, err = d.Topic(d.ctx(), "nowhere")
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = d.ReadPage(d.ctx(), store.PageQuery{Topic: "nowhere", Limit: 1})
	require.ErrorIs(t, err, store.ErrNotFound)
}

func readEmptyTopic(t *testing.T, d *db) {
	page, err := d.ReadPage(d.ctx(), store.PageQuery{Topic: store.EventsTopic, Limit: 10})
	require.NoError(t, err)
	// A start may have drawn positions that no event will have.
	require.Equal(t, store.Page{Topic: store.EventsTopic, To: page.End, End: page.End, Incarnation: d.Incarnation()}, page)
	require.Empty(t, d.all())
}

// Page after page, whatever their size, is the whole topic once, in order.
func readContiguous(t *testing.T, d *db) {
	const n = 250
	for i := range n {
		d.append("account", fmt.Sprint(i%9), store.AnyVersion, eventN(i))
	}
	d.all() // waits until all of it may be read
	for _, limit := range []int{1, 7, 100, n, n + 1} {
		seen := 0
		for after := int64(0); ; {
			p, err := d.ReadPage(d.ctx(), store.PageQuery{Topic: store.EventsTopic, After: after, Limit: limit})
			require.NoError(t, err)
			require.Equal(t, store.EventsTopic, p.Topic)
			require.Equal(t, after, p.From)
			require.LessOrEqual(t, p.To, p.End)
			require.LessOrEqual(t, len(p.Events), limit)
			require.Equal(t, d.Incarnation(), p.Incarnation)
			last := p.From
			for _, e := range p.Events {
				require.Greater(t, e.Position, last)
				require.LessOrEqual(t, e.Position, p.To)
				require.Equal(t, id(seen), e.ID)
				last = e.Position
				seen++
			}
			if p.From == p.To {
				break
			}
			after = p.To
		}
		require.Equal(t, n, seen, "pages of %d", limit)
	}
}

func readLimits(t *testing.T, d *db) {
	for i := range 10 {
		e := eventN(i)
		e.Data, e.Metadata = []byte(`"`+long("x", 58)+`"`), []byte(`"`+long("y", 38)+`"`)
		d.append("account", "A-1", store.AnyVersion, e)
	}
	all := d.all()
	for _, c := range []struct{ limit, bytes, want int }{
		{3, 0, 3}, {100, 0, 10}, {10, 0, 10},
		{100, 300, 3}, {100, 299, 2}, {100, 399, 3}, {100, 100, 1}, {100, 1, 1}, {100, 1000, 10}, {100, 999, 9}, {2, 1000, 2},
	} {
		p, err := d.ReadPage(d.ctx(), store.PageQuery{Topic: store.EventsTopic, Limit: c.limit, MaxBytes: c.bytes})
		require.NoError(t, err)
		require.Len(t, p.Events, c.want, "limit %d, %d bytes", c.limit, c.bytes)
		if c.want < 10 {
			require.Equal(t, all[c.want-1].Position, p.To, "a page that stops early ends with its last event")
		}
		require.Equal(t, all[9].Position, p.End)
	}
}

func readPartition(t *testing.T, d *db) {
	few := d.fresh(Config{Partitions: 5})
	for i := range 200 {
		few.append("account", fmt.Sprint("A-", i%40), store.AnyVersion, eventN(i))
	}
	all := few.all()
	total := 0
	for p := range 5 {
		var want []store.Event
		for _, e := range all {
			if e.Partition == p {
				want = append(want, e)
			}
		}
		require.NotEmpty(t, want)
		got, err := readAll(few.ctx(), few, store.PageQuery{Limit: 3, Partitions: []int{p}})
		require.NoError(t, err)
		require.Equal(t, want, got)
		total += len(got)
	}
	require.Equal(t, 200, total)

	// What a page skips is other partitions' alone: To goes past it.
	last := all[len(all)-1]
	p, err := few.ReadPage(few.ctx(), store.PageQuery{Topic: store.EventsTopic, Limit: 1000, Partitions: []int{(last.Partition + 1) % 5}})
	require.NoError(t, err)
	require.Equal(t, last.Position, p.To)

	// The same of several at once, in pages bounded by number and by size.
	for _, partitions := range [][]int{{0, 2}, {1, 2, 3, 4}, {0, 1, 2, 3, 4}} {
		var want []store.Event
		for _, e := range all {
			if slices.Contains(partitions, e.Partition) {
				want = append(want, e)
			}
		}
		for _, q := range []store.PageQuery{{Limit: 7}, {Limit: 1000}, {Limit: 1000, MaxBytes: 300}} {
			q.Partitions = partitions
			got, err := readAll(few.ctx(), few, q)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
	others := slices.DeleteFunc([]int{0, 1, 2, 3, 4}, func(p int) bool { return p == last.Partition })
	p, err = few.ReadPage(few.ctx(), store.PageQuery{Topic: store.EventsTopic, After: last.Position - 1, Limit: 1000, Partitions: others})
	require.NoError(t, err)
	require.Equal(t, last.Position, p.To)
	require.Empty(t, p.Events)
}

func readBad(t *testing.T, d *db) {
	_, err := d.ReadPage(d.ctx(), store.PageQuery{Topic: store.EventsTopic, After: -1, Limit: 10})
	requireInvalid(t, err, "bad_request", -1)
}

func readPastEnd(t *testing.T, d *db) {
	d.append("account", "A-1", store.NewStream, events(0, 3)...)
	d.all()
	for _, after := range []int64{d.end(), d.end() + 1, 1 << 60} {
		p, err := d.ReadPage(d.ctx(), store.PageQuery{Topic: store.EventsTopic, After: after, Limit: 10})
		require.NoError(t, err)
		require.Empty(t, p.Events)
		require.Equal(t, p.From, p.To)
		require.Equal(t, d.end(), p.End)
	}
}

// The rule readers live by (P4): once a page is given out, nothing appears in
// its range any more.
func readNoGap(t *testing.T, d *db) {
	const writers, rounds = 6, 40
	var writing, reading sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for r := range rounds {
				// Some are refused and some roll back after positions were drawn.
				c := store.Commit{Streams: []store.StreamAppend{
					{AggregateType: "account", AggregateID: fmt.Sprint(w), ExpectedVersion: store.AnyVersion, Events: events((w*rounds+r)*3, (w*rounds+r)*3+3)},
				}}
				if r%4 == 3 {
					c.Streams = append(c.Streams, store.StreamAppend{AggregateType: "account", AggregateID: "z", ExpectedVersion: 99, Events: []store.NewEvent{event("Refused")}})
				}
				_, err := d.Commit(d.ctx(), c)
				if (err != nil) != (r%4 == 3) {
					t.Errorf("writer %d, round %d: %v", w, r, err)
				}
			}
		})
	}
	done := make(chan struct{})
	followed := make([][]store.Event, 3)
	for i := range followed {
		reading.Go(func() {
			q := store.PageQuery{Topic: store.EventsTopic, Limit: 5 + 20*i}
			for last := false; ; {
				wake := d.Wake(q.Topic)
				p, err := d.ReadPage(d.ctx(), q)
				if err != nil {
					t.Errorf("follow: %v", err)
					return
				}
				followed[i] = append(followed[i], p.Events...)
				q.After = p.To
				if p.From < p.To {
					continue
				}
				if last {
					return
				}
				select {
				case <-wake:
				case <-done:
					last = true
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
	writing.Wait()
	all := d.all() // also waits until all of it may be read
	close(done)
	reading.Wait()
	require.Len(t, all, writers*rounds*3*3/4)
	for i := range followed {
		require.Equal(t, all, followed[i], "reader %d", i)
	}
}

// Events of one commit become readable together.
func readUncommitted(t *testing.T, d *db) {
	const rounds, size = 30, 20
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r := range rounds {
			if _, err := d.Commit(d.ctx(), appendTo("account", "A-1", int64(r*size), events(r*size, (r+1)*size)...)); err != nil {
				t.Errorf("append: %v", err)
			}
		}
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		v, err := d.StreamVersion(d.ctx(), "account", "A-1")
		require.NoError(t, err)
		require.Zero(t, v%size, "a commit is seen in part")
	}
	require.Len(t, d.stream("account", "A-1"), rounds*size)
}

func readWake(t *testing.T, d *db) {
	wake := d.Wake(store.EventsTopic)
	select {
	case <-wake:
		t.Fatal("woken without an append")
	default:
	}
	for i, act := range []func(){
		func() { d.append("account", "A-1", store.AnyVersion, eventN(0)) },
		func() { d.importAll(imports("account", "A-1", 1, 2)) },
	} {
		wake := d.Wake(store.EventsTopic)
		act()
		select {
		case <-wake:
		case <-time.After(waitMax):
			t.Fatalf("not woken by append %d", i)
		}
	}
}

func readIncarnation(t *testing.T, d *db) {
	before := d.Incarnation()
	for i := range 20 {
		d.append("account", fmt.Sprint(i), store.NewStream, event("Opened"))
		d.all()
	}
	_, err := d.Commit(d.ctx(), appendTo("account", "0", 7, event("Late")))
	require.Error(t, err)
	require.Equal(t, before, d.Incarnation())
}

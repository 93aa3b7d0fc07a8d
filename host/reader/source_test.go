package reader

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

func startSource(t *testing.T, l *log, cfg SourceConfig) *Source {
	t.Helper()
	s := NewSource(l, "events", cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return s
}

var smallPages = SourceConfig{PageMessages: 10, PageBytes: 1 << 20, RingBytes: 1 << 20, Poll: 250 * time.Millisecond}

func events(n int) []store.Event {
	out := make([]store.Event, n)
	for i := range out {
		out[i] = store.Event{AggregateType: "a", AggregateID: fmt.Sprint(i % 7), Type: "T", Data: []byte(`{}`)}
	}
	return out
}

// Followers at one place share each read, and the next page is read ahead.
func TestSourceSharesPages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		l.append(events(35)...)
		s := startSource(t, l, smallPages)
		for range 5 {
			go func() {
				for after := int64(0); after < 35; {
					p, err := s.follow(nil).next(t.Context(), after)
					require.NoError(t, err)
					require.Equal(t, after, p.From)
					after = p.To
				}
			}()
		}
		synctest.Wait()
		require.Equal(t, []int64{0, 10, 20, 30}, l.after())
	})
}

// A follower inside a kept page gets the rest of it, without a read; one before
// the ring reads for itself. Both see every message once.
func TestSourceCutsAndReadsBehindTheRing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		l.append(events(100)...)
		cfg := smallPages
		cfg.RingBytes = 2 * 10 * (eventBytes + 2)
		s := startSource(t, l, cfg)
		for after := int64(0); after < 100; {
			p, err := s.follow(nil).next(t.Context(), after)
			require.NoError(t, err)
			after = p.To
		}
		synctest.Wait()
		before := l.readCount()

		p, err := s.follow(nil).next(t.Context(), 93)
		require.NoError(t, err)
		require.Equal(t, int64(93), p.From)
		require.Equal(t, int64(100), p.To)
		require.Len(t, p.Events, 7)
		require.Equal(t, int64(94), p.Events[0].Position)
		require.Equal(t, before, l.readCount())

		p, err = s.follow(nil).next(t.Context(), 5)
		require.NoError(t, err)
		require.Equal(t, int64(5), p.From)
		require.Equal(t, int64(6), p.Events[0].Position)
	})
}

// At the end an append wakes a follower at once, and without a notification the
// poll finds it. However many followers wait, one reads.
func TestSourceWaitsAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		s := startSource(t, l, smallPages)
		got := make(chan *store.Page, 3)
		next := func(after int64) {
			p, err := s.follow(nil).next(t.Context(), after)
			require.NoError(t, err)
			got <- p
		}
		for range 3 {
			go next(0)
		}
		synctest.Wait()
		require.Equal(t, 1, l.readCount())

		start := time.Now()
		l.append(events(1)...)
		for range 3 {
			require.Len(t, (<-got).Events, 1)
		}
		require.Zero(t, time.Since(start))

		// The mark moves without a notification.
		go next(1)
		synctest.Wait()
		l.set(func() { l.end = 9 })
		require.Equal(t, int64(9), (<-got).To)
		require.LessOrEqual(t, time.Since(start), smallPages.Poll)

		// Idle: one read a poll.
		for range 3 {
			go next(9)
		}
		synctest.Wait()
		before := l.readCount()
		time.Sleep(10 * smallPages.Poll) // virtual time
		require.InDelta(t, before+10, l.readCount(), 1)
		l.append(events(1)...)
		for range 3 {
			<-got
		}
	})
}

// What was read under another incarnation is never given out: kept pages are
// dropped, and a read that was under way is done again.
// The lag of a consumer that has halted goes on growing.
func TestSourceKnowsTheEndThoughNobodyReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		l.append(events(3)...)
		s := startSource(t, l, smallPages)
		_, err := s.follow(nil).next(t.Context(), 0)
		require.NoError(t, err)
		require.Equal(t, int64(3), s.End())
		l.append(events(4)...)
		time.Sleep(unreadPoll + time.Millisecond) // virtual
		require.Equal(t, int64(7), s.End())
	})
}

func TestSourceDropsOtherIncarnations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		l.append(events(10)...)
		s := startSource(t, l, smallPages)
		_, err := s.follow(nil).next(t.Context(), 0)
		require.NoError(t, err)
		l.set(func() {
			l.incarnation++
			l.events = l.events[:5]
			l.end = 5
		})
		p, err := s.follow(nil).next(t.Context(), 0)
		require.NoError(t, err)
		require.Len(t, p.Events, 5)
		require.Equal(t, uint64(1), p.Incarnation)
	})
}

// A failed read reaches those who wait and nobody after them.
func TestSourceReportsErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		boom := errors.New("boom")
		l.fail = boom
		s := startSource(t, l, smallPages)
		_, err := s.follow(nil).next(t.Context(), 0)
		require.ErrorIs(t, err, boom)
		l.set(func() { l.fail = nil })
		l.append(events(1)...)
		_, err = s.follow(nil).next(t.Context(), 0)
		require.NoError(t, err)
	})
}

// A follower that leaves takes nobody with it, and a read nobody waits for ends.
func TestSourceFollowerLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		l.gate = make(chan struct{})
		s := startSource(t, l, smallPages)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error, 1)
		go func() {
			_, err := s.follow(nil).next(ctx, 0)
			left <- err
		}()
		synctest.Wait()
		got := make(chan *store.Page, 1)
		go func() {
			p, err := s.follow(nil).next(t.Context(), 0)
			require.NoError(t, err)
			got <- p
		}()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-left, context.Canceled)
		l.set(func() { close(l.gate); l.gate = nil })
		l.append(events(1)...)
		require.Len(t, (<-got).Events, 1)

		ctx, cancel = context.WithCancel(t.Context())
		go func() {
			_, err := s.follow(nil).next(ctx, 1)
			left <- err
		}()
		synctest.Wait()
		cancel()
		<-left
		time.Sleep(2 * smallPages.Poll) // virtual time
		before := l.readCount()
		time.Sleep(10 * smallPages.Poll) // virtual time
		require.Equal(t, before, l.readCount())
	})
}

// reachAt needs the partitions given of 4.
func reachAt(partitions ...int) reach {
	r := make(reach, 4)
	for _, p := range partitions {
		r[p] = true
	}
	return r.whole()
}

// spread are events of partitions in turn.
func spread(n int) []store.Event {
	out := events(n)
	for i := range out {
		out[i].Partition = i % 4
	}
	return out
}

// follows reads up to a position and tells which partitions it was given.
func follows(t *testing.T, f *follower, after, to int64) (partitions map[int]int) {
	partitions = map[int]int{}
	for after < to {
		p, err := f.next(t.Context(), after)
		require.NoError(t, err)
		require.Equal(t, after, p.From)
		for _, e := range p.Events {
			partitions[e.Partition]++
		}
		after = p.To
	}
	require.Equal(t, to, after)
	return partitions
}

// The store picks the partitions that all followers need together, and all of them
// where one needs all.
func TestSourceReadsWhatIsNeeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		l.append(spread(40)...)
		s := startSource(t, l, smallPages)
		a := s.follow(reachAt(0, 2))
		require.Equal(t, map[int]int{0: 10, 2: 10}, follows(t, a, 0, 40))
		require.Equal(t, [][]int{{0, 2}, {0, 2}}, l.asked()[:2])

		b := s.follow(reachAt(2, 3))
		read := l.readCount()
		got := follows(t, b, 0, 40)
		require.Equal(t, 10, got[2])
		require.Equal(t, 10, got[3], "nothing of before is taken for what it lacks")
		require.Greater(t, l.readCount(), read)
		require.Equal(t, []int{0, 2, 3}, l.asked()[len(l.asked())-1])
		// What was read for both serves both.
		read = l.readCount()
		require.Equal(t, 10, follows(t, a, 0, 40)[0])
		require.Equal(t, read, l.readCount())

		all := s.follow(nil)
		require.Equal(t, map[int]int{0: 10, 1: 10, 2: 10, 3: 10}, follows(t, all, 0, 40))
		require.Nil(t, l.asked()[len(l.asked())-1])
		all.leave()
		b.leave()
		l.append(spread(8)...)
		require.Equal(t, 2, follows(t, a, 40, 48)[0])
		require.Equal(t, []int{0, 2}, l.asked()[len(l.asked())-1], "who has left needs nothing")
		a.leave()
	})
}

// Two who need everything between them are all: the store is not asked to pick.
func TestSourceAsksForAllOfAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		l.append(spread(8)...)
		s := startSource(t, l, smallPages)
		a, b := s.follow(reachAt(0, 1)), s.follow(reachAt(2, 3))
		defer a.leave()
		defer b.leave()
		require.Len(t, follows(t, b, 0, 8), 4)
		require.Equal(t, [][]int{nil}, l.asked())
	})
}

// Promise (P4): who comes while a read is under way that leaves its messages out
// waits for that read and does not take it for its own.
func TestSourceReadUnderWayIsOfTooFewPartitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLog()
		l.gate = make(chan struct{})
		l.append(spread(8)...)
		s := startSource(t, l, smallPages)
		a := s.follow(reachAt(0))
		first, second := make(chan map[int]int, 1), make(chan map[int]int, 1)
		go func() { first <- follows(t, a, 0, 8) }()
		synctest.Wait()
		require.Equal(t, [][]int{{0}}, l.asked())
		b := s.follow(reachAt(1))
		go func() { second <- follows(t, b, 0, 8) }()
		synctest.Wait()
		require.Equal(t, 1, l.readCount(), "they share the flight")
		close(l.gate)
		require.Equal(t, map[int]int{0: 2}, <-first)
		require.Equal(t, 2, (<-second)[1])
		a.leave()
		b.leave()
	})
}

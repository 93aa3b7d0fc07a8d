package partition_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

// registry keeps instances, and can be made to fail or to hang.
type registry struct {
	store.Leases

	mu     sync.Mutex
	joined []string // ids, in order
	known  map[string]bool
	beats  []time.Duration // since the first join
	began  time.Time
	fail   error
	hang   bool
}

func (r *registry) answer(ctx context.Context) error {
	if r.hang {
		r.mu.Unlock()
		<-ctx.Done()
		r.mu.Lock()
		return ctx.Err()
	}
	return r.fail
}

func (r *registry) Join(ctx context.Context, i store.Instance) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.answer(ctx); err != nil {
		return err
	}
	if r.began.IsZero() {
		r.began, r.known = time.Now(), map[string]bool{}
	}
	r.joined, r.known[i.ID] = append(r.joined, i.ID), true
	return nil
}

func (r *registry) Heartbeat(ctx context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beats = append(r.beats, time.Since(r.began))
	if err := r.answer(ctx); err != nil {
		return err
	}
	if !r.known[id] {
		return store.ErrNotFound
	}
	return nil
}

func (r *registry) Leave(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, id)
	return nil
}

func (r *registry) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// lines counts the lines of a log that have a text.
func lines(log *bytes.Buffer, text string) (n int) {
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func member(t *testing.T, r *registry) (m *partition.Member, log *bytes.Buffer, stop func()) {
	t.Helper()
	log = &bytes.Buffer{}
	m, err := partition.Join(t.Context(), r, partition.MemberConfig{
		HostName: "h", TTL: 15 * time.Second, Heartbeat: 3 * time.Second,
	}, hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Info}))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		m.Run(ctx)
		close(done)
	}()
	return m, log, func() {
		cancel()
		<-done
	}
}

// A heartbeat is one call; one that fails is told once and tried again; one that
// hangs is given up before the time is over.
func TestHeartbeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &registry{}
		m, log, stop := member(t, r)
		pass(10 * time.Second)
		require.Equal(t, []time.Duration{3 * time.Second, 6 * time.Second, 9 * time.Second}, r.beats)
		r.set(func() { r.fail = errors.New("down") })
		pass(9 * time.Second)
		require.Len(t, r.beats, 6)
		require.Equal(t, 1, lines(log, "heartbeat failed"))
		r.set(func() { r.fail, r.hang, r.beats = nil, true, nil })
		pass(14 * time.Second)
		require.GreaterOrEqual(t, len(r.beats), 3, "within a TTL")
		r.set(func() { r.hang = false })
		pass(6 * time.Second)
		require.Equal(t, 1, lines(log, "heartbeats succeed again"))
		require.Equal(t, 1, lines(log, "heartbeat failed"))
		require.Len(t, r.joined, 1)

		id, ended := m.Instance()
		require.Equal(t, r.joined[0], id)
		select {
		case <-ended:
			t.Fatal("the instance is still there")
		default:
		}
		stop()
		require.NoError(t, m.Leave(t.Context()))
		require.Empty(t, r.known)
	})
}

// pass lets virtual time pass, and what is due then be done.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Who was removed comes back under an id that was never used before, however
// often that is tried, and whoever works for the old one is told.
func TestRemovedMemberJoinsUnderAnotherID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &registry{}
		m, log, stop := member(t, r)
		id, ended := m.Instance()
		require.NoError(t, r.Leave(t.Context(), id))
		m.Doubt()
		m.Doubt()
		synctest.Wait()
		<-ended
		now, _ := m.Instance()
		require.NotEqual(t, id, now)
		require.Equal(t, []string{id, now}, r.joined)
		require.Equal(t, 1, lines(log, "was removed"))

		// The database goes away at the very moment.
		id, ended = m.Instance()
		require.NoError(t, r.Leave(t.Context(), id))
		r.set(func() { r.fail = errors.New("down") })
		pass(time.Minute)
		again, _ := m.Instance()
		require.Equal(t, id, again, "it has not joined")
		r.set(func() { r.fail = nil })
		pass(3 * time.Second)
		<-ended
		now, _ = m.Instance()
		require.Len(t, r.joined, 3)
		ids := slices.Clone(r.joined)
		slices.Sort(ids)
		require.Len(t, slices.Compact(ids), 3)
		require.Equal(t, r.joined[2], now)
		stop()
		require.NoError(t, m.Leave(t.Context()))
		require.Empty(t, r.known)
	})
}

func TestJoinFails(t *testing.T) {
	t.Parallel()
	r := &registry{fail: errors.New("down")}
	_, err := partition.Join(t.Context(), r, partition.MemberConfig{TTL: time.Second, Heartbeat: time.Second}, hclog.NewNullLogger())
	require.ErrorIs(t, err, r.fail)
}

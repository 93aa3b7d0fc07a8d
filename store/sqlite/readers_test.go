package sqlite

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

// However a read ends, its connection serves again or is replaced.
func TestReadersSurviveHowReadsEnd(t *testing.T) {
	s := openTest(t, Options{MaxOpenConns: 2})
	appendOne(t, s, "A-1")
	boom := errors.New("boom")
	ctx, cancel := context.WithCancel(t.Context())
	for range 5 {
		require.ErrorIs(t, s.snapshot(t.Context(), "test", func(*conn) error { return boom }), boom)
		require.PanicsWithValue(t, "mistake", func() {
			_ = s.snapshot(t.Context(), "test", func(*conn) error { panic("mistake") })
		})
		require.Error(t, s.snapshot(t.Context(), "test", func(c *conn) error { return c.script("nonsense") }))
		require.Error(t, s.snapshot(t.Context(), "test", func(c *conn) error { return c.script("COMMIT") }), "its transaction is gone")
		require.EqualValues(t, 1, version(t, s, "A-1"))
	}
	// Waiting for a connection ends with the caller.
	var wg sync.WaitGroup
	free, held := make(chan struct{}), make(chan struct{})
	for range 2 {
		wg.Go(func() {
			_ = s.read(context.Background(), "test", func(*conn) error {
				held <- struct{}{}
				<-free
				return nil
			})
		})
		<-held
	}
	cancel()
	_, err := s.ReadPage(ctx, store.PageQuery{Topic: store.EventsTopic})
	require.ErrorIs(t, err, context.Canceled)
	close(free)
	wg.Wait()
	require.EqualValues(t, 1, version(t, s, "A-1"))
}

// A query that would take minutes ends with its caller.
func TestLongReadIsInterrupted(t *testing.T) {
	s := openTest(t, Options{MaxOpenConns: 1})
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan struct{})
	go func() {
		<-began
		cancel()
	}()
	err := s.read(ctx, "test", func(c *conn) error {
		close(began)
		_, err := c.queryInt(ctx, `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000000000) SELECT count(*) FROM n`)
		return err
	})
	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 0, version(t, s, "A-1"), "the connection goes on")
}

package sqlite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

// childAppends appends for ever, singly and in batches and with several callers
// at once, and tells what was acknowledged.
func childAppends(path string) {
	ctx := context.Background()
	s, err := Open(ctx, Options{DSN: path, TablePrefix: "ph_"})
	if err != nil {
		childFails(err)
	}
	for w := range 3 {
		go func() {
			for size := 1; ; size = size%40 + 1 {
				st := store.StreamAppend{AggregateType: "account", AggregateID: fmt.Sprint("A-", w), ExpectedVersion: store.AnyVersion}
				for range size {
					st.Events = append(st.Events, store.NewEvent{Type: "Counted", Data: []byte(`{"n":1}`)})
				}
				res, err := s.Commit(ctx, store.Commit{Streams: []store.StreamAppend{st}})
				if err != nil {
					childFails(err)
				}
				for _, id := range res.Streams[0].IDs {
					fmt.Printf("%s %s\n", st.AggregateID, id)
				}
			}
		}()
	}
	select {}
}

// What was acknowledged before a kill -9 is there after it, once, and streams
// have no holes (P9).
func TestKilledWhileAppending(t *testing.T) {
	rounds := 25
	if testing.Short() {
		rounds = 5
	}
	path := filepath.Join(t.TempDir(), "projhost.db")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	acknowledged := map[string]string{}
	for range rounds {
		c := startChild(t, "append", path)
		// Killed after a number of acknowledgements and a moment more: the
		// moment is what puts the kill into the middle of a commit.
		for range 1 + r.IntN(200) {
			var aggregate, id string
			_, err := fmt.Sscan(c.line(), &aggregate, &id)
			require.NoError(t, err)
			acknowledged[id] = aggregate
		}
		time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond)
		require.NoError(t, c.Process.Kill())
		for line := c.line(); line != ""; line = c.line() {
			var aggregate, id string
			if n, _ := fmt.Sscan(line, &aggregate, &id); n == 2 && len(id) == 36 {
				acknowledged[id] = aggregate
			}
		}
		_ = c.Wait()
		checkAfterKill(t, path, acknowledged)
	}
	t.Logf("%d events acknowledged over %d kills", len(acknowledged), rounds)
}

func checkAfterKill(t *testing.T, path string, acknowledged map[string]string) {
	t.Helper()
	s, err := Open(t.Context(), Options{DSN: path, TablePrefix: "ph_"})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	stored, versions := map[string]string{}, map[string]int64{}
	for after := int64(0); ; {
		p, err := s.ReadPage(t.Context(), store.PageQuery{Topic: store.EventsTopic, After: after, Limit: 5000})
		require.NoError(t, err)
		if p.From == p.To {
			break
		}
		for _, e := range p.Events {
			require.NotContains(t, stored, e.ID.String())
			stored[e.ID.String()] = e.AggregateID
			versions[e.AggregateID]++
			require.Equal(t, versions[e.AggregateID], e.Sequence)
			require.Equal(t, after+1, e.Position, "a lost transaction gives its positions back")
			after = e.Position
		}
		require.Equal(t, after, p.To)
	}
	for id, aggregate := range acknowledged {
		require.Equal(t, aggregate, stored[id], "acknowledged event %s", id)
	}
	ok, err := s.readers.get(t.Context(), "integrity")
	require.NoError(t, err)
	defer s.readers.put(ok, nil)
	row, err := ok.queryRow(t.Context(), "PRAGMA integrity_check")
	require.NoError(t, err)
	require.Equal(t, "ok", row[0])
}

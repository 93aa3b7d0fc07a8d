package migrate

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func files(names ...string) fstest.MapFS {
	fs := fstest.MapFS{}
	for _, n := range names {
		fs["schema/"+n] = &fstest.MapFile{Data: []byte("-- " + n)}
	}
	return fs
}

func TestLoad(t *testing.T) {
	ms, err := Load(files("0002_b.sql", "0001_a.sql", "0003_c_d.sql"), "schema")
	require.NoError(t, err)
	require.Len(t, ms, 3)
	for i, name := range []string{"a", "b", "c_d"} {
		require.Equal(t, i+1, ms[i].Version)
		require.Equal(t, name, ms[i].Name)
		require.Len(t, ms[i].Checksum, 64)
	}
	for _, bad := range [][]string{{"0001_a.sql", "0003_b.sql"}, {"0002_a.sql"}, {"0001_a.sql", "0001_b.sql"}, {"a.sql"}, {"0001.sql"}, {"0001_a.txt"}} {
		_, err := Load(files(bad...), "schema")
		require.Error(t, err, bad)
	}
}

// memory is a database whose lock is a mutex.
type memory struct {
	mu      sync.Mutex
	done    []Applied
	failAt  int
	applied []string
}

func (m *memory) Begin(context.Context) (Tx, error) {
	m.mu.Lock()
	return &memoryTx{m: m}, nil
}

type memoryTx struct {
	m    *memory
	next []Migration
}

func (t *memoryTx) Applied(context.Context) ([]Applied, error) { return t.m.done, nil }

func (t *memoryTx) Apply(_ context.Context, m Migration) error {
	if m.Version == t.m.failAt {
		return errors.New("broken")
	}
	t.next = append(t.next, m)
	return nil
}

func (t *memoryTx) Commit() error {
	for _, m := range t.next {
		t.m.done = append(t.m.done, Applied{m.Version, m.Name, m.Checksum})
		t.m.applied = append(t.m.applied, m.Name)
	}
	t.m.mu.Unlock()
	return nil
}

func (t *memoryTx) Rollback() error {
	t.m.mu.Unlock()
	return nil
}

func TestRun(t *testing.T) {
	ms, err := Load(files("0001_a.sql", "0002_b.sql", "0003_c.sql"), "schema")
	require.NoError(t, err)
	db := &memory{failAt: 3}
	require.ErrorContains(t, Run(t.Context(), db, ms), "migration 0003_c: broken")
	require.Equal(t, []string{"a", "b"}, db.applied, "what went before stays")
	db.failAt = 0
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := Run(t.Context(), db, ms); err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, []string{"a", "b", "c"}, db.applied, "each once")
	require.NoError(t, Run(t.Context(), db, ms))

	db.done[1].Checksum = "x"
	var changed *ChecksumError
	require.ErrorAs(t, Run(t.Context(), db, ms), &changed)
	require.Equal(t, "b", changed.Name)
	db.done[1].Checksum = ms[1].Checksum
	db.done = append(db.done, Applied{Version: 4}, Applied{Version: 5})
	var newer *NewerError
	require.ErrorAs(t, Run(t.Context(), db, ms), &newer)
	require.Equal(t, NewerError{Known: 3, Found: 5}, *newer)
	db.done = db.done[1:3]
	require.ErrorContains(t, Run(t.Context(), db, ms), "version 1 is not on record")
}

package sqlite

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func fileSize(t testing.TB, path string) int64 {
	t.Helper()
	fi, err := os.Stat(path)
	require.NoError(t, err)
	return fi.Size()
}

// putMany writes rows and with them pages.
func putMany(t testing.TB, s *Store, from int) {
	t.Helper()
	require.NoError(t, s.write(t.Context(), "test", 500, func(tx *tx) error {
		for n := from; n < from+500; n++ {
			if err := put(tx, n, nil); err != nil {
				return err
			}
		}
		return nil
	}))
}

func TestLogIsMovedBesideTheCommits(t *testing.T) {
	s := scratch(t, Options{})
	s.writer.every = 5
	before := fileSize(t, s.opt.DSN)
	putMany(t, s, 0)
	require.Eventually(t, func() bool { return fileSize(t, s.opt.DSN) > before }, waitMax, waitStep, "without a further write")
	require.Len(t, scratchRows(t, s), 500)
}

// Where commits go on during a checkpoint it never reaches the end of the log.
// That is begun anew all the same, and does not grow for ever.
func TestLogIsBegunAnew(t *testing.T) {
	s := scratch(t, Options{})
	beside, err := s.openCheckpointer()
	require.NoError(t, err)
	defer beside.close()
	most := int64(0)
	for n := range 100 {
		putMany(t, s, 1000*n)
		// A reader keeps the checkpoint from what is written after it began.
		require.NoError(t, s.snapshot(t.Context(), "test", func(c *conn) error {
			_, err := c.queryInt(t.Context(), `SELECT max(n) FROM scratch`)
			require.NoError(t, err)
			putMany(t, s, 1000*n+500)
			return beside.checkpoint()
		}))
		s.points.moved.Store(true)
		if log := fileSize(t, s.opt.DSN+"-wal"); n == 9 {
			most = log
		}
	}
	require.Less(t, fileSize(t, s.opt.DSN+"-wal"), 3*most)
}

// A reader of an old state holds the log back; when it ends, the log goes on
// being moved.
func TestCheckpointWaitsForNobody(t *testing.T) {
	s := scratch(t, Options{})
	s.writer.every = 1
	c, err := s.readers.get(t.Context(), "test")
	require.NoError(t, err)
	require.NoError(t, c.script("BEGIN"))
	_, err = c.queryInt(t.Context(), `SELECT count(*) FROM scratch`)
	require.NoError(t, err)
	for n := range 50 {
		require.NoError(t, s.write(t.Context(), "test", 1, func(tx *tx) error { return put(tx, n, nil) }))
	}
	n, err := c.queryInt(t.Context(), `SELECT count(*) FROM scratch`)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, c.script("COMMIT"))
	s.readers.put(c, nil)
	require.Len(t, scratchRows(t, s), 50)
	require.NoError(t, s.Check(t.Context()))
}

// A checkpoint that fails loses nothing, but somebody should look; asking is
// enough to have it tried again, so a host is not called ill for long.
func TestFailedCheckpointIsToldByCheck(t *testing.T) {
	s := scratch(t, Options{})
	var broken atomic.Bool
	works := s.points.open
	s.points.open = func() (*conn, error) {
		if broken.Load() {
			return nil, errors.New("no")
		}
		return works()
	}
	broken.Store(true)
	s.points.wake()
	require.Eventually(t, func() bool { return s.points.failed() != nil }, waitMax, waitStep)
	require.ErrorContains(t, s.Check(t.Context()), "checkpoint: no")
	broken.Store(false)
	require.Eventually(t, func() bool { return s.Check(t.Context()) == nil }, waitMax, waitStep)
}

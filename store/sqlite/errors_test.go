package sqlite

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	lib "modernc.org/sqlite/lib"

	"github.com/projhost/projhost/store"
)

func requireTransient(t testing.TB, err error, primaryCode int, hint string) *store.TransientError {
	t.Helper()
	var transient *store.TransientError
	require.ErrorAs(t, err, &transient)
	require.Equal(t, primaryCode, primary(code(err)), "%v", err)
	require.Contains(t, transient.Hint, hint)
	return transient
}

// Another process, an SQL client say, is in the middle of a write transaction.
func TestLockedByAnotherProcess(t *testing.T) {
	s := openTest(t, Options{Timeout: 100 * time.Millisecond})
	appendOne(t, s, "A-1")
	other, err := openConn(s.opt.DSN, true)
	require.NoError(t, err)
	defer other.close()
	require.NoError(t, other.script("BEGIN IMMEDIATE"))

	began := time.Now()
	err = tryAppend(t.Context(), s, "A-1")
	transient := requireTransient(t, err, lib.SQLITE_BUSY, "another process")
	require.False(t, transient.OutcomeUnknown)
	require.GreaterOrEqual(t, time.Since(began), 100*time.Millisecond)
	require.EqualValues(t, 1, version(t, s, "A-1"), "reading goes on")
	require.Error(t, s.Check(t.Context()))

	// Who waits goes on when the lock is given back, without an error; who is
	// cancelled leaves at once.
	s.writer.busyFor = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	left, stayed := make(chan error), make(chan error)
	go func() { left <- tryAppend(ctx, s, "A-1") }()
	waitForQueue(t, s.writer, 0)
	go func() { left <- tryAppend(ctx, s, "A-1") }()
	waitForQueue(t, s.writer, 1)
	go func() { stayed <- tryAppend(t.Context(), s, "A-1") }()
	waitForQueue(t, s.writer, 2)
	cancel()
	for range 2 {
		err := <-left
		require.ErrorIs(t, err, context.Canceled)
		requireTransient(t, err, lib.SQLITE_BUSY, "another process") // and not merely that it ended
	}
	require.NoError(t, other.script("ROLLBACK"))
	require.NoError(t, <-stayed)
	require.EqualValues(t, 2, version(t, s, "A-1"))
}

// waitForQueue waits until somebody works the queue and n others wait in it.
func waitForQueue(t testing.TB, w *writer, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.led && len(w.queue) == n
	}, waitMax, waitStep)
}

// A full database refuses and stays whole; once there is room again it goes on.
func TestFull(t *testing.T) {
	s := openTest(t, Options{})
	appendOne(t, s, "A-1")
	pages, err := s.writer.conn.queryInt(t.Context(), "PRAGMA page_count")
	require.NoError(t, err)
	_, err = s.writer.conn.queryInt(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", pages))
	require.NoError(t, err)
	stored := 0
	for stored < 1000 {
		if err = tryAppend(t.Context(), s, "A-1"); err != nil {
			break
		}
		stored++
	}
	transient := requireTransient(t, err, lib.SQLITE_FULL, "free some space")
	require.False(t, transient.OutcomeUnknown, "it was refused before COMMIT")
	require.EqualValues(t, 1+stored, version(t, s, "A-1"))
	_, err = s.writer.conn.queryInt(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", pages+1000))
	require.NoError(t, err)
	appendOne(t, s, "A-1")
	require.NoError(t, s.Check(t.Context()))
}

func TestNotADatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "projhost.db")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("these are notes, not tables\n", 400)), 0o600))
	_, err := Open(t.Context(), Options{DSN: path, TablePrefix: "ph_"})
	requireTransient(t, err, lib.SQLITE_NOTADB, "not an SQLite database")
	require.ErrorContains(t, err, path)
}

// manyEvents have ids without order, so that every page of their index is used.
func manyEvents(from, to int) []store.ImportEvent {
	var list []store.ImportEvent
	for n := from; n < to; n++ {
		e := store.NewEvent{HasID: true, Type: "T", Data: fmt.Appendf(nil, `{"note":"%0200d"}`, n)}
		binary.LittleEndian.PutUint64(e.ID[:], uint64(n+1)*0x9e3779b97f4a7c15)
		list = append(list, store.ImportEvent{AggregateType: "account", AggregateID: fmt.Sprint("account-", n%1000), NewEvent: e})
	}
	return list
}

func TestDamagedDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "projhost.db")
	s := openTest(t, Options{DSN: path})
	_, err := s.Import(t.Context(), manyEvents(0, 5000))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	fi, err := f.Stat()
	require.NoError(t, err)
	noise := []byte(strings.Repeat("noise ", 700))
	for at := int64(40 * 4096); at < fi.Size()-4096; at += 4096 {
		_, err := f.WriteAt(noise[:4096], at)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	s = openTest(t, Options{DSN: path})
	_, err = s.ReadPage(t.Context(), store.PageQuery{Topic: store.EventsTopic, Limit: 5000})
	requireTransient(t, err, lib.SQLITE_CORRUPT, "restore a backup")
	_, err = s.Import(t.Context(), manyEvents(5000, 5100))
	requireTransient(t, err, lib.SQLITE_CORRUPT, "restore a backup")
}

// Nothing may write by way of a reading connection.
func TestReadersCannotWrite(t *testing.T) {
	s := openTest(t, Options{})
	err := s.read(t.Context(), "test", func(c *conn) error {
		_, err := c.exec(`UPDATE "ph_topics" SET kind = kind`)
		return err
	})
	requireTransient(t, err, lib.SQLITE_READONLY, "read-only")
}

// The database's refusal of a row is nobody's moment of weakness: it is not
// told as transient.
func TestDataErrorsAreNotTransient(t *testing.T) {
	s := openTest(t, Options{})
	for name, text := range map[string]string{
		"not null": `INSERT INTO ph_topics (name, kind) VALUES ('x', NULL)`,
		"unique":   `INSERT INTO ph_topics (name, kind) VALUES ('events', 'x')`,
		"check":    `INSERT INTO ph_partition_metadata VALUES (2, 1, '', 1, '')`,
		"type":     `INSERT INTO ph_topics (name, kind, topic_start) VALUES ('x', 'x', 'text')`,
		"parent":   `INSERT INTO ph_ownership (build, partition) VALUES (77, 0)`,
		"size":     `INSERT INTO ph_topics (name, kind) VALUES ('x', zeroblob(2000000000))`,
	} {
		err := s.write(t.Context(), "test", 1, func(tx *tx) error {
			_, err := tx.exec(text)
			return err
		})
		require.True(t, isData(err), "%s: %v", name, err)
		var transient *store.TransientError
		require.False(t, errors.As(err, &transient), name)
	}
}

// Every class that an operator can do something about says what.
func TestHints(t *testing.T) {
	seen := map[string]int{}
	for _, c := range []int{
		lib.SQLITE_BUSY, lib.SQLITE_FULL, lib.SQLITE_READONLY, lib.SQLITE_READONLY_DIRECTORY, lib.SQLITE_READONLY_DBMOVED, lib.SQLITE_PERM,
		lib.SQLITE_CANTOPEN, lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB, lib.SQLITE_IOERR_WRITE, lib.SQLITE_IOERR_SHMMAP, lib.SQLITE_NOMEM, lib.SQLITE_SCHEMA,
	} {
		h := hint(c)
		require.NotEmpty(t, h)
		require.NotContains(t, h, "result code")
		require.NotContains(t, seen, h, "codes %d and %d", c, seen[h])
		seen[h] = c
	}
	require.Equal(t, hint(lib.SQLITE_BUSY), hint(lib.SQLITE_BUSY_SNAPSHOT))
	require.Contains(t, hint(lib.SQLITE_INTERNAL), "result code 2")
	require.Empty(t, hint(0))
}

// An event that a newer host may have written is not passed on as something it
// is not.
func TestUnknownCodecIsRefusedOnRead(t *testing.T) {
	s := openTest(t, Options{})
	appendOne(t, s, "A-1")
	require.NoError(t, s.SaveSnapshot(t.Context(), store.Snapshot{AggregateType: "account", AggregateID: "A-1", Sequence: 1, Data: []byte(`1`)}))
	run(t, s.opt.DSN, `UPDATE ph_events SET codec_version = 2; UPDATE ph_snapshots SET codec_version = 2`)
	_, err := s.ReadPage(t.Context(), store.PageQuery{Topic: store.EventsTopic})
	require.ErrorContains(t, err, "position 1")
	require.ErrorContains(t, err, "json has no version 2")
	_, err = s.ReadStream(t.Context(), "account", "A-1", 1, 10)
	require.ErrorContains(t, err, "json has no version 2")
	_, err = s.LoadSnapshot(t.Context(), "account", "A-1")
	require.ErrorContains(t, err, "json has no version 2")
}

// A row that somebody has changed by hand is told, with its position.
func TestMutilatedEventIsRefusedOnRead(t *testing.T) {
	s := openTest(t, Options{})
	appendOne(t, s, "A-1")
	for _, id := range []string{"x''", "x'0102'", "zeroblob(15)", "zeroblob(17)"} {
		run(t, s.opt.DSN, `UPDATE ph_events SET id = `+id)
		_, err := s.ReadPage(t.Context(), store.PageQuery{Topic: store.EventsTopic})
		require.ErrorContains(t, err, "position 1", id)
	}
}

// JSON is text to an SQL client, all else a blob.
func TestPayloadsInSQL(t *testing.T) {
	s := openTest(t, Options{})
	_, err := s.Commit(t.Context(), store.Commit{Streams: []store.StreamAppend{{AggregateType: "account", AggregateID: "A-1", ExpectedVersion: store.AnyVersion,
		Events: []store.NewEvent{{Type: "x", Data: []byte(`{"n":7}`), Metadata: []byte(`{"actor":"me"}`)}, {Type: "x", Codec: "avro", Data: []byte{1}}}}}})
	require.NoError(t, err)
	err = s.read(t.Context(), "test", func(c *conn) error {
		row, err := c.queryRow(t.Context(), `SELECT data ->> 'n', metadata ->> 'actor', (SELECT typeof(data) FROM ph_events WHERE position = 2) FROM ph_events WHERE position = 1`)
		require.Equal(t, []any{int64(7), "me", "blob"}, []any{row[0], row[1], row[2]})
		return err
	})
	require.NoError(t, err)
}

// An older copy of the file was put in place: what was read is no longer true.
func TestRewoundDatabaseRaisesTheIncarnation(t *testing.T) {
	s := openTest(t, Options{})
	for range 5 {
		appendOne(t, s, "A-1")
	}
	q := store.PageQuery{Topic: store.EventsTopic}
	page, err := s.ReadPage(t.Context(), q)
	require.NoError(t, err)
	before := page.Incarnation
	run(t, s.opt.DSN, `DELETE FROM ph_events WHERE position > 3; UPDATE ph_topics SET end_position = 3`)
	page, err = s.ReadPage(t.Context(), q)
	require.NoError(t, err)
	require.Greater(t, page.Incarnation, before)
	require.Equal(t, s.Incarnation(), page.Incarnation)
	require.Len(t, page.Events, 3)
	page, err = s.ReadPage(t.Context(), q)
	require.NoError(t, err)
	require.Equal(t, s.Incarnation(), page.Incarnation)
	require.Equal(t, before+1, s.Incarnation(), "raised once")
}

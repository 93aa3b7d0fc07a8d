package bench

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/sqlite"
)

// sqliteEngine measures on embedded SQLite. Every run has a copy of the file.
type sqliteEngine struct{ dir string }

func (d *sqliteEngine) template() string             { return filepath.Join(d.dir, "template.db") }
func (d *sqliteEngine) loaded(context.Context) error { return nil }
func (d *sqliteEngine) close() error                 { return nil } // the folder is removed

func (d *sqliteEngine) with(_ context.Context, f func(dsn string) error) (err error) {
	dir, err := os.MkdirTemp(d.dir, "run-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "bench.db")
	if err := copyFile(d.template(), path); err != nil {
		return fmt.Errorf("copy the workload: %w", err)
	}
	return f(path)
}

// copyFile returns once the copy is on the disk, so that its way there is not
// in the time of the run.
func copyFile(from, to string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if _, err := io.Copy(dst, src); err != nil {
		return err
	}
	return dst.Sync()
}

func (d *sqliteEngine) open(ctx context.Context, dsn string) (store.Store, error) {
	return sqlite.Open(ctx, sqlite.Options{DSN: dsn, TablePrefix: tablePrefix})
}

// connect opens the database with the settings of the host's writer. That
// commits use fdatasync is set for the process by the host's store.
func (d *sqliteEngine) connect(_ context.Context, dsn string) (session, error) {
	c, err := (&modernc.Driver{}).Open("file:" + dsn + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)" +
		"&_pragma=wal_autocheckpoint(16000)&_pragma=cache_size(-32768)&_pragma=temp_store(MEMORY)")
	if err != nil {
		return nil, err
	}
	return &sqliteSession{newConn(c)}, nil
}

const sqliteSchema = `BEGIN IMMEDIATE;
CREATE TABLE native_accounts (
    key TEXT NOT NULL,
    owner TEXT NOT NULL, status TEXT NOT NULL, balance TEXT NOT NULL, events INTEGER NOT NULL, updated_at TEXT NOT NULL,
    ph_position INTEGER, ph_updated_us INTEGER, ph_epoch INTEGER,
    PRIMARY KEY (key)
);
CREATE INDEX native_accounts_owner ON native_accounts (owner, key);
CREATE INDEX native_accounts_status ON native_accounts (status, key);
CREATE TABLE native_checkpoints (partition INTEGER PRIMARY KEY, position INTEGER NOT NULL, epoch INTEGER NOT NULL) STRICT;
CREATE TABLE native_leases (partition INTEGER PRIMARY KEY, instance TEXT NOT NULL, generation INTEGER NOT NULL) STRICT;
WITH RECURSIVE p (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM p WHERE i < 255) INSERT INTO native_checkpoints SELECT i, 0, 0 FROM p;
WITH RECURSIVE p (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM p WHERE i < 255) INSERT INTO native_leases SELECT i, 'me', 1 FROM p;
COMMIT`

const (
	sqlitePage   = `SELECT position, aggregate_id, type, occurred_us, CAST(data AS BLOB) FROM ph_events WHERE position > ? ORDER BY position LIMIT ?`
	sqliteFence  = `SELECT CASE count(*) WHEN ? THEN 1 ELSE abs(-9223372036854775807 - 1) END FROM native_leases WHERE instance = 'me' AND generation = 1`
	sqliteUpsert = `INSERT INTO native_accounts VALUES (?,?,?,?,?,?,?,?,0)
		ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, status = excluded.status, balance = excluded.balance, events = excluded.events,
		updated_at = excluded.updated_at, ph_position = excluded.ph_position, ph_updated_us = excluded.ph_updated_us`
	sqliteUpdate = `UPDATE native_accounts SET balance = ?, events = ?, updated_at = ?, ph_position = ?, ph_updated_us = ?, ph_epoch = 0 WHERE key = ?`
	sqliteMove   = `UPDATE native_checkpoints SET position = ? WHERE partition = ? AND position = ? AND epoch = 0`
	sqliteSelect = `SELECT owner, status, balance, events FROM native_accounts WHERE key = ?`
	sqliteRows   = `SELECT key, owner, status, balance, events, updated_at, ph_position, ph_updated_us, ph_epoch FROM %s ORDER BY key`
)

// sqliteSession writes each row by a prepared statement.
type sqliteSession struct{ *conn }

func (s *sqliteSession) create(ctx context.Context) error { return s.exec(ctx, sqliteSchema) }

func (s *sqliteSession) page(ctx context.Context, after int64, limit int) ([]nativeEvent, error) {
	page := make([]nativeEvent, 0, limit)
	err := s.query(ctx, sqlitePage, []driver.Value{after, int64(limit)}, func(v []driver.Value) {
		account := v[1].(string)
		page = append(page, nativeEvent{v[0].(int64), account, v[2].(string), v[3].(int64), v[4].([]byte), partition.Of(account, partitions)})
	})
	return page, err
}

func (s *sqliteSession) apply(ctx context.Context, rows []nativeAccount, moves []move) error {
	return s.transaction(ctx, "BEGIN IMMEDIATE", func() error { return s.write(ctx, rows, moves) })
}

func (s *sqliteSession) applyOne(ctx context.Context, e *nativeEvent, from int64) error {
	return s.transaction(ctx, "BEGIN IMMEDIATE", func() error {
		a := nativeAccount{key: e.account, partition: e.partition}
		var bad error
		err := s.query(ctx, sqliteSelect, []driver.Value{e.account}, func(v []driver.Value) {
			a.owner, a.status, a.events = v[0].(string), v[1].(string), v[3].(int64)
			a.cents, bad = parseSigned(v[2].(string))
		})
		if err := errors.Join(err, bad, a.fold(e)); err != nil {
			return err
		}
		return s.write(ctx, []nativeAccount{a}, []move{{e.partition, from, e.position}})
	})
}

func (s *sqliteSession) write(ctx context.Context, rows []nativeAccount, moves []move) error {
	if _, err := s.run(ctx, sqliteFence, int64(partitions)); err != nil {
		return err
	}
	for i := range rows {
		if err := s.put(ctx, &rows[i]); err != nil {
			return err
		}
	}
	for i := range moves {
		m := &moves[i]
		changed, err := s.run(ctx, sqliteMove, m.to, int64(m.partition), m.from)
		if err == nil && changed != 1 {
			err = m.lost()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// put writes a row. Where no indexed column changed an UPDATE of the others
// leaves the indexes alone: SQLite writes them anew for every column that is
// named, changed or not.
func (s *sqliteSession) put(ctx context.Context, a *nativeAccount) error {
	updated := time.UnixMicro(a.updatedUS).UTC().Format(nativeTime)
	if !a.indexed {
		_, err := s.run(ctx, sqliteUpdate, formatCents(a.cents), a.events, updated, a.position, a.updatedUS, a.key)
		return err
	}
	_, err := s.run(ctx, sqliteUpsert, a.key, a.owner, a.status, formatCents(a.cents), a.events, updated, a.position, a.updatedUS)
	return err
}

func (s *sqliteSession) rows(ctx context.Context, table string, each func([]string)) error {
	return s.texts(ctx, fmt.Sprintf(sqliteRows, table), nil, each)
}

func (s *sqliteSession) shape(ctx context.Context, table string) (string, error) {
	var b strings.Builder
	for _, query := range []string{
		`SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?)`,
		`SELECT wr, strict FROM pragma_table_list(?)`,
		`SELECT group_concat(x.name || ' ' || x.desc || ' ' || x.coll || ' ' || x.key) FROM pragma_index_list(?) l, pragma_index_xinfo(l.name) x
			GROUP BY l.name ORDER BY 1`,
	} {
		if err := s.texts(ctx, query, []driver.Value{table}, func(row []string) { fmt.Fprintln(&b, row) }); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

package sqlite

import (
	"context"
	"database/sql/driver"
	"embed"
	"fmt"
	"strings"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/migrate"
	"github.com/projhost/projhost/store/internal/rules"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// migrations panics on a file that cannot be read: it is compiled in.
var migrations = func() []migrate.Migration {
	ms, err := migrate.Load(schemaFiles, "schema")
	if err != nil {
		panic(err)
	}
	return ms
}()

const (
	partitionsDefault = rules.PartitionsDefault
	partitionsMax     = rules.PartitionsMax
	positionMode      = "counter"
)

// The record of migrations stands outside of them: it is needed to know that
// there are none yet.
const schemaMigrationsDDL = `CREATE TABLE {{schema_migrations}} (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    checksum   TEXT    NOT NULL,
    applied_us INTEGER NOT NULL
) STRICT;
`

const insertMigrationSQL = `INSERT INTO {{schema_migrations}} (version, name, checksum, applied_us) VALUES `

const insertHostRowsSQL = `INSERT INTO {{partition_metadata}} (id, partitions, hash, key_encoding, position_mode) VALUES (1, %d, '%s', %d, '%s');
INSERT INTO {{topics}} (name, kind) VALUES ('events', 'events');
`

// SchemaSQL is the script that makes what Open makes in an empty database, for
// people with a migration tool of their own. partitions 0 is the default.
func SchemaSQL(tablePrefix string, partitions int) (string, error) {
	names, err := newNaming(tablePrefix)
	if err != nil {
		return "", err
	}
	if partitions == 0 {
		partitions = partitionsDefault
	}
	if partitions < 0 || partitions > partitionsMax {
		return "", fmt.Errorf("%d partitions: want 1 to %d", partitions, partitionsMax)
	}
	var b strings.Builder
	b.WriteString("BEGIN;\n\n" + names.sql(schemaMigrationsDDL))
	for _, m := range migrations {
		fmt.Fprintf(&b, "\n%s\n", names.sql(m.SQL))
		// Whole seconds: unixepoch('subsec') is NULL in the shell of Debian 12 (3.40).
		fmt.Fprintf(&b, "%s(%d, '%s', '%s', CAST(strftime('%%s', 'now') AS INTEGER) * 1000000);\n",
			names.sql(insertMigrationSQL), m.Version, m.Name, m.Checksum)
	}
	b.WriteString("\n-- The number of partitions is fixed for ever.\n")
	fmt.Fprintf(&b, names.sql(insertHostRowsSQL), partitions, store.PartitionHash, store.KeyEncodingVersion, positionMode)
	b.WriteString("\nCOMMIT;\n")
	return b.String(), nil
}

// initialize creates or checks the schema.
func (s *Store) initialize(ctx context.Context) error {
	if !s.opt.NeverInitialize {
		if err := migrate.Run(ctx, migrator{s}, migrations); err != nil {
			return err
		}
	}
	return s.snapshot(ctx, "check schema", s.checkSchema)
}

// migrator lends the writer's connection to the migrations' runner. It is used
// before anybody else can use the store.
type migrator struct{ s *Store }

func (m migrator) Begin(ctx context.Context) (migrate.Tx, error) {
	// BEGIN IMMEDIATE is the database's own lock: of two processes that start
	// at once one waits here and then finds the other's work done.
	if err := m.s.writer.begin(ctx, "migrate"); err != nil {
		return nil, err
	}
	return migrateTx(m), nil
}

type migrateTx struct{ s *Store }

func (t migrateTx) Applied(ctx context.Context) ([]migrate.Applied, error) {
	return t.s.applied(ctx, t.s.writer.conn)
}

func (t migrateTx) Apply(_ context.Context, m migrate.Migration) error {
	c, names := t.s.writer.conn, t.s.names
	if m.Version == 1 {
		if err := c.script(names.sql(schemaMigrationsDDL)); err != nil {
			return wrap("create schema_migrations", err)
		}
	}
	if err := c.script(names.sql(m.SQL)); err != nil {
		return wrap("apply", err)
	}
	_, err := c.exec(names.sql(insertMigrationSQL)+"(?, ?, ?, ?)", int64(m.Version), m.Name, m.Checksum, t.s.nowUS())
	return wrap("record", err)
}

func (t migrateTx) Commit() error {
	if err := t.s.writer.commit(); err != nil {
		return classify("commit", err)
	}
	return nil
}

func (t migrateTx) Rollback() error {
	t.s.writer.rollback()
	return nil
}

func (s *Store) applied(ctx context.Context, c *conn) (_ []migrate.Applied, err error) {
	n, err := c.queryInt(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ?`, s.names.prefix+"schema_migrations")
	if err != nil || n == 0 {
		return nil, err
	}
	r, err := c.query(ctx, s.names.sql(`SELECT version, name, checksum FROM {{schema_migrations}} ORDER BY version`))
	if err != nil {
		return nil, err
	}
	var list []migrate.Applied
	for r.next() {
		list = append(list, migrate.Applied{Version: int(r.int(0)), Name: r.text(1), Checksum: r.text(2)})
	}
	return list, r.close()
}

// freeze writes the host's own rows where they are missing and compares them
// with the configuration: N, the hash and the position mode never change.
func (s *Store) freeze(ctx context.Context) error {
	var n, hash, encoding, mode driver.Value
	read := func(c *conn) error {
		row, err := c.queryRow(ctx, s.names.sql(`SELECT partitions, hash, key_encoding, position_mode FROM {{partition_metadata}} WHERE id = 1`))
		if row != nil {
			n, hash, encoding, mode = row[0], row[1], row[2], row[3]
		}
		return err
	}
	if err := s.read(ctx, "read partition metadata", read); err != nil {
		return err
	}
	if n == nil {
		count := s.opt.Partitions
		if count == 0 {
			count = partitionsDefault
		}
		err := s.write(ctx, "write partition metadata", 2, func(tx *tx) error {
			if err := read(tx.conn); err != nil || n != nil {
				return err // another process was first
			}
			return tx.script(fmt.Sprintf(s.names.sql(insertHostRowsSQL), count, store.PartitionHash, store.KeyEncodingVersion, positionMode))
		})
		if err != nil {
			return err
		}
		if err := s.read(ctx, "read partition metadata", read); err != nil {
			return err
		}
	}
	switch {
	case s.opt.Partitions != 0 && n != int64(s.opt.Partitions):
		return fmt.Errorf("the database has %d partitions, fixed by its first start, the configuration says %d: set [partitions] count = %d, or begin with a new database and import into it", n, s.opt.Partitions, n)
	case hash != store.PartitionHash || encoding != int64(store.KeyEncodingVersion):
		return fmt.Errorf("the database uses the partition hash %v (key encoding %v), this projhost %s (%d): start the projhost that made it", hash, encoding, store.PartitionHash, store.KeyEncodingVersion)
	case mode != positionMode:
		return fmt.Errorf("the database draws positions by %v, this driver by %s: start the projhost that made it", mode, positionMode)
	}
	s.info = store.Info{Driver: "sqlite", Embedded: true, ServerVersion: libVersion, SchemaVersion: len(migrations),
		Partitions: int(n.(int64)), Hash: store.PartitionHash, PositionMode: positionMode}
	return nil
}

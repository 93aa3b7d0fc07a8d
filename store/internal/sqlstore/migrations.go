package sqlstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/migrate"
	"github.com/projhost/projhost/store/internal/rules"
)

// SchemaSQL is the script that makes what Initialize makes in an empty
// database, for people with a migration tool of their own. partitions 0 is the
// default.
func SchemaSQL(d *Dialect, tablePrefix string, partitions int) (string, error) {
	names, err := newNaming(d, tablePrefix)
	if err != nil {
		return "", err
	}
	if partitions == 0 {
		partitions = rules.PartitionsDefault
	}
	if partitions < 0 || partitions > rules.PartitionsMax {
		return "", fmt.Errorf("%d partitions: want 1 to %d", partitions, rules.PartitionsMax)
	}
	migrations, err := migrate.Load(d.Schema, "schema")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if d.ScriptBegin != "" {
		b.WriteString(d.ScriptBegin + "\n\n")
	}
	for _, m := range migrations {
		for paragraph := range strings.SplitSeq(strings.TrimSpace(m.SQL), "\n\n") {
			// What explains the form of our files is not for the script's reader.
			if strings.Contains(paragraph, "{{") && len(statements(paragraph)) == 0 {
				continue
			}
			b.WriteString(strings.TrimSpace(names.script(paragraph)) + "\n\n")
		}
		b.WriteString(names.insertMigration(m) + ";\n\n")
	}
	b.WriteString("-- The number of partitions is fixed for ever.\n")
	for _, text := range names.hostRows(d, partitions) {
		b.WriteString(text + ";\n")
	}
	if d.ScriptEnd != "" {
		b.WriteString("\n" + d.ScriptEnd + "\n")
	}
	return b.String(), nil
}

// insertMigration records a migration. Its values are ours and safe in a text.
func (n *naming) insertMigration(m migrate.Migration) string {
	return n.sql(fmt.Sprintf(insertMigrationSQL, m.Version, m.Name, m.Checksum))
}

// hostRows insert what the first start freezes, and the rows that the host needs.
func (n *naming) hostRows(d *Dialect, partitions int) []string {
	return []string{
		n.sql(fmt.Sprintf(insertFrozenSQL, partitions, store.PartitionHash, store.KeyEncodingVersion, d.PositionMode)),
		n.sql(insertTopicSQL),
		n.sql(insertCounterSQL),
	}
}

// migrator lends the database to the migrations' runner.
type migrator struct{ c *Core }

func (m migrator) Begin(ctx context.Context) (migrate.Tx, error) {
	// Of two processes that start at once one waits here and then finds the
	// other's work done.
	release, err := m.c.lock(ctx)
	if err != nil {
		return nil, err
	}
	return migrateTx{m.c, release}, nil
}

// migrateTx is a step under the lock. It is no transaction, because MySQL has
// none for what changes the schema: a migration is recorded when all of it is
// done, and begun again if it was not.
type migrateTx struct {
	c       *Core
	release func()
}

func (t migrateTx) Applied(ctx context.Context) ([]migrate.Applied, error) { return t.c.applied(ctx) }

func (t migrateTx) Apply(ctx context.Context, m migrate.Migration) error {
	made, found := map[string]bool{}, false
	for _, text := range statements(t.c.names.script(m.SQL)) {
		s, creates := parseStatement(text)
		if creates && !made[s.table] {
			there, err := t.c.isThere(ctx, &s)
			if err != nil {
				return err
			}
			if there {
				found = true
				continue
			}
			made[s.table] = s.kind == createsTable
		}
		if err := t.c.ddl(ctx, fmt.Sprintf("apply migration %04d_%s", m.Version, m.Name), []string{text}); err != nil {
			return err
		}
	}
	if found {
		// A stranger's table under a name of ours must not count as migrated.
		if err := t.c.compareTables(ctx, t.c.migrations[:m.Version]); err != nil {
			return err
		}
	}
	return t.c.Engine.Write(ctx, "record migration", func(conn Conn) error {
		_, err := conn.Exec(ctx, t.c.names.insertMigration(m))
		return err
	})
}

func (t migrateTx) Commit() error   { t.release(); return nil }
func (t migrateTx) Rollback() error { t.release(); return nil }

// isThere tells whether a statement's table, index or column is there already:
// of an earlier start that was killed, or made by hand. Whether it is as it has
// to be is told by the check that follows.
func (c *Core) isThere(ctx context.Context, s *statement) (there bool, err error) {
	err = c.Engine.Read(ctx, "look for table "+s.table, func(conn Conn) error {
		if s.kind == createsTable {
			kind, _, err := c.Dialect.Find(ctx, conn, s.table)
			there = kind == "table"
			return err
		}
		have, err := c.Dialect.Describe(ctx, conn, s.table)
		if err != nil {
			return err
		}
		if s.kind == createsIndex {
			there = hasIndex(have.Indexes, func(name string) bool { return strings.EqualFold(name, s.index.Name) })
			return nil
		}
		_, there = findColumn(have.Columns, s.column.Name)
		return nil
	})
	return there, err
}

// applied reads the migrations on record, none where there is no record yet.
func (c *Core) applied(ctx context.Context) (list []migrate.Applied, err error) {
	err = c.Engine.Read(ctx, "read schema_migrations", func(conn Conn) error {
		list = nil
		kind, _, err := c.Dialect.Find(ctx, conn, c.names.prefix+"schema_migrations")
		if err != nil || kind == "" {
			return err
		}
		return each(ctx, conn, c.q.applied, nil, func(r Rows) error {
			var version int64
			var a migrate.Applied
			err := r.Scan(&version, &a.Name, &a.Checksum)
			a.Version = int(version)
			list = append(list, a)
			return err
		})
	})
	return list, err
}

// frozen is what the first start fixed for ever.
type frozen struct {
	partitions, encoding int64
	hash, mode           string
}

func (c *Core) readFrozen(ctx context.Context, conn Conn) (f frozen, found bool, err error) {
	found, err = one(ctx, conn, c.q.frozen, nil, &f.partitions, &f.hash, &f.encoding, &f.mode)
	return f, found, err
}

// freeze writes the host's own rows where they are missing and compares them
// with the configuration: N, the hash and the position mode never change.
func (c *Core) freeze(ctx context.Context, serverVersion string) error {
	var f frozen
	var found bool
	read := func(conn Conn) (err error) {
		f, found, err = c.readFrozen(ctx, conn)
		return err
	}
	if err := c.Engine.Read(ctx, "read partition metadata", read); err != nil {
		return err
	}
	if !found {
		if err := c.insertHostRows(ctx); err != nil {
			return err
		}
		if err := c.Engine.Read(ctx, "read partition metadata", read); err != nil {
			return err
		}
	}
	n := c.Opt.Partitions
	switch {
	case n != 0 && f.partitions != int64(n):
		return fmt.Errorf("the database has %d partitions, fixed by its first start, the configuration says %d: set [partitions] count = %d, or begin with a new database and import into it", f.partitions, n, f.partitions)
	case f.hash != store.PartitionHash || f.encoding != int64(store.KeyEncodingVersion):
		return fmt.Errorf("the database uses the partition hash %v (key encoding %v), this projhost %s (%d): start the projhost that made it", f.hash, f.encoding, store.PartitionHash, store.KeyEncodingVersion)
	case f.mode != c.Dialect.PositionMode:
		return fmt.Errorf("the database draws positions by %v, this driver by %s: start the projhost that made it", f.mode, c.Dialect.PositionMode)
	}
	c.info = store.Info{Driver: c.Dialect.Name, ServerVersion: serverVersion, SchemaVersion: len(c.migrations),
		Partitions: int(f.partitions), Hash: f.hash, PositionMode: f.mode}
	return nil
}

func (c *Core) insertHostRows(ctx context.Context) error {
	release, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	n := c.Opt.Partitions
	if n == 0 {
		n = rules.PartitionsDefault
	}
	return c.Engine.Write(ctx, "write partition metadata", func(conn Conn) error {
		if _, found, err := c.readFrozen(ctx, conn); err != nil || found {
			return err // another process was first
		}
		for _, text := range c.names.hostRows(c.Dialect, n) {
			if _, err := conn.Exec(ctx, text); err != nil {
				return err
			}
		}
		return nil
	})
}

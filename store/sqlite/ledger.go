package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strconv"
	"strings"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// newLedger makes the ledger, which is written for all engines. Here it has the
// connections of this one.
func (s *Store) newLedger() *sqlstore.Ledger {
	return sqlstore.NewLedger(sqlstore.LedgerDB{
		Rows: readmodel.SQLite,
		SQL:  s.ledgerSQL,
		Read: func(ctx context.Context, op string, fn func(sqlstore.Conn) error) error {
			return s.read(ctx, op, func(c *conn) error { return fn(s.ledgerConn(c)) })
		},
		WriteAll: func(ctx context.Context, op string, steps []sqlstore.Step) error {
			return s.write(ctx, op, len(steps), func(tx *tx) error { return s.runSteps(tx, steps) })
		},
		Consumer: func(ctx context.Context, c sqlstore.Conn, id store.ConsumerID) (store.Consumer, error) {
			return s.loadConsumer(ctx, c.(*ledgerConn).conn, id)
		},
		Tables: func(build, epoch int64, text string) ([]store.TableRef, error) {
			tables, err := s.buildTables(build, text)
			return s.tableRefs(tables, build, epoch), err
		},
		Partitions: func() int { return s.info.Partitions },
		InsertMax:  1, // its text is the same whatever the number of records
	})
}

// SweepSkips implements [store.Undelivered]: the ledger reads on connections that
// do not write.
func (s *Store) SweepSkips(ctx context.Context, build int64) (n int, err error) {
	err = s.write(ctx, "sweep skip records", 1, func(tx *tx) error {
		n, err = s.SweepSkipsIn(context.Background(), s.ledgerConn(tx.conn), build)
		return err
	})
	return n, err
}

func (s *Store) runSteps(tx *tx, steps []sqlstore.Step) error {
	return sqlstore.RunSteps(context.Background(), s.ledgerConn(tx.conn), steps)
}

// ledgerSQL spells a statement as [sqlstore.Core.SQL] does. Parameters have names,
// since the clock's stands between them.
func (s *Store) ledgerSQL(text string) string {
	text = s.names.sql(strings.NewReplacer("{{?}}", "?", "{{now}}", ":now").Replace(text))
	var b strings.Builder
	for n := 1; ; n++ {
		before, rest, found := strings.Cut(text, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteString(":p" + strconv.Itoa(n))
		text = rest
	}
}

// ledgerConn runs the ledger's statements on a connection.
type ledgerConn struct {
	conn *conn
	now  int64
}

func (s *Store) ledgerConn(c *conn) *ledgerConn { return &ledgerConn{c, s.nowUS()} }

func (c *ledgerConn) args(args []any) []driver.NamedValue {
	list := make([]driver.NamedValue, 0, len(args)+1)
	for i, a := range args {
		list = append(list, driver.NamedValue{Ordinal: i + 1, Name: "p" + strconv.Itoa(i+1), Value: a})
	}
	return append(list, driver.NamedValue{Ordinal: len(args) + 1, Name: "now", Value: c.now})
}

// Exec implements [sqlstore.Conn].
func (c *ledgerConn) Exec(_ context.Context, text string, args ...any) (int64, error) {
	st, err := c.conn.prepare(text)
	if err != nil {
		return 0, err
	}
	r, err := st.ds.ExecContext(context.Background(), c.args(args))
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// Query implements [sqlstore.Conn].
func (c *ledgerConn) Query(ctx context.Context, text string, args ...any) (sqlstore.Rows, error) {
	st, err := c.conn.prepare(text)
	if err != nil {
		return nil, err
	}
	r, err := st.query(ctx, c.args(args))
	if err != nil {
		return nil, err
	}
	return ledgerRows{r}, nil
}

// ledgerRows are rows that are scanned column by column.
type ledgerRows struct{ r *rows }

func (r ledgerRows) Next() bool   { return r.r.next() }
func (r ledgerRows) Close() error { return r.r.close() }

func (r ledgerRows) Scan(dest ...any) error {
	if len(dest) != len(r.r.vals) {
		return fmt.Errorf("%d columns for %d variables", len(r.r.vals), len(dest))
	}
	for i, d := range dest {
		v, ok := r.r.vals[i], true
		switch d := d.(type) {
		case sql.Scanner:
			if err := d.Scan(v); err != nil {
				return fmt.Errorf("column %d: %w", i+1, err)
			}
		case *int64:
			*d, ok = v.(int64)
		case *string:
			*d, ok = v.(string)
		case *[]byte:
			*d = r.r.bytes(i)
		default:
			ok = false
		}
		if !ok {
			return fmt.Errorf("column %d: a %T cannot be read as %T", i+1, v, d)
		}
	}
	return nil
}

// Drop implements [store.Operations], in one transaction: here the schema is part of
// it.
func (s *Store) Drop(ctx context.Context, id store.ConsumerID, actor string) error {
	return s.write(ctx, "drop "+id.String(), subscribeRows, func(tx *tx) error {
		c := s.ledgerConn(tx.conn)
		steps, builds, err := s.DropSteps(context.Background(), c, id, actor)
		if err != nil {
			return err
		}
		if err := s.runSteps(tx, steps); err != nil {
			return err
		}
		for _, b := range builds {
			tables, err := s.buildTables(b.ID, b.Tables)
			if err != nil {
				return err
			}
			if err := s.dropTables(tx, s.tableRefs(tables, b.ID, 0)); err != nil {
				return err
			}
			tx.afterCommit(func() { s.builds.Delete(b.ID) })
		}
		return s.runSteps(tx, s.DroppedSteps(id))
	})
}

// dropTables removes tables with the views that show them, children first.
func (s *Store) dropTables(tx *tx, refs []store.TableRef) error {
	for i := len(refs) - 1; i >= 0; i-- {
		ref := &refs[i]
		public := readmodel.PublicName(s.opt.ReadModelPrefix, ref.Table.Name)
		there, err := findObject(tx.conn, public)
		if err != nil {
			return err
		}
		if there.kind == "view" && showsTable(there, public, ref) {
			if err := tx.script(readmodel.SQLite.DropView(there.name)); err != nil {
				return err
			}
		}
		if err := tx.script(readmodel.SQLite.DropTable(ref.Physical)); err != nil {
			return err
		}
	}
	return nil
}

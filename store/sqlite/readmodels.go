package sqlite

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// LoadRows implements [store.ReadModels].
func (s *Store) LoadRows(ctx context.Context, t store.TableRef, keys []store.RowKey) (list []store.StoredRow, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	p := s.plan(&t)
	list = make([]store.StoredRow, 0, len(keys))
	err = s.read(ctx, "load rows", func(c *conn) error {
		for len(keys) > 0 {
			size := readmodel.SelectSize(len(keys))
			n := min(size, len(keys))
			list, err = p.collect(ctx, c, list, p.SelectKeys(size), p.SelectArgs(nil, keys[:n], size, t.Epoch))
			if err != nil {
				return err
			}
			keys = keys[n:]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// ListChildren implements [store.ReadModels].
func (s *Store) ListChildren(ctx context.Context, t store.TableRef, key, after string, limit int) (list []store.StoredRow, err error) {
	p := s.plan(&t)
	if p.List == "" {
		return nil, fmt.Errorf("list children: %s is no child table", t.Table.Name)
	}
	err = s.read(ctx, "list children", func(c *conn) error {
		list, err = p.collect(ctx, c, nil, p.List, []any{key, after, t.Epoch, int64(limit)})
		return err
	})
	return list, err
}

// FindUnique implements [store.ReadModels].
func (s *Store) FindUnique(ctx context.Context, t store.TableRef, column int, row readmodel.Row) (store.StoredRow, error) {
	p := s.plan(&t)
	q, err := readmodel.SQLite.CompileTwins(t.Physical, t.Table, t.Epoch, column, row)
	if err != nil {
		return store.StoredRow{}, err
	}
	var list []store.StoredRow
	err = s.read(ctx, "find a unique value", func(c *conn) (err error) {
		list, err = p.collect(ctx, c, nil, q.SQL, q.Args)
		return err
	})
	switch {
	case err != nil:
		return store.StoredRow{}, err
	case len(list) == 0:
		return store.StoredRow{}, fmt.Errorf("unique value in %s: %w", t.Table.Name, store.ErrNotFound)
	}
	return list[0], nil
}

// Empty implements [store.ReadModels].
func (s *Store) Empty(ctx context.Context, t store.TableRef) (empty bool, err error) {
	err = s.read(ctx, "look into "+t.Physical, func(c *conn) error {
		row, err := c.queryRow(ctx, s.plan(&t).Any)
		empty = row == nil
		return err
	})
	return empty, err
}

// collect appends the rows of a query.
func (p *tablePlan) collect(ctx context.Context, c *conn, list []store.StoredRow, text string, args []any) ([]store.StoredRow, error) {
	rows, err := c.queryAny(ctx, text, args)
	if err != nil {
		return list, err
	}
	sc := p.NewScanner()
	for rows.next() {
		for i, v := range rows.vals {
			sc.Set(i, v)
		}
		row, err := sc.Row()
		if err != nil {
			_ = rows.close()
			return list, err
		}
		list = append(list, row)
	}
	return list, rows.close()
}

// View implements [store.ReadModels].
func (s *Store) View(ctx context.Context, id store.ConsumerID) (store.ReadView, error) {
	const op = "open view"
	c, err := s.readers.get(ctx, op)
	if err != nil {
		return nil, err
	}
	v := &view{s: s, ctx: ctx, c: c}
	if err := v.begin(id); err != nil {
		v.end(err)
		return nil, wrap(op, err)
	}
	// A caller that forgot to close it would hold back the truncation of the
	// log and one of few connections.
	v.mu.Lock()
	v.stop = context.AfterFunc(ctx, func() { _ = v.Close() })
	v.mu.Unlock()
	return v, nil
}

// view is a read transaction on one connection.
type view struct {
	s   *Store
	ctx context.Context // of View: the view ends with it

	mu       sync.Mutex // between its user and the end of ctx
	stop     func() bool
	c        *conn // nil: closed
	consumer store.Consumer
}

// begin fixes the snapshot with its first query: the live build, its
// checkpoints and the rows are all of one moment.
func (v *view) begin(id store.ConsumerID) (err error) {
	if _, err := v.c.exec("BEGIN"); err != nil {
		return err
	}
	v.consumer, err = v.s.loadConsumer(v.ctx, v.c, id)
	return err
}

// end gives the connection back; err is what went wrong on it.
func (v *view) end(err error) {
	if _, e := v.c.exec("ROLLBACK"); err == nil && e != nil {
		err = e
	}
	v.s.readers.put(v.c, err)
	v.c = nil
}

// use runs fn unless the view is closed.
func (v *view) use(op string, fn func(c *conn) error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.c == nil {
		if err := v.ctx.Err(); err != nil {
			return err
		}
		return fmt.Errorf("%s: the view is closed", op)
	}
	return wrap(op, fn(v.c))
}

func (v *view) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stop()
	if v.c != nil {
		v.end(nil)
	}
	return nil
}

func (v *view) Consumer() store.Consumer { return v.consumer }

func (v *view) Positions() (positions map[string]int64, err error) {
	err = v.use("read positions", func(c *conn) error {
		positions = map[string]int64{}
		told, silent := map[string]int64{}, false
		rows, err := c.query(v.ctx, v.s.q.told, v.consumer.Build)
		if err != nil {
			return err
		}
		for rows.next() {
			if rows.vals[0] == nil {
				silent = true // what some partitions' owner has told is not known, or they have none
				continue
			}
			told[rows.text(0)] = rows.int(1)
		}
		if err := rows.close(); err != nil {
			return err
		}
		if rows, err = c.query(v.ctx, v.s.q.lowest, v.consumer.Build); err != nil {
			return err
		}
		for rows.next() {
			lowest := rows.int(1)
			if !silent {
				lowest = max(lowest, told[rows.text(0)])
			}
			positions[rows.text(0)] = lowest
		}
		return rows.close()
	})
	return positions, err
}

func (v *view) Position(topic string, partition int) (position int64, err error) {
	err = v.use("read position", func(c *conn) error {
		row, err := c.queryRow(v.ctx, v.s.q.position, v.consumer.Build, topic, int64(partition))
		if err != nil {
			return err
		}
		if row == nil {
			return fmt.Errorf("position of %s, topic %s, partition %d: %w", v.consumer.ID, topic, partition, store.ErrNotFound)
		}
		position = row[0].(int64)
		return nil
	})
	return position, err
}

func (v *view) Standings() (standings map[string][]store.Standing, err error) {
	err = v.use("read how far the partitions are", func(c *conn) error {
		standings = map[string][]store.Standing{}
		rows, err := c.query(v.ctx, v.s.q.standings, v.consumer.Build)
		if err != nil {
			return err
		}
		for rows.next() {
			topic := rows.text(0)
			standings[topic] = append(standings[topic], store.Standing{
				Partition: int(rows.int(1)), Checkpoint: rows.int(2), Owner: rows.text(3), Generation: rows.int(4),
				Applied: max(rows.int(2), rows.int(5)), ReplayThrough: rows.int(6), IncompleteThrough: rows.int(7), Rebuilding: rows.int(8) != 0,
			})
		}
		return rows.close()
	})
	return standings, err
}

// everyEpoch is below all that there are.
const everyEpoch = int64(0)

// table finds a table by its declared name, whatever its case. Readers see rows of
// every epoch: one that a rebuild has not made again is there until it is pruned.
func (v *view) table(name string) (*store.TableRef, *tablePlan, error) {
	for i := range v.consumer.Tables {
		if ref := &v.consumer.Tables[i]; strings.EqualFold(ref.Table.Name, name) {
			return ref, v.s.plan(ref), nil
		}
	}
	return nil, nil, fmt.Errorf("table %q of %s: %w", name, v.consumer.ID, store.ErrNotFound)
}

func (v *view) Get(ctx context.Context, table string, key store.RowKey) (row store.StoredRow, err error) {
	_, p, err := v.table(table)
	if err != nil {
		return row, err
	}
	err = v.use("read row", func(c *conn) error {
		list, err := p.collect(ctx, c, nil, p.Get, append(p.KeyArgs(nil, key), everyEpoch))
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return fmt.Errorf("row %q of %s: %w", key.Key, table, store.ErrNotFound)
		}
		row = list[0]
		return nil
	})
	return row, err
}

func (v *view) Children(ctx context.Context, table, key, after string, limit int) (list []store.StoredRow, err error) {
	_, p, err := v.table(table)
	if err != nil {
		return nil, err
	}
	if p.List == "" {
		return nil, fmt.Errorf("children of %q: %s is no child table", key, table)
	}
	err = v.use("list children", func(c *conn) error {
		list, err = p.collect(ctx, c, nil, p.List, []any{key, after, everyEpoch, int64(limit)})
		return err
	})
	return list, err
}

func (v *view) Query(ctx context.Context, table string, q store.Query) (list []store.StoredRow, next string, err error) {
	ref, p, err := v.table(table)
	if err != nil {
		return nil, "", err
	}
	q.Build = ref.Build
	compiled, err := readmodel.SQLite.CompileQuery(ref.Physical, ref.Table, everyEpoch, q)
	if err != nil {
		return nil, "", err
	}
	err = v.use("query", func(c *conn) error {
		if list, err = p.collect(ctx, c, nil, compiled.SQL, compiled.Args); err != nil {
			return err
		}
		list, next, err = compiled.Page(list)
		return err
	})
	return list, next, err
}

func (v *view) Held(partition int, key string) (head *store.UndeliveredMessage, err error) {
	err = v.use("read undelivered message", func(c *conn) error {
		head, err = v.s.HeldIn(v.ctx, v.s.ledgerConn(c), v.consumer.Build, partition, key)
		return err
	})
	return head, err
}

func (v *view) CountHeld() (n int64, err error) {
	err = v.use("count undelivered messages", func(c *conn) error {
		n, err = v.s.CountHeldIn(v.ctx, v.s.ledgerConn(c), v.consumer.Build)
		return err
	})
	return n, err
}

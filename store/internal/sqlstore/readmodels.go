package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// LoadRows implements [store.ReadModels].
func (c *Core) LoadRows(ctx context.Context, t store.TableRef, keys []store.RowKey) (list []store.StoredRow, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	p := c.Plan(&t)
	err = c.Engine.Read(ctx, "load rows", func(conn Conn) error {
		list = make([]store.StoredRow, 0, len(keys))
		for rest := keys; len(rest) > 0; {
			size := readmodel.SelectSize(len(rest))
			n := min(size, len(rest))
			list, err = p.Collect(ctx, conn, list, p.SelectKeys(size), p.SelectArgs(nil, rest[:n], size, t.Epoch))
			if err != nil {
				return err
			}
			rest = rest[n:]
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// ListChildren implements [store.ReadModels].
func (c *Core) ListChildren(ctx context.Context, t store.TableRef, key, after string, limit int) (list []store.StoredRow, err error) {
	p := c.Plan(&t)
	if p.List == "" {
		return nil, fmt.Errorf("list children: %s is no child table", t.Table.Name)
	}
	err = c.Engine.Read(ctx, "list children", func(conn Conn) error {
		list, err = p.Collect(ctx, conn, nil, p.List, []any{key, after, t.Epoch, int64(limit)})
		return err
	})
	return list, err
}

// FindUnique implements [store.ReadModels].
func (c *Core) FindUnique(ctx context.Context, t store.TableRef, column int, row readmodel.Row) (store.StoredRow, error) {
	p := c.Plan(&t)
	q, err := c.Dialect.Rows.CompileTwins(t.Physical, t.Table, t.Epoch, column, row)
	if err != nil {
		return store.StoredRow{}, err
	}
	var list []store.StoredRow
	err = c.Engine.Read(ctx, "find a unique value", func(conn Conn) (err error) {
		list, err = p.Collect(ctx, conn, nil, q.SQL, q.Args)
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
func (c *Core) Empty(ctx context.Context, t store.TableRef) (empty bool, err error) {
	err = c.Engine.Read(ctx, "look into "+t.Physical, func(conn Conn) error {
		var key string
		found, err := one(ctx, conn, c.Plan(&t).Any, nil, &key)
		empty = !found
		return err
	})
	return empty && err == nil, err
}

// View implements [store.ReadModels].
func (c *Core) View(ctx context.Context, id store.ConsumerID) (store.ReadView, error) {
	const op = "open view"
	conn, end, err := c.Engine.Snapshot(ctx, op)
	if err != nil {
		return nil, err
	}
	v := &view{core: c, ctx: ctx, conn: conn, end: end}
	if err := v.begin(id); err != nil {
		end()
		return nil, Fail(c.Engine, op, false, err)
	}
	// A caller that forgot to close it would hold an old snapshot and one of few
	// connections.
	v.mu.Lock()
	v.stop = context.AfterFunc(ctx, func() { _ = v.Close() })
	v.mu.Unlock()
	return v, nil
}

// view is a read-only transaction.
type view struct {
	core *Core
	ctx  context.Context // of View: the view ends with it

	mu       sync.Mutex // between its user and the end of ctx
	stop     func() bool
	conn     Conn // nil: closed
	end      func()
	consumer store.Consumer
}

// begin fixes the snapshot with its first query: the live build, its
// checkpoints and the rows are all of one moment.
func (v *view) begin(id store.ConsumerID) error {
	r, err := v.core.loadConsumer(v.ctx, v.conn, id)
	if err != nil {
		return err
	}
	v.consumer = r.Consumer
	return nil
}

// use runs fn unless the view is closed.
func (v *view) use(op string, fn func(conn Conn) error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.conn == nil {
		if err := v.ctx.Err(); err != nil {
			return err
		}
		return fmt.Errorf("%s: the view is closed", op)
	}
	return Fail(v.core.Engine, op, false, fn(v.conn))
}

func (v *view) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stop()
	if v.conn != nil {
		v.end()
		v.conn = nil
	}
	return nil
}

func (v *view) Consumer() store.Consumer { return v.consumer }

func (v *view) Positions() (positions map[string]int64, err error) {
	err = v.use("read positions", func(conn Conn) error {
		positions = map[string]int64{}
		build, told, silent := v.consumer.Build, map[string]int64{}, false
		err := each(v.ctx, conn, v.core.q.told, []any{build, build}, func(r Rows) error {
			var topic sql.NullString
			var through sql.NullInt64
			err := r.Scan(&topic, &through)
			told[topic.String] = through.Int64
			silent = silent || !topic.Valid // what some partitions' owner has told is not known, or they have none
			return err
		})
		if err != nil {
			return err
		}
		return each(v.ctx, conn, v.core.q.lowest, []any{build}, func(r Rows) error {
			var topic string
			var lowest int64
			err := r.Scan(&topic, &lowest)
			if !silent {
				lowest = max(lowest, told[topic])
			}
			positions[topic] = lowest
			return err
		})
	})
	return positions, err
}

func (v *view) Position(topic string, partition int) (position int64, err error) {
	err = v.use("read position", func(conn Conn) error {
		var told int64
		found, err := one(v.ctx, conn, v.core.q.position, []any{v.consumer.Build, topic, int64(partition)}, &position, &told)
		if err == nil && !found {
			err = fmt.Errorf("position of %s, topic %s, partition %d: %w", v.consumer.ID, topic, partition, store.ErrNotFound)
		}
		position = max(position, told)
		return err
	})
	return position, err
}

func (v *view) Standings() (standings map[string][]store.Standing, err error) {
	err = v.use("read how far the partitions are", func(conn Conn) error {
		standings = map[string][]store.Standing{}
		return each(v.ctx, conn, v.core.q.standings, []any{v.consumer.Build}, func(r Rows) error {
			var topic string
			var partition, told, rebuilding int64
			var owner sql.NullString
			var s store.Standing
			err := r.Scan(&topic, &partition, &s.Checkpoint, &owner, &s.Generation, &told, &s.ReplayThrough, &s.IncompleteThrough, &rebuilding)
			s.Rebuilding = rebuilding != 0
			s.Partition, s.Owner, s.Applied = int(partition), owner.String, max(s.Checkpoint, told)
			standings[topic] = append(standings[topic], s)
			return err
		})
	})
	return standings, err
}

// everyEpoch is below all that there are.
const everyEpoch = int64(0)

// table finds a table by its declared name, whatever its case. Readers see rows of
// every epoch: one that a rebuild has not made again is there until it is pruned.
func (v *view) table(name string) (*store.TableRef, *Plan, error) {
	for i := range v.consumer.Tables {
		if ref := &v.consumer.Tables[i]; strings.EqualFold(ref.Table.Name, name) {
			return ref, v.core.Plan(ref), nil
		}
	}
	return nil, nil, fmt.Errorf("table %q of %s: %w", name, v.consumer.ID, store.ErrNotFound)
}

func (v *view) Get(ctx context.Context, table string, key store.RowKey) (row store.StoredRow, err error) {
	_, p, err := v.table(table)
	if err != nil {
		return row, err
	}
	err = v.use("read row", func(conn Conn) error {
		list, err := p.Collect(v.ctx, conn, nil, p.Get, append(p.KeyArgs(nil, key), everyEpoch))
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
	err = v.use("list children", func(conn Conn) error {
		list, err = p.Collect(v.ctx, conn, nil, p.List, []any{key, after, everyEpoch, int64(limit)})
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
	compiled, err := v.core.Dialect.Rows.CompileQuery(ref.Physical, ref.Table, everyEpoch, q)
	if err != nil {
		return nil, "", err
	}
	err = v.use("query", func(conn Conn) error {
		if list, err = p.Collect(v.ctx, conn, nil, compiled.SQL, compiled.Args); err != nil {
			return err
		}
		list, next, err = compiled.Page(list)
		return err
	})
	return list, next, err
}

func (v *view) Held(partition int, key string) (head *store.UndeliveredMessage, err error) {
	err = v.use("read undelivered message", func(conn Conn) error {
		head, err = v.core.HeldIn(v.ctx, conn, v.consumer.Build, partition, key)
		return err
	})
	return head, err
}

func (v *view) CountHeld() (n int64, err error) {
	err = v.use("count undelivered messages", func(conn Conn) error {
		n, err = v.core.CountHeldIn(v.ctx, conn, v.consumer.Build)
		return err
	})
	return n, err
}

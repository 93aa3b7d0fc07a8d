package sqlite

import (
	"context"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// subscribeRows makes a Subscribe wait for a transaction of its own: it creates
// tables, and nobody's append should share that.
const subscribeRows = groupRowsMax + 1

// Subscribe implements [store.Consumers].
func (s *Store) Subscribe(ctx context.Context, d store.Declaration) (consumer store.Consumer, err error) {
	if err := rules.CheckDeclaration(&d); err != nil {
		return consumer, fmt.Errorf("subscribe %s: %w", d.ID, err)
	}
	err = s.write(ctx, "subscribe "+d.ID.String(), subscribeRows, func(tx *tx) error {
		known, err := s.loadConsumer(ctx, tx.conn, d.ID)
		switch {
		case errors.Is(err, store.ErrNotFound):
			consumer, err = s.create(tx, &d)
		case err == nil:
			consumer, err = s.resume(tx, &d, known)
		}
		if err != nil {
			return err
		}
		tx.afterCommit(func() { s.builds.Store(consumer.Build, d.Tables) })
		return nil
	})
	if err != nil {
		return store.Consumer{}, err
	}
	return consumer, nil
}

// create records a consumer at its first start.
func (s *Store) create(tx *tx, d *store.Declaration) (store.Consumer, error) {
	ctx := context.Background()
	var none store.Consumer
	for _, topic := range d.Topics {
		row, err := tx.queryRow(ctx, s.q.topic, topic)
		if err != nil {
			return none, err
		}
		if row == nil {
			return none, fmt.Errorf("%s reads the topic %q: %w", d.ID, topic, store.ErrNotFound)
		}
	}
	now := s.nowUS()
	build, err := s.insertBuild(tx, d, now)
	if err != nil {
		return none, err
	}
	if _, err := tx.exec(s.q.insertConsumer, d.ID.Type, d.ID.Name, now, build); err != nil {
		return none, err
	}
	for _, t := range d.Tables {
		if err := s.createTable(tx, d, t, build); err != nil {
			return none, err
		}
	}
	if err := s.runSteps(tx, []sqlstore.Step{s.SubscribedStep(d, build)}); err != nil {
		return none, err
	}
	return store.Consumer{ID: d.ID, State: store.StateRunning, StateSinceUS: now, Build: build, Plugin: d.Plugin, Digest: d.Digest,
		Topics: slices.Clone(d.Topics), Fingerprint: d.Fingerprint, Tables: s.tableRefs(d.Tables, build, 0)}, nil
}

// insertBuild records a build with its ownership rows and checkpoints.
func (s *Store) insertBuild(tx *tx, d *store.Declaration, now int64) (int64, error) {
	tables, err := readmodel.MarshalTables(d.Tables)
	if err != nil {
		return 0, err
	}
	topics, err := json.Marshal(d.Topics)
	if err != nil {
		return 0, err
	}
	f := d.Fingerprint
	build, err := tx.queryInt(context.Background(), s.q.insertBuild, d.ID.Type, d.ID.Name, now, now, d.Plugin, d.Digest, string(topics),
		int64(f.Version), f.Inputs, f.Keys, f.Tables, f.Logic, string(tables))
	if err != nil {
		return 0, err
	}
	n := int64(s.info.Partitions)
	if _, err := tx.exec(s.q.insertOwnership, n, build); err != nil {
		return 0, err
	}
	for _, topic := range d.Topics {
		if _, err := tx.exec(s.q.insertCheckpts, n, build, topic); err != nil {
			return 0, err
		}
	}
	return build, nil
}

// resume finds a consumer at a later start. It creates nothing but views: a
// table or a checkpoint that has gone was somebody's loss, and starting over
// would hide it.
func (s *Store) resume(tx *tx, d *store.Declaration, c store.Consumer) (store.Consumer, error) {
	if changed := rules.ChangedHashes(c.Fingerprint, d.Fingerprint); len(changed) > 0 {
		return c, &store.DeclarationError{Consumer: d.ID, Changed: changed}
	}
	if err := s.checkBookkeeping(tx, c); err != nil {
		return c, err
	}
	c.Tables = s.tableRefs(d.Tables, c.Build, c.Epoch)
	all, err := s.BuildsOf(context.Background(), s.ledgerConn(tx.conn), d.ID)
	if err != nil {
		return c, err
	}
	all.Live.Tables = c.Tables
	if err := s.showLive(tx, all); err != nil {
		return c, err
	}
	if c.Plugin != d.Plugin || c.Digest != d.Digest || c.Fingerprint.Logic != d.Fingerprint.Logic {
		if err := s.runSteps(tx, s.RevisionSteps(&c, d)); err != nil {
			return c, err
		}
		now, err := s.loadConsumer(context.Background(), tx.conn, d.ID)
		now.Tables = c.Tables
		return now, err
	}
	return c, nil
}

func (s *Store) checkBookkeeping(tx *tx, c store.Consumer) error {
	for _, count := range []struct {
		what, text string
		want       int
	}{
		{"checkpoint", s.q.countCheckpts, len(c.Topics) * s.info.Partitions},
		{"ownership", s.q.countOwnership, s.info.Partitions},
	} {
		n, err := tx.queryInt(context.Background(), count.text, c.Build)
		if err != nil {
			return err
		}
		if n != int64(count.want) {
			return fmt.Errorf("%s has %d %s rows where %d belong: somebody deleted some; restore them from a backup, or rebuild the consumer", c.ID, n, count.what, count.want)
		}
	}
	return nil
}

func (s *Store) tableRefs(tables []*readmodel.Table, build, epoch int64) []store.TableRef {
	refs := make([]store.TableRef, len(tables))
	for i, t := range tables {
		refs[i] = store.TableRef{Table: t, Physical: readmodel.PhysicalName(s.opt.ReadModelPrefix, t.Name, build), Build: build, Epoch: epoch}
	}
	return refs
}

// loadConsumer reads a consumer with the tables of its live build.
func (s *Store) loadConsumer(ctx context.Context, c *conn, id store.ConsumerID) (store.Consumer, error) {
	list, err := s.loadConsumers(ctx, c, s.q.consumer, id.Type, id.Name)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("consumer %s: %w", id, store.ErrNotFound)
	}
	if err != nil {
		return store.Consumer{}, err
	}
	return list[0], nil
}

func (s *Store) loadConsumers(ctx context.Context, on *conn, text string, args ...driver.Value) (list []store.Consumer, err error) {
	rows, err := on.query(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	for rows.next() {
		c := store.Consumer{
			ID:           store.ConsumerID{Type: rows.text(0), Name: rows.text(1)},
			State:        store.ConsumerState(rows.text(2)),
			StateSinceUS: rows.int(3),
			Epoch:        rows.int(5),
			Build:        rows.int(6),
			Plugin:       rows.text(7),
			Digest:       rows.text(8),
			Fingerprint: store.Fingerprint{Version: int(rows.int(10)), Inputs: rows.text(11), Keys: rows.text(12),
				Tables: rows.text(13), Logic: rows.text(14)},
		}
		if rows.vals[4] != nil {
			c.Halt = sqlstore.HaltOf(rows.text(4), c.StateSinceUS)
		}
		err = errors.Join(err, json.Unmarshal([]byte(rows.text(9)), &c.Topics))
		tables, e := s.buildTables(c.Build, rows.text(15))
		err = errors.Join(err, e)
		c.Tables = s.tableRefs(tables, c.Build, c.Epoch)
		list = append(list, c)
	}
	if e := rows.close(); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, fmt.Errorf("the record of a consumer does not read: %w", err)
	}
	return list, nil
}

// buildTables gives the declaration of a build's tables, which never changes.
func (s *Store) buildTables(build int64, text string) ([]*readmodel.Table, error) {
	if tables, ok := s.builds.Load(build); ok {
		return tables.([]*readmodel.Table), nil
	}
	tables, err := readmodel.UnmarshalTables([]byte(text))
	if err != nil {
		return nil, err
	}
	kept, _ := s.builds.LoadOrStore(build, tables)
	return kept.([]*readmodel.Table), nil
}

// ListConsumers implements [store.Consumers].
func (s *Store) ListConsumers(ctx context.Context) (list []store.Consumer, err error) {
	err = s.read(ctx, "list consumers", func(c *conn) error {
		list, err = s.loadConsumers(ctx, c, s.q.consumers)
		return err
	})
	return list, err
}

// Consumer implements [store.Consumers].
func (s *Store) Consumer(ctx context.Context, id store.ConsumerID) (consumer store.Consumer, err error) {
	err = s.read(ctx, "read consumer", func(c *conn) error {
		consumer, err = s.loadConsumer(ctx, c, id)
		return err
	})
	return consumer, err
}

// Checkpoints implements [store.Consumers].
func (s *Store) Checkpoints(ctx context.Context, build int64) (list []store.Checkpoint, err error) {
	err = s.read(ctx, "read checkpoints", func(c *conn) error {
		rows, err := c.query(ctx, s.q.checkpoints, build)
		if err != nil {
			return err
		}
		for rows.next() {
			list = append(list, store.Checkpoint{Topic: c.intern(rows.text(0)), Partition: int(rows.int(1)), Position: rows.int(2),
				Epoch: rows.int(3), EffectsThrough: rows.int(4),
				EffectsBefore: rows.int(5), ReplayThrough: rows.int(6), PrunedEpoch: rows.int(7), IncompleteThrough: rows.int(8), StopAt: rows.int(9)})
		}
		return rows.close()
	})
	return list, err
}

// Halt implements [store.Consumers].
func (s *Store) Halt(ctx context.Context, id store.ConsumerID, lease store.Lease, h store.Halt) error {
	return s.write(ctx, "halt "+id.String(), 1, func(tx *tx) error {
		err := guard(tx, store.ErrFenced, s.q.guardHolder, lease.Build, int64(lease.Partition), lease.Generation, id.Type, id.Name)
		if err != nil {
			return err
		}
		h := h
		now := s.nowUS()
		if h.AtUS == 0 {
			h.AtUS = now
		}
		text, err := json.Marshal(h)
		if err != nil {
			return err
		}
		return s.runSteps(tx, s.HeldHaltSteps(id, lease.Build, &h, string(text)))
	})
}

// ClearHalt implements [store.Consumers].
func (s *Store) ClearHalt(ctx context.Context, id store.ConsumerID) (was bool, err error) {
	err = s.write(ctx, "clear halt of "+id.String(), 1, func(tx *tx) error {
		n, err := tx.exec(s.q.clearHalt, s.nowUS(), id.Type, id.Name)
		was = n > 0
		return err
	})
	return was, err
}

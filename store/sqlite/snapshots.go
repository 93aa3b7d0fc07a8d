package sqlite

import (
	"cmp"
	"context"
	"fmt"

	"github.com/projhost/projhost/store"
)

// LoadSnapshot implements [store.EventLog].
func (s *Store) LoadSnapshot(ctx context.Context, aggregateType, aggregateID string) (store.Snapshot, error) {
	snap := store.Snapshot{AggregateType: aggregateType, AggregateID: aggregateID}
	err := s.snapshot(ctx, "load snapshot", func(c *conn) error {
		row, err := c.queryRow(ctx, s.q.snapshot, aggregateType, aggregateID)
		if err != nil {
			return err
		}
		version, err := c.queryInt(ctx, s.q.version, aggregateType, aggregateID)
		if err != nil {
			return err
		}
		if row == nil || row[0].(int64) > version {
			return fmt.Errorf("snapshot of %s/%s: %w", aggregateType, aggregateID, store.ErrNotFound)
		}
		snap.Sequence, snap.Version = row[0].(int64), int32(row[1].(int64))
		snap.Codec, snap.CodecVersion = row[2].(string), int32(row[3].(int64))
		snap.CreatedUS = row[4].(int64)
		if snap.Data = row[5].([]byte); snap.Data == nil {
			snap.Data = []byte{}
		}
		if why := store.CheckStoredCodec(snap.Codec, snap.CodecVersion); why != "" {
			return fmt.Errorf("snapshot of %s/%s: %s: a newer projhost may have stored it", aggregateType, aggregateID, why)
		}
		return nil
	})
	if err != nil {
		return store.Snapshot{}, err
	}
	return snap, nil
}

// SaveSnapshot implements [store.EventLog].
func (s *Store) SaveSnapshot(ctx context.Context, snap store.Snapshot) error {
	if err := snap.Validate(s.opt.MaxEvent); err != nil {
		return err
	}
	return s.write(ctx, "save snapshot", 1, func(tx *tx) error { return s.saveSnapshot(tx.conn, &snap, s.nowUS()) })
}

// saveSnapshot keeps the latest. One that is ahead of its stream counts as
// absent, so it does not keep a real one out.
func (s *Store) saveSnapshot(c *conn, snap *store.Snapshot, now int64) error {
	row, err := c.queryRow(bg, s.q.snapshot, snap.AggregateType, snap.AggregateID)
	if err != nil {
		return err
	}
	if row != nil && row[0].(int64) > snap.Sequence {
		version, err := c.queryInt(bg, s.q.version, snap.AggregateType, snap.AggregateID)
		if err != nil || row[0].(int64) <= version {
			return err
		}
	}
	codec, codecVersion := snap.CodecOf()
	_, err = c.exec(s.q.saveSnapshot, snap.AggregateType, snap.AggregateID, snap.Sequence, int64(cmp.Or(snap.Version, 1)),
		codec, int64(codecVersion), cmp.Or(snap.CreatedUS, now), payload(codec, snap.Data))
	return err
}

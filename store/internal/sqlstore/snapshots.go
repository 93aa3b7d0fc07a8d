package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"

	"github.com/projhost/projhost/store"
)

// StreamVersion implements [store.EventLog].
func (c *Core) StreamVersion(ctx context.Context, aggregateType, aggregateID string) (version int64, err error) {
	err = c.Engine.Read(ctx, "read stream version", func(conn Conn) error {
		version, err = number(ctx, conn, c.q.version, aggregateType, aggregateID)
		return err
	})
	return version, err
}

// LoadSnapshot implements [store.EventLog].
func (c *Core) LoadSnapshot(ctx context.Context, aggregateType, aggregateID string) (store.Snapshot, error) {
	snap := store.Snapshot{AggregateType: aggregateType, AggregateID: aggregateID}
	err := c.Engine.Read(ctx, "load snapshot", func(conn Conn) error {
		var version, snapVersion, codecVersion int64
		var text sql.NullString
		found, err := one(ctx, conn, c.q.snapshot, []any{aggregateType, aggregateID, aggregateType, aggregateID},
			&snap.Sequence, &snapVersion, &snap.Codec, &codecVersion, &snap.CreatedUS, &text, &snap.Data, &version)
		if err != nil {
			return err
		}
		if !found || snap.Sequence > version {
			return fmt.Errorf("snapshot of %s/%s: %w", aggregateType, aggregateID, store.ErrNotFound)
		}
		snap.Version, snap.CodecVersion = int32(snapVersion), int32(codecVersion)
		if text.Valid {
			snap.Data = []byte(text.String)
		} else if snap.Data == nil {
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
func (c *Core) SaveSnapshot(ctx context.Context, snap store.Snapshot) error {
	if err := snap.Validate(c.Opt.MaxEvent); err != nil {
		return err
	}
	return c.Engine.Write(ctx, "save snapshot", func(conn Conn) error { return c.SaveSnapshotIn(ctx, conn, &snap) })
}

// SaveSnapshotIn stores a snapshot within a transaction; see [store.EventLog].
// It keeps the latest. One that is ahead of its stream counts as absent, so it
// does not keep a real one out.
func (c *Core) SaveSnapshotIn(ctx context.Context, conn Conn, snap *store.Snapshot) error {
	created := snap.CreatedUS
	if created == 0 {
		now, err := number(ctx, conn, c.q.now)
		if err != nil {
			return err
		}
		created = now
	}
	codec, codecVersion := snap.CodecOf()
	text, bytes := Payload(codec, snap.Data)
	args := []any{snap.Sequence, int64(cmp.Or(snap.Version, 1)), codec, int64(codecVersion), created, text, bytes,
		snap.AggregateType, snap.AggregateID}
	update := func(text string, sequence int64) (bool, error) {
		n, err := conn.Exec(ctx, text, append(args[:len(args):len(args)], sequence)...)
		return n > 0, err
	}
	if done, err := update(c.q.updateSnapshot, snap.Sequence); err != nil || done {
		return err
	}
	var stored int64
	found, err := one(ctx, conn, c.q.snapshotSeq, []any{snap.AggregateType, snap.AggregateID}, &stored)
	if err != nil {
		return err
	}
	if !found {
		_, err := conn.Exec(ctx, c.q.insertSnapshot, args...)
		return c.raced(err)
	}
	version, err := number(ctx, conn, c.q.version, snap.AggregateType, snap.AggregateID)
	if err != nil || stored <= version {
		return err
	}
	if done, err := update(c.q.replaceAhead, stored); err != nil || done {
		return err
	}
	return fmt.Errorf("save snapshot: %w", ErrRace)
}

// raced makes a unique key that somebody else took in the meantime a race.
func (c *Core) raced(err error) error {
	if class, _ := c.Engine.Class(err); err != nil && class == Duplicate {
		return fmt.Errorf("%w: %w", ErrRace, err)
	}
	return err
}

package sqlserver

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/projhost/projhost/store"
)

// Snapshots are found by their stream's hash, like its events.
const snapshotSQL = `SELECT s.sequence, s.version, s.codec, s.codec_version, s.created_us, s.data, s.data_bytes,
 COALESCE((SELECT MAX(e.sequence) FROM {{events}} AS e WHERE e.stream = @stream), 0)
FROM {{snapshots}} AS s WHERE s.stream = @stream`

// LoadSnapshot implements [store.EventLog].
func (s *Store) LoadSnapshot(ctx context.Context, aggregateType, aggregateID string) (store.Snapshot, error) {
	snap := store.Snapshot{AggregateType: aggregateType, AggregateID: aggregateID}
	key := streamKey{aggregateType, aggregateID}
	var version int64
	err := s.engine.query(ctx, "load snapshot", s.q.snapshot, []any{sql.Named("stream", key.hash())}, func(r *sql.Rows) error {
		var text sql.NullString
		var bytes []byte
		if err := r.Scan(&snap.Sequence, &snap.Version, &snap.Codec, &snap.CodecVersion, &snap.CreatedUS, &text, &bytes, &version); err != nil {
			return err
		}
		snap.Data = payloadOf(text, bytes)
		return nil
	})
	if err != nil {
		return store.Snapshot{}, err
	}
	if snap.Data == nil || snap.Sequence > version {
		return store.Snapshot{}, fmt.Errorf("snapshot of %s/%s: %w", aggregateType, aggregateID, store.ErrNotFound)
	}
	if why := store.CheckStoredCodec(snap.Codec, snap.CodecVersion); why != "" {
		return store.Snapshot{}, fmt.Errorf("snapshot of %s/%s: %s: a newer projhost may have stored it", aggregateType, aggregateID, why)
	}
	return snap, nil
}

// SaveSnapshot implements [store.EventLog].
func (s *Store) SaveSnapshot(ctx context.Context, snap store.Snapshot) error {
	if err := snap.Validate(s.Opt.MaxEvent); err != nil {
		return err
	}
	_, err := s.Commit(ctx, store.Commit{Snapshots: []store.Snapshot{snap}})
	return err
}

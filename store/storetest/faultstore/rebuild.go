package faultstore

import (
	"context"

	"github.com/projhost/projhost/store"
)

// RebuildInPlace implements [store.Rebuilds].
func (s *Store) RebuildInPlace(ctx context.Context, id store.ConsumerID, r store.Rebuild) error {
	return s.write("RebuildInPlace", func() error { return s.inner.RebuildInPlace(ctx, id, r) })
}

// EffectsOwed implements [store.Rebuilds].
func (s *Store) EffectsOwed(ctx context.Context, build int64, topic string, after int64) ([]store.Owed, error) {
	return readOf(s, "EffectsOwed", func() ([]store.Owed, error) { return s.inner.EffectsOwed(ctx, build, topic, after) })
}

// StaleKeys implements [store.Rebuilds].
func (s *Store) StaleKeys(ctx context.Context, t store.TableRef, after string, limit int) ([]string, error) {
	return readOf(s, "StaleKeys", func() ([]string, error) { return s.inner.StaleKeys(ctx, t, after, limit) })
}

// Pruned implements [store.Rebuilds].
func (s *Store) Pruned(ctx context.Context, p store.Pruned) (bool, error) {
	return written(s, "Pruned", func() (bool, error) { return s.inner.Pruned(ctx, p) })
}

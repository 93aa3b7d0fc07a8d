package faultstore

import (
	"context"
	"time"

	"github.com/projhost/projhost/store"
)

// ListBuilds implements [store.Builds].
func (s *Store) ListBuilds(ctx context.Context, id store.ConsumerID) ([]store.Build, error) {
	return readOf(s, "ListBuilds", func() ([]store.Build, error) { return s.inner.ListBuilds(ctx, id) })
}

// StartShadow implements [store.Builds].
func (s *Store) StartShadow(ctx context.Context, d store.Declaration, actor string) (store.Build, error) {
	return written(s, "StartShadow", func() (store.Build, error) { return s.inner.StartShadow(ctx, d, actor) })
}

// CancelShadow implements [store.Builds].
func (s *Store) CancelShadow(ctx context.Context, id store.ConsumerID, build int64, actor string) error {
	return s.write("CancelShadow", func() error { return s.inner.CancelShadow(ctx, id, build, actor) })
}

// DropBuild implements [store.Builds].
func (s *Store) DropBuild(ctx context.Context, id store.ConsumerID, build int64, actor string) error {
	return s.write("DropBuild", func() error { return s.inner.DropBuild(ctx, id, build, actor) })
}

// StopAt implements [store.Builds].
func (s *Store) StopAt(ctx context.Context, id store.ConsumerID) (map[string]int64, error) {
	return written(s, "StopAt", func() (map[string]int64, error) { return s.inner.StopAt(ctx, id) })
}

// GoOn implements [store.Builds].
func (s *Store) GoOn(ctx context.Context, id store.ConsumerID, after time.Duration) (bool, error) {
	return written(s, "GoOn", func() (bool, error) { return s.inner.GoOn(ctx, id, after) })
}

// Switch implements [store.Builds].
func (s *Store) Switch(ctx context.Context, sw store.Switch) error {
	return s.write("Switch", func() error { return s.inner.Switch(ctx, sw) })
}

// ShowLive implements [store.Builds].
func (s *Store) ShowLive(ctx context.Context, id store.ConsumerID) error {
	return s.write("ShowLive", func() error { return s.inner.ShowLive(ctx, id) })
}

// KeepBuild implements [store.Builds].
func (s *Store) KeepBuild(ctx context.Context, id store.ConsumerID, build int64, k store.Keep, actor string) error {
	return s.write("KeepBuild", func() error { return s.inner.KeepBuild(ctx, id, build, k, actor) })
}

// ResumeBuild implements [store.Builds].
func (s *Store) ResumeBuild(ctx context.Context, id store.ConsumerID, build int64, actor string) error {
	return s.write("ResumeBuild", func() error { return s.inner.ResumeBuild(ctx, id, build, actor) })
}

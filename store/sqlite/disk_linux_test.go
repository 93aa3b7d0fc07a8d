package sqlite

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	lib "modernc.org/sqlite/lib"

	"github.com/projhost/projhost/store"
)

// tiny mounts a file system of a few megabytes, or tells why it cannot.
func tiny(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		if slices.Contains(strings.Split(os.Getenv("PROJHOST_TEST_REQUIRE"), ","), "mount") {
			t.Fatalf("mounting a small file system: %v", err)
		}
		t.Skipf("no small file system to fill: mounting one needs root (%v)", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	return dir
}

func TestDiskFull(t *testing.T) {
	dir := tiny(t, "size=4m")
	s, err := Open(t.Context(), Options{DSN: filepath.Join(dir, "projhost.db"), TablePrefix: "ph_"})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	big := store.NewEvent{Type: "Big", Data: []byte(`"` + strings.Repeat("x", 50_000) + `"`)}
	add := func() error {
		_, err := s.Commit(t.Context(), store.Commit{Streams: []store.StreamAppend{{AggregateType: "account", AggregateID: "A-1", ExpectedVersion: store.AnyVersion, Events: []store.NewEvent{big}}}})
		return err
	}
	// Room for the file beside the log, once the ballast is gone.
	ballast := filepath.Join(dir, "ballast")
	require.NoError(t, os.WriteFile(ballast, make([]byte, 5<<19), 0o600))
	stored := int64(0)
	for ; err == nil && stored < 1000; stored++ {
		err = add()
	}
	stored-- // the last was refused
	transient := requireTransient(t, err, lib.SQLITE_FULL, "free some space")
	require.False(t, transient.OutcomeUnknown)
	for range 5 {
		requireTransient(t, add(), lib.SQLITE_FULL, "free some space")
	}
	require.EqualValues(t, stored, version(t, s, "A-1"))
	require.NoError(t, os.Remove(ballast))
	require.NoError(t, add())
	require.EqualValues(t, stored+1, version(t, s, "A-1"))
	require.NoError(t, s.Close())
	again, err := Open(t.Context(), Options{DSN: filepath.Join(dir, "projhost.db"), TablePrefix: "ph_"})
	require.NoError(t, err)
	require.EqualValues(t, stored+1, version(t, again, "A-1"))
	require.NoError(t, again.Close())
}

// An empty disk that is full already has no room for the first start.
func TestDiskFullAtFirstStart(t *testing.T) {
	dir := tiny(t, "size=32k")
	_, err := Open(t.Context(), Options{DSN: filepath.Join(dir, "projhost.db"), TablePrefix: "ph_"})
	require.ErrorContains(t, err, "the disk is full")
}

func TestReadOnlyDisk(t *testing.T) {
	dir := tiny(t, "size=4m")
	path := filepath.Join(dir, "projhost.db")
	s, err := Open(t.Context(), Options{DSN: path, TablePrefix: "ph_"})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	_, err = Open(t.Context(), Options{DSN: path, TablePrefix: "ph_"})
	require.ErrorContains(t, err, "may this user write")
}

package sqlite

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func openTest(t testing.TB, opt Options) *Store {
	t.Helper()
	if opt.DSN == "" {
		opt.DSN = filepath.Join(t.TempDir(), "projhost.db")
	}
	if opt.TablePrefix == "" {
		opt.TablePrefix = "ph_"
	}
	s, err := Open(t.Context(), opt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestOpen(t *testing.T) {
	s := openTest(t, Options{})
	info, err := s.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, 256, info.Partitions)
}

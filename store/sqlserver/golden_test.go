package sqlserver

import (
	stdflag "flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = stdflag.Bool("update", false, "rewrite the golden files")

// golden compares with a file that is rewritten by -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "go test ./store/sqlserver -update writes it")
	require.Equal(t, string(want), got, "%s; go test ./store/sqlserver -update rewrites it", path)
}

// The script for people with a migration tool of their own.
func TestSchemaScript(t *testing.T) {
	t.Parallel()
	text, err := SchemaSQL("ph_", 0)
	require.NoError(t, err)
	golden(t, "schema.sql", text)
	_, err = SchemaSQL("a]b", 0)
	require.Error(t, err)
}

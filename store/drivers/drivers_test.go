package drivers

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

func TestOpensByName(t *testing.T) {
	t.Parallel()
	st, err := Open(t.Context(), "sqlite", store.Options{DSN: filepath.Join(t.TempDir(), "x.db"), TablePrefix: "ph_", Partitions: 7})
	require.NoError(t, err)
	defer st.Close()
	info, err := st.Info(t.Context())
	require.NoError(t, err)
	require.Equal(t, "sqlite", info.Driver)
	require.Equal(t, 7, info.Partitions)
}

func TestAFailedOpenIsNoStore(t *testing.T) {
	t.Parallel()
	for _, name := range Names() {
		var st store.Store
		st, err := Open(t.Context(), name, store.Options{DSN: "", TablePrefix: "ph_"})
		require.Error(t, err, name)
		require.True(t, st == nil, name)
	}
	_, err := Open(t.Context(), "oracle", store.Options{})
	require.ErrorContains(t, err, `there is no driver "oracle": it is one of sqlite, `)
}

func TestEveryDriverPrintsItsSchema(t *testing.T) {
	t.Parallel()
	for _, name := range Names() {
		require.Contains(t, Schemas(), name)
	}
	seen := map[string]string{}
	for _, name := range Schemas() {
		text, err := SchemaSQL(name, "ph_", 16)
		require.NoError(t, err, name)
		require.Contains(t, text, "ph_events", name)
		require.Empty(t, seen[text], "%s: the same script", name)
		seen[text] = name
	}
	for name, other := range map[string]string{"mysql": "mariadb", "mariadb": "mysql"} {
		text, err := SchemaSQL(name, "ph_", 16)
		require.NoError(t, err)
		require.Contains(t, text, "--driver "+other+".", "each says where the other is to be had")
	}
	_, err := SchemaSQL("oracle", "ph_", 16)
	require.ErrorContains(t, err, `there is no schema for "oracle": it is one of sqlite, `)
}

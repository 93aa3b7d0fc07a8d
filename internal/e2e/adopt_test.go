package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Promise: nobody takes over a table of the user's without being told to (P6).
func TestUsersTableIsAdoptedOnlyWhenTheConfigSaysSo(t *testing.T) {
	made := newSite(t, "")
	h := made.start()
	h.caughtUp()
	h.stop()
	db := made.open()
	var ddl string
	require.NoError(t, db.QueryRow(`SELECT sql FROM sqlite_master WHERE name = 'applications__b1'`).Scan(&ddl))
	require.NoError(t, db.Close())

	s := newSite(t, "")
	db = s.open()
	_, err := db.Exec(strings.Replace(ddl, "applications__b1", "applications", 1))
	require.NoError(t, err)
	_, err = db.Exec(`INSERT INTO applications (key, offers, events, first_at, last_at, state) VALUES ('old', 1, 2, '2026-01-01 00:00:00.000000', '2026-01-01 00:00:00.000000', '{}')`)
	require.NoError(t, err)
	require.NoError(t, db.Close())

	run := exec.CommandContext(t.Context(), program, "run")
	run.Dir = s.dir
	out, err := run.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `table "applications" belongs to a table that projhost did not create`)

	s.append("[plugin.consumer.applications]\nadopt = [\"applications\"]\n")
	h = s.start()
	h.caughtUp()
	require.Contains(t, string(h.get("/v1/read-models/applications/old")), `"offers":1`)
	h.stop()
}

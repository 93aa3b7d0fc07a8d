package sqlite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func childHolds(path string) {
	if _, err := Open(context.Background(), Options{DSN: path, TablePrefix: "ph_"}); err != nil {
		childFails(err)
	}
	fmt.Println("open")
	select {} // until it is killed
}

// A second host would keep caches of rows that the first one changes.
func TestSecondHostIsKeptOff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "projhost.db")
	c := startChild(t, "hold", path)
	require.Equal(t, "open", c.line())
	_, err := Open(t.Context(), Options{DSN: path, TablePrefix: "ph_"})
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	host, _ := os.Hostname()
	require.Contains(t, err.Error(), fmt.Sprintf("process %d on %s", c.Process.Pid, host))
	require.Contains(t, err.Error(), path+".lock")
	require.Contains(t, err.Error(), "stop it")

	// However it ends, the lock ends with it; the file that stays says nothing.
	c.kill()
	s := openTest(t, Options{DSN: path})
	_, err = Open(t.Context(), Options{DSN: path, TablePrefix: "ph_"})
	require.ErrorAs(t, err, &locked)
	require.Contains(t, err.Error(), fmt.Sprintf("process %d", os.Getpid()))
	require.NoError(t, s.Close())
	require.NoError(t, openTest(t, Options{DSN: path}).Close())
}

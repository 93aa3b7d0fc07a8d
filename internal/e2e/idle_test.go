package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

// An idle host asks its database fewer than 20 statements a second, whatever the
// number of its consumers and partitions, transactions' own statements included.
// The server counts them.
func TestIdleHostAsksLittle(t *testing.T) {
	long(t)
	onPrivate(t, func(t *testing.T, v server) {
		var settings []string
		count := `SHOW GLOBAL STATUS LIKE 'Questions'`
		if v.driver == "postgres" {
			bin := filepath.Dir(dbtest.PostgresProgram(t, "postgres"))
			if _, err := os.Stat(filepath.Join(bin, "..", "lib", "pg_stat_statements.so")); err != nil {
				t.Skip("not run: this PostgreSQL comes without pg_stat_statements")
			}
			settings = []string{"shared_preload_libraries=pg_stat_statements"}
			count = `SELECT 'calls', sum(calls)::bigint FROM pg_stat_statements`
		}
		srv := v.private(t, settings...)
		_, lines := loanSample(t, 300)
		asked := func(consumers int) float64 {
			s := emptySite(t, "")
			s.driver, s.dsn = v.driver, srv.DSN
			config := fmt.Sprintf("[http]\nlisten = \"127.0.0.1:0\"\n[log]\nformat = \"json\"\n[store]\ndriver = %q\ndsn = %q\ntable_prefix = \"c%d_\"\n", v.driver, srv.DSN, consumers)
			for i := range consumers {
				name := fmt.Sprintf("c%d_%d", consumers, i)
				s.write(name+".wasm", string(tiny{name: name, table: "t" + name, column: "n"}.bytes()))
				config += fmt.Sprintf("[[plugin]]\nname = %q\npath = %q\n", name, name+".wasm")
			}
			s.write("config.toml", config)
			if v.driver == "postgres" && consumers == 1 {
				s.client("CREATE EXTENSION pg_stat_statements;")
			}
			questions := func() int64 {
				n, err := strconv.ParseInt(s.rows(count)[0][1], 10, 64)
				require.NoError(t, err)
				return n
			}
			h := s.start().ready()
			require.True(t, h.send(bytes.Join(lines, nil)))
			h.applied(fmt.Sprintf("c%d_%d", consumers, consumers-1), h.end())
			time.Sleep(2 * time.Second) // a host that has caught up still finishes things, and falls asleep
			before, began := questions(), time.Now()
			time.Sleep(5 * time.Second) // what is measured
			rate := float64(questions()-before) / time.Since(began).Seconds()
			h.stop()
			return rate
		}
		few, many := asked(1), asked(10)
		t.Logf("%.1f statements a second with 1 consumer, %.1f with 10", few, many)
		require.Less(t, many, 20.0)
		require.InDelta(t, few, many, 3)
	})
}

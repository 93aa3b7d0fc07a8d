package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

func small(t *testing.T) Options {
	return Options{Events: 600, Accounts: 40, Rounds: 2, Dir: t.TempDir()}
}

// Every contender that can run here ends with the rows of the events.
func TestRun(t *testing.T) {
	o := small(t)
	o.Appends = 8
	o.AppendFor, o.IdleFor = 20*time.Millisecond, time.Millisecond
	hosts := []string{"c", "c+limit", "go", "go+limit"}
	if testing.Short() {
		t.Log("-short: without the Go plugin, which takes a minute to compile under the race detector")
		hosts = hosts[:2]
		o.Only = append([]string{"native", "loop"}, hosts...)
	}
	o.CPUProfile = filepath.Join(t.TempDir(), "cpu.prof")
	steps := 0
	o.Progress = func(done, total int64, what string) {
		require.LessOrEqual(t, done, total, what)
		steps++
	}
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.NotZero(t, steps)

	results := map[string]Result{}
	for _, x := range r.Results {
		results[x.Name] = x
		require.Positive(t, x.PerSecond.Min, x.Name)
		require.GreaterOrEqual(t, x.PerSecond.Median, x.PerSecond.Min, x.Name)
		require.GreaterOrEqual(t, x.PerSecond.Max, x.PerSecond.Median, x.Name)
		require.Positive(t, x.Ratio, x.Name)
		require.Positive(t, x.AllocsPerEvent, x.Name)
	}
	require.Equal(t, "native/1000", r.Results[0].Name)
	best := slices.MaxFunc(r.Results[:len(nativeBatches)], func(a, b Result) int { return cmp.Compare(a.PerSecond.Median, b.PerSecond.Median) })
	require.InDelta(t, 1, best.Ratio, 1e-9, "ratios are against the best baseline")
	require.InDelta(t, 1, results["loop"].Factor, 1e-9)
	require.Equal(t, 600/loopShare, results["loop"].Events)
	for _, name := range hosts {
		require.Contains(t, results, name, r.NotRun)
	}
	require.Len(t, r.Append, len(appendCells))
	for _, a := range r.Append {
		require.Positive(t, a.Driver.Min)
		require.Positive(t, a.HTTP.Min)
		require.Positive(t, a.Ratio)
	}
	require.Nil(t, r.Idle, "nothing is on a wire here")
	require.Len(t, r.Latency, len(r.Plugins))
	for _, l := range r.Latency {
		require.Equal(t, 8, l.Appends)
		require.GreaterOrEqual(t, l.P99, l.P50)
	}
	b, err := json.Marshal(r)
	require.NoError(t, err)
	for _, member := range []string{"events_per_second", "ratio_to_native", "factor_over_loop", "p99_ms"} {
		require.Contains(t, string(b), `"`+member+`":`)
	}
	profile, err := os.Stat(o.CPUProfile)
	require.NoError(t, err)
	require.NotZero(t, profile.Size())
	left, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	require.Empty(t, left, "the databases are removed")
}

func TestOnly(t *testing.T) {
	o := small(t)
	o.Only = []string{"native"}
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Len(t, r.Results, len(nativeBatches))
	require.Zero(t, r.Results[0].Factor)
	require.Empty(t, r.Plugins)

	o.Only = []string{"nativ"}
	_, err = Run(t.Context(), o)
	require.EqualError(t, err, "--only nativ: it is one of native, loop, c, c+limit, go, go+limit")
	o = small(t)
	o.DSN = "x"
	_, err = Run(t.Context(), o)
	require.EqualError(t, err, "--dsn needs --driver: SQLite's files are made in --dir")
	o.Driver, o.DSN = "postgres", ""
	_, err = Run(t.Context(), o)
	require.ErrorContains(t, err, "--driver postgres needs --dsn: the server")
	o.Driver = "oracle"
	_, err = Run(t.Context(), o)
	require.EqualError(t, err, "--driver oracle: it is one of sqlite, postgres, mysql")
	o = small(t)
	o.Events = 0
	_, err = Run(t.Context(), o)
	require.EqualError(t, err, "--events must be at least 1, it is 0")
}

// On a server all contenders leave the same rows too, in tables of one shape.
func TestRunOnServers(t *testing.T) {
	for driver, dsn := range map[string]func(testing.TB) string{"postgres": dbtest.Postgres, "mysql": dbtest.MySQL} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			o := small(t)
			o.Driver, o.DSN, o.Rounds, o.Only = driver, dsn(t), 1, []string{"native", "loop", "c"}
			o.Appends, o.AppendFor, o.IdleFor = 4, 5*time.Millisecond, 10*time.Millisecond
			r, err := Run(t.Context(), o)
			require.NoError(t, err)
			require.Len(t, r.Results, len(nativeBatches)+2)
			require.Len(t, r.Append, len(appendCells))
			require.Len(t, r.Latency, 1)
			require.NotNil(t, r.Idle)
			require.Empty(t, r.NotRun)
			require.NotEmpty(t, r.Server)
			require.Positive(t, r.Results[0].Ratio)
		})
	}
}

// A plugin that cannot be had is told in one line, and the others run.
func TestMissingPlugin(t *testing.T) {
	old := sources
	defer func() { sources = old }()
	sources = []source{{"c", func(context.Context) ([]byte, error) { return nil, errors.New("no compiler\nat all") }}}
	o := small(t)
	o.Only = []string{"native", "c"}
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, []string{"c: no compiler"}, r.NotRun)
	o.Only = []string{"c"}
	_, err = Run(t.Context(), o)
	require.EqualError(t, err, "nothing to run: c: no compiler")
}

// on calls f with a database of the small workload.
func on(t *testing.T, events, accounts int, f func(d *dataset, dsn string)) {
	t.Helper()
	d, err := newDataset(t.Context(), &sqliteEngine{dir: t.TempDir()}, events, accounts, func(int) {})
	require.NoError(t, err)
	require.NoError(t, d.with(t.Context(), func(dsn string) error {
		f(d, dsn)
		return nil
	}))
}

// Figures are only given for the same work: the same rows in the same table.
func TestDifferentWorkIsRefused(t *testing.T) {
	on(t, 300, 20, func(d *dataset, dsn string) {
		require.NoError(t, batchFold(t.Context(), d, dsn, 300, 50, &meter{}))
		b := &run{data: d, expected: map[int]string{}}
		c := &contender{name: "native", events: 300, table: nativeTable}
		got, err := d.outcomeOf(t.Context(), dsn, nativeTable)
		require.NoError(t, err)
		require.NoError(t, b.compare(c, got))

		change := func(text string) outcome {
			s, err := d.connect(t.Context(), dsn)
			require.NoError(t, err)
			require.NoError(t, s.exec(t.Context(), text))
			require.NoError(t, s.close())
			got, err := d.outcomeOf(t.Context(), dsn, nativeTable)
			require.NoError(t, err)
			return got
		}
		require.ErrorContains(t, b.compare(c, change(`DROP INDEX native_accounts_status`)), "its table differs")
		require.ErrorContains(t, b.compare(c, change(`UPDATE native_accounts SET events = events + 1 WHERE key = (SELECT min(key) FROM native_accounts)`)), "its rows are not")
	})
}

// engines gives every database that tests can have here.
func engines(t *testing.T, f func(t *testing.T, db engine)) {
	for driver, dsn := range map[string]func(testing.TB) string{
		"sqlite": func(testing.TB) string { return "" }, "postgres": dbtest.Postgres, "mysql": dbtest.MySQL,
	} {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			db, err := newEngine(t.Context(), driver, dsn(t), t.TempDir())
			require.NoError(t, err)
			defer func() { require.NoError(t, db.close()) }()
			f(t, db)
		})
	}
}

// The baseline's guards hold: it does the same work, not just the same rows.
func TestNativeGuards(t *testing.T) {
	engines(t, func(t *testing.T, db engine) {
		s, err := db.connect(t.Context(), db.template())
		require.NoError(t, err)
		defer func() { require.NoError(t, s.close()) }()
		require.NoError(t, s.create(t.Context()))
		row := []nativeAccount{{key: "a", owner: `O'Neill \`, status: "open", position: 1, partition: 7, indexed: true}}
		var at checkpoints
		require.NoError(t, s.apply(t.Context(), row, at.moves(row)))
		require.Equal(t, int64(1), at[7])
		stored := []string{"a", `O'Neill \`, "open", "0.00", "0", "1970-01-01 00:00:00.000000", "1", "0", "0"}
		holds := func() {
			require.NoError(t, s.rows(t.Context(), nativeTable, func(v []string) { require.Equal(t, stored, v) }))
		}
		holds()

		row[0].position = 2
		moves := at.moves(row)
		refused := func(change string) {
			require.NoError(t, s.exec(t.Context(), change))
			require.Error(t, s.apply(t.Context(), row, moves))
			require.Error(t, s.applyOne(t.Context(), &nativeEvent{position: 2, account: "a", kind: "closed", partition: 7}, 1))
			holds()
		}
		refused(`UPDATE native_checkpoints SET position = 9`)
		require.NoError(t, s.exec(t.Context(), `UPDATE native_checkpoints SET position = 1`))
		refused(`UPDATE native_leases SET generation = 2 WHERE instance = 'me' AND generation = 1`)
		require.NoError(t, s.exec(t.Context(), `UPDATE native_leases SET generation = 1`))
		require.NoError(t, s.apply(t.Context(), row, moves))
		require.NoError(t, s.applyOne(t.Context(), &nativeEvent{position: 3, account: "a", kind: "closed", partition: 7}, 2))
		stored = []string{"a", `O'Neill \`, "closed", "0.00", "1", "1970-01-01 00:00:00.000000", "3", "0", "0"}
		holds()
	})
}

// Nobody's statements but those of a passed connection are counted, and all of
// those.
func TestStatementsAreCounted(t *testing.T) {
	engines(t, func(t *testing.T, db engine) {
		counted, ok := db.(counter)
		if !ok {
			t.Log("its statements are on no wire")
			return
		}
		line, err := listenCounting(counted)
		require.NoError(t, err)
		s, err := db.connect(t.Context(), counted.through(db.template(), line.listener.Addr().String()))
		require.NoError(t, err)
		require.NoError(t, s.create(t.Context()))
		before := line.statements.Load()
		row := []nativeAccount{{key: "a", position: 1}}
		var at checkpoints
		require.NoError(t, s.apply(t.Context(), row, at.moves(row)))
		require.GreaterOrEqual(t, line.statements.Load()-before, int64(5), "a transaction, its guards, its rows")
		before = line.statements.Load()
		for range 3 {
			require.NoError(t, s.exec(t.Context(), "DELETE FROM native_accounts"))
		}
		require.Equal(t, before+3, line.statements.Load())
		require.NoError(t, s.close())
		require.NoError(t, line.close())
	})
}

func TestStatistics(t *testing.T) {
	require.InDelta(t, 2, median([]float64{3, 1, 2}), 0)
	require.InDelta(t, 2.5, median([]float64{4, 1, 2, 3}), 0)
	// Round by round: a machine that halves its speed does not show.
	require.InDelta(t, 0.5, beside([]float64{100, 50, 10}, []float64{200, 100, 20}), 0)
	require.Zero(t, beside([]float64{1}, nil))
}

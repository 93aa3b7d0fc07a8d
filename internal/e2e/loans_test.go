package e2e

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the read model is the user's own database

	"github.com/projhost/projhost/internal/samples"
	"github.com/projhost/projhost/testplugins/loans/oracle"
)

var (
	kills = flag.Int("kills", 50, "how often the host is killed")
	seed  = flag.Uint64("seed", 0, "seed of the random moments; 0: from the clock")
)

// Promise: every message is applied exactly once, whatever crashes (P1), and
// what was acknowledged survives (P9).
func TestKilledAtRandomMoments(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d", *seed)
	random := rand.New(rand.NewPCG(*seed, 1))
	n := *kills
	if testing.Short() {
		n = min(n, 10)
	}

	fold, lines := loanSample(t, 400*n)
	s := newSite(t, "[apply]\nbatch = 200\n")
	sent := 0 // lines that were acknowledged
	for k := range n {
		h := s.start()
		var feeding sync.WaitGroup
		feeding.Go(func() {
			// An unacknowledged chunk is sent again in the next life: its
			// events may be there already or not.
			for limit := len(lines) * (k + 1) / n; sent < limit; {
				next := min(sent+50, limit)
				if !h.send(bytes.Join(lines[sent:next], nil)) {
					return
				}
				sent = next
			}
		})
		// The moment is the point of the test: in start-up, append, apply or
		// commit, wherever it falls.
		time.Sleep(time.Duration(random.IntN(250)) * time.Millisecond)
		h.kill()
		feeding.Wait()
	}
	h := s.start()
	for sent < len(lines) {
		next := min(sent+1000, len(lines))
		require.True(t, h.send(bytes.Join(lines[sent:next], nil)))
		sent = next
	}
	h.caughtUp()
	h.stop()
	require.Equal(t, len(lines), s.count("ph_events"), "events")
	s.equalsOracle(fold)
}

// Promise: the same messages give the same rows in any batch split (P7).
func TestBatchSplitDoesNotShow(t *testing.T) {
	fold, lines := loanSample(t, 3000)
	for _, batch := range []int{1, 7, 256} {
		t.Run(fmt.Sprintf("batch=%d", batch), func(t *testing.T) {
			s := newSite(t, fmt.Sprintf("[apply]\nbatch = %d\n", batch))
			for part := range 4 {
				h := s.start()
				require.True(t, h.send(bytes.Join(lines[len(lines)*part/4:len(lines)*(part+1)/4], nil)))
				if part == 3 {
					h.caughtUp()
				}
				h.stop()
			}
			s.equalsOracle(fold)
		})
	}
}

// The real log where PROJHOST_TEST_LOANS names it, a generated one of the same
// shape elsewhere: every row and column equals the native fold.
func TestLoanFileEqualsTheOracle(t *testing.T) {
	file := os.Getenv("PROJHOST_TEST_LOANS")
	var fold *oracle.Fold
	switch {
	case file != "":
		fold = foldFile(t, file)
	case strings.Contains(","+os.Getenv("PROJHOST_TEST_REQUIRE")+",", ",loans,"):
		t.Fatal("the loan file is required: set PROJHOST_TEST_LOANS")
	default:
		t.Log("PROJHOST_TEST_LOANS is not set: a generated sample stands in for the loan file")
		var lines [][]byte
		fold, lines = loanSample(t, 20_000)
		file = filepath.Join(t.TempDir(), "sample.jsonl.gz")
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, err := z.Write(bytes.Join(lines, nil))
		require.NoError(t, err)
		require.NoError(t, z.Close())
		require.NoError(t, os.WriteFile(file, packed.Bytes(), 0o600))
	}

	s := newSite(t, "")
	h := s.start()
	s.command("import", file, "--url", h.url)
	h.caughtUp()
	if peak, ok := h.peakMemory(); ok {
		t.Logf("peak resident memory of the host: %d MiB", peak>>20)
		require.Less(t, peak, int64(300<<20))
	}
	h.stop()
	s.equalsOracle(fold)
}

// loanSample returns generated events as import lines, and their fold.
func loanSample(t *testing.T, events int) (*oracle.Fold, [][]byte) {
	t.Helper()
	fold := oracle.New()
	var lines [][]byte
	for e := range samples.Loans(events) {
		require.NoError(t, fold.Add(oracle.Event{AggregateType: e.AggregateType, AggregateID: e.AggregateID, Type: e.Type, Data: e.Data, OccurredUS: e.OccurredUS}))
		lines = append(lines, e.AppendLine(nil))
	}
	return fold, lines
}

func foldFile(t *testing.T, file string) *oracle.Fold {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	fold := oracle.New()
	for dec := json.NewDecoder(z); dec.More(); {
		var line json.RawMessage
		require.NoError(t, dec.Decode(&line))
		e, err := loanEvent(line)
		require.NoError(t, err)
		require.NoError(t, fold.Add(e))
	}
	return fold
}

// loanEvent reads a line of the import format.
func loanEvent(line []byte) (oracle.Event, error) {
	var e struct {
		AggregateType string          `json:"aggregate_type"`
		AggregateID   string          `json:"aggregate_id"`
		Type          string          `json:"type"`
		Data          json.RawMessage `json:"data"`
		OccurredAt    time.Time       `json:"occurred_at"`
	}
	err := json.Unmarshal(line, &e)
	return oracle.Event{AggregateType: e.AggregateType, AggregateID: e.AggregateID, Type: e.Type, Data: e.Data, OccurredUS: e.OccurredAt.UnixMicro()}, err
}

// equalsOracle compares every row of a stopped site with the fold: parent
// tables through the command line, the child table through SQL.
func (s *site) equalsOracle(fold *oracle.Fold) {
	s.t.Helper()
	want := fold.Tables()
	for _, projection := range []string{"applications", "resources"} {
		var have []oracle.Row
		out := s.command("query", projection, "--format", "jsonl", "--limit", "1000000")
		for dec := json.NewDecoder(strings.NewReader(out)); dec.More(); {
			var item struct {
				Key string
				Row json.RawMessage
			}
			require.NoError(s.t, dec.Decode(&item))
			have = append(have, oracle.Row{Key: item.Key, JSON: string(item.Row)})
		}
		s.sameRows(projection, want[projection], have)
	}
	var have []oracle.Row
	for _, row := range s.rows(`SELECT "key", "child", "first_at" FROM "` + s.prefix + `resource_applications"`) {
		have = append(have, oracle.Row{Key: row[0], Child: row[1], JSON: fmt.Sprintf(`{"first_at":%q}`, strings.Replace(row[2], " ", "T", 1)+"Z")})
	}
	slices.SortFunc(have, func(a, b oracle.Row) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Child, b.Child))
	})
	s.sameRows("resource_applications", want["resource_applications"], have)
}

func (s *site) sameRows(table string, want, have []oracle.Row) {
	s.t.Helper()
	require.NotEmpty(s.t, want)
	require.Equalf(s.t, len(want), len(have), "rows of %s", table)
	for i := range want {
		require.Equalf(s.t, want[i], have[i], "row %d of %s", i, table)
	}
}

// open opens the site's database as a user with another client does.
func (s *site) open() *sql.DB {
	s.t.Helper()
	client, dsn := "sqlite", s.database()
	switch s.driver {
	case "postgres":
		client, dsn = "pgx", s.dsn
	case "mysql", "sqlserver":
		client, dsn = s.driver, s.dsn
	}
	db, err := sql.Open(client, dsn)
	require.NoError(s.t, err)
	return db
}

func (s *site) count(table string) (n int) {
	s.t.Helper()
	db := s.open()
	defer db.Close()
	require.NoError(s.t, db.QueryRow("SELECT count(*) FROM "+table).Scan(&n))
	return n
}

// rows are those of a query, its names in double quotes, as text.
func (s *site) rows(query string) (list [][]string) {
	s.t.Helper()
	db := s.open()
	defer db.Close()
	if s.driver == "mysql" {
		query = strings.ReplaceAll(query, `"`, "`")
	}
	rows, err := db.Query(query)
	require.NoError(s.t, err, query)
	defer rows.Close()
	names, err := rows.Columns()
	require.NoError(s.t, err)
	for rows.Next() {
		values, places := make([]any, len(names)), make([]any, len(names))
		for i := range values {
			places[i] = &values[i]
		}
		require.NoError(s.t, rows.Scan(places...))
		row := make([]string, len(names))
		for i, v := range values {
			row[i] = textOf(v)
		}
		list = append(list, row)
	}
	require.NoError(s.t, rows.Err())
	return list
}

// textOf is a value as SQLite writes it.
func textOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "NULL"
	case []byte:
		return string(v)
	case time.Time:
		return v.Format("2006-01-02 15:04:05.000000")
	}
	return fmt.Sprint(v)
}

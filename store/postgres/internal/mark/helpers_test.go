package mark

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

// patience bounds what a test waits for; only a failure uses it up.
const patience = 60 * time.Second

// Names that have to be quoted, so that every statement is seen to do it.
const testSchema = `
CREATE TABLE "My topics" (name text COLLATE "C" PRIMARY KEY, high_water_mark bigint NOT NULL DEFAULT 0);
CREATE TABLE "My events" (position bigint GENERATED ALWAYS AS IDENTITY (CACHE 1), body text, PRIMARY KEY (position));
INSERT INTO "My topics" (name) VALUES ('events')`

// bench is a database with a topic in it.
type bench struct {
	t   testing.TB
	dsn string

	mu   sync.Mutex
	side *pgx.Conn // what the test itself asks and changes; a connection each would outlive its close on the server
}

func newBench(t testing.TB) *bench { return newBenchAt(t, dbtest.Postgres(t)) }

func newBenchAt(t testing.TB, dsn string) *bench {
	b := &bench{t: t, dsn: dsn}
	b.exec(testSchema)
	return b
}

func (b *bench) conn() *pgx.Conn {
	b.t.Helper()
	c, err := pgx.Connect(b.t.Context(), b.dsn)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// aside does something on the test's own connection. Tests kill servers, so a
// connection that turns out to be lost is replaced once.
func (b *bench) aside(do func(*pgx.Conn) error) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	fresh := b.side == nil
	if fresh {
		b.side = b.conn()
	}
	err := do(b.side)
	if err != nil && b.side.IsClosed() && !fresh {
		b.side = b.conn()
		err = do(b.side)
	}
	require.NoError(b.t, err)
}

func (b *bench) exec(text string, args ...any) {
	b.t.Helper()
	b.aside(func(c *pgx.Conn) error {
		_, err := c.Exec(b.t.Context(), text, args...)
		return err
	})
}

func (b *bench) value(text string, args ...any) (v int64) {
	b.t.Helper()
	b.aside(func(c *pgx.Conn) error { return c.QueryRow(b.t.Context(), text, args...).Scan(&v) })
	return v
}

func (b *bench) persisted() int64 {
	b.t.Helper()
	return b.value(`SELECT high_water_mark FROM "My topics"`)
}

func (b *bench) config() Config {
	b.t.Helper()
	return Config{Conn: parse(b.t, b.dsn), Topic: "events", Topics: `"My topics"`, Events: `"My events"`, Logf: b.t.Logf}
}

func parse(t testing.TB, dsn string) *pgx.ConnConfig {
	t.Helper()
	c, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	return c
}

// open starts a detector with its loop.
func (b *bench) open(change ...func(*Config)) *Detector {
	b.t.Helper()
	cfg := b.config()
	for _, f := range change {
		f(&cfg)
	}
	d, err := Open(b.t.Context(), cfg)
	require.NoError(b.t, err)
	b.t.Cleanup(d.Close)
	return d
}

// byHand connects a detector whose cycles the test calls itself.
func (b *bench) byHand(change ...func(*Config)) *Detector {
	b.t.Helper()
	cfg := b.config()
	for _, f := range change {
		f(&cfg)
	}
	d := newDetector(cfg)
	require.NoError(b.t, d.connect(b.t.Context()))
	b.t.Cleanup(d.session.close)
	return d
}

// until waits until a condition holds that nothing tells of.
func (b *bench) until(what string, ok func() bool) {
	b.t.Helper()
	require.Eventually(b.t, ok, patience, 5*time.Millisecond, what)
}

// appender is a session that appends step by step.
type appender struct {
	b    *bench
	conn *pgx.Conn
}

func (b *bench) appender() *appender { return &appender{b, b.conn()} }

func (a *appender) do(text string, args ...any) {
	a.b.t.Helper()
	_, err := a.conn.Exec(a.b.t.Context(), text, args...)
	require.NoError(a.b.t, err)
}

func (a *appender) value(text string, args ...any) (v int64) {
	a.b.t.Helper()
	require.NoError(a.b.t, a.conn.QueryRow(a.b.t.Context(), text, args...).Scan(&v))
	return v
}

func (a *appender) insert() int64 {
	a.b.t.Helper()
	return a.value(`INSERT INTO "My events" (body) VALUES ('x') RETURNING position`)
}

func (a *appender) draw() int64 {
	a.b.t.Helper()
	return a.value(`SELECT nextval('"My events_position_seq"')`)
}

func (a *appender) insertAt(position int64) {
	a.b.t.Helper()
	a.do(`INSERT INTO "My events" (position, body) OVERRIDING SYSTEM VALUE VALUES ($1, 'x')`, position)
}

// advisory takes the lock that the variant "advisory" looks at.
func (a *appender) advisory() { a.b.t.Helper(); a.do("SELECT pg_advisory_xact_lock_shared(4711)") }

func (a *appender) append() int64 {
	a.b.t.Helper()
	a.do("BEGIN")
	p := a.insert()
	a.do("COMMIT")
	return p
}

// looker is an algorithm that moves a mark: the detector itself, or one that the
// tests show to lose.
type looker interface {
	look(between func()) int64
}

type real struct {
	t testing.TB
	d *Detector
}

func (r real) look(between func()) int64 {
	r.t.Helper()
	r.d.between = between
	_, err := r.d.cycle(context.Background(), true, false)
	require.NoError(r.t, err)
	return r.d.State().Mark
}

// variant is another way of seeing who is open.
type variant struct {
	t        testing.TB
	conn     *pgx.Conn
	tracker  *tracker
	holders  string // gives virtualtransaction and pid
	byPID    bool
	setFirst bool
}

const (
	sequenceHolders = `SELECT virtualtransaction, coalesce(pid, 0) FROM pg_locks WHERE locktype = 'relation' AND granted
		AND relation = '"My events_position_seq"'::regclass AND mode = 'RowExclusiveLock'`
	tableHolders = `SELECT virtualtransaction, coalesce(pid, 0) FROM pg_locks WHERE locktype = 'relation' AND granted
		AND relation = '"My events"'::regclass AND mode = 'RowExclusiveLock'`
	advisoryHolders = `SELECT virtualtransaction, coalesce(pid, 0) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = 4711
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
)

func (b *bench) variant(holders string, change ...func(*variant)) *variant {
	v := &variant{t: b.t, conn: b.conn(), tracker: newTracker(0), holders: holders}
	for _, f := range change {
		f(v)
	}
	return v
}

func setFirst(v *variant) { v.setFirst = true }

func (v *variant) look(between func()) int64 {
	v.t.Helper()
	ctx := context.Background()
	var end int64
	var holders []string
	readEnd := func() {
		err := v.conn.QueryRow(ctx, `SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM "My events_position_seq"`).Scan(&end)
		require.NoError(v.t, err)
	}
	readSet := func() {
		rows, err := v.conn.Query(ctx, v.holders)
		require.NoError(v.t, err)
		holders, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
			var name string
			var pid int32
			err := row.Scan(&name, &pid)
			if v.byPID {
				name = fmt.Sprint("pid ", pid)
			}
			return name, err
		})
		require.NoError(v.t, err)
	}
	if v.setFirst {
		readEnd, readSet = readSet, readEnd
	}
	readEnd()
	if between != nil {
		between()
	}
	readSet()
	return v.tracker.observe(end, holders)
}

// follower reads what the marks let it, each time in a new snapshot, and knows
// in the end what it was never given.
type follower struct {
	b      *bench
	conn   *pgx.Conn
	by     looker
	cursor int64
	got    map[int64]bool
}

func (b *bench) follow(by looker) *follower {
	return &follower{b: b, conn: b.conn(), by: by, got: map[int64]bool{}}
}

// step looks once and reads.
func (f *follower) step(between ...func()) int64 {
	f.b.t.Helper()
	var act func()
	if len(between) > 0 {
		act = between[0]
	}
	f.read(f.by.look(act))
	return f.cursor
}

func (f *follower) read(mark int64) {
	f.b.t.Helper()
	rows, err := f.conn.Query(context.Background(), `SELECT position FROM "My events" WHERE position > $1 AND position <= $2`, f.cursor, mark)
	require.NoError(f.b.t, err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(f.b.t, err)
	for _, p := range list {
		f.got[p] = true
	}
	f.cursor = max(f.cursor, mark)
}

// lost gives the events that lie behind the reader and were never read.
func (f *follower) lost() (list []int64) {
	f.b.t.Helper()
	rows, err := f.b.conn().Query(context.Background(), `SELECT position FROM "My events" WHERE position <= $1 ORDER BY position`, f.cursor)
	require.NoError(f.b.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(f.b.t, err)
	return slices.DeleteFunc(all, func(p int64) bool { return f.got[p] })
}

// notes collects what a detector logs.
type notes struct {
	mu   sync.Mutex
	text []string
}

func (n *notes) logf(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text = append(n.text, fmt.Sprintf(format, args...))
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.text, "\n")
}

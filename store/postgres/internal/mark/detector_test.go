package mark

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/internal/dbtest"
)

func TestMarkIsCommittedBeforeAnybodyIsTold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	reader := b.conn()
	told := make(chan int64, 1000)
	d := b.open(func(c *Config) {
		c.OnMark = func(mark int64) {
			var stored int64
			if err := reader.QueryRow(context.Background(), `SELECT high_water_mark FROM "My topics"`).Scan(&stored); err != nil || stored < mark {
				t.Errorf("told of %d, stored is %d (%v)", mark, stored, err)
			}
			told <- mark
		}
	})
	a := b.appender()
	for range 20 {
		p := a.append()
		d.Wake()
		waitFor(t, told, p)
	}
	require.Equal(t, d.State().Mark, d.State().End)
	require.Zero(t, d.State().Losses, "ending a wait does not end the connection")
}

func waitFor(t testing.TB, told <-chan int64, mark int64) {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case m := <-told:
			if m >= mark {
				return
			}
		case <-timeout:
			t.Fatalf("nobody was told of mark %d", mark)
		}
	}
}

func TestWakeIsHeardAtOnceAndByTheOtherDetectors(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	// Their own looks are an hour apart: only signals are left.
	slow := func(c *Config) { c.Cycle, c.Idle = time.Hour, time.Hour }
	here, there := make(chan int64, 1000), make(chan int64, 1000)
	d := b.open(slow, func(c *Config) { c.OnMark = func(m int64) { here <- m } })
	other := b.open(slow, func(c *Config) { c.OnMark = func(m int64) { there <- m } })
	b.until("the other one has looked once", func() bool { return other.State().Cycles == 1 })
	a := b.appender()
	for range 10 {
		p := a.append()
		d.Wake()
		waitFor(t, here, p)
		waitFor(t, there, p)
	}
	require.EqualValues(t, 1, other.State().Cycles, "it did not look itself")
	require.GreaterOrEqual(t, other.State().Mark, d.State().Mark)
}

func TestForeignAppendsAreFoundWithoutASignal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	told := make(chan int64, 1000)
	b.open(func(c *Config) { c.OnMark = func(m int64) { told <- m } })
	p := b.appender().append()
	waitFor(t, told, p)
}

func TestOpenAppenderIsAwaitedAndTheWaitEndsWithIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	told := make(chan int64, 1000)
	d := b.open(func(c *Config) { c.OnMark = func(m int64) { told <- m } })
	a := b.appender()
	a.do("BEGIN")
	p := a.insert()
	last := b.appender().append()
	d.Wake()
	cycles := d.State().Cycles
	b.until("it has looked", func() bool { return d.State().Cycles > cycles+3 })
	require.Less(t, d.State().Mark, p)
	require.EqualValues(t, last-d.State().Mark, d.State().Lag())
	a.do("COMMIT")
	waitFor(t, told, last)
}

func TestLostConnectionDropsWhatWasKnown(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := &notes{}
	var mu sync.Mutex
	var events []string
	note := func(s string) { mu.Lock(); defer mu.Unlock(); events = append(events, s) }
	told := make(chan int64, 1000)
	d := b.open(func(c *Config) {
		c.Logf = log.logf
		c.OnLoss = func(error) { note("loss") }
		c.OnMark = func(m int64) { note("mark"); told <- m }
	})
	p := b.appender().append()
	waitFor(t, told, p)
	mu.Lock()
	events = nil
	mu.Unlock()
	require.EqualValues(t, 1, b.value(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND query LIKE '%high_water_mark%' AND pid <> pg_backend_pid()`))
	p = b.appender().append()
	waitFor(t, told, p)
	mu.Lock()
	require.Equal(t, "loss", events[0], "before anything is read again")
	mu.Unlock()
	require.EqualValues(t, 1, d.State().Losses)
	require.NoError(t, d.State().Err)
	require.Contains(t, log.String(), "stands still")
	require.Contains(t, log.String(), "moves on")
}

func TestEveryCutOfTheConnectionIsSurvived(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	proxy := dbtest.NewProxy(t, b.dsn)
	told := make(chan int64, 10000)
	var losses atomic.Int64
	d := b.open(func(c *Config) {
		c.Conn = parse(t, proxy.DSN)
		c.OnLoss = func(error) { losses.Add(1) }
		c.OnMark = func(m int64) { told <- m }
	})
	a := b.appender()
	for n := 1; n <= 40; n += 3 {
		for _, direction := range []dbtest.Direction{dbtest.ToServer, dbtest.ToClient} {
			proxy.CutAt(direction, n)
			p := a.append()
			d.Wake()
			waitFor(t, told, p)
			require.GreaterOrEqual(t, b.persisted(), p)
			proxy.Disarm()
		}
	}
	require.NotZero(t, losses.Load())
	require.EqualValues(t, losses.Load(), d.State().Losses)
}

func TestSilentServerIsTakenForLost(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	proxy := dbtest.NewProxy(t, b.dsn)
	lost, told := make(chan error, 10), make(chan int64, 1000)
	b.open(func(c *Config) {
		c.Conn, c.Timeout = parse(t, proxy.DSN), 500*time.Millisecond
		c.OnLoss = func(err error) { lost <- err }
		c.OnMark = func(m int64) { told <- m }
	})
	proxy.Hold()
	require.Error(t, <-lost)
	proxy.Release()
	waitFor(t, told, b.appender().append())
}

func TestStoredMarkThatWentBackIsALoss(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	lost, told := make(chan error, 10), make(chan int64, 1000)
	b.open(func(c *Config) {
		c.OnLoss = func(err error) { lost <- err }
		c.OnMark = func(m int64) { told <- m }
	})
	waitFor(t, told, b.appender().append())
	b.exec(`UPDATE "My topics" SET high_water_mark = 0`) // as a restored database has it
	require.ErrorIs(t, <-lost, errWentBack)
	waitFor(t, told, b.appender().append())
}

func TestStartRefusesASequenceThatIsNotAsItHasToBe(t *testing.T) {
	t.Parallel()
	for alter, want := range map[string]string{
		"CACHE 20":     "CACHE 1",
		"INCREMENT 2":  "INCREMENT 1",
		"CYCLE":        "NO CYCLE",
		"SET UNLOGGED": "SET LOGGED",
	} {
		t.Run(alter, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			if alter == "SET UNLOGGED" && b.value("SELECT current_setting('server_version_num')::bigint") < 150000 {
				t.Skip("sequences are always logged before PostgreSQL 15")
			}
			b.exec(`ALTER SEQUENCE "My events_position_seq" ` + alter)
			_, err := Open(t.Context(), b.config())
			require.ErrorContains(t, err, want)
			b.until("the session is gone", func() bool {
				return b.value(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`) == 0
			})
		})
	}
}

func TestSettingChangedLaterStopsTheMarkUntilItIsMended(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	told := make(chan int64, 1000)
	d := b.open(func(c *Config) { c.OnMark = func(m int64) { told <- m } })
	p := b.appender().append()
	waitFor(t, told, p)
	b.exec(`ALTER SEQUENCE "My events_position_seq" CACHE 20`)
	a := b.appender()
	a.append()
	last := a.append()
	b.until("it refuses", func() bool { return d.State().Err != nil })
	require.ErrorContains(t, d.State().Err, "CACHE 20")
	require.Equal(t, p, b.persisted())
	require.Zero(t, d.State().Losses)
	b.exec(`ALTER SEQUENCE "My events_position_seq" CACHE 1`)
	waitFor(t, told, last)
	b.until("the error is gone", func() bool { return d.State().Err == nil })
}

func TestSequenceSetBackIsAnErrorAndNotAWait(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	told := make(chan int64, 1000)
	d := b.open(func(c *Config) { c.OnMark = func(m int64) { told <- m } })
	a := b.appender()
	for range 5 {
		a.append()
	}
	p := a.append()
	waitFor(t, told, p)
	b.exec(`ALTER SEQUENCE "My events_position_seq" RESTART WITH 2`)
	b.until("it says so", func() bool { return d.State().Err != nil })
	require.ErrorContains(t, d.State().Err, fmt.Sprintf("behind the mark %d", p))
	require.Equal(t, p, b.persisted())
	b.exec(fmt.Sprintf(`SELECT setval('"My events_position_seq"', %d)`, p))
	waitFor(t, told, a.append())
	b.until("the error is gone", func() bool { return d.State().Err == nil })
}

func TestSequenceMadeAnewIsMovedPastWhatIsStored(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	log := &notes{}
	lost, told := make(chan error, 10), make(chan int64, 1000)
	b.open(func(c *Config) {
		c.Logf = log.logf
		c.OnLoss = func(err error) { lost <- err }
		c.OnMark = func(m int64) { told <- m }
	})
	a := b.appender()
	a.append()
	p := a.append()
	waitFor(t, told, p)
	b.exec(`BEGIN; ALTER TABLE "My events" ALTER position DROP IDENTITY; ALTER TABLE "My events" ALTER position ADD GENERATED ALWAYS AS IDENTITY; COMMIT`)
	require.Error(t, <-lost)
	b.until("it is moved", func() bool { return b.value(`SELECT last_value FROM "My events_position_seq"`) >= p })
	require.Contains(t, log.String(), "behind position")
	last := b.appender().append()
	require.Greater(t, last, p)
	waitFor(t, told, last)
}

func TestRenamedSequenceIsFoundAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	told := make(chan int64, 1000)
	b.open(func(c *Config) { c.OnMark = func(m int64) { told <- m } })
	waitFor(t, told, b.appender().append())
	b.exec(`ALTER SEQUENCE "My events_position_seq" RENAME TO "another one"`)
	waitFor(t, told, b.appender().append())
}

func TestNotificationsAreHintsAndNotBelieved(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	told := make(chan int64, 1000)
	d := b.open(func(c *Config) { c.OnMark = func(m int64) { told <- m } })
	waitFor(t, told, b.appender().append())
	b.exec("SELECT pg_notify($1, '999999')", d.session.channel)
	p := b.appender().append()
	waitFor(t, told, p)
	require.Equal(t, p, b.persisted())
	require.Zero(t, d.State().Losses)
	require.Equal(t, p, d.State().Mark)
}

func TestStartMovesASequenceThatIsBehind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ mark, want int64 }{"the events": {0, 100}, "the mark": {150, 150}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.appender().insertAt(100)
			b.exec(`UPDATE "My topics" SET high_water_mark = $1`, c.mark)
			log := &notes{}
			// Two hosts start at once.
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					d, err := Open(t.Context(), Config{Conn: b.config().Conn, Topic: "events", Topics: `"My topics"`, Events: `"My events"`, Logf: log.logf})
					if err != nil {
						t.Error(err)
						return
					}
					p := b.appender().append()
					if p <= c.want {
						t.Errorf("position %d was handed out, %d is taken", p, c.want)
					}
					d.Close()
				})
			}
			wg.Wait()
			require.Contains(t, log.String(), fmt.Sprintf("it goes on after %d", c.want))
		})
	}
}

func TestStartNeedsTheTopicAndItsSequence(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`DELETE FROM "My topics"`)
	_, err := Open(t.Context(), b.config())
	require.ErrorContains(t, err, "schema print")
	b.exec(`ALTER TABLE "My events" ALTER position DROP IDENTITY`)
	_, err = Open(t.Context(), b.config())
	require.ErrorContains(t, err, "no sequence")
	b.exec(`DROP TABLE "My events"`)
	_, err = Open(t.Context(), b.config())
	require.ErrorContains(t, err, "My events")
}

func TestServersThatAreNoPrimaryOfPostgreSQLAreRefused(t *testing.T) {
	ok := server{version: "PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu", number: 150018, pid: 7, expected: 7}
	require.NoError(t, ok.judge())
	for want, change := range map[string]func(*server){
		"only PostgreSQL itself": func(s *server) { s.version = "CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu)" },
		"says it is":             func(s *server) { s.version = "PostgreSQL 11.2-YB-2.20.1.0-b0 on x86_64-pc-linux-gnu" },
		"upgrade":                func(s *server) { s.version, s.number = "PostgreSQL 9.6.24", 90624 },
		"standby":                func(s *server) { s.recovery = true },
		"direct_dsn":             func(s *server) { s.pid = 8 },
	} {
		s := ok
		change(&s)
		require.ErrorContains(t, s.judge(), want)
	}
}

func TestSelfTestRefusesAServerThatHidesLocks(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, where := range []string{"locktype <> 'relation'", "pid = pg_backend_pid()", "mode = 'AccessShareLock'"} {
		b.exec(`SET allow_system_table_mods = on;
			CREATE OR REPLACE VIEW pg_catalog.pg_locks AS SELECT * FROM pg_lock_status() WHERE ` + where)
		_, err := Open(t.Context(), b.config())
		require.ErrorContains(t, err, "self-test", where)
	}
	b.exec(`SET allow_system_table_mods = on; CREATE OR REPLACE VIEW pg_catalog.pg_locks AS SELECT * FROM pg_lock_status()`)
	b.open()
}

func TestRoleNeedsNoRightsBeyondItsTables(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	role := fmt.Sprint("ph_role_", b.value("SELECT oid::bigint FROM pg_database WHERE datname = current_database()"))
	b.exec("CREATE ROLE " + role)
	t.Cleanup(func() {
		c, err := pgx.Connect(context.Background(), b.dsn)
		require.NoError(t, err)
		_, err = c.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		require.NoError(t, err)
		_ = c.Close(context.Background())
	})
	b.exec(`GRANT SELECT, INSERT, UPDATE ON "My topics", "My events" TO ` + role + `; GRANT ALL ON SEQUENCE "My events_position_seq" TO ` + role)
	b.appender().insertAt(50) // there is something to mend, too
	d := b.byHand(func(c *Config) { c.Conn.RuntimeParams["role"] = role })
	look := real{t, d}
	a := b.appender() // by another role
	a.do("BEGIN")
	p := a.insert()
	require.EqualValues(t, 51, p-1, "the self-test has drawn one")
	b.appender().append()
	require.Less(t, look.look(nil), p)
	d.since = d.since.Add(-2 * holderAfter)
	look.look(nil)
	require.EqualValues(t, a.conn.PgConn().PID(), d.State().Holder.PID)
	a.do("COMMIT")
	require.Equal(t, p+1, look.look(nil))
}

func TestHolderIsNamedWhenItHoldsForLong(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	d := b.byHand()
	look := real{t, d}
	look.look(nil)
	a := b.appender()
	a.do("SET application_name = 'importer'; BEGIN")
	a.insert()
	later := b.appender()
	later.do("BEGIN")
	later.insert()
	look.look(nil)
	require.Nil(t, d.State().Holder, "not yet")
	d.since = d.since.Add(-2 * holderAfter)
	look.look(nil)
	h := d.State().Holder
	require.NotNil(t, h)
	require.EqualValues(t, a.conn.PgConn().PID(), h.PID)
	require.Equal(t, "importer", h.Application)
	require.Equal(t, "idle in transaction", h.State)
	require.InDelta(t, time.Now().UnixMicro(), h.SinceUS, float64(patience.Microseconds()))
	require.EqualValues(t, 2, d.State().Lag())
	a.do("COMMIT")
	later.do("COMMIT")
	look.look(nil)
	require.Nil(t, d.State().Holder)
	require.Zero(t, d.State().Lag())
}

// counter counts statements as they are sent.
type counter struct{ n atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (c *counter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { c.n.Add(1) }
func (c *counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func TestIdleTopicCostsAFewStatementsASecond(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	b := newBench(t)
	n := &counter{}
	told := make(chan int64, 100)
	b.open(func(c *Config) { c.Conn.Tracer = n; c.OnMark = func(m int64) { told <- m } })
	waitFor(t, told, b.appender().append())
	time.Sleep(time.Second) // the rate of a second is what is asked
	before := n.n.Load()
	time.Sleep(4 * time.Second)
	require.LessOrEqual(t, n.n.Load()-before, int64(4*5))
}

func TestMarksAreStoredLessOftenWhileAnOldSnapshotKeepsTheirVersions(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	b := newBench(t)
	d := b.byHand()
	look := real{t, d}
	b.appender().append()
	look.look(nil)
	require.Less(t, d.slow, time.Millisecond)
	old, a := b.appender(), b.appender()
	old.do(`BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1`)
	for range 3000 {
		a.do(`UPDATE "My topics" SET high_water_mark = high_water_mark`)
	}
	look.look(nil)
	require.Eventually(t, func() bool {
		b.appender().append()
		d.counted = time.Time{}
		look.look(nil)
		return d.slow >= 5*time.Millisecond
	}, patience, 50*time.Millisecond)
}

func TestPaceFollowsTrafficCostAndTheTimeThatIsWaited(t *testing.T) {
	d := newDetector(Config{})
	now := time.Now()
	check := func(gap, delay time.Duration, before time.Duration, busy, failed bool) {
		t.Helper()
		g, l := d.pace(now, before, busy, failed)
		require.Equal(t, []time.Duration{gap, delay}, []time.Duration{g, l})
	}
	ms := time.Millisecond
	d.since, d.cost = now, ms/2
	check(2*ms, 10*ms, 250*ms, true, false)
	check(2*ms, 80*ms, 40*ms, false, false)
	check(2*ms, 250*ms, 200*ms, false, false)
	check(250*ms, 250*ms, 10*ms, false, true)
	d.since = now.Add(-400 * ms)
	check(2*ms, 50*ms, 10*ms, true, false)
	d.since = now.Add(-time.Hour)
	check(2*ms, 250*ms, 10*ms, true, false)
	d.heard, d.since = now.Add(-100*ms), now
	check(2*ms, 250*ms, 10*ms, true, false)
	d.slow = 50 * ms
	check(50*ms, 250*ms, 10*ms, true, false)
	d.slow, d.heard, d.cost = 0, time.Time{}, 30*ms
	check(60*ms, 60*ms, 10*ms, true, false)
}

// A look at a sequence beside one that draws without a pause may see it ahead of
// what was drawn; the end, as the detector takes it, never goes back.
func TestEndIsNeverAheadOfTheDraws(t *testing.T) {
	t.Parallel()
	dsn := dbtest.Postgres(t)
	connect := func() *pgx.Conn {
		c, err := pgx.Connect(t.Context(), dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		return c
	}
	reader, writer := connect(), connect()
	_, err := reader.Exec(t.Context(), `CREATE SEQUENCE s`)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := writer.Exec(t.Context(), `SELECT count(nextval('s')) FROM (SELECT generate_series(1, 400000)) x`)
		ended <- err
	}()
	_, err = reader.Exec(t.Context(), `DO $$ DECLARE now bigint; before bigint := 0; until timestamptz := clock_timestamp() + interval '2 s';
BEGIN
 WHILE clock_timestamp() < until LOOP
  SELECT `+End("s")+` INTO now;
  IF now < before THEN RAISE EXCEPTION 'the end went back from % to %', before, now; END IF;
  before := now;
 END LOOP;
END $$`)
	require.NoError(t, err)
	require.NoError(t, <-ended)
}

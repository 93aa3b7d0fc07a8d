package postgres

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/storetest"
)

func BenchmarkStore(b *testing.B) {
	dsn := dbtest.Postgres(b)
	storetest.Bench(b, func(t testing.TB, cfg storetest.Config) store.Store {
		s, err := Open(context.Background(), Options{DSN: inSchema(t, dsn, cfg.Database), TablePrefix: "ph_", MaxOpenConns: 20})
		require.NoError(t, err)
		return s
	})
}

// BenchmarkLeaseCheck tells what checking the leases costs of an apply, in percent.
func BenchmarkLeaseCheck(b *testing.B) {
	storetest.LeaseCheck(b, func(tb testing.TB, _ storetest.Config) store.Store {
		s, err := Open(context.Background(), Options{DSN: dbtest.Postgres(tb), TablePrefix: "ph_"})
		require.NoError(tb, err)
		return s
	}, func(ctx context.Context, st store.Store, batch *store.Batch) error {
		s := st.(*Store)
		f, err := s.applyFlight(batch)
		if err != nil {
			return err
		}
		defer f.free()
		list := slices.Delete(f.list, f.fence, f.fence+1)
		return s.engine.inFlight(ctx, "apply", func() (committing bool, err error) {
			return false, s.engine.with(ctx, func(c *conn) error {
				run, cancel := s.engine.steady(ctx)
				defer cancel()
				_, err := c.run(run, list...)
				return err
			})
		})
	})
}

// BenchmarkApplyBesideNative writes the same batches in turn through the store
// and by a pipeline written by hand with pgx, into tables of the same shape in one
// database, and tells how fast the store is in comparison.
func BenchmarkApplyBesideNative(b *testing.B) {
	for _, size := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("rows=%d", size), func(b *testing.B) {
			ctx := context.Background()
			dsn := dbtest.Postgres(b)
			s, err := Open(ctx, Options{DSN: dsn, TablePrefix: "ph_"})
			require.NoError(b, err)
			defer s.Close()
			conn, err := pgx.Connect(ctx, dsn)
			require.NoError(b, err)
			defer conn.Close(ctx)
			n := newNative(b, conn)
			a := newBeside(b, s)
			for at := 0; at < besideKeys; at += 5000 {
				batch, rows := a.batch(at, 5000, true)
				require.NoError(b, s.Apply(ctx, batch))
				n.apply(b, rows)
			}
			// As tables are some time after they were filled.
			_, err = conn.Exec(ctx, "VACUUM ANALYZE")
			require.NoError(b, err)
			var ours, native time.Duration
			for b.Loop() {
				batch, rows := a.batch(0, size, false)
				start := time.Now()
				if err := s.Apply(ctx, batch); err != nil {
					b.Fatal(err)
				}
				mid := time.Now()
				n.apply(b, rows)
				ours, native = ours+mid.Sub(start), native+time.Since(mid)
			}
			per := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(b.N*size) / 1000 }
			b.ReportMetric(per(ours), "µs/row")
			b.ReportMetric(per(native), "native-µs/row")
			b.ReportMetric(float64(native)/float64(ours), "x-native")
		})
	}
}

const (
	besideKeys   = 10_000
	besideLeases = 16
)

// besideRow is a row as a program would have it.
type besideRow struct {
	key, status, amount, state string
	n                          int64
	at                         time.Time
}

type beside struct {
	s      *Store
	c      store.Consumer
	leases []store.Lease
	rng    *rand.Rand
	at     int64
}

func newBeside(b *testing.B, s *Store) *beside {
	tables, err := readmodel.NewTables([]abi.Table{{Name: "loans", Columns: []abi.Column{
		{Name: "status", Kind: abi.ColumnText, Max: 64, Index: true}, {Name: "amount", Kind: abi.ColumnDecimal, Precision: 19, Scale: 2},
		{Name: "n", Kind: abi.ColumnInt}, {Name: "at", Kind: abi.ColumnTimestamp}, {Name: "state", Kind: abi.ColumnJSON}}}})
	require.NoError(b, err)
	d := store.Declaration{ID: store.ConsumerID{Type: "projection", Name: "loans"}, Topics: []string{store.EventsTopic}, Tables: tables}
	a := &beside{s: s, rng: rand.New(rand.NewPCG(1, 1))}
	ctx := context.Background()
	a.c, err = s.Subscribe(ctx, d)
	require.NoError(b, err)
	require.NoError(b, s.Join(ctx, store.Instance{ID: "me"}))
	var partitions []int
	for p := range besideLeases {
		partitions = append(partitions, p)
	}
	a.leases, _, err = s.Claim(ctx, "me", a.c.Build, partitions)
	require.NoError(b, err)
	return a
}

func (a *beside) batch(from, size int, inOrder bool) (*store.Batch, []besideRow) {
	picked := a.rng.Perm(besideKeys)[:size]
	if inOrder {
		for i := range picked {
			picked[i] = from + i
		}
	}
	rows := make([]besideRow, size)
	for i, k := range picked {
		n := a.rng.Int64N(1e6)
		rows[i] = besideRow{fmt.Sprintf("account-%05d", k), fmt.Sprint("STATUS_", n%6), fmt.Sprintf("%d.%02d", n, n%100),
			fmt.Sprintf(`{"amount":"%d.00","status":"STATUS_%d","offers":%d,"last_resource":"11200"}`, n, n%6, n%5), n, time.UnixMicro(1317422324546000 + n).UTC()}
	}
	slices.SortFunc(rows, func(x, y besideRow) int { return strings.Compare(x.key, y.key) })
	t := a.c.Tables[0]
	w := store.TableWrites{Table: t}
	for i := range rows {
		r := &rows[i]
		row, err := t.Table.Upsert([]abi.ColumnValue{{Column: 0, Value: abi.Text(r.status)}, {Column: 1, Value: abi.Decimal(r.amount)},
			{Column: 2, Value: abi.Int(r.n)}, {Column: 3, Value: abi.Timestamp(r.at.UnixMicro())}, {Column: 4, Value: abi.JSON([]byte(r.state))}})
		if err != nil {
			panic(err)
		}
		w.Writes = append(w.Writes, readmodel.Write{Key: readmodel.Key{Key: r.key}, Row: row, Position: a.at + 1, UpdatedUS: 1317422324546000})
	}
	b := &store.Batch{Consumer: a.c.ID, Build: a.c.Build, InstanceID: "me", Incarnation: a.s.Incarnation(), Leases: a.leases, Tables: []store.TableWrites{w}}
	for p := range besideLeases {
		b.Checkpoints = append(b.Checkpoints, store.CheckpointMove{Topic: store.EventsTopic, Partition: p, From: a.at, To: a.at + 1})
	}
	a.at++
	return b, rows
}

// native is the pipeline by hand.
type native struct {
	conn *pgx.Conn
	at   int64
}

func newNative(b *testing.B, conn *pgx.Conn) *native {
	_, err := conn.Exec(context.Background(), `
CREATE TABLE native_loans (key varchar(255) COLLATE "C" PRIMARY KEY, status varchar(64) COLLATE "C", amount numeric(19,2), n bigint, at timestamp(6), state json,
 ph_position bigint, ph_updated_us bigint, ph_epoch bigint);
CREATE INDEX native_loans_status ON native_loans (status, key);
CREATE TABLE native_leases (partition integer PRIMARY KEY, instance text, generation bigint);
CREATE TABLE native_checkpoints (partition integer PRIMARY KEY, position bigint) WITH (fillfactor = 50);
INSERT INTO native_leases SELECT p, 'me', 1 FROM generate_series(0, 15) p;
INSERT INTO native_checkpoints SELECT p, 0 FROM generate_series(0, 15) p`)
	require.NoError(b, err)
	return &native{conn: conn}
}

func (n *native) apply(b *testing.B, rows []besideRow) {
	size := len(rows)
	keys, status, amount, state := make([]string, size), make([]string, size), make([]string, size), make([]string, size)
	count, position, updated, at := make([]int64, size), make([]int64, size), make([]int64, size), make([]time.Time, size)
	for i := range rows {
		r := &rows[i]
		keys[i], status[i], amount[i], state[i] = r.key, r.status, r.amount, r.state
		count[i], position[i], updated[i], at[i] = r.n, n.at+1, 1317422324546000, r.at
	}
	batch := &pgx.Batch{}
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	batch.Queue(`SELECT 1 / (count(*) = 16)::int FROM (SELECT 1 FROM native_leases WHERE instance = 'me' AND generation = 1 FOR UPDATE) s`)
	batch.Queue(`INSERT INTO native_loans SELECT u.key, u.status, u.amount::numeric, u.n, u.at, u.state::json, u.position, u.updated, 0
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::timestamp[], $6::text[], $7::bigint[], $8::bigint[]) u (key, status, amount, n, at, state, position, updated)
ON CONFLICT (key) DO UPDATE SET status = excluded.status, amount = excluded.amount, n = excluded.n, at = excluded.at, state = excluded.state,
 ph_position = excluded.ph_position, ph_updated_us = excluded.ph_updated_us, ph_epoch = excluded.ph_epoch`,
		keys, status, amount, count, at, state, position, updated)
	batch.Queue(`WITH m AS (UPDATE native_checkpoints SET position = $2 WHERE position = $1 RETURNING 1) SELECT 1 / (count(*) = 16)::int FROM m`, n.at, n.at+1)
	batch.Queue("COMMIT")
	n.at++
	if err := n.conn.SendBatch(context.Background(), batch).Close(); err != nil {
		b.Fatal(err)
	}
}

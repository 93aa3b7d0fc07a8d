package postgres

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/internal/dbtest"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// A connection keeps its statements, and the server their plans, made while the
// tables were tiny and known to be. When the tables have grown meanwhile, every
// row is still found by an index: nothing is read from end to end.
func TestPlansOfTinyTablesServeLargeOnes(t *testing.T) {
	t.Parallel()
	const size = 30_000
	dsn := dbtest.Postgres(t)
	direct := rawConn(t, dsn)
	for name, change := range map[string]func(*Options){
		"kept":   func(*Options) {},
		"pooled": func(o *Options) { o.DirectDSN = with(t, dsn, "", map[string]string{"application_name": "direct"}) },
	} {
		t.Run(name, func(t *testing.T) {
			prefix := name + "_"
			s := host(t, dsn, change, func(o *Options) { o.TablePrefix, o.ReadModelPrefix, o.MaxOpenConns = prefix, "m"+prefix, 2 })
			tables, err := readmodel.NewTables([]abi.Table{
				{Name: "accounts", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}},
				{Name: "lines", Parent: "accounts", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}},
				{Name: "users", Columns: []abi.Column{{Name: "email", Kind: abi.ColumnText, Max: 50, Unique: true}}},
			})
			require.NoError(t, err)
			c, err := s.Subscribe(t.Context(), store.Declaration{ID: store.ConsumerID{Type: "projection", Name: "p"}, Topics: []string{store.EventsTopic}, Tables: tables})
			require.NoError(t, err)
			require.NoError(t, s.Join(t.Context(), store.Instance{ID: "i"}))
			leases, _, err := s.Claim(t.Context(), "i", c.Build, []int{1, 2})
			require.NoError(t, err)

			at := int64(0)
			// work does everything a host does with n rows from one on.
			work := func(from, n int) {
				t.Helper()
				b := &store.Batch{Consumer: c.ID, Build: c.Build, InstanceID: "i", Incarnation: s.Incarnation(), Leases: leases,
					Checkpoints: []store.CheckpointMove{{Topic: store.EventsTopic, Partition: 1, From: at, To: at + 1}, {Topic: store.EventsTopic, Partition: 2, From: at, To: at + 1}}}
				at++
				writes := make([][]readmodel.Write, len(tables))
				var keys [3][]store.RowKey
				for i := from; i < from+n; i++ {
					for k, table := range tables {
						w := readmodel.Write{Key: readmodel.Key{Key: fmt.Sprintf("k%06d", i)}}
						if table.Parent != nil {
							w.Child = "c"
						}
						keys[k] = append(keys[k], w.Key)
						if i%10 != 9 { // the others are deleted
							v := abi.Int(at)
							if table.Unique {
								v = abi.Text(fmt.Sprint(at, "@", i))
							}
							w.Row, err = table.Upsert([]abi.ColumnValue{{Column: 0, Value: v}})
							require.NoError(t, err)
						}
						writes[k] = append(writes[k], w)
					}
				}
				for k := range tables {
					w := store.TableWrites{Table: c.Tables[k], Writes: writes[k]}
					if tables[k].Parent != nil {
						w.DeleteChildrenOf = []string{fmt.Sprintf("k%06d", from)}
					}
					b.Tables = append(b.Tables, w)
				}
				require.NoError(t, s.Apply(t.Context(), b))
				for k := range tables {
					_, err := s.LoadRows(t.Context(), c.Tables[k], keys[k])
					require.NoError(t, err)
				}
				commit := oneEvent()
				commit.Streams = append(commit.Streams, oneEvent().Streams...)
				_, err := s.Commit(t.Context(), commit)
				require.NoError(t, err)
				commit.Streams[0].ExpectedVersion, commit.Streams[1].ExpectedVersion = 1, store.AnyVersion
				_, err = s.Commit(t.Context(), commit)
				require.NoError(t, err)
				_, err = s.Commit(t.Context(), commit)
				require.Error(t, err)
				for _, partitions := range [][]int{nil, {7}, {7, 9}} {
					_, err := s.ReadPage(t.Context(), store.PageQuery{Topic: store.EventsTopic, Limit: 100, MaxBytes: 1 << 20, Partitions: partitions})
					require.NoError(t, err)
				}
				_, err = s.Import(t.Context(), []store.ImportEvent{{AggregateType: "x", AggregateID: "y", NewEvent: given(int(at))}})
				require.NoError(t, err)
			}
			for i := range 8 { // as often as it takes the server to settle on a plan
				work(i*3, 3)
			}
			_, err = direct.Exec(t.Context(), "VACUUM ANALYZE")
			require.NoError(t, err)
			for i := range 8 {
				work(i*3, 3)
			}
			for _, text := range []string{
				`INSERT INTO m` + prefix + `accounts__b1 (key, n) SELECT 'k' || lpad(i::text, 6, '0'), i FROM generate_series(100, $1::bigint) i`,
				`INSERT INTO m` + prefix + `lines__b1 (key, child, n) SELECT 'k' || lpad(i::text, 6, '0'), 'c', i FROM generate_series(100, $1::bigint) i`,
				`INSERT INTO m` + prefix + `users__b1 (key, email) SELECT 'k' || lpad(i::text, 6, '0'), i::text FROM generate_series(100, $1::bigint) i`,
				`INSERT INTO ` + prefix + `events (sequence, occurred_us, id, partition_key, revision, codec_version, aggregate_type, aggregate_id, type, codec, data)
					SELECT 1, 0, gen_random_uuid(), i % 256, 0, 1, 'bulk', i::text, 'made', 'json', '{}' FROM generate_series(1, $1::bigint) i`,
			} {
				_, err := direct.Exec(t.Context(), text, size)
				require.NoError(t, err)
			}
			read := func() map[string]int64 {
				t.Helper()
				rows, err := direct.Query(t.Context(), `SELECT relname::text, seq_tup_read FROM pg_stat_user_tables WHERE relname LIKE $1 || 'events' OR relname LIKE 'm' || $1 || '%'`, prefix)
				require.NoError(t, err)
				out := map[string]int64{}
				for rows.Next() {
					var name string
					var n int64
					require.NoError(t, rows.Scan(&name, &n))
					out[name] = n
				}
				require.NoError(t, rows.Err())
				return out
			}
			for i := range 3 {
				work(1000+i*500, 500)
			}
			require.NoError(t, s.Close()) // sessions report when they end
			require.Len(t, read(), 4)
			for table, n := range read() {
				require.Less(t, n, int64(size/2), "rows of %s read without an index", table)
			}
		})
	}
}

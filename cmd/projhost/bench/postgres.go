package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/drivers"
)

// postgresEngine measures on a PostgreSQL server. Every run has a copy of the
// template, in files of its own.
type postgresEngine struct {
	server *pgx.Conn // to the database that the user named
	dsn    string
	name   string // of the template
	made   int
}

func newPostgres(ctx context.Context, dsn string) (engine, error) {
	server, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	d := &postgresEngine{server: server, dsn: dsn, name: databaseName()}
	if err := d.admin(ctx, "CREATE DATABASE "+d.name+" TEMPLATE template0 ENCODING 'UTF8'"); err != nil {
		return nil, errors.Join(err, server.Close(ctx))
	}
	return d, nil
}

func (d *postgresEngine) admin(ctx context.Context, text string) error {
	_, err := d.server.Exec(ctx, text)
	return err
}

// named is the user's connection string, to another database.
func (d *postgresEngine) named(database string) string {
	if u, err := url.Parse(d.dsn); err == nil && strings.HasPrefix(u.Scheme, "postgres") {
		u.Path = "/" + database
		return u.String()
	}
	return d.dsn + " dbname=" + database
}

func (d *postgresEngine) template() string { return d.named(d.name) }

// loaded leaves the template as a database is some time after an import: with
// statistics, and nothing to be written on behalf of readers.
func (d *postgresEngine) loaded(ctx context.Context) error {
	s, err := d.connect(ctx, d.template())
	if err != nil {
		return err
	}
	return errors.Join(s.exec(ctx, "VACUUM ANALYZE"), s.close())
}

func (d *postgresEngine) with(ctx context.Context, f func(dsn string) error) (err error) {
	create := " TEMPLATE " + d.name
	if d.server.PgConn().ParameterStatus("server_version") >= "15" {
		create += " STRATEGY FILE_COPY" // on the disk when it is there; the log would still have it to write
	}
	return d.create(ctx, create, f)
}

func (d *postgresEngine) empty(ctx context.Context, f func(dsn string) error) error {
	return d.create(ctx, " TEMPLATE template0 ENCODING 'UTF8'", f)
}

// create makes a database, calls f with its name and removes it.
func (d *postgresEngine) create(ctx context.Context, how string, f func(dsn string) error) (err error) {
	d.made++
	name := fmt.Sprintf("%s_%d", d.name, d.made)
	if err := d.admin(ctx, "CREATE DATABASE "+name+how); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.drop(name)) }()
	return f(d.named(name))
}

func (d *postgresEngine) drop(name string) error {
	return d.admin(context.Background(), "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
}

func (d *postgresEngine) close() error {
	return errors.Join(d.drop(d.name), d.server.Close(context.Background()))
}

func (d *postgresEngine) open(ctx context.Context, dsn string) (store.Store, error) {
	return drivers.Open(ctx, "postgres", store.Options{DSN: dsn, TablePrefix: tablePrefix})
}

func (d *postgresEngine) sessions(ctx context.Context, dsn string) ([]int, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	rows, err := d.server.Query(ctx, "SELECT pid FROM pg_stat_activity WHERE datname = $1", cfg.Database)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}

func (d *postgresEngine) address() (network, address string) {
	c := d.server.Config()
	return pgconn.NetworkAddress(c.Host, c.Port)
}

func (d *postgresEngine) through(dsn, address string) string {
	host, port, _ := net.SplitHostPort(address)
	if u, err := url.Parse(dsn); err == nil && strings.HasPrefix(u.Scheme, "postgres") {
		u.Host = address
		q := u.Query()
		q.Del("host")
		q.Del("port")
		q.Set("sslmode", "disable")
		u.RawQuery = q.Encode()
		return u.String()
	}
	return dsn + " host=" + host + " port=" + port + " sslmode=disable"
}

func (d *postgresEngine) connect(ctx context.Context, dsn string) (session, error) {
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	return &postgresSession{c: c, kinds: map[string]string{}}, nil
}

const postgresSchema = `
CREATE TABLE native_accounts (
	key VARCHAR(255) COLLATE "C" NOT NULL,
	owner VARCHAR(100) COLLATE "C" NOT NULL, status VARCHAR(10) COLLATE "C" NOT NULL, balance NUMERIC(19,2) NOT NULL,
	events BIGINT NOT NULL, updated_at TIMESTAMP(6) NOT NULL,
	ph_position BIGINT, ph_updated_us BIGINT, ph_epoch BIGINT,
	PRIMARY KEY (key)
);
CREATE INDEX native_accounts_owner ON native_accounts (owner, key);
CREATE INDEX native_accounts_status ON native_accounts (status, key);
CREATE TABLE native_checkpoints (partition INTEGER PRIMARY KEY, position BIGINT NOT NULL, epoch BIGINT NOT NULL);
CREATE TABLE native_leases (partition INTEGER PRIMARY KEY, instance TEXT NOT NULL, generation BIGINT NOT NULL);
INSERT INTO native_checkpoints SELECT i, 0, 0 FROM generate_series(0, 255) i;
INSERT INTO native_leases SELECT i, 'me', 1 FROM generate_series(0, 255) i;`

const (
	postgresPage = `SELECT position, aggregate_id, type, occurred_us, data FROM ph_events WHERE position > $1 ORDER BY position LIMIT $2`
	// The guards fail as errors, so that COMMIT can be in the same flight.
	postgresFence = `SELECT 1 / (count(*) = $1)::int FROM (SELECT 1 FROM native_leases WHERE instance = 'me' AND generation = 1 FOR SHARE) s`
	postgresWrite = `INSERT INTO native_accounts SELECT k, o, s, b::numeric, e, t, p, u, 0
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::timestamp[], $7::bigint[], $8::bigint[]) x (k, o, s, b, e, t, p, u)
		ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, status = excluded.status, balance = excluded.balance, events = excluded.events,
		updated_at = excluded.updated_at, ph_position = excluded.ph_position, ph_updated_us = excluded.ph_updated_us, ph_epoch = excluded.ph_epoch`
	postgresMove = `WITH moved AS (
			UPDATE native_checkpoints c SET position = m.t FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) m (p, f, t)
			WHERE c.partition = m.p AND c.position = m.f AND c.epoch = 0 RETURNING 1)
		SELECT 1 / (count(*) = $4)::int FROM moved`

	postgresSelect = `SELECT owner, status, balance::text, events FROM native_accounts WHERE key = $1`
	postgresUpsert = `INSERT INTO native_accounts VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 0)
		ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, status = excluded.status, balance = excluded.balance, events = excluded.events,
		updated_at = excluded.updated_at, ph_position = excluded.ph_position, ph_updated_us = excluded.ph_updated_us, ph_epoch = excluded.ph_epoch`
	postgresMoveOne = `UPDATE native_checkpoints SET position = $1 WHERE partition = $2 AND position = $3 AND epoch = 0`

	postgresRows = `SELECT ARRAY[key, owner, status, balance::text, events::text, to_char(updated_at, 'YYYY-MM-DD HH24:MI:SS.US'),
		ph_position::text, ph_updated_us::text, ph_epoch::text] FROM %s ORDER BY key`
)

// postgresSession sends a batch in one flight.
type postgresSession struct {
	c     *pgx.Conn
	kinds map[string]string

	keys, owners, statuses, balances []string
	events, positions, updatedUS     []int64
	updated                          []time.Time
}

func (s *postgresSession) close() error { return s.c.Close(context.Background()) }

func (s *postgresSession) exec(ctx context.Context, text string) error {
	_, err := s.c.Exec(ctx, text, pgx.QueryExecModeSimpleProtocol)
	return err
}

func (s *postgresSession) create(ctx context.Context) error { return s.exec(ctx, postgresSchema) }

// page takes the values as they are on the wire.
func (s *postgresSession) page(ctx context.Context, after int64, limit int) ([]nativeEvent, error) {
	rows, err := s.c.Query(ctx, postgresPage, after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	page := make([]nativeEvent, 0, limit)
	var block []byte
	for rows.Next() {
		v := rows.RawValues()
		data := v[4]
		if cap(block)-len(block) < len(data) {
			block = make([]byte, 0, max(64<<10, len(data)))
		}
		start := len(block)
		block = append(block, data...)
		kind, ok := s.kinds[string(v[2])]
		if !ok {
			kind = string(v[2])
			s.kinds[kind] = kind
		}
		account := string(v[1])
		page = append(page, nativeEvent{
			int64(binary.BigEndian.Uint64(v[0])), account, kind, int64(binary.BigEndian.Uint64(v[3])), block[start:], partition.Of(account, partitions),
		})
	}
	return page, rows.Err()
}

func (s *postgresSession) apply(ctx context.Context, rows []nativeAccount, moves []move) error {
	s.keys, s.owners, s.statuses, s.balances = s.keys[:0], s.owners[:0], s.statuses[:0], s.balances[:0]
	s.events, s.positions, s.updatedUS, s.updated = s.events[:0], s.positions[:0], s.updatedUS[:0], s.updated[:0]
	for i := range rows {
		a := &rows[i]
		s.keys, s.owners, s.statuses = append(s.keys, a.key), append(s.owners, a.owner), append(s.statuses, a.status)
		s.balances = append(s.balances, formatCents(a.cents))
		s.events, s.positions, s.updatedUS = append(s.events, a.events), append(s.positions, a.position), append(s.updatedUS, a.updatedUS)
		s.updated = append(s.updated, time.UnixMicro(a.updatedUS).UTC())
	}
	at, from, to := make([]int32, len(moves)), make([]int64, len(moves)), make([]int64, len(moves))
	for i, m := range moves {
		at[i], from[i], to[i] = int32(m.partition), m.from, m.to
	}
	var flight pgx.Batch
	flight.Queue("BEGIN")
	flight.Queue(postgresFence, partitions)
	flight.Queue(postgresWrite, s.keys, s.owners, s.statuses, s.balances, s.events, s.updated, s.positions, s.updatedUS)
	flight.Queue(postgresMove, at, from, to, len(moves))
	flight.Queue("COMMIT")
	if err := s.c.SendBatch(ctx, &flight).Close(); err != nil {
		return errors.Join(err, s.exec(ctx, "ROLLBACK"))
	}
	return nil
}

func (s *postgresSession) applyOne(ctx context.Context, e *nativeEvent, from int64) error {
	tx, err := s.c.Begin(ctx)
	if err != nil {
		return err
	}
	if err := s.one(ctx, tx, e, from); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	return tx.Commit(ctx)
}

func (s *postgresSession) one(ctx context.Context, tx pgx.Tx, e *nativeEvent, from int64) error {
	if _, err := tx.Exec(ctx, postgresFence, partitions); err != nil {
		return err
	}
	a := nativeAccount{key: e.account, partition: e.partition}
	var balance string
	switch err := tx.QueryRow(ctx, postgresSelect, e.account).Scan(&a.owner, &a.status, &balance, &a.events); {
	case errors.Is(err, pgx.ErrNoRows):
	case err != nil:
		return err
	default:
		if a.cents, err = parseSigned(balance); err != nil {
			return err
		}
	}
	if err := a.fold(e); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, postgresUpsert, a.key, a.owner, a.status, formatCents(a.cents), a.events, time.UnixMicro(a.updatedUS).UTC(), a.position, a.updatedUS)
	if err != nil {
		return err
	}
	moved, err := tx.Exec(ctx, postgresMoveOne, e.position, e.partition, from)
	if err == nil && moved.RowsAffected() != 1 {
		err = (&move{e.partition, from, e.position}).lost()
	}
	return err
}

func (s *postgresSession) rows(ctx context.Context, table string, each func([]string)) error {
	return s.texts(ctx, fmt.Sprintf(postgresRows, table), nil, each)
}

// texts calls each with every row's one array.
func (s *postgresSession) texts(ctx context.Context, query string, args []any, each func([]string)) error {
	rows, err := s.c.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	var values []string
	_, err = pgx.ForEachRow(rows, []any{&values}, func() error {
		each(values)
		return nil
	})
	return err
}

func (s *postgresSession) shape(ctx context.Context, table string) (string, error) {
	var b strings.Builder
	for _, query := range []string{
		`SELECT ARRAY[a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text, coalesce(c.collname, '')]::text[]
			FROM pg_attribute a LEFT JOIN pg_collation c ON c.oid = a.attcollation AND c.collname <> 'default'
			WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`,
		`SELECT ARRAY[i.indisunique::text, i.indisprimary::text, (i.indpred IS NOT NULL)::text,
				(SELECT string_agg(pg_get_indexdef(i.indexrelid, n, true), ', ' ORDER BY n) FROM generate_series(1, i.indnatts) n)] AS columns
			FROM pg_index i WHERE i.indrelid = $1::text::regclass ORDER BY columns`,
	} {
		if err := s.texts(ctx, query, []any{table}, func(row []string) { fmt.Fprintln(&b, row) }); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

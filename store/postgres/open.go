package postgres

import (
	"cmp"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
	"github.com/projhost/projhost/store/postgres/internal/mark"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// transactionTimeout is the first version that has a limit of that name. A flight
// may wait for several locks, each within its own limit.
const (
	transactionTimeout = 170000
	flightMax          = 4 // times that limit
)

// serverMin is PostgreSQL 14.
const serverMin = 140000

// extraConns are opened beside those of the pool: the detector's, one that has a
// lock while the schema is looked after, and that of the heartbeats.
const extraConns = 3

// Open opens the database, creates or checks its schema, and starts the detector
// of the high-water mark. Its errors say what to mend and hold no password.
func Open(ctx context.Context, opt Options) (_ *Store, err error) {
	opt.Timeout = cmp.Or(opt.Timeout, 15*time.Second)
	if err := rules.CheckPrefix(opt.TablePrefix); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	e, where, err := openEngine(ctx, &opt)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s := &Store{opt: opt, engine: e}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open %s: %w", where, err), s.Close())
		}
	}()
	return s, s.start(ctx)
}

func (s *Store) start(ctx context.Context) error {
	version, err := s.examineServer(ctx)
	if err != nil {
		return err
	}
	s.Core, err = sqlstore.New(s.engine, dialect(), s.opt)
	if err != nil {
		return err
	}
	s.engine.raise, s.engine.beats.raise = s.Raise, s.Raise
	s.Beats = s.engine.beats
	if err := s.Initialize(ctx, version); err != nil {
		return err
	}
	events := tables(s.opt.TablePrefix, "{{events}}")
	if s.sequence, err = s.ask(ctx, `SELECT coalesce(pg_get_serial_sequence($1, 'position'), '')`, events); err != nil {
		return err
	}
	if s.sequence == "" {
		return fmt.Errorf("column position of table %s draws from no sequence: compare with the output of `projhost schema print --driver postgres`", events)
	}
	s.q = newQueries(s.opt.TablePrefix, s.sequence)
	s.detector, err = mark.Open(ctx, mark.Config{
		Conn: s.engine.direct, Topic: store.EventsTopic, Topics: tables(s.opt.TablePrefix, "{{topics}}"), Events: events,
		Timeout: s.opt.Timeout,
		OnLoss:  func(error) { s.Raise() },
		OnMark:  func(int64) { s.wakes.Wake(store.EventsTopic) },
		Explain: explain,
		Logf:    s.opt.Logf,
	})
	return err
}

// openEngine makes the pool. It connects to nothing yet.
func openEngine(ctx context.Context, opt *Options) (e *engine, where string, err error) {
	pooled := opt.DirectDSN != "" && opt.DirectDSN != opt.DSN
	cfg, err := pgxpool.ParseConfig(opt.DSN)
	if err != nil || opt.DSN == "" {
		return nil, "", badDSN("dsn")
	}
	direct, err := pgx.ParseConfig(cmp.Or(opt.DirectDSN, opt.DSN))
	if err != nil {
		return nil, "", badDSN("direct_dsn")
	}
	// The name that all sessions of this process have, and no others: see the
	// table of instances.
	token := rand.Text()[:16]
	for _, c := range []*pgx.ConnConfig{cfg.ConnConfig, direct} {
		name := cmp.Or(c.RuntimeParams["application_name"], "projhost")
		c.RuntimeParams["application_name"] = name[:min(len(name), nameMax-1-len(token))] + " " + token
	}
	e = &engine{timeout: opt.Timeout, raise: func() {}, closed: make(chan struct{}), direct: direct}
	mode := cfg.ConnConfig.DefaultQueryExecMode
	if pooled && !strings.Contains(opt.DSN, "default_query_exec_mode") {
		// A pooler in transaction mode gives each transaction another session:
		// statements kept by name would be missing there.
		mode = pgx.QueryExecModeExec
	}
	e.named = mode == pgx.QueryExecModeCacheStatement
	limit := strconv.FormatInt(opt.Timeout.Milliseconds(), 10)
	if pooled {
		e.local = "SELECT set_config('lock_timeout', '" + limit + "', true), set_config('idle_in_transaction_session_timeout', '" + limit + "', true), set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)"
		prepareConn(&cfg.ConnConfig.Config, opt.Timeout, nil)
	} else {
		prepareConn(&cfg.ConnConfig.Config, opt.Timeout, map[string]string{
			"lock_timeout": limit, "idle_in_transaction_session_timeout": limit, "TimeZone": "UTC",
			// The server's own view of a client that is gone.
			"tcp_user_timeout": limit,
			// A kept statement keeps its plan, also when the table has grown to
			// a million rows since: then a plan that scans it is ruin. All of ours
			// find their rows by an index.
			"enable_seqscan": "off", "jit": "off",
			// Write transactions name theirs; this is for DDL, which is by itself.
			"default_transaction_isolation": "read committed", "default_transaction_read_only": "off",
		})
	}
	prepareConn(&direct.Config, opt.Timeout, nil)
	cfg.MaxConns = int32(opt.MaxOpenConns)
	if opt.MaxOpenConns <= 0 {
		cfg.MaxConns = int32(max(8, min(64, 4+2*runtime.NumCPU())))
	}
	cfg.MinConns = 0
	cfg.AfterConnect = e.meet
	if e.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, "", err
	}
	one := cfg.Copy()
	one.MaxConns = 1
	e.beats = &engine{timeout: e.timeout, raise: e.raise, closed: make(chan struct{}), direct: direct, named: e.named, local: e.local}
	if e.beats.pool, err = pgxpool.NewWithConfig(ctx, one); err != nil {
		e.pool.Close()
		return nil, "", err
	}
	return e, fmt.Sprintf("database %q at %s", cfg.ConnConfig.Database, cfg.ConnConfig.Host), nil
}

// nameMax is how long an application_name may be; the rest is cut off.
const nameMax = 63

// badDSN says no word of the string: whatever it was meant to be, it holds a
// password.
func badDSN(key string) error {
	return fmt.Errorf("[store] %s is not a connection string of PostgreSQL: want postgres://USER:PASSWORD@HOST:5432/DATABASE?sslmode=require or host=HOST user=USER … (the port is a number; sslmode is disable, allow, prefer, require, verify-ca or verify-full; special characters of a password in a URL are written %%XX)", key)
}

// prepareConn adds to a configuration what every connection has, unless the
// connection string says otherwise.
func prepareConn(c *pgconn.Config, timeout time.Duration, settings map[string]string) {
	for k, v := range settings {
		if _, ok := c.RuntimeParams[k]; !ok {
			c.RuntimeParams[k] = v
		}
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = timeout
	}
	dialer := &net.Dialer{Timeout: c.ConnectTimeout, KeepAlive: timeout, Control: userTimeout(timeout)}
	c.DialFunc = dialer.DialContext
}

// ask runs a query of one text.
func (s *Store) ask(ctx context.Context, sql string, args ...any) (answer string, err error) {
	err = s.engine.Read(ctx, "ask the database", func(c sqlstore.Conn) error {
		rows, err := c.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		if rows.Next() {
			if err := rows.Scan(&answer); err != nil {
				_ = rows.Close()
				return err
			}
		}
		return rows.Close()
	})
	return answer, err
}

// server is what a start has to know of it.
type server struct {
	version, schema, encoding, started string
	number, connections, reserved      int64
	recovery                           bool
	syncCommit, fsync, fullPages       string
}

const serverSQL = `SELECT version(), current_setting('server_version_num')::bigint, current_setting('server_encoding'), pg_is_in_recovery(),
 coalesce(current_schema(), ''), current_setting('max_connections')::bigint,
 current_setting('superuser_reserved_connections')::bigint + coalesce(current_setting('reserved_connections', true)::bigint, 0),
 current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes'),
 (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())::text || ' ' || extract(epoch FROM pg_postmaster_start_time())::text`

func readServer(ctx context.Context, c sqlstore.Conn) (v server, err error) {
	rows, err := c.Query(ctx, "SELECT version()")
	if err != nil {
		return v, err
	}
	for rows.Next() {
		if err := rows.Scan(&v.version); err != nil {
			_ = rows.Close()
			return v, err
		}
	}
	if err := rows.Close(); err != nil {
		return v, err
	}
	// The version is data: engines that only speak the protocol name themselves
	// there, and lack what the mark is read from.
	if !strings.HasPrefix(v.version, "PostgreSQL ") || strings.Contains(v.version, "-YB-") || strings.Contains(v.version, "Redshift") {
		return v, fmt.Errorf("the server says it is %q: this driver needs PostgreSQL itself, other engines that speak its protocol lack the locks that the high-water mark is read from", v.version)
	}
	rows, err = c.Query(ctx, serverSQL)
	if err != nil {
		return v, err
	}
	for rows.Next() {
		err = rows.Scan(&v.version, &v.number, &v.encoding, &v.recovery, &v.schema, &v.connections, &v.reserved, &v.syncCommit, &v.fsync, &v.fullPages, &v.started)
	}
	if e := rows.Close(); err == nil {
		err = e
	}
	v.version, _, _ = strings.Cut(strings.TrimPrefix(v.version, "PostgreSQL "), " ")
	return v, err
}

// examineServer refuses what promises cannot be kept on.
func (s *Store) examineServer(ctx context.Context) (version string, err error) {
	v, err := s.server(ctx)
	if err != nil {
		return "", err
	}
	switch free, want := v.connections-v.reserved, int64(s.engine.pool.Config().MaxConns)+extraConns; {
	case v.number < serverMin:
		return "", fmt.Errorf("the server is PostgreSQL %s: projhost needs 14 or later; upgrade it", v.version)
	case v.encoding != "UTF8":
		return "", fmt.Errorf("the database has the encoding %s: names and payloads are UTF-8; create one with ENCODING 'UTF8' TEMPLATE template0", v.encoding)
	case v.recovery:
		return "", errors.New("the server is a standby that only reads: connect to the primary (target_session_attrs=read-write in the dsn finds it among several hosts)")
	case v.schema == "":
		return "", errors.New("no schema of the search_path exists: create it, or mend search_path of the role or in the dsn")
	case s.engine.local == "" && want > free:
		return "", fmt.Errorf("the pool may open %d connections and %d more are needed, %d in all, but the server takes %d (max_connections %d, %d of them reserved): set [store] max_open_conns to %d or less, or raise max_connections",
			want-extraConns, extraConns, want, free, v.connections, v.reserved, max(1, free-extraConns))
	}
	for _, w := range v.warnings() {
		s.logf("%s", w)
	}
	if v.number >= transactionTimeout {
		limit := strconv.FormatInt(flightMax*s.opt.Timeout.Milliseconds(), 10)
		s.engine.bound = "SELECT set_config('transaction_timeout', '" + limit + "', true)"
	}
	if s.opt.DirectDSN == "" || s.opt.DirectDSN == s.opt.DSN {
		return v.version, nil
	}
	return v.version, s.sameDatabase(ctx, v)
}

func (s *Store) server(ctx context.Context) (v server, err error) {
	err = s.engine.Read(ctx, "examine the server", func(c sqlstore.Conn) error {
		v, err = readServer(ctx, c)
		return err
	})
	return v, err
}

// sameDatabase compares what both connection strings reach.
func (s *Store) sameDatabase(ctx context.Context, v server) error {
	conn, err := pgx.ConnectConfig(ctx, s.engine.direct)
	if err != nil {
		return fmt.Errorf("[store] direct_dsn: %w", sqlstore.Fail(s.engine, "connect", false, connecting(err)))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	other, err := readServer(ctx, &sqlConn{c: newConn(conn.PgConn(), false)})
	switch {
	case err != nil:
		return fmt.Errorf("[store] direct_dsn: %w", sqlstore.Fail(s.engine, "examine the server", false, err))
	case other.started != v.started || other.schema != v.schema:
		return errors.New("[store] direct_dsn reaches another server, database or schema than dsn does: both have to be the same, one through the pooler and one past it")
	}
	return nil
}

// warnings are settings that weaken a promise.
func (v server) warnings() (list []string) {
	if v.syncCommit == "off" {
		list = append(list, "synchronous_commit is off: a crash of the server can lose appends that were acknowledged (P9); turn it on for the role of projhost")
	}
	if v.fsync == "off" {
		list = append(list, "fsync is off: a crash of the machine can damage the database; turn it on")
	}
	if v.fullPages == "off" {
		list = append(list, "full_page_writes is off: a crash of the machine can damage the database unless its disk writes whole pages; turn it on")
	}
	return list
}

// Warnings names settings of the server that weaken a promise, for doctor.
func (s *Store) Warnings(ctx context.Context) ([]string, error) {
	v, err := s.server(ctx)
	if err != nil {
		return nil, err
	}
	return v.warnings(), nil
}

// checkServer is what may have changed since the start.
func (s *Store) checkServer(ctx context.Context) error {
	v, err := s.server(ctx)
	if err != nil {
		return err
	}
	if v.recovery {
		return errors.New("the server has become a standby that only reads: connect to the primary")
	}
	return nil
}

// SchemaSQL is the script that makes what Open makes in an empty database, for
// people with a migration tool of their own. partitions 0 is the default.
func SchemaSQL(tablePrefix string, partitions int) (string, error) {
	return sqlstore.SchemaSQL(dialect(), tablePrefix, partitions)
}

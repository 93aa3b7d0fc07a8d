package bench

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/drivers"
)

// databaseName is a name for the template of a run.
func databaseName() string { return "projhost_bench_" + strings.ToLower(rand.Text()[:10]) }

// mysqlEngine measures on a server of MariaDB or MySQL. Databases cannot be
// copied there, so the events move from one run's to the next, and all else is
// copied.
type mysqlEngine struct {
	server *sql.DB
	cfg    *mysql.Config
	name   string // of the template
	made   int

	tables  []copied // of the template, all but the events
	last    int64
	collate string
	mariaDB bool
}

// copied is a table that every run gets a copy of: its name, and its columns
// that are not generated.
type copied struct{ name, columns string }

func newMySQL(ctx context.Context, dsn string) (engine, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	server, err := sql.Open("mysql", dsn)
	if err != nil {
		return nil, err
	}
	d := &mysqlEngine{server: server, cfg: cfg, name: databaseName()}
	if err := d.begin(ctx); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return d, nil
}

// begin finds out how the engine spells the collation of the host's texts, as
// the host does, and makes the template.
func (d *mysqlEngine) begin(ctx context.Context) error {
	var version string
	if err := d.server.QueryRowContext(ctx, "SELECT VERSION()").Scan(&version); err != nil {
		return err
	}
	d.collate, d.mariaDB = "utf8mb4_0900_bin", strings.Contains(version, "MariaDB")
	if d.mariaDB {
		d.collate = "utf8mb4_nopad_bin"
	}
	return d.admin(ctx, "CREATE DATABASE "+d.name+" CHARACTER SET utf8mb4 COLLATE "+d.collate)
}

func (d *mysqlEngine) admin(ctx context.Context, text string) error {
	_, err := d.server.ExecContext(ctx, text)
	return err
}

// named is the user's connection string, to another database.
func (d *mysqlEngine) named(database string) string {
	cfg := d.cfg.Clone()
	cfg.DBName = database
	return cfg.FormatDSN()
}

func (d *mysqlEngine) template() string { return d.named(d.name) }

func (d *mysqlEngine) loaded(ctx context.Context) error {
	if err := d.admin(ctx, "ANALYZE TABLE "+d.name+"."+tablePrefix+"events"); err != nil {
		return err
	}
	if err := d.server.QueryRowContext(ctx, "SELECT max(position) FROM "+d.name+"."+tablePrefix+"events").Scan(&d.last); err != nil {
		return err
	}
	rows, err := d.server.QueryContext(ctx, "SELECT table_name, group_concat(concat('`', column_name, '`')) FROM information_schema.columns"+
		" WHERE table_schema = ? AND table_name <> ? AND extra NOT LIKE 'VIRTUAL%' AND extra NOT LIKE 'STORED%' GROUP BY table_name", d.name, tablePrefix+"events")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var t copied
		if err := rows.Scan(&t.name, &t.columns); err != nil {
			return err
		}
		d.tables = append(d.tables, t)
	}
	return rows.Err()
}

func (d *mysqlEngine) with(ctx context.Context, f func(dsn string) error) error {
	return d.create(ctx, func(name string) error { return d.filled(ctx, name, f) })
}

func (d *mysqlEngine) empty(ctx context.Context, f func(dsn string) error) error {
	return d.create(ctx, func(name string) error { return f(d.named(name)) })
}

// create makes a database, calls f with its name and removes it.
func (d *mysqlEngine) create(ctx context.Context, f func(name string) error) (err error) {
	d.made++
	name := fmt.Sprintf("%s_%d", d.name, d.made)
	if err := d.admin(ctx, "CREATE DATABASE "+name+" CHARACTER SET utf8mb4 COLLATE "+d.collate); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.drop(name)) }()
	return f(name)
}

// filled calls f while a database is as the template was.
func (d *mysqlEngine) filled(ctx context.Context, name string, f func(dsn string) error) (err error) {
	for _, t := range d.tables {
		if err := errors.Join(
			d.admin(ctx, fmt.Sprintf("CREATE TABLE %s.%s LIKE %s.%[2]s", name, t.name, d.name)),
			d.admin(ctx, fmt.Sprintf("INSERT INTO %s.%s (%s) SELECT %[3]s FROM %s.%[2]s", name, t.name, t.columns, d.name)),
		); err != nil {
			return err
		}
	}
	if err := d.moveEvents(ctx, d.name, name); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, d.admin(context.Background(), fmt.Sprintf("DELETE FROM %s.%sevents WHERE position > %d", name, tablePrefix, d.last)),
			d.moveEvents(context.Background(), name, d.name))
	}()
	return f(d.named(name))
}

func (d *mysqlEngine) moveEvents(ctx context.Context, from, to string) error {
	return d.admin(ctx, fmt.Sprintf("RENAME TABLE %s.%sevents TO %s.%[2]sevents", from, tablePrefix, to))
}

func (d *mysqlEngine) drop(name string) error {
	return d.admin(context.Background(), "DROP DATABASE IF EXISTS "+name)
}

func (d *mysqlEngine) close() error { return errors.Join(d.drop(d.name), d.server.Close()) }

func (d *mysqlEngine) open(ctx context.Context, dsn string) (store.Store, error) {
	return drivers.Open(ctx, "mysql", store.Options{DSN: dsn, TablePrefix: tablePrefix})
}

func (d *mysqlEngine) sessions(ctx context.Context, dsn string) (threads []int, err error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	query := "SELECT thread_os_id FROM performance_schema.threads WHERE processlist_db = ?"
	if d.mariaDB {
		query = "SELECT tid FROM information_schema.processlist WHERE db = ?"
	}
	rows, err := d.server.QueryContext(ctx, query, cfg.DBName)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		threads = append(threads, id)
	}
	return threads, rows.Err()
}

func (d *mysqlEngine) address() (network, address string) { return d.cfg.Net, d.cfg.Addr }

func (d *mysqlEngine) through(dsn, address string) string {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return dsn
	}
	cfg.Net, cfg.Addr, cfg.TLSConfig, cfg.TLS = "tcp", address, "", nil
	return cfg.FormatDSN()
}

func (d *mysqlEngine) connect(ctx context.Context, dsn string) (session, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	cfg.ClientFoundRows, cfg.MultiStatements, cfg.MaxAllowedPacket = true, true, 0
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	c, err := connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	s := &mysqlSession{conn: newConn(c), collate: d.collate, kinds: map[string]string{}}
	if err := s.exec(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES'"); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

const mysqlSchema = `
CREATE TABLE native_accounts (
	` + "`key`" + ` VARCHAR(255) NOT NULL,
	owner VARCHAR(100) NOT NULL, status VARCHAR(10) NOT NULL, balance DECIMAL(19,2) NOT NULL,
	events BIGINT NOT NULL, updated_at DATETIME(6) NOT NULL,
	ph_position BIGINT, ph_updated_us BIGINT, ph_epoch BIGINT,
	PRIMARY KEY (` + "`key`" + `)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE %[1]s;
CREATE INDEX native_accounts_owner ON native_accounts (owner, ` + "`key`" + `);
CREATE INDEX native_accounts_status ON native_accounts (status, ` + "`key`" + `);
CREATE TABLE native_checkpoints (` + "`partition`" + ` INT PRIMARY KEY, position BIGINT NOT NULL, epoch BIGINT NOT NULL) ENGINE=InnoDB;
CREATE TABLE native_leases (` + "`partition`" + ` INT PRIMARY KEY, instance VARCHAR(36) NOT NULL, generation BIGINT NOT NULL) ENGINE=InnoDB;
INSERT INTO native_checkpoints WITH RECURSIVE p (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM p WHERE i < 255) SELECT i, 0, 0 FROM p;
INSERT INTO native_leases WITH RECURSIVE p (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM p WHERE i < 255) SELECT i, 'me', 1 FROM p;`

const (
	mysqlPage  = `SELECT position, aggregate_id, type, occurred_us, data FROM ph_events WHERE position > ? ORDER BY position LIMIT ?`
	mysqlFence = `SELECT count(*) FROM native_leases WHERE instance = 'me' AND generation = 1 LOCK IN SHARE MODE`
	mysqlSet   = ` ON DUPLICATE KEY UPDATE owner = VALUES(owner), status = VALUES(status), balance = VALUES(balance), events = VALUES(events),
		updated_at = VALUES(updated_at), ph_position = VALUES(ph_position), ph_updated_us = VALUES(ph_updated_us), ph_epoch = VALUES(ph_epoch)`
	mysqlUpsert = `INSERT INTO native_accounts VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)` + mysqlSet
	mysqlSelect = `SELECT owner, status, balance, events FROM native_accounts WHERE ` + "`key`" + ` = ?`
	mysqlMove   = `UPDATE native_checkpoints SET position = ? WHERE ` + "`partition`" + ` = ? AND position = ? AND epoch = 0`
	mysqlAt     = `SELECT ` + "`partition`" + `, position FROM native_checkpoints WHERE epoch = 0 FOR UPDATE`
	mysqlRows   = `SELECT ` + "`key`" + `, owner, status, CAST(balance AS CHAR), events, CAST(updated_at AS CHAR), ph_position, ph_updated_us, ph_epoch FROM %s ORDER BY ` + "`key`"
)

// errFence is a lease that is no longer held.
var errFence = errors.New("a lease is not held")

// mysqlSession writes the rows of a batch by one statement, put together here:
// to prepare one so large costs more than it saves.
type mysqlSession struct {
	*conn
	collate string
	kinds   map[string]string
	text    []byte
}

func (s *mysqlSession) create(ctx context.Context) error {
	return s.exec(ctx, fmt.Sprintf(mysqlSchema, s.collate))
}

func (s *mysqlSession) page(ctx context.Context, after int64, limit int) ([]nativeEvent, error) {
	page := make([]nativeEvent, 0, limit)
	var block []byte
	err := s.query(ctx, mysqlPage, []driver.Value{after, int64(limit)}, func(v []driver.Value) {
		data := v[4].([]byte) // the driver's, until the next row
		if cap(block)-len(block) < len(data) {
			block = make([]byte, 0, max(64<<10, len(data)))
		}
		start := len(block)
		block = append(block, data...)
		kind, ok := s.kinds[string(v[2].([]byte))]
		if !ok {
			kind = text(v[2])
			s.kinds[kind] = kind
		}
		account := string(v[1].([]byte))
		page = append(page, nativeEvent{v[0].(int64), account, kind, v[3].(int64), block[start:], partition.Of(account, partitions)})
	})
	return page, err
}

func (s *mysqlSession) fence(ctx context.Context) error {
	held := int64(0)
	err := s.query(ctx, mysqlFence, nil, func(v []driver.Value) { held = v[0].(int64) })
	if err == nil && held != partitions {
		err = errFence
	}
	return err
}

func (s *mysqlSession) apply(ctx context.Context, rows []nativeAccount, moves []move) error {
	return s.transaction(ctx, "START TRANSACTION", func() error {
		if err := s.fence(ctx); err != nil {
			return err
		}
		b := append(s.text[:0], "INSERT INTO native_accounts VALUES "...)
		for i := range rows {
			a := &rows[i]
			b = append(b, '(')
			b = append(appendQuoted(b, a.key), ',')
			b = append(appendQuoted(b, a.owner), ',')
			b = append(appendQuoted(b, a.status), ',')
			b = append(append(b, formatCents(a.cents)...), ',')
			b = append(strconv.AppendInt(b, a.events, 10), ",'"...)
			b = append(time.UnixMicro(a.updatedUS).UTC().AppendFormat(b, nativeTime), "',"...)
			b = append(strconv.AppendInt(b, a.position, 10), ',')
			b = append(strconv.AppendInt(b, a.updatedUS, 10), ",0),"...)
		}
		b = append(b[:len(b)-1], mysqlSet...)
		s.text = b
		if err := s.exec(ctx, string(b)); err != nil {
			return err
		}
		return s.move(ctx, moves)
	})
}

// move compares under the rows' locks, and then sets.
func (s *mysqlSession) move(ctx context.Context, moves []move) error {
	var at checkpoints
	if err := s.query(ctx, mysqlAt, nil, func(v []driver.Value) { at[v[0].(int64)] = v[1].(int64) }); err != nil {
		return err
	}
	b := append(s.text[:0], "INSERT INTO native_checkpoints VALUES "...)
	for _, m := range moves {
		if at[m.partition] != m.from {
			return m.lost()
		}
		b = append(strconv.AppendInt(append(b, '('), int64(m.partition), 10), ',')
		b = append(strconv.AppendInt(b, m.to, 10), ",0),"...)
	}
	s.text = append(b[:len(b)-1], " ON DUPLICATE KEY UPDATE position = VALUES(position)"...)
	return s.exec(ctx, string(s.text))
}

func appendQuoted(b []byte, text string) []byte {
	b = append(b, '\'')
	for i := range len(text) {
		if c := text[i]; c == '\'' || c == '\\' {
			b = append(b, '\\')
		}
		b = append(b, text[i])
	}
	return append(b, '\'')
}

func (s *mysqlSession) applyOne(ctx context.Context, e *nativeEvent, from int64) error {
	return s.transaction(ctx, "START TRANSACTION", func() error {
		if err := s.fence(ctx); err != nil {
			return err
		}
		a := nativeAccount{key: e.account, partition: e.partition}
		var bad error
		err := s.query(ctx, mysqlSelect, []driver.Value{e.account}, func(v []driver.Value) {
			a.owner, a.status, a.events = text(v[0]), text(v[1]), v[3].(int64)
			a.cents, bad = parseSigned(text(v[2]))
		})
		if err := errors.Join(err, bad, a.fold(e)); err != nil {
			return err
		}
		updated := time.UnixMicro(a.updatedUS).UTC().Format(nativeTime)
		if _, err := s.run(ctx, mysqlUpsert, a.key, a.owner, a.status, formatCents(a.cents), a.events, updated, a.position, a.updatedUS); err != nil {
			return err
		}
		moved, err := s.run(ctx, mysqlMove, e.position, int64(e.partition), from)
		if err == nil && moved != 1 {
			err = (&move{e.partition, from, e.position}).lost()
		}
		return err
	})
}

func (s *mysqlSession) rows(ctx context.Context, table string, each func([]string)) error {
	return s.texts(ctx, fmt.Sprintf(mysqlRows, table), nil, each)
}

func (s *mysqlSession) shape(ctx context.Context, table string) (string, error) {
	var b strings.Builder
	for _, query := range []string{
		`SELECT engine, row_format FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?`,
		`SELECT column_name, column_type, is_nullable, coalesce(collation_name, '') FROM information_schema.columns
			WHERE table_schema = DATABASE() AND table_name = ? ORDER BY ordinal_position`,
		`SELECT min(non_unique), group_concat(column_name ORDER BY seq_in_index) AS columns FROM information_schema.statistics
			WHERE table_schema = DATABASE() AND table_name = ? GROUP BY index_name ORDER BY columns`,
	} {
		if err := s.texts(ctx, query, []driver.Value{table}, func(row []string) { fmt.Fprintln(&b, row) }); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

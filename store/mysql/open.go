package mysql

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// Defaults of [Options].
const (
	maxOpenConnsDefault = 20
	timeoutDefault      = 15 * time.Second
)

// Open connects, checks the server and its settings, and creates or checks the
// schema. Its errors say what to mend.
func Open(ctx context.Context, opt Options) (*Store, error) {
	opt.MaxEvent = cmp.Or(opt.MaxEvent, store.DefaultMaxEvent)
	opt.MaxOpenConns = cmp.Or(opt.MaxOpenConns, maxOpenConnsDefault)
	opt.Timeout = cmp.Or(opt.Timeout, timeoutDefault)
	cfg, err := parseDSN(opt.DSN)
	if err != nil {
		return nil, err
	}
	s := &Store{opt: opt}
	srv, err := s.meet(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open mysql database %s at %s: %w", cfg.DBName, cfg.Addr, err)
	}
	if err := s.start(ctx, cfg, srv); err != nil {
		return nil, fmt.Errorf("open mysql database %s at %s: %w", cfg.DBName, cfg.Addr, err)
	}
	return s, nil
}

// parseDSN reads a connection string. What goes wrong is told without it: it
// holds a password, and a wrong one may hold it anywhere.
func parseDSN(dsn string) (*mysql.Config, error) {
	const form = "want user:password@tcp(host:3306)/database ([store] dsn)"
	if dsn == "" {
		return nil, errors.New("mysql: no connection string: " + form)
	}
	base, parameters := dsn, ""
	if i := strings.LastIndexByte(dsn, '/'); i >= 0 {
		if j := strings.IndexByte(dsn[i:], '?'); j >= 0 {
			base, parameters = dsn[:i+j], dsn[i+j:]
		}
	}
	if _, err := mysql.ParseDSN(base); err != nil {
		return nil, errors.New("mysql: the connection string cannot be read: " + form)
	}
	cfg, err := mysql.ParseDSN(base + parameters)
	if err != nil {
		return nil, fmt.Errorf("mysql: the parameters of the connection string cannot be read: %w", err)
	}
	if !strings.HasPrefix(cfg.Net, "tcp") && cfg.Net != "unix" {
		return nil, errors.New("mysql: the connection string names a network that there is not: " + form)
	}
	if cfg.DBName == "" {
		return nil, errors.New("mysql: the connection string names no database: " + form)
	}
	return cfg, nil
}

// meet asks a server what it is, before anything relies on it.
func (s *Store) meet(ctx context.Context, cfg *mysql.Config) (*server, error) {
	plain := cfg.Clone()
	plain.Params = nil
	plain.MultiStatements, plain.ParseTime = false, false
	plain.Logger = logger{s}
	connector, err := mysql.NewConnector(plain)
	if err != nil {
		return nil, err
	}
	e := newEngine(connector, 1, 0, s.opt.Timeout, func() {})
	var srv *server
	err = e.Read(ctx, "connect", func(c sqlstore.Conn) (err error) {
		srv, err = inspectServer(ctx, c)
		return err
	})
	if err = errors.Join(err, e.Close()); err != nil {
		return nil, err
	}
	return srv, srv.check(s.opt.MaxEvent)
}

// start brings a store to work on a server that is fit; it closes it on an
// error.
func (s *Store) start(ctx context.Context, cfg *mysql.Config, srv *server) (err error) {
	for _, w := range srv.warnings() {
		s.warned.Store(w, true)
		s.logf("mysql: %s", w)
	}
	connector, err := s.connector(cfg, srv)
	if err != nil {
		return err
	}
	s.server = srv
	s.engine = newEngine(connector, s.opt.MaxOpenConns, s.opt.Timeout/2, s.opt.Timeout, s.raise)
	s.beats = newEngine(connector, 1, s.opt.Timeout/2, s.opt.Timeout, s.raise)
	s.engine.lockName = func(name string) string {
		// At most 64 characters, for the whole server.
		sum := sha256.Sum256([]byte(srv.database + "\x00" + name))
		return "projhost_" + hex.EncodeToString(sum[:20])
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	s.Core, err = sqlstore.New(s.engine, dialect(srv), s.opt)
	if err != nil {
		return err
	}
	s.Beats = s.beats
	s.q = newQueries(s.Core)
	return s.Initialize(ctx, srv.version)
}

// raise starts a new incarnation, if there is anything to be out of date.
func (s *Store) raise() {
	if s.Core != nil {
		s.Core.Raise()
	}
}

// connector makes connections that are all set alike, whatever the connection
// string or the server's defaults say.
func (s *Store) connector(cfg *mysql.Config, srv *server) (driver.Connector, error) {
	cfg = cfg.Clone()
	// A guard is a number of rows that matched, changed or not.
	cfg.ClientFoundRows = true
	// Arguments go into the text of a statement: no round trip to prepare one. It
	// is safe in UTF-8 with backslash escapes, both of which are set below.
	cfg.InterpolateParams = true
	cfg.MultiStatements = false
	cfg.AllowAllFiles = false
	cfg.ParseTime = false
	cfg.ColumnsWithAlias = false
	cfg.RejectReadOnly = false
	cfg.CheckConnLiveness = true
	cfg.Loc = time.UTC
	cfg.MaxAllowedPacket = srv.packetMax
	cfg.Timeout = cmp.Or(cfg.Timeout, s.opt.Timeout)
	cfg.Logger = logger{s}
	// The library does not know the collations that do not pad.
	if err := cfg.Apply(mysql.Charset("utf8mb4", "utf8mb4_bin")); err != nil {
		return nil, err
	}
	cfg.Params = maps.Clone(cfg.Params)
	if cfg.Params == nil {
		cfg.Params = map[string]string{}
	}
	for name := range cfg.Params { // spelled in another case it would be another entry
		if _, ours := settings(srv, s.opt.Timeout)[strings.ToLower(name)]; ours {
			delete(cfg.Params, name)
		}
	}
	maps.Copy(cfg.Params, settings(srv, s.opt.Timeout))
	inner, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, err
	}
	return &connector{Connector: inner, restarted: func() {
		s.logf("mysql: the server is not the one that it was: it was restarted, or another has taken its place")
		s.raise()
	}}, nil
}

// settings of every session.
func settings(srv *server, timeout time.Duration) map[string]string {
	seconds := strconv.Itoa(max(1, int((timeout+time.Second-1)/time.Second)))
	set := map[string]string{
		"autocommit": "1",
		"time_zone":  "'+00:00'",

		"collation_connection": srv.collation(),
		// No ANSI_QUOTES, no NO_BACKSLASH_ESCAPES; what does not fit is refused.
		"sql_mode":                 "'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'",
		"innodb_lock_wait_timeout": seconds,
		"lock_wait_timeout":        seconds,
		"completion_type":          "0",
		"unique_checks":            "1",
		"foreign_key_checks":       "1",
		"sql_safe_updates":         "0",
	}
	// A frozen host must not hold its locks for ever. Where only idle sessions can
	// be ended and not idle transactions, the pool gives up idle connections in
	// half the time.
	if srv.mariadb {
		set["tx_isolation"] = "'READ-COMMITTED'"
		set["idle_transaction_timeout"] = seconds
		set["idle_write_transaction_timeout"] = seconds
	} else {
		set["transaction_isolation"] = "'READ-COMMITTED'"
		set["wait_timeout"] = seconds
		set["net_read_timeout"] = seconds // for the rest of a statement that has begun to come
	}
	return set
}

// logger passes what the library has to say on.
type logger struct{ s *Store }

func (l logger) Print(v ...any) { l.s.logf("mysql: %s", strings.TrimSpace(fmt.Sprintln(v...))) }

// connector tells when the server is another one than before, by the time it has
// been up. A reader may see a commit before it is synced, so after a crash what was
// read can be gone though no connection of ours was in use when it happened, and
// other events may have got its positions since.
type connector struct {
	driver.Connector
	restarted func()

	mu    sync.Mutex
	known bool
	since time.Time // when the server started, by our monotonic clock
}

// startTolerance is how far two answers may lie apart: they are whole seconds.
const startTolerance = 3 * time.Second

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	dc, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	up, ok, err := uptime(ctx, dc)
	if err != nil {
		_ = dc.Close()
		return nil, err
	}
	if ok && c.changed(time.Now().Add(-up)) {
		c.restarted()
	}
	return dc, nil
}

func (c *connector) changed(since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	diff := since.Sub(c.since).Abs()
	changed := c.known && diff > startTolerance
	c.known, c.since = true, since // also if it only drifts
	return changed
}

// uptime is how long the server has run; false if it does not tell.
func uptime(ctx context.Context, dc driver.Conn) (time.Duration, bool, error) {
	r, err := dc.(driver.QueryerContext).QueryContext(ctx, "SHOW GLOBAL STATUS LIKE 'Uptime'", nil)
	if number(err) != 0 {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	vals := make([]driver.Value, 2)
	seconds, ok := int64(0), false
	if len(r.Columns()) == 2 && r.Next(vals) == nil {
		text, _ := vals[1].([]byte)
		n, err := strconv.ParseInt(string(text), 10, 64)
		seconds, ok = n, err == nil
	}
	return time.Duration(seconds) * time.Second, ok, r.Close()
}

var title = map[string]string{"mysql": "MySQL", "mariadb": "MariaDB"}

// SchemaSQL is the script that makes the host's tables in an empty database.
// kind is "mysql" or "mariadb".
func SchemaSQL(kind, tablePrefix string, partitions int) (string, error) {
	d, other := dialect(&server{mariadb: kind == "mariadb"}), "mariadb"
	if d.Name == other {
		other = "mysql"
	}
	script, err := sqlstore.SchemaSQL(d, tablePrefix, partitions)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("-- For %s alone, by the names of its collations: for %s there is projhost schema print --driver %s.\n\n%s", title[d.Name], title[other], other, script), nil
}

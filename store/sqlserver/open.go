package sqlserver

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/microsoft/go-mssqldb/msdsn"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Options is [store.Options]. DSN is of any form that go-mssqldb reads, such as
// sqlserver://user:password@host:1433?database=name&encrypt=true, and has to name
// a database. MaxOpenConns is 20 unless it is set; fewer than 4 are 4.
type Options = store.Options

const (
	timeoutDefault  = 15 * time.Second
	maxOpenConns    = 20
	minOpenConns    = 4 // the lock of the schema needs one beside those at work
	connMaxIdleTime = 5 * time.Minute
)

// Store is an open database. It implements [store.Store].
type Store struct {
	*sqlstore.Core
	engine *engine
	beats  *engine // nil unless Open made it
	q      queries
	wakes  rules.Wakes

	closeOnce sync.Once
	closeErr  error
}

var _ store.Store = (*Store)(nil)

// Open opens a database, creates or checks its schema, and refuses a server
// whose settings break a promise.
func Open(ctx context.Context, opt Options) (*Store, error) {
	connector, err := connect(opt)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	conns := max(cmp.Or(opt.MaxOpenConns, maxOpenConns), minOpenConns)
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	db.SetConnMaxIdleTime(connMaxIdleTime)
	s, err := open(ctx, db, opt)
	if err != nil {
		return nil, err
	}
	s.beats = &engine{db: sql.OpenDB(connector), timeout: s.engine.timeout, lost: s.Raise}
	s.beats.db.SetMaxOpenConns(1)
	s.beats.db.SetConnMaxIdleTime(connMaxIdleTime)
	s.Beats = s.beats
	return s, nil
}

// open opens the database behind a pool, and closes the pool if it cannot.
func open(ctx context.Context, db *sql.DB, opt Options) (*Store, error) {
	s := &Store{engine: &engine{db: db, timeout: cmp.Or(opt.Timeout, timeoutDefault)}}
	core, err := sqlstore.New(s.engine, dialect, opt)
	if err == nil {
		s.Core = core
		s.engine.lost = core.Raise
		s.q = newQueries(core)
		var at settings
		if at, err = s.settings(ctx); err == nil {
			err = at.check()
			if w := at.warning(); w != "" && opt.Logf != nil {
				opt.Logf("%s", w)
			}
		}
		if err == nil {
			err = core.Initialize(ctx, at.version)
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.engine.Close())
	}
	return s, nil
}

// connect makes the connector of a connection string. What is wrong with the
// string is not quoted: it holds the password.
func connect(opt Options) (*mssql.Connector, error) {
	config, err := msdsn.Parse(opt.DSN)
	if err != nil {
		return nil, errors.New("sqlserver: [store] dsn is no connection string: it should look like sqlserver://USER:PASSWORD@HOST:1433?database=NAME, with special characters of the password in percent-encoding")
	}
	if config.Database == "" {
		return nil, errors.New("sqlserver: [store] dsn names no database: add database=NAME to it")
	}
	if config.AppName == "go-mssqldb" {
		config.AppName = "projhost"
	}
	config.Encoding.Timezone = time.UTC
	c := mssql.NewConnectorConfig(config)
	c.SessionInitSQL = sessionSQL(cmp.Or(opt.Timeout, timeoutDefault))
	return c, nil
}

// sessionSQL is run whenever a connection is taken from the pool. Indexes on
// conditions need the settings of ANSI. Dates are sent as text in the one form
// that every language reads alike, the language is for what is not ours.
func sessionSQL(timeout time.Duration) string {
	return `SET NOCOUNT OFF;
SET XACT_ABORT ON;
SET IMPLICIT_TRANSACTIONS OFF;
SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET LOCK_TIMEOUT ` + strconv.FormatInt(timeout.Milliseconds(), 10) + `;
SET DEADLOCK_PRIORITY NORMAL;
SET ROWCOUNT 0;
SET TEXTSIZE 2147483647;
SET QUOTED_IDENTIFIER ON;
SET ANSI_NULLS ON;
SET ANSI_PADDING ON;
SET ANSI_WARNINGS ON;
SET ANSI_NULL_DFLT_ON ON;
SET ARITHABORT ON;
SET CONCAT_NULL_YIELDS_NULL ON;
SET NUMERIC_ROUNDABORT OFF;
SET LANGUAGE us_english;
SET DATEFORMAT ymd;
`
}

// settings are what the server is and how the database is set.
type settings struct {
	version, database             string
	edition, level                int64
	committedSnapshot, snapshotOn int64
	delayedDurability             int64
	updateability                 string
}

const settingsSQL = `SELECT CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(128)), CAST(SERVERPROPERTY('EngineEdition') AS bigint), d.name,
 CAST(d.compatibility_level AS bigint), CAST(d.is_read_committed_snapshot_on AS bigint), CAST(d.snapshot_isolation_state AS bigint),
 CAST(d.delayed_durability AS bigint), COALESCE(CAST(DATABASEPROPERTYEX(d.name, 'Updateability') AS nvarchar(128)), N'')
FROM sys.databases AS d WHERE d.name = DB_NAME()`

func (s *Store) settings(ctx context.Context) (at settings, err error) {
	err = s.engine.query(ctx, "examine the database", settingsSQL, nil, func(r *sql.Rows) error {
		return r.Scan(&at.version, &at.edition, &at.database, &at.level, &at.committedSnapshot, &at.snapshotOn, &at.delayedDurability, &at.updateability)
	})
	if err == nil && at.database == "" {
		err = errors.New("examine the database: it is not listed in sys.databases: the login needs access to it")
	}
	return at, err
}

// Versions and editions that are right.
const (
	versionMin       = 15 // SQL Server 2019, the first with UTF-8
	levelMin         = 130
	levelGood        = 150
	editionAzure     = 5
	editionInstance  = 8
	editionFabric    = 12
	snapshotIsolated = 1 // snapshot_isolation_state ON
	durabilityForced = 2 // delayed_durability FORCED
)

// check says all that has to be mended.
func (at *settings) check() error {
	var problems []error
	problem := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("sqlserver: "+format, args...))
	}
	name := readmodel.SQLServer.Quote(at.database)
	major, _, _ := strings.Cut(at.version, ".")
	// Azure's services have a version of their own and are always new.
	azure := at.edition == editionAzure || at.edition == editionInstance || at.edition == editionFabric
	if n, err := strconv.Atoi(major); !azure && (err != nil || n < versionMin) {
		problem("the server's version is %s: SQL Server 2019 (15) or later is needed", at.version)
	}
	if at.level < levelMin {
		problem("database %s has the compatibility level %d, at least %d is needed: ALTER DATABASE %s SET COMPATIBILITY_LEVEL = %d", name, at.level, levelMin, name, levelGood)
	}
	if at.committedSnapshot != 1 {
		problem("READ_COMMITTED_SNAPSHOT is off, so readers would wait for writers and see half of what they write: ALTER DATABASE %s SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE", name)
	}
	if at.snapshotOn != snapshotIsolated {
		problem("snapshot isolation is off, which consistent reads need: ALTER DATABASE %s SET ALLOW_SNAPSHOT_ISOLATION ON", name)
	}
	if at.delayedDurability == durabilityForced {
		problem("delayed durability is forced, so a crash loses what was said to be stored: ALTER DATABASE %s SET DELAYED_DURABILITY = DISABLED", name)
	}
	if at.updateability == "READ_ONLY" {
		problem("database %s is read-only: %s", name, hintReadOnly)
	}
	return errors.Join(problems...)
}

// warning says what works, but not well; "" for nothing.
func (at *settings) warning() string {
	if at.level >= levelMin && at.level < levelGood {
		return fmt.Sprintf("sqlserver: database %s has the compatibility level %d, at which the server plans every batch as if it had one row: ALTER DATABASE %s SET COMPATIBILITY_LEVEL = %d",
			readmodel.SQLServer.Quote(at.database), at.level, readmodel.SQLServer.Quote(at.database), levelGood)
	}
	return ""
}

// Check implements [store.Store].
func (s *Store) Check(ctx context.Context) error {
	at, err := s.settings(ctx)
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	return errors.Join(at.check(), s.InShape(ctx))
}

// Close waits for calls that run and closes the connections. Calls that come
// later fail.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.closeErr = s.engine.Close()
		if s.beats != nil {
			s.closeErr = errors.Join(s.closeErr, s.beats.Close())
		}
	})
	return s.closeErr
}

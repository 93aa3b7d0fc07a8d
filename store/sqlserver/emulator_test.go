package sqlserver

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	mssql "github.com/microsoft/go-mssqldb"
	"github.com/stretchr/testify/require"
	sqlite "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/storetest"
)

// The contract, with SQLite in place of SQL Server: each statement of a batch is
// rewritten into SQLite's words and run. It proves what the statements say and in
// which order (columns and values, joins, guards, what is sent and what is made
// of the answers), and nothing about what is SQL Server's own: its types,
// conversions, locks and plans.
func TestContractOnRewrittenStatements(t *testing.T) {
	if testing.Short() {
		t.Skip("not run: half a minute of processor time")
	}
	t.Parallel()
	dir := t.TempDir()
	var mu sync.Mutex
	emulators := map[string]*emulator{}
	storetest.Run(t, func(tb testing.TB, cfg storetest.Config) store.Store {
		mu.Lock()
		e := emulators[cfg.Database]
		if e == nil {
			e = &emulator{path: filepath.Join(dir, cfg.Database+".db"), locks: map[string]*emulatedConn{}}
			emulators[cfg.Database] = e
		}
		mu.Unlock()
		prefix := cfg.TablePrefix
		if prefix == "" {
			prefix = "ph_"
		}
		s, err := open(tb.Context(), sql.OpenDB(e), Options{TablePrefix: prefix, ReadModelPrefix: cfg.ReadModelPrefix,
			Partitions: cfg.Partitions, MaxEvent: cfg.MaxEvent})
		require.NoError(tb, err)
		return s
	})
}

// emulator is a database.
type emulator struct {
	path  string
	mu    sync.Mutex
	locks map[string]*emulatedConn // by name: the session that holds it
}

// sqliteDriver has our functions.
var sqliteDriver = func() driver.Driver {
	db, err := sql.Open("sqlite", "")
	if err != nil {
		panic(err)
	}
	return db.Driver()
}()

func init() {
	sqlite.MustRegisterCollationUtf8("ph_decimal", func(a, b string) int {
		x, _ := new(big.Rat).SetString(a)
		y, _ := new(big.Rat).SetString(b)
		if x == nil || y == nil {
			return strings.Compare(a, b)
		}
		return x.Cmp(y)
	})
	sqlite.MustRegisterDeterministicScalarFunction("ph_hash", 2, func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
		sum := sha256.Sum256([]byte(fmt.Sprintf("%v\x00%v", args[0], args[1])))
		return sum[:], nil
	})
}

func (e *emulator) Driver() driver.Driver { return nil }

func (e *emulator) Connect(context.Context) (driver.Conn, error) {
	c, err := sqliteDriver.Open(e.path + "?_pragma=journal_mode(wal)&_pragma=synchronous(off)&_pragma=busy_timeout(20000)")
	if err != nil {
		return nil, err
	}
	return &emulatedConn{e: e, c: c.(sqliteConn)}, nil
}

type sqliteConn interface {
	driver.Conn
	driver.ExecerContext
	driver.QueryerContext
}

// emulatedConn is a session.
type emulatedConn struct {
	e    *emulator
	c    sqliteConn
	vars map[string]driver.Value // of the batch that runs
	temp []string
	last int64 // @@ROWCOUNT
	line int
}

func (c *emulatedConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("not prepared") }
func (c *emulatedConn) Begin() (driver.Tx, error) {
	return nil, errors.New("a transaction without a level")
}

func (c *emulatedConn) Close() error {
	c.e.mu.Lock()
	for name, holder := range c.e.locks {
		if holder == c {
			delete(c.e.locks, name)
		}
	}
	c.e.mu.Unlock()
	return c.c.Close()
}

func (c *emulatedConn) CheckNamedValue(v *driver.NamedValue) error {
	switch x := v.Value.(type) {
	case mssql.NVarCharMax:
		v.Value = string(x)
	case bool:
		v.Value = flag(x)
	}
	return nil
}

func (c *emulatedConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	begin := "BEGIN IMMEDIATE"
	if sql.IsolationLevel(o.Isolation) == sql.LevelSnapshot {
		begin = "BEGIN"
	}
	_, err := c.c.ExecContext(ctx, begin, nil)
	return emulatedTx{c}, translated(err, 0)
}

type emulatedTx struct{ c *emulatedConn }

func (t emulatedTx) end(text string) error {
	_, err := t.c.c.ExecContext(context.Background(), text, nil)
	return err
}
func (t emulatedTx) Commit() error   { return t.end("COMMIT") }
func (t emulatedTx) Rollback() error { return t.end("ROLLBACK") }

func (c *emulatedConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	rows, err := c.run(ctx, text, args)
	if err != nil {
		return nil, err
	}
	return driver.RowsAffected(rows.counted), nil
}

func (c *emulatedConn) QueryContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	r, err := c.run(ctx, text, args)
	if err != nil {
		return nil, err
	}
	return &fakeRows{r}, nil
}

// translated gives an error of SQLite the number of SQL Server's.
func translated(err error, line int) error {
	var e *sqlite.Error
	if err == nil || !errors.As(err, &e) {
		return err
	}
	number := int32(50000)
	switch code := e.Code(); {
	case code == lib.SQLITE_CONSTRAINT_UNIQUE || code == lib.SQLITE_CONSTRAINT_PRIMARYKEY:
		number = 2627
	case code&0xff == lib.SQLITE_CONSTRAINT || code&0xff == lib.SQLITE_MISMATCH:
		number = 515
	case code&0xff == lib.SQLITE_BUSY:
		number = 1222
	}
	failed := mssql.Error{Number: number, Class: 16, Message: e.Error(), LineNo: int32(line)}
	failed.All = []mssql.Error{failed}
	return failed
}

func (c *emulatedConn) run(ctx context.Context, text string, args []driver.NamedValue) (r *reply, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c.vars = map[string]driver.Value{}
	for _, a := range args {
		c.vars[a.Name] = a.Value
	}
	defer func() {
		for _, name := range c.temp {
			_, _ = c.c.ExecContext(context.Background(), "DROP TABLE IF EXISTS temp."+name, nil)
		}
		c.temp = nil
	}()
	switch {
	case text == settingsSQL:
		return rows(soundSettings()), nil
	case text == lockSQL:
		return c.lock()
	case text == unlockSQL:
		c.e.mu.Lock()
		defer c.e.mu.Unlock()
		delete(c.e.locks, fmt.Sprint(c.vars["name"]))
		return &reply{}, nil
	case text == bound(columnsSQL):
		return c.columns()
	case text == bound(indexesSQL):
		return c.indexes()
	case text == bound(findSQL):
		return c.query(`SELECT CASE type WHEN 'table' THEN 'U' ELSE 'V' END, name FROM sqlite_schema WHERE type IN ('table', 'view') AND lower(name) = :p1`)
	case text == bound(viewSQL):
		return c.query(`SELECT sql FROM sqlite_schema WHERE type = 'view' AND name = :p1`)
	case strings.HasPrefix(text, "EXEC sys.sp_rename"):
		m := regexp.MustCompile(`N'\[(.*)\]', N'(.*)', N'OBJECT'`).FindStringSubmatch(text)
		_, err := c.c.ExecContext(ctx, "PRAGMA legacy_alter_table = ON; ALTER TABLE ["+m[1]+"] RENAME TO ["+m[2]+"]; PRAGMA legacy_alter_table = OFF", nil)
		return &reply{}, translated(err, 1)
	}
	if !strings.HasPrefix(text, "SET NOCOUNT ON") {
		return c.statement(text)
	}
	open := false
	r, err = c.batch(text, &open)
	if open {
		end := "COMMIT"
		if err != nil {
			end = "ROLLBACK" // XACT_ABORT
		}
		_, _ = c.c.ExecContext(context.Background(), end, nil)
	}
	return r, err
}

// bound is a catalogue query as it is sent.
func bound(text string) string {
	text, _, err := bind(text, []any{"x"})
	if err != nil {
		panic(err)
	}
	return text
}

func (c *emulatedConn) lock() (*reply, error) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	name := fmt.Sprint(c.vars["name"])
	if holder := c.e.locks[name]; holder != nil && holder != c {
		return rows([]driver.Value{int64(-1)}), nil
	}
	c.e.locks[name] = c
	return rows([]driver.Value{int64(0)}), nil
}

var sizes = regexp.MustCompile(`\((\w+)(?:,(\w+))?\)`)

func (c *emulatedConn) columns() (*reply, error) {
	r, err := c.query(`SELECT name, lower(type), "notnull", dflt_value IS NOT NULL OR hidden > 1, hidden > 1 FROM pragma_table_xinfo(:p1)`)
	if err != nil {
		return nil, err
	}
	for i, row := range r.rows {
		typ := strings.Replace(row[1].(string), "_text", "", 1)
		base, _, _ := strings.Cut(typ, "(")
		if base == "integer" { // numbered by the database
			base, row[2], row[3] = "bigint", int64(1), int64(1)
		}
		var a, b int64
		if m := sizes.FindStringSubmatch(typ); m != nil {
			a, _ = strconv.ParseInt(m[1], 10, 64)
			b, _ = strconv.ParseInt(m[2], 10, 64)
			if m[1] == boundless {
				a = -1
			}
		}
		length, precision, scale := a, a, b
		if base == "time" || base == "datetime2" {
			scale = a
		}
		text := ""
		if base == "varchar" {
			text = collation
		}
		r.rows[i] = []driver.Value{row[0], base, length, precision, scale, int64(1) - row[2].(int64), text, row[3]}
	}
	return r, nil
}

func (c *emulatedConn) indexes() (*reply, error) {
	return c.query(`SELECT CASE WHEN i.origin = 'pk' THEN 'PK' ELSE i.name END, i."unique", i.origin = 'pk' OR x.name = 'ph_row', '', x.name
		FROM pragma_index_list(:p1) i, pragma_index_xinfo(i.name) x WHERE x.key
		UNION ALL SELECT 'PK', 1, 1, '', name FROM pragma_table_info(:p1) WHERE pk = 1 AND type = 'INTEGER'`)
}

// block is IF … BEGIN … END with what it holds.
var (
	ifStatement = regexp.MustCompile(`(?s)^IF (.*?)\s*\n\s*BEGIN\n(.*)\n\s*END$`)
	throws      = regexp.MustCompile(`^\s*THROW (\d+), N'(.*)', 1$`)
	declares    = regexp.MustCompile(`(?s)^DECLARE @(\w+) (\w+)(?: = (.*))?$`)
	tableVar    = regexp.MustCompile(`(?s)^DECLARE @(\w+) TABLE \((.*)\)$`)
	assigns     = regexp.MustCompile(`(?s)^SET @(\w+) = (.*)$`)
	selects     = regexp.MustCompile(`(?s)^SELECT (@\w+ = .*?)\s(FROM .*)$`)
)

// split cuts a batch into statements, an IF with its block being one.
func split(text string) (list []string, lines []int) {
	var b strings.Builder
	depth, line, start := 0, 0, 1
	for l := range strings.Lines(text) {
		line++
		if b.Len() == 0 {
			start = line
		}
		trimmed := strings.TrimSpace(l)
		switch {
		case trimmed == "BEGIN":
			depth++
		case strings.HasPrefix(trimmed, "END"):
			depth--
		}
		b.WriteString(l)
		if depth == 0 && strings.HasSuffix(trimmed, ";") {
			list = append(list, strings.TrimSuffix(strings.TrimSpace(b.String()), ";"))
			lines = append(lines, start)
			b.Reset()
		}
	}
	if rest := strings.TrimSpace(b.String()); rest != "" {
		list, lines = append(list, rest), append(lines, start)
	}
	return list, lines
}

func (c *emulatedConn) batch(text string, open *bool) (result *reply, err error) {
	result = &reply{}
	list, lines := split(text)
	for i, s := range list {
		c.line = lines[i]
		var r *reply
		if m := ifStatement.FindStringSubmatch(s); m != nil {
			yes, err := c.query("SELECT " + c.words(m[1]))
			if err != nil {
				return nil, err
			}
			if yes.rows[0][0] != int64(1) {
				continue
			}
			if r, err = c.batch(m[2], open); err != nil {
				return nil, err
			}
		} else if m := throws.FindStringSubmatch(s); m != nil {
			n, _ := strconv.Atoi(m[1])
			return nil, failure(int32(n))
		} else if r, err = c.one(s, open); err != nil {
			return nil, err
		}
		if r != nil && len(r.rows) > 0 {
			result = r
		}
	}
	return result, nil
}

// one runs one statement of a batch.
func (c *emulatedConn) one(s string, open *bool) (*reply, error) {
	exec := func(text string) error {
		_, err := c.c.ExecContext(context.Background(), text, nil)
		return translated(err, c.line)
	}
	switch {
	case s == "BEGIN TRANSACTION":
		*open = true
		return nil, exec("BEGIN IMMEDIATE")
	case s == "COMMIT TRANSACTION":
		*open = false
		return nil, exec("COMMIT")
	case strings.HasPrefix(s, "SET ") && !strings.HasPrefix(s, "SET @"):
		return nil, nil
	}
	set := func(names []string, query string) (*reply, error) {
		r, err := c.query("SELECT " + query)
		if err != nil {
			return nil, err
		}
		for i, name := range names {
			c.vars[name] = nil
			if len(r.rows) > 0 {
				c.vars[name] = r.rows[0][i]
			}
		}
		return nil, nil
	}
	if m := tableVar.FindStringSubmatch(s); m != nil {
		c.temp = append(c.temp, "v_"+m[1])
		return nil, exec("CREATE TEMP TABLE v_" + m[1] + " (" + c.types(m[2]) + ")")
	}
	if m := declares.FindStringSubmatch(s); m != nil {
		c.vars[m[1]] = nil
		if m[3] == "" {
			return nil, nil
		}
		return set(m[1:2], c.words(m[3]))
	}
	if m := assigns.FindStringSubmatch(s); m != nil {
		return set(m[1:2], c.words(m[2]))
	}
	if m := selects.FindStringSubmatch(s); m != nil {
		var names, values []string
		for _, part := range strings.Split(m[1], ", @") {
			name, value, _ := strings.Cut(strings.TrimPrefix(part, "@"), " = ")
			names, values = append(names, name), append(values, value)
		}
		return set(names, c.words(strings.Join(values, ", ")+" "+m[2]))
	}
	return c.statement(s)
}

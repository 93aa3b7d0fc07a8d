package mark

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/projhost/projhost/store"
)

// session is one connection of a detector, whatever became of the ones before.
type session struct {
	conn     *pgx.Conn
	cfg      *Config
	sequence string // quoted
	seq, db  uint32 // oids
	topics   uint32
	channel  string
	cluster  string // system identifier
	text     statements
}

type statements struct {
	end, holders, settings, move, tell string
}

// observation is what one cycle saw. Without holders having been looked at, it
// says nothing about who is open.
type observation struct {
	end       int64
	persisted int64
	looked    bool
	holders   []string
}

var (
	errRecreated = errors.New("the sequence was dropped, renamed or created anew")
	errWentBack  = errors.New("the stored mark is lower than it was")
)

// settingsError is a sequence, or a server, that the detector cannot be right
// with. It ends when somebody mends what it says.
type settingsError struct{ msg string }

func (e *settingsError) Error() string { return e.msg }

func refuse(format string, args ...any) error {
	return &settingsError{fmt.Sprintf(format, args...)}
}

// connect makes a session whose settings the proof depends on. They are set when
// it is known who answers: a pooler refuses them at the start of a connection.
func connect(ctx context.Context, cfg *Config) (*pgx.Conn, error) {
	c := cfg.Conn.Copy()
	c.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	// A deadline on the socket: a wait can be cut short and the connection lives.
	c.BuildContextWatcherHandler = func(pc *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: pc.Conn()}
	}
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := settle(ctx, conn, cfg.Timeout); err != nil {
		_ = conn.Close(ctx)
		return nil, err
	}
	return conn, nil
}

func settle(ctx context.Context, conn *pgx.Conn, timeout time.Duration) error {
	v := server{expected: int(conn.PgConn().PID())}
	err := conn.QueryRow(ctx, `SELECT version(), current_setting('server_version_num')::int, pg_backend_pid(), pg_is_in_recovery()`,
		pgx.QueryExecModeExec).Scan(&v.version, &v.number, &v.pid, &v.recovery)
	if err != nil {
		return fmt.Errorf("ask for the server's version: %w", err)
	}
	if err := v.judge(); err != nil {
		return err
	}
	// The last: who reads the mark would be ahead of what a crash leaves otherwise.
	_, err = conn.Exec(ctx, strings.ReplaceAll(`SET default_transaction_isolation TO 'read committed';
		SET default_transaction_read_only TO off;
		SET statement_timeout TO LIMIT;
		SET lock_timeout TO LIMIT;
		SET idle_in_transaction_session_timeout TO LIMIT;
		SET TimeZone TO 'UTC';
		SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'`,
		"LIMIT", strconv.FormatInt(timeout.Milliseconds(), 10)))
	if err != nil {
		return fmt.Errorf("set the session's limits: %w", err)
	}
	return nil
}

// openSession connects and examines everything the algorithm takes for granted.
// It moves a sequence that is behind what is stored, and gives the stored mark.
func openSession(ctx context.Context, cfg *Config) (*session, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*cfg.Timeout)
	defer cancel()
	conn, err := connect(ctx, cfg)
	if err != nil {
		return nil, 0, err
	}
	s := &session{conn: conn, cfg: cfg}
	mark, err := s.start(ctx)
	if err != nil {
		s.close()
		return nil, 0, err
	}
	return s, mark, nil
}

func (s *session) start(ctx context.Context) (mark int64, err error) {
	if err := s.examine(ctx); err != nil {
		return 0, err
	}
	if _, err := s.conn.Exec(ctx, "LISTEN "+pgx.Identifier{s.channel}.Sanitize()); err != nil {
		return 0, fmt.Errorf("listen: %w", err)
	}
	if err := s.judge(s.conn.QueryRow(ctx, s.text.settings, s.seq)); err != nil {
		return 0, err
	}
	if err := s.repair(ctx); err != nil {
		return 0, fmt.Errorf("compare sequence %s with what is stored: %w", s.sequence, err)
	}
	if err := s.selfTest(ctx); err != nil {
		return 0, err
	}
	o, err := s.observe(ctx, false, nil)
	return o.persisted, err
}

func (s *session) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.conn.Close(ctx) // nothing is under way on it
}

// server is what a connection says of itself.
type server struct {
	version  string
	number   int
	pid      int // of the process that answers
	expected int // that the connection was given at its start
	recovery bool
}

func (v server) judge() error {
	switch {
	case !strings.HasPrefix(v.version, "PostgreSQL ") || strings.Contains(v.version, "-YB-") || strings.Contains(v.version, "Redshift"):
		return refuse("the server says it is %q: only PostgreSQL itself shows the locks that the high-water mark is read from", v.version)
	case v.number < 100000:
		return refuse("%s: transactions that drew from a sequence show only since version 10; upgrade the server", v.version)
	case v.recovery:
		return refuse("the server is a standby (pg_is_in_recovery): the detector needs the primary; point dsn, or direct_dsn, at it")
	case v.pid != v.expected:
		return refuse("the connection goes through a pooler: the detector needs a session of its own; set [store] direct_dsn to the server's own address")
	}
	return nil
}

// examine tells which sequence positions come from.
func (s *session) examine(ctx context.Context) error {
	var sequence *string
	err := s.conn.QueryRow(ctx, `SELECT (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()),
		$1::regclass::oid, pg_get_serial_sequence($2, 'position')`, s.cfg.Topics, s.cfg.Events).Scan(&s.db, &s.topics, &sequence)
	if err != nil {
		return fmt.Errorf("look up the tables %s and %s: %w", s.cfg.Topics, s.cfg.Events, err)
	}
	if sequence == nil {
		return refuse("column position of %s has no sequence of its own: compare with the output of `projhost schema print --driver postgres`", s.cfg.Events)
	}
	s.sequence = *sequence // quoted where it has to be
	if err := s.conn.QueryRow(ctx, "SELECT $1::regclass::oid", s.sequence).Scan(&s.seq); err != nil {
		return fmt.Errorf("look up sequence %s: %w", s.sequence, err)
	}
	// A role may be kept from it; then a moved cluster is only not named.
	_ = s.conn.QueryRow(ctx, "SELECT system_identifier::text FROM pg_control_system()").Scan(&s.cluster)
	s.channel = fmt.Sprintf("projhost_mark_%d", s.topics)
	s.text = statements{
		// One row each, and no lock worth the name. The stored mark comes with
		// a snapshot that is older than the end, so it is never above it.
		end: `SELECT s.tableoid, ` + End(s.sequence) + `, t.high_water_mark
			FROM ` + s.sequence + ` s, ` + s.cfg.Topics + ` t WHERE t.name = $1`,
		holders: `SELECT DISTINCT virtualtransaction FROM pg_catalog.pg_locks
			WHERE locktype = 'relation' AND relation = $1 AND database = $2 AND mode = 'RowExclusiveLock' AND granted`,
		settings: `SELECT s.seqcache, s.seqincrement, s.seqcycle, c.relpersistence = 'p'
			FROM pg_catalog.pg_sequence s JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid WHERE s.seqrelid = $1`,
		move: `UPDATE ` + s.cfg.Topics + ` SET high_water_mark = $1 WHERE name = $2 AND high_water_mark < $1`,
		// Who finds a higher one leaves the telling to whoever stored that.
		tell: `SELECT pg_notify($1, high_water_mark::text) FROM ` + s.cfg.Topics + ` WHERE name = $2 AND high_water_mark = $3`,
	}
	return nil
}

// End is an expression: the highest position that a sequence has handed out.
//
// A single look may be up to 32 ahead of it. Once in so many draws nextval
// writes to the log what the sequence will be after more of them, and puts that
// value into the row for as long as this takes; a reader holds no lock on the
// page when it takes the value out of it. (Seen: one of 93,000 reads beside
// 200,000 draws a second was 19 ahead.) A mark moved there would pass positions
// that are not drawn yet. The next look waits for that nextval first, so the least
// of a few is right unless each of them meets such a moment of its own.
func End(sequence string) string {
	look := "(SELECT CASE WHEN q.is_called THEN q.last_value ELSE q.last_value - 1 END FROM " + sequence + " q)"
	return "least(" + look + ", " + look + ", " + look + ")"
}

// observe is one cycle, in one round trip. The order is the proof's: the end of
// the sequence first, then the holders of its lock, in statements of their own
// so that no planner can turn them round; then the sequence's settings, which
// are thus no older than any draw up to that end.
func (s *session) observe(ctx context.Context, look bool, between func()) (o observation, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	b := &pgx.Batch{}
	var oid uint32
	var found, known bool
	b.Queue(s.text.end, s.cfg.Topic).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&oid, &o.end, &o.persisted)
		found = err == nil
		return err
	})
	if look && between != nil {
		if err := s.conn.SendBatch(ctx, b).Close(); err != nil {
			return o, s.explain(err)
		}
		between()
		b = &pgx.Batch{}
	}
	if look {
		b.Queue(s.text.holders, s.seq, s.db).Query(func(rows pgx.Rows) (err error) {
			o.holders, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		b.Queue(s.text.settings, s.seq).QueryRow(func(row pgx.Row) error {
			known = true
			return s.judge(row)
		})
	}
	err = s.conn.SendBatch(ctx, b).Close()
	switch {
	case found && oid != s.seq, known && errors.Is(err, pgx.ErrNoRows), isUndefined(err):
		return o, errRecreated
	case err != nil:
		return o, s.explain(err)
	}
	o.looked = look
	return o, nil
}

// isUndefined tells a table or sequence that does not exist under its name.
func isUndefined(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && server.Code == "42P01"
}

func (s *session) explain(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return refuse("table %s has no row of the name %s: compare with the output of `projhost schema print --driver postgres`", s.cfg.Topics, s.cfg.Topic)
	}
	return err
}

// judge says what is wrong with the sequence's settings.
func (s *session) judge(row pgx.Row) error {
	var cache, increment int64
	var cycle, logged bool
	if err := row.Scan(&cache, &increment, &cycle, &logged); err != nil {
		return err
	}
	switch {
	case cache != 1:
		return refuse("sequence %s has CACHE %d: sessions draw positions ahead of their transactions, so events would be skipped; ALTER SEQUENCE %s CACHE 1, then restart the appenders", s.sequence, cache, s.sequence)
	case increment != 1:
		return refuse("sequence %s has INCREMENT %d; ALTER SEQUENCE %s INCREMENT 1", s.sequence, increment, s.sequence)
	case cycle:
		return refuse("sequence %s may start again at its end; ALTER SEQUENCE %s NO CYCLE", s.sequence, s.sequence)
	case !logged:
		return refuse("sequence %s is not logged, a crash would set it back; ALTER SEQUENCE %s SET LOGGED", s.sequence, s.sequence)
	}
	return nil
}

// repair moves a sequence that is behind the stored events or the mark: the
// database was restored or copied without it. What were appended below the mark
// would never be read. Nobody appends to such a database before a detector was
// here, so nothing runs against it but another detector.
func (s *session) repair(ctx context.Context) error {
	return pgx.BeginTxFunc(ctx, s.conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var stored, end int64
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1::int, $2::int)", advisorySpace, int32(s.seq)); err != nil {
			return err
		}
		// Stored before end: a sequence that is in order is never behind.
		err := tx.QueryRow(ctx, `SELECT greatest(high_water_mark, (SELECT max(position) FROM `+s.cfg.Events+`))
			FROM `+s.cfg.Topics+` WHERE name = $1`, s.cfg.Topic).Scan(&stored)
		if err != nil {
			return s.explain(err)
		}
		if err := tx.QueryRow(ctx, `SELECT `+End(s.sequence)).Scan(&end); err != nil {
			return err
		}
		if end >= stored {
			return nil
		}
		if _, err := tx.Exec(ctx, "SELECT setval($1::oid::regclass, $2)", s.seq, stored); err != nil {
			return err
		}
		s.cfg.Logf("sequence %s stood at %d, behind position %d that is stored: this database was restored, copied or moved to another cluster without it; it goes on after %d", s.sequence, end, stored, stored)
		return nil
	})
}

// advisorySpace keeps our advisory locks apart from other users' of the
// two-number form.
const advisorySpace = 0x70686d6b // "phmk"

// selfTest proves on this very server that a transaction that has drawn is seen,
// and seen no longer when it has ended. Engines that speak PostgreSQL's protocol
// and show no locks would lose events in silence.
func (s *session) selfTest(ctx context.Context) error {
	other, err := connect(ctx, s.cfg)
	if err != nil {
		return fmt.Errorf("open the second connection of the self-test: %w", err)
	}
	defer func() { _ = other.Close(ctx) }()
	tx, err := other.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return fmt.Errorf("self-test: %w", err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	var drawn int64
	if err := tx.QueryRow(ctx, "SELECT nextval($1::oid::regclass)", s.seq).Scan(&drawn); err != nil {
		return fmt.Errorf("self-test: draw a position: %w", err)
	}
	var me string
	err = tx.QueryRow(ctx, `SELECT virtualtransaction FROM pg_catalog.pg_locks
		WHERE locktype = 'virtualxid' AND pid = pg_backend_pid()`).Scan(&me)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("self-test: %w", err)
	}
	shows := func() (seen bool, end int64, err error) {
		o, err := s.observe(ctx, true, nil)
		for _, h := range o.holders {
			seen = seen || h == me
		}
		return seen, o.end, err
	}
	seen, end, err := shows()
	switch {
	case err != nil:
		return fmt.Errorf("self-test: %w", err)
	case !seen || end < drawn:
		return refuse("self-test: an open transaction that has drawn position %d from %s does not show in pg_locks (sequence at %d), so events could be skipped: this server, or the role's view of pg_locks, differs from PostgreSQL's; use PostgreSQL itself, and a direct connection to it", drawn, s.sequence, end)
	}
	if err := tx.Rollback(ctx); err != nil {
		return fmt.Errorf("self-test: %w", err)
	}
	seen, _, err = shows()
	switch {
	case err != nil:
		return fmt.Errorf("self-test: %w", err)
	case seen:
		return refuse("self-test: a transaction that was rolled back still shows in pg_locks as holding %s: this server differs from PostgreSQL; use PostgreSQL itself, and a direct connection to it", s.sequence)
	}
	return nil
}

// persist commits the mark and then tells the other detectors of this database.
// NOTIFY comes after COMMIT, in a transaction of its own: it serialises commits.
func (s *session) persist(ctx context.Context, mark int64) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	b := &pgx.Batch{}
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	b.Queue(s.text.move, mark, s.cfg.Topic)
	b.Queue("COMMIT")
	b.Queue(s.text.tell, s.channel, s.cfg.Topic, mark)
	if err := s.conn.SendBatch(ctx, b).Close(); err != nil {
		if !s.conn.IsClosed() {
			_, _ = s.conn.Exec(ctx, "ROLLBACK")
		}
		return fmt.Errorf("store mark %d of topic %s: %w", mark, s.cfg.Topic, err)
	}
	return nil
}

// versions estimates how many dead rows there are in the table of the mark.
func (s *session) versions(ctx context.Context) (n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	err = s.conn.QueryRow(ctx, "SELECT pg_stat_get_dead_tuples($1)", s.topics).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count the versions of the mark of topic %s: %w", s.cfg.Topic, err)
	}
	return n, nil
}

// listen waits until another detector tells of a mark, or ctx ends. What it
// tells is read from the row: anybody may notify.
func (s *session) listen(ctx context.Context) error {
	for {
		n, err := s.conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if n.PID != s.conn.PgConn().PID() && n.Channel == s.channel {
			return nil
		}
	}
}

// holder tells who has been open longest of the given transactions, nil if they
// have ended.
func (s *session) holder(ctx context.Context, holders []string) (*store.MarkHolder, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	h := &store.MarkHolder{}
	// A prepared transaction has no process; its name is found by the
	// transaction id that it holds a lock on.
	err := s.conn.QueryRow(ctx, `
		SELECT coalesce(l.pid, 0), coalesce(p.gid, ''), coalesce(a.application_name, ''), coalesce(a.state, ''),
			coalesce(extract(epoch FROM coalesce(p.prepared, a.xact_start)) * 1000000, 0)::bigint AS since
		FROM pg_catalog.pg_locks l
		LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
		LEFT JOIN pg_catalog.pg_locks x ON l.pid IS NULL AND x.virtualtransaction = l.virtualtransaction AND x.locktype = 'transactionid' AND x.granted
		LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = x.transactionid
		WHERE l.locktype = 'relation' AND l.relation = $1 AND l.database = $2 AND l.mode = 'RowExclusiveLock' AND l.granted
			AND l.virtualtransaction = ANY ($3)
		ORDER BY since, l.pid LIMIT 1`, s.seq, s.db, holders).Scan(&h.PID, &h.Prepared, &h.Application, &h.State, &h.SinceUS)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up who holds the mark of topic %s: %w", s.cfg.Topic, err)
	}
	return h, nil
}

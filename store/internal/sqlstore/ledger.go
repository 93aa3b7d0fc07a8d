package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// Ledger keeps the messages that could not be applied, the records of those that
// are passed over, and what was done to consumers. It implements
// [store.Undelivered], [store.Rebuilds] and, but for dropping, [store.Operations].
//
// Whoever changes undelivered messages of a partition locks its ownership row
// first: a lane by its leases, an operator by raising the generation. So two never
// meet there.
type Ledger struct {
	db       LedgerDB
	q        ledgerQueries
	rebuilds rebuildQueries
	bq       buildQueries
	keyHash  string // ", key_hash", if the tables have it
}

// LedgerDB is what a ledger needs of its database.
type LedgerDB struct {
	Rows *readmodel.Dialect
	// SQL spells a statement, see [Core.SQL].
	SQL func(text string) string
	// Read runs fn outside of a transaction.
	Read func(ctx context.Context, op string, fn func(Conn) error) error
	// WriteAll runs steps in one transaction.
	WriteAll func(ctx context.Context, op string, steps []Step) error
	// Consumer reads a consumer; store.ErrNotFound.
	Consumer func(ctx context.Context, conn Conn, id store.ConsumerID) (store.Consumer, error)
	// Tables gives the tables of a build from the text of their declaration.
	Tables func(build, epoch int64, text string) ([]store.TableRef, error)
	// Partitions is N.
	Partitions func() int
	// InsertMax is how many rows one INSERT may have.
	InsertMax int
	// ForUpdate is what a SELECT locks rows with, where an UPDATE of many would not
	// take them in the order of their key.
	ForUpdate string
	// KeyHash says that undelivered messages and skip records have a column with
	// the hash of their key.
	KeyHash bool
}

// NewLedger makes the ledger of a database.
func NewLedger(db LedgerDB) *Ledger {
	l := &Ledger{db: db}
	if db.KeyHash {
		l.keyHash = ", key_hash"
	}
	l.q, l.rebuilds, l.bq = newLedgerQueries(l), newRebuildQueries(l), newBuildQueries(l)
	return l
}

// ledgerQueries are the static statements, spelled once.
type ledgerQueries struct {
	line, message, held, countHeld string
	skips, sweep                   string
	count, history                 string
	record, skip, halt             string
	guard, setState                string
	mark, resetPoints              string
}

// undeliveredColumns in the order that scanUndelivered reads, payloadColumns
// behind them.
const (
	undeliveredColumns = `u.id, u.topic, u."partition", u."key", u.unresolved, u.status, u.code, u.reason, u.attempts, u.passing, u.digest,
 u.first_us, COALESCE(u.budget_us, u.first_us), u.last_us, u.retry_us, u.position, u.event_id, u.aggregate_type, u.aggregate_id, u.sequence, u.event_type, u.revision,
 u.codec, u.codec_version, u.occurred_us`
	payloadColumns = `, u.data, u.data_bytes, u.metadata`
)

const (
	recordColumns = `build, topic, position, "partition", "key", unresolved, status, code, reason, attempts, passing, digest, first_us, last_us, retry_us,
 event_id, aggregate_type, aggregate_id, sequence, event_type, revision, codec, codec_version, occurred_us, data, data_bytes, metadata`
	historyColumns = `consumer_type, consumer_name, build, at_us, actor, action, topic, "partition", position, "key", detail`

	liveBuildSQL  = `(SELECT c.live_build FROM {{consumers}} c WHERE c.type = {{?}} AND c.name = {{?}})`
	ownBuildsSQL  = `(SELECT b.id FROM {{builds}} b WHERE b.consumer_type = {{?}} AND b.consumer_name = {{?}})`
	ofConsumerSQL = ` WHERE type = {{?}} AND name = {{?}} AND state = ? AND live_build = ? AND epoch = ?`
	headsSQL      = `SELECT h.followers, ` + undeliveredColumns + ` FROM (SELECT min(id) AS head, count(*) - 1 AS followers FROM {{undelivered}}
 WHERE build = ? AND "partition" IN (%s) AND status <> 'DEAD_LETTER' GROUP BY "partition", "key") h JOIN {{undelivered}} u ON u.id = h.head
 ORDER BY u."partition", u.id`
	raiseSQL = `UPDATE {{ownership}} SET generation = generation + 1 WHERE build = ?`
)

func newLedgerQueries(l *Ledger) ledgerQueries {
	sql := l.db.SQL
	return ledgerQueries{
		line: sql(`SELECT ` + undeliveredColumns + payloadColumns + ` FROM {{undelivered}} u
			WHERE u.build = ? AND u."partition" = ? AND u."key" = {{?}} AND u.status <> 'DEAD_LETTER' AND u.id > ? ORDER BY u.id`),
		message: sql(`SELECT ` + undeliveredColumns + payloadColumns + ` FROM {{undelivered}} u WHERE u.id = ? AND u.build IN ` + ownBuildsSQL),
		held: sql(`SELECT ` + undeliveredColumns + ` FROM {{undelivered}} u
			WHERE u.build = ? AND u."partition" = ? AND u."key" = {{?}} AND u.status <> 'DEAD_LETTER' ORDER BY u.id`),
		countHeld: sql(`SELECT count(*) FROM {{undelivered}} WHERE build = ? AND status <> 'DEAD_LETTER'`),
		skips: sql(`SELECT topic, "partition", position, "key", every_key FROM {{skipped}}
			WHERE build = ? AND topic = {{?}} AND position > ? ORDER BY position, "partition", "key"`),
		sweep: sql(`DELETE FROM {{skipped}} WHERE build = ?
			AND NOT EXISTS (SELECT 1 FROM {{undelivered}} u WHERE u.build = {{skipped}}.build AND u.topic = {{skipped}}.topic AND u.position = {{skipped}}.position)
			AND NOT EXISTS (SELECT 1 FROM {{checkpoints}} c WHERE c.build = {{skipped}}.build AND c.topic = {{skipped}}.topic AND c.position < {{skipped}}.position
				AND (every_key = 1 OR c."partition" = {{skipped}}."partition"))`),
		count: sql(`SELECT c.type, c.name, u.status, count(*) FROM {{consumers}} c JOIN {{undelivered}} u ON u.build = c.live_build
			GROUP BY c.type, c.name, u.status`),
		history: sql(`SELECT id, build, at_us, actor, action, topic, "partition", position, "key", detail FROM {{consumer_history}}
			WHERE consumer_type = {{?}} AND consumer_name = {{?}} AND id > ? ORDER BY id`),
		record: sql(`INSERT INTO {{consumer_history}} (` + historyColumns + `) VALUES (?, ?, ?, {{now}}, ?, ?, ?, ?, ?, ?, ?)`),
		// Of a message that is passed over already there is nothing more to tell.
		skip: sql(`INSERT INTO {{skipped}} (build, topic, position, "partition", "key", every_key) SELECT ?, ?, ?, ?, ?, ? FROM (SELECT 1 AS one) s
			WHERE NOT EXISTS (SELECT 1 FROM {{skipped}} k WHERE k.build = ? AND k.topic = {{?}} AND k.position = ? AND k."partition" = ? AND k."key" = {{?}})`),
		// The first halt stands, and an operator's pause is not displaced.
		halt: sql(`UPDATE {{consumers}} SET state = 'halted', halt = ?, state_since_us = {{now}}
			WHERE type = {{?}} AND name = {{?}} AND live_build = ? AND state IN ('running', 'rebuilding')`),
		guard:    sql(`UPDATE {{consumers}} SET revision = revision` + ofConsumerSQL),
		setState: sql(`UPDATE {{consumers}} SET state = ?, halt = NULL, state_since_us = {{now}}` + ofConsumerSQL),
		mark:     sql(`SELECT high_water_mark FROM {{topics}} WHERE name = {{?}}`),
		resetPoints: sql(`UPDATE {{checkpoints}} SET position = ?,
			incomplete_through = CASE WHEN incomplete_through > ? THEN incomplete_through ELSE ? END
			WHERE build = ? AND topic = {{?}} AND position < ?`),
	}
}

// eventID reads an id from a column of bytes or of UUIDs.
type eventID store.ID

func (e *eventID) Scan(v any) error {
	switch v := v.(type) {
	case []byte:
		if copy(e[:], v) == len(e) && len(v) == len(e) {
			return nil
		}
	case string:
		id, err := uuid.Parse(v)
		*e = eventID(id)
		return err
	}
	return fmt.Errorf("an event's id is no UUID but a %T", v)
}

// scanUndelivered reads a row. What comes before the columns goes to first.
func (l *Ledger) scanUndelivered(r Rows, payload bool, first ...any) (m store.UndeliveredMessage, err error) {
	var partition, unresolved, code, attempts, passing, revision, codecVersion int64
	var status string
	var retry sql.NullInt64
	var id eventID
	var text, metadata sql.NullString
	var bytes []byte
	e := &m.Event
	dest := append(first, &m.ID, &m.Topic, &partition, &m.Key, &unresolved, &status, &code, &m.Reason, &attempts, &passing, &m.Digest,
		&m.FirstUS, &m.BudgetUS, &m.LastUS, &retry, &e.Position, &id, &e.AggregateType, &e.AggregateID, &e.Sequence, &e.Type, &revision,
		&e.Codec, &codecVersion, &e.OccurredUS)
	if payload {
		dest = append(dest, &text, &bytes, &metadata)
	}
	if err := r.Scan(dest...); err != nil {
		return m, err
	}
	m.Partition, m.Unresolved, m.Status, m.Code = int(partition), unresolved != 0, store.UndeliveredStatus(status), int(code)
	m.Attempts, m.Passing, m.RetryUS = int(attempts), int(passing), retry.Int64
	e.ID, e.Revision, e.CodecVersion = store.ID(id), int32(revision), int32(codecVersion)
	e.Partition = store.PartitionOf(e.AggregateID, l.db.Partitions())
	if !payload || m.Unresolved {
		return m, nil
	}
	switch e.Data = bytes; {
	case text.Valid:
		e.Data = []byte(text.String)
	case bytes == nil:
		e.Data = []byte{}
	}
	if metadata.Valid {
		e.Metadata = []byte(metadata.String)
	}
	if why := store.CheckStoredCodec(e.Codec, e.CodecVersion); why != "" {
		return m, fmt.Errorf("undelivered message %d: %s: a newer projhost may have stored it", m.ID, why)
	}
	return m, nil
}

// read runs a query and fn on each row, anew from the first if it is repeated.
func (l *Ledger) read(ctx context.Context, op, text string, args []any, begin func(), fn func(Rows) error) error {
	return l.db.Read(ctx, op, func(conn Conn) error {
		begin()
		return each(ctx, conn, text, args, fn)
	})
}

// Heads implements [store.Undelivered].
func (l *Ledger) Heads(ctx context.Context, build int64, partitions []int) (list []store.Head, err error) {
	if len(partitions) == 0 {
		return nil, nil
	}
	err = l.read(ctx, "read undelivered messages", l.db.SQL(fmt.Sprintf(headsSQL, numbers(partitions))), []any{build},
		func() { list = nil }, func(r Rows) (err error) {
			var h store.Head
			h.UndeliveredMessage, err = l.scanUndelivered(r, false, &h.Followers)
			list = append(list, h)
			return err
		})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Line implements [store.Undelivered].
func (l *Ledger) Line(ctx context.Context, build int64, partition int, key string, after int64, limit int) ([]store.UndeliveredMessage, error) {
	return l.messages(ctx, "read undelivered messages of a key", l.db.Rows.Limit(l.q.line, limit), true, build, int64(partition), key, after)
}

func (l *Ledger) messages(ctx context.Context, op, text string, payload bool, args ...any) (list []store.UndeliveredMessage, err error) {
	err = l.read(ctx, op, text, args, func() { list = nil }, func(r Rows) error {
		m, err := l.scanUndelivered(r, payload)
		list = append(list, m)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// UndeliveredMessage implements [store.Undelivered].
func (l *Ledger) UndeliveredMessage(ctx context.Context, id store.ConsumerID, row int64) (store.UndeliveredMessage, error) {
	list, err := l.messages(ctx, "read undelivered message", l.q.message, true, row, id.Type, id.Name)
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("undelivered message %d of %s: %w", row, id, store.ErrNotFound)
	}
	if err != nil {
		return store.UndeliveredMessage{}, err
	}
	return list[0], nil
}

// listDefault is the length of a list whose limit was left open.
const listDefault = 1000

// ListUndelivered implements [store.Undelivered].
func (l *Ledger) ListUndelivered(ctx context.Context, q store.UndeliveredQuery) ([]store.UndeliveredMessage, error) {
	where, args := ` WHERE u.id > ?`, []any{q.After}
	switch {
	case q.Build != 0:
		where += ` AND u.build = ? AND u.build IN ` + ownBuildsSQL
		args = append(args, q.Build, q.Consumer.Type, q.Consumer.Name)
	case q.Consumer != (store.ConsumerID{}):
		where += ` AND u.build = ` + liveBuildSQL
		args = append(args, q.Consumer.Type, q.Consumer.Name)
	default:
		where += ` AND u.build IN (SELECT c.live_build FROM {{consumers}} c)`
	}
	more, values := selected(&q.Selection)
	if q.Limit <= 0 {
		q.Limit = listDefault
	}
	text := l.db.SQL(`SELECT ` + undeliveredColumns + ` FROM {{undelivered}} u` + where + more + ` ORDER BY u.id`)
	return l.messages(ctx, "list undelivered messages", l.db.Rows.Limit(text, q.Limit), false, append(args, values...)...)
}

// selected is the condition that a row u is of a selection.
func selected(sel *store.Selection) (where string, args []any) {
	if sel.ID != 0 {
		where, args = where+` AND u.id = ?`, append(args, sel.ID)
	}
	for _, c := range []struct{ column, value string }{
		{`"key"`, sel.Key}, {`event_type`, sel.EventType}, {`status`, string(sel.Status)}, {`topic`, sel.Topic},
	} {
		if c.value != "" {
			where, args = where+` AND u.`+c.column+` = {{?}}`, append(args, c.value)
		}
	}
	return where, args
}

// CountUndelivered implements [store.Undelivered].
func (l *Ledger) CountUndelivered(ctx context.Context) (counts map[store.ConsumerID]map[store.UndeliveredStatus]int64, err error) {
	err = l.read(ctx, "count undelivered messages", l.q.count, nil,
		func() { counts = map[store.ConsumerID]map[store.UndeliveredStatus]int64{} }, func(r Rows) error {
			var id store.ConsumerID
			var status string
			var n int64
			if err := r.Scan(&id.Type, &id.Name, &status, &n); err != nil {
				return err
			}
			if counts[id] == nil {
				counts[id] = map[store.UndeliveredStatus]int64{}
			}
			counts[id][store.UndeliveredStatus(status)] = n
			return nil
		})
	if err != nil {
		return nil, err
	}
	return counts, nil
}

// Skips implements [store.Undelivered].
func (l *Ledger) Skips(ctx context.Context, build int64, topic string, after int64) (list []store.Skip, err error) {
	err = l.read(ctx, "read skip records", l.q.skips, []any{build, topic, after}, func() { list = nil }, func(r Rows) error {
		var s store.Skip
		var partition, every int64
		err := r.Scan(&s.Topic, &partition, &s.Position, &s.Key, &every)
		s.Partition, s.EveryKey = int(partition), every != 0
		list = append(list, s)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// SweepSkips implements [store.Undelivered]: in one statement, which may run
// twice.
func (l *Ledger) SweepSkips(ctx context.Context, build int64) (n int, err error) {
	err = l.db.Read(ctx, "sweep skip records", func(conn Conn) error {
		n, err = l.SweepSkipsIn(ctx, conn, build)
		return err
	})
	return n, err
}

// SweepSkipsIn is SweepSkips on a connection.
func (l *Ledger) SweepSkipsIn(ctx context.Context, conn Conn, build int64) (int, error) {
	n, err := conn.Exec(ctx, l.q.sweep, build)
	return int(n), err
}

// History implements [store.Undelivered].
func (l *Ledger) History(ctx context.Context, id store.ConsumerID, after int64, limit int) (list []store.HistoryEntry, err error) {
	if limit <= 0 {
		limit = listDefault
	}
	err = l.read(ctx, "read history", l.db.Rows.Limit(l.q.history, limit), []any{id.Type, id.Name, after}, func() { list = nil }, func(r Rows) error {
		var h store.HistoryEntry
		var partition int64
		err := r.Scan(&h.ID, &h.Build, &h.AtUS, &h.Actor, &h.Action, &h.Topic, &partition, &h.Position, &h.Key, &h.Detail)
		h.Partition = int(partition)
		list = append(list, h)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// HeldIn reads the head of a line, nil for none; see [store.ReadView].
func (l *Ledger) HeldIn(ctx context.Context, conn Conn, build int64, partition int, key string) (head *store.UndeliveredMessage, err error) {
	err = each(ctx, conn, l.db.Rows.Limit(l.q.held, 1), []any{build, int64(partition), key}, func(r Rows) error {
		m, err := l.scanUndelivered(r, false)
		head = &m
		return err
	})
	if err != nil {
		return nil, err
	}
	return head, nil
}

// CountHeldIn counts the rows that hold a key or wait; see [store.ReadView].
func (l *Ledger) CountHeldIn(ctx context.Context, conn Conn, build int64) (int64, error) {
	return number(ctx, conn, l.q.countHeld, build)
}

// errMoved is an action that found something else than it had read a moment
// before. It is decided anew.
var errMoved = errors.New("what the action relies on has changed meanwhile")

// act reads, decides, and writes what was decided, if what that relies on is still
// so. decide begins anew each time; no steps are nothing to do.
func (l *Ledger) act(ctx context.Context, op string, decide func(conn Conn) ([]Step, error)) error {
	for n := 0; ; n++ {
		var steps []Step
		err := l.db.Read(ctx, op, func(conn Conn) (err error) {
			steps, err = decide(conn)
			return err
		})
		if err == nil && len(steps) > 0 {
			err = l.db.WriteAll(ctx, op, steps)
		}
		if !errors.Is(err, errMoved) {
			return err
		}
		if n == attemptsMax-1 {
			return &store.TransientError{Op: op, Hint: "others act on the same consumer: try again", Err: err}
		}
		wait := firstWait << n
		select {
		case <-time.After(wait/2 + rand.N(wait/2)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// historyStep records what was done.
func (l *Ledger) historyStep(id store.ConsumerID, h store.HistoryEntry) Step {
	if h.Detail == "" {
		h.Detail = "{}"
	}
	return Step{Text: l.q.record, Args: []any{id.Type, id.Name, h.Build, h.Actor, h.Action, h.Topic, int64(h.Partition), h.Position, h.Key, h.Detail}}
}

// raise takes the partitions' next generation and leaves them their owner, so that
// whatever the owner has under way is refused (H13). No partitions are all.
func (l *Ledger) raise(build int64, partitions ...int) []Step {
	return append(l.lockAll(build, partitions...), Step{Text: l.db.SQL(raiseSQL + among(partitions)), Args: []any{build}})
}

// lockAll locks ownership rows in the order of their partitions, all where none are
// named, where a statement that changes many would not take them in that order.
func (l *Ledger) lockAll(build int64, partitions ...int) []Step {
	if l.db.ForUpdate == "" {
		return nil
	}
	return []Step{{Text: l.db.SQL(`SELECT "partition" FROM {{ownership}} WHERE build = ?` + among(partitions) + ` ORDER BY "partition"` + l.db.ForUpdate), Args: []any{build}}}
}

func among(partitions []int) string {
	if len(partitions) == 0 {
		return ""
	}
	return ` AND "partition" IN (` + numbers(slices.Compact(slices.Sorted(slices.Values(partitions)))) + `)`
}

// same is the steps' condition that a consumer is as it was read.
func (l *Ledger) same(c *store.Consumer) Step {
	return Step{Text: l.q.guard, Args: []any{c.ID.Type, c.ID.Name, string(c.State), c.Build, c.Epoch}, Broken: errMoved, Rows: 1}
}

func (l *Ledger) stateStep(c *store.Consumer, to store.ConsumerState) Step {
	return Step{Text: l.q.setState, Args: []any{string(to), c.ID.Type, c.ID.Name, string(c.State), c.Build, c.Epoch}, Broken: errMoved, Rows: 1}
}

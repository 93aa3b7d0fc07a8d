package sqlserver

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	mssql "github.com/microsoft/go-mssqldb"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// The parts of a batch that applies. Everything is staged before the transaction
// begins. Then locks are taken in the one order (H39): ownership, rows,
// checkpoints. The loop joins keep that order, and look every row up by its key:
// a scan would lock the rows of other partitions.
const (
	stageLeasesSQL = `DECLARE @leases TABLE ([partition] int NOT NULL PRIMARY KEY, generation bigint NOT NULL);
INSERT INTO @leases ([partition], generation)
SELECT j.p, j.g FROM OPENJSON(@held) WITH (p int '$.p', g bigint '$.g') AS j;
DECLARE @leased int = (SELECT COUNT(*) FROM @leases);
`

	stageMovesSQL = `DECLARE @moves TABLE (ord int NOT NULL PRIMARY KEY, topic varchar(1020) COLLATE ` + collation + ` NOT NULL,
 [partition] int NOT NULL, moved_from bigint NOT NULL, moved_to bigint NOT NULL);
INSERT INTO @moves (ord, topic, [partition], moved_from, moved_to)
SELECT j.o, j.t, j.p, j.f, j.m
FROM OPENJSON(@checkpoints) WITH (o int '$.o', t nvarchar(510) '$.t', p int '$.p', f bigint '$.f', m bigint '$.m') AS j;
DECLARE @moved int = (SELECT COUNT(*) FROM @moves);
`

	// An UPDATE that changes nothing: it waits for whoever holds a row, and then
	// looks again whether the row is still the one that was asked for.
	holdLeasesSQL = `UPDATE o SET o.generation = o.generation
FROM @leases AS l INNER LOOP JOIN {{ownership}} AS o WITH (ROWLOCK) ON o.build = @build AND o.[partition] = l.[partition]
WHERE o.generation = l.generation AND o.instance_id = CAST(@instance COLLATE ` + collation + ` AS varchar(1020));
`

	guardLeasesSQL = `IF @@ROWCOUNT <> @leased
BEGIN
  THROW 51304, N'a lease is no longer held', 1;
END;
`

	moveCheckpointsSQL = `UPDATE c SET c.position = m.moved_to,
 c.effects_through = CASE WHEN c.effects_through > m.moved_to THEN c.effects_through ELSE m.moved_to END
FROM @moves AS m INNER LOOP JOIN {{checkpoints}} AS c WITH (ROWLOCK) ON c.build = @build AND c.topic = m.topic AND c.[partition] = m.[partition]
WHERE c.position = m.moved_from AND c.epoch = @epoch;
IF @@ROWCOUNT <> @moved
BEGIN
  THROW 51305, N'a checkpoint or the epoch is not what the batch was read from', 1;
END;
`

	// The lock comes first, so whoever held it has ended; what is read then is
	// what became of it.
	standingSQL = batchHead + `
` + stageLeasesSQL + stageMovesSQL + `DECLARE @holds int;
DECLARE @at_from int;
DECLARE @at_to int;
BEGIN TRANSACTION;
` + holdLeasesSQL + `SET @holds = @@ROWCOUNT;
SELECT @at_from = COUNT(CASE WHEN c.position = m.moved_from THEN 1 END), @at_to = COUNT(CASE WHEN c.position = m.moved_to THEN 1 END)
FROM @moves AS m INNER LOOP JOIN {{checkpoints}} AS c ON c.build = @build AND c.topic = m.topic AND c.[partition] = m.[partition]
WHERE c.epoch = @epoch;
COMMIT TRANSACTION;
SELECT @holds, @at_from, @at_to;
`
)

// Apply implements [store.Batches].
//
// Promise: rows and checkpoints of a batch commit together or not at all (P1),
// and only under the leases it was read with (P2).
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	if err := rules.CheckBatch(b); err != nil {
		return err
	}
	current := func() error {
		if b.Incarnation != s.Incarnation() {
			return store.ErrIncarnation
		}
		return nil
	}
	if err := current(); err != nil {
		return err
	}
	w, err := s.writes(b)
	if err != nil {
		return err
	}
	text, args := w.text(), append(guardArgs(b), w.args...)
	// Asked again when there is a connection: whoever had it before may have
	// lost one, and with it what the batch was read from.
	err = s.engine.batch(ctx, "apply", text, args, current, nil)
	switch number(err) {
	case errFenced:
		return store.ErrFenced
	case errCheckpoint:
		return store.ErrCheckpointMoved
	case errRetry:
		return store.ErrRetryMoved
	}
	if class, _ := classOf(err); class == sqlstore.Data || class == sqlstore.Duplicate {
		return s.refused(ctx, b, w, err)
	}
	return err
}

// refused answers for a batch whose data the database does not accept. If it is
// out of date as well, that is the answer: its data may be wrong for that reason.
func (s *Store) refused(ctx context.Context, b *store.Batch, w *writes, refusal error) error {
	at, err := s.standing(ctx, "apply", b)
	switch {
	case err != nil:
		return err
	case !at.held:
		return store.ErrFenced
	case at.from != len(b.Checkpoints):
		return store.ErrCheckpointMoved
	}
	if len(b.Retries) > 0 {
		switch at, err := s.retried(ctx, "apply", b); {
		case err != nil:
			return err
		case at.asRead != len(b.Retries):
			return store.ErrRetryMoved
		}
	}
	e, _ := serverError(refusal)
	table := w.tableAt(int(e.LineNo))
	if table == kept {
		return (&sqlstore.KeptError{Err: &dataError{e}}).Final()
	}
	return &store.DataError{Table: table, Err: &dataError{e}}
}

// guardArgs are the arguments that every batch of an apply has.
func guardArgs(b *store.Batch) []any {
	var leases, moves rowsJSON
	for _, l := range b.Leases {
		leases.row()
		leases.int("p", int64(l.Partition))
		leases.int("g", l.Generation)
	}
	for i, c := range b.Checkpoints {
		moves.row()
		moves.int("o", int64(i))
		moves.string("t", c.Topic)
		moves.int("p", int64(c.Partition))
		moves.int("f", c.From)
		moves.int("m", c.To)
	}
	return []any{
		sql.Named("build", b.Build),
		sql.Named("epoch", b.Epoch),
		sql.Named("instance", mssql.NVarCharMax(b.InstanceID)),
		sql.Named("held", mssql.NVarCharMax(leases.text())),
		sql.Named("checkpoints", mssql.NVarCharMax(moves.text())),
	}
}

// standing is how a batch stands in the database.
type standing struct {
	held     bool // all leases
	from, to int  // checkpoints that are where it was read from, or where it goes
}

func (s *Store) standing(ctx context.Context, op string, b *store.Batch) (at standing, err error) {
	found := false
	err = s.engine.batch(ctx, op, s.q.standing, guardArgs(b), nil, func(r *sql.Rows) error {
		for r.Next() {
			var held int
			if err := r.Scan(&held, &at.from, &at.to); err != nil {
				return err
			}
			found, at.held = true, held == len(b.Leases)
		}
		return nil
	})
	if err == nil && !found {
		err = errors.New(op + ": the answer tells nothing of the batch")
	}
	// Nothing was written, so nothing is unknown.
	var transient *store.TransientError
	if errors.As(err, &transient) {
		transient.OutcomeUnknown = false
	}
	return at, err
}

// Settle implements [store.Batches].
func (s *Store) Settle(ctx context.Context, b *store.Batch) (store.Outcome, error) {
	if err := rules.CheckBatch(b); err != nil {
		return store.OutcomeLost, err
	}
	if len(b.Checkpoints) == 0 && len(b.Retries) > 0 {
		at, err := s.retried(ctx, "settle", b)
		if err != nil || !at.held {
			return store.OutcomeLost, err
		}
		return sqlstore.OutcomeOf(b, at.done, at.same), nil
	}
	at, err := s.standing(ctx, "settle", b)
	switch n := len(b.Checkpoints); {
	case err != nil:
		return store.OutcomeLost, err
	case !at.held || n == 0: // nothing tells
	case at.to == n:
		return store.OutcomeCommitted, nil
	case at.from == n:
		return store.OutcomeNotCommitted, nil
	}
	return store.OutcomeLost, nil
}

// writes is the batch that writes a batch's rows: its text in parts, which table
// each line of it is about, and its arguments beside those of the guards.
type writes struct {
	s      *Store
	parts  strings.Builder
	line   int // of what is written next, from 1
	tables []tableLines
	args   []any
}

// tableLines tells which lines of a batch are about a table. The server names
// the line of the statement that it refused.
type tableLines struct {
	name        string
	first, last int
}

func (w *writes) text() string { return w.parts.String() }

func (w *writes) add(table, text string) {
	if text == "" {
		return
	}
	first := w.line
	w.parts.WriteString(text)
	w.line += strings.Count(text, "\n")
	if table != "" {
		w.tables = append(w.tables, tableLines{table, first, w.line - 1})
	}
}

// tableAt names the table of a line; the first table where the line is none.
func (w *writes) tableAt(line int) string {
	for _, t := range w.tables {
		if line >= t.first && line <= t.last {
			return t.name
		}
	}
	if len(w.tables) > 0 {
		return w.tables[0].name
	}
	return ""
}

// writes makes the batch. Everything that is deleted goes first: a row of a
// child table that was written after its parent's deletion stays, in whatever
// order the tables come.
func (s *Store) writes(b *store.Batch) (*writes, error) {
	w := &writes{s: s, line: 1}
	w.add("", s.q.applyBegin)
	var sections []*section
	for i := range b.Tables {
		t := &b.Tables[i]
		if len(t.Writes) == 0 && len(t.DeleteChildrenOf) == 0 && len(t.PruneKeys) == 0 {
			continue
		}
		sec := newSection(s.Plan(&t.Table), len(sections), t)
		rows, err := sec.rows(t)
		if err != nil {
			return nil, err
		}
		if len(t.Writes) > 0 {
			w.args = append(w.args, sql.Named(sec.rowsName[1:], mssql.NVarCharMax(rows)))
		}
		if len(t.DeleteChildrenOf) > 0 {
			w.args = append(w.args, sql.Named(sec.goneName[1:], mssql.NVarCharMax(stringsJSON(t.DeleteChildrenOf))))
		}
		if len(t.PruneKeys) > 0 {
			w.args = append(w.args, sql.Named(sec.staleName[1:], mssql.NVarCharMax(stringsJSON(t.PruneKeys))))
		}
		w.add(sec.plan.Table.Name, sec.stage())
		sections = append(sections, sec)
	}
	if err := w.stageKept(b); err != nil {
		return nil, err
	}
	w.add("", s.q.applyHold)
	for _, sec := range sections {
		w.add(sec.plan.Table.Name, sec.deletes())
	}
	for _, sec := range sections {
		w.add(sec.plan.Table.Name, sec.upserts())
	}
	w.writeKept(b)
	w.add("", s.q.applyMove)
	if b.Halt != nil {
		w.add(kept, s.q.haltBatch)
	}
	w.add("", s.q.applyEnd)
	return w, nil
}

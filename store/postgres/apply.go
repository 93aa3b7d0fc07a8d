package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Apply implements [store.Batches].
//
// Promise: rows and checkpoints of a batch commit together or not at all (P1),
// and only under the leases it was read with (P2). All of it is one flight: the
// fence and the checkpoints fail as errors on the server (H1).
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	if err := rules.CheckBatch(b); err != nil {
		return err
	}
	if b.Incarnation != s.Incarnation() {
		return store.ErrIncarnation
	}
	e := s.engine
	const op = "apply"
	f, err := s.applyFlight(b)
	if err != nil {
		return err
	}
	defer f.free()
	err = e.inFlight(ctx, op, func() (committing bool, err error) {
		err = e.with(ctx, func(c *conn) error {
			// Asked again: while this call waited, the connection may have been
			// lost, and with it what the batch was read from.
			if b.Incarnation != s.Incarnation() {
				return store.ErrIncarnation
			}
			run, cancel := e.steady(ctx)
			defer cancel()
			failed, err := c.run(run, f.list...)
			if err != nil {
				c.rollback(run)
			}
			committing = failed >= len(f.list)-1
			return f.meaning(failed, err)
		})
		return committing, err
	})
	var data *store.DataError
	var kept *sqlstore.KeptError
	if errors.As(err, &data) || errors.As(err, &kept) {
		if stale := s.outOfDate(ctx, f); stale != nil {
			return stale
		}
	}
	if kept != nil {
		return kept.Final()
	}
	return err
}

// applyFlight are the statements of a batch and what their failure means.
type applyFlight struct {
	list        []*statement
	fence       int
	checkpoints int            // the first that moves checkpoints, up to COMMIT
	tables      map[int]string // statement → table whose rows it writes
	kept        map[int]error  // statement about the host's own rows → what it means if a guard fails; nil: there are none
	retries     *statement     // guards the retried rows, nil for none
	guard       *statement
	arena       *arena
}

func (s *Store) applyFlight(b *store.Batch) (*applyFlight, error) {
	f := &applyFlight{list: s.engine.beginFlight(), tables: map[int]string{}, arena: arenas.Get().(*arena)}
	f.arena.used = 0
	f.fence = len(f.list)
	f.list = append(f.list, s.leaseStatement(s.q.fence, b))
	if err := s.writeStatements(f, b.Tables); err != nil {
		f.free()
		return nil, err
	}
	if err := s.keptStatements(f, slices.Concat(s.RetrySteps(b), s.RecordSteps(b))); err != nil {
		f.free()
		return nil, err
	}
	if len(b.Retries) > 0 {
		f.retries = &statement{sql: guarded("count(*) = "+strconv.Itoa(len(b.Retries)), s.AsReadSQL(b)), fresh: true}
	}
	f.checkpoints = len(f.list)
	f.list = append(f.list, s.moveStatements(f, b)...)
	if len(b.Checkpoints) > 0 {
		f.guard = s.checkpointStatement(s.q.guardCheckpoints, b, true)
	}
	halt, err := s.HaltSteps(b)
	if err == nil {
		err = s.keptStatements(f, halt)
	}
	if err != nil {
		f.free()
		return nil, err
	}
	f.list = append(f.list, &statement{sql: "COMMIT"})
	return f, nil
}

// keptStatements are steps about the host's own rows, their guards as errors. Their
// texts are seldom the same twice, so a connection does not keep them.
func (s *Store) keptStatements(f *applyFlight, steps []sqlstore.Step) error {
	for i := range steps {
		step := &steps[i]
		st := &statement{sql: step.Text, fresh: true}
		if step.Broken != nil {
			st.sql = "WITH found AS (" + step.Text + " RETURNING 1)\n" + guarded("count(*) = "+strconv.FormatInt(step.Rows, 10), "SELECT 1 FROM found")
		}
		for _, a := range step.Args {
			if err := st.addAny(a); err != nil {
				return err
			}
		}
		if f.kept == nil {
			f.kept = map[int]error{}
		}
		f.kept[len(f.list)] = step.Broken
		f.list = append(f.list, st)
	}
	return nil
}

func (f *applyFlight) free() { arenas.Put(f.arena) }

func (f *applyFlight) add(table string, st *statement) {
	f.tables[len(f.list)] = table
	f.list = append(f.list, st)
}

// meaning tells what a failure is by the place of the statement that failed.
func (f *applyFlight) meaning(failed int, err error) error {
	switch {
	case err == nil:
		return nil
	case codeOf(err) == codeDivision && failed == f.fence:
		return store.ErrFenced
	case codeOf(err) == codeDivision && f.kept[failed] != nil:
		return f.kept[failed]
	case codeOf(err) == codeDivision && failed >= f.checkpoints:
		return store.ErrCheckpointMoved
	}
	if _, ok := f.kept[failed]; ok {
		class, _ := classOf(err)
		return sqlstore.Kept(class, err)
	}
	if table, ok := f.tables[failed]; ok {
		switch class, _ := classOf(err); class {
		case sqlstore.Data, sqlstore.Duplicate:
			return &store.DataError{Table: table, Err: err}
		}
	}
	return err
}

// outOfDate tells whether a batch whose data was refused is stale besides: then
// no message is to blame.
func (s *Store) outOfDate(ctx context.Context, f *applyFlight) error {
	list := s.engine.beginWrite()
	check := applyFlight{fence: len(list)}
	list = append(list, f.list[f.fence])
	if f.retries != nil {
		check.kept = map[int]error{len(list): store.ErrRetryMoved}
		list = append(list, f.retries)
	}
	check.checkpoints = len(list)
	if f.guard != nil {
		list = append(list, f.guard)
	}
	list = append(list, &statement{sql: "ROLLBACK"})
	err := s.engine.with(ctx, func(c *conn) error {
		run, cancel := s.engine.steady(ctx)
		defer cancel()
		failed, err := c.run(run, list...)
		if err != nil {
			c.rollback(run)
		}
		return check.meaning(failed, err)
	})
	return sqlstore.Fail(s.engine, "apply", false, unlost(ctx, err))
}

func (s *Store) leaseStatement(sql string, b *store.Batch) *statement {
	partitions, generations := newArray(oidInt4, len(b.Leases), 4), newArray(oidInt8, len(b.Leases), 8)
	for _, l := range b.Leases {
		partitions.addInt4(l.Partition)
		generations.addInt8(l.Generation)
	}
	st := &statement{sql: sql}
	st.int8(b.Build)
	st.array(partitions)
	st.array(generations)
	st.text(b.InstanceID)
	if sql == s.q.fence {
		st.int8(int64(len(b.Leases)))
	}
	return st
}

// moveStatements move the checkpoints, one statement for each topic.
func (s *Store) moveStatements(f *applyFlight, b *store.Batch) (list []*statement) {
	for rest := b.Checkpoints; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].Topic == rest[0].Topic {
			n++
		}
		first := rest[0].Partition
		partitions, from, to := f.arena.array(oidInt4), f.arena.array(oidInt8), f.arena.array(oidInt8)
		for _, c := range rest[:n] {
			partitions.addInt4(c.Partition)
			for from.n < c.Partition-first { // partitions that do not move
				from.addInt8(0)
				to.addInt8(0)
			}
			from.addInt8(c.From)
			to.addInt8(c.To)
		}
		st := &statement{sql: s.q.moveCheckpoints}
		st.int8(b.Build)
		st.text(rest[0].Topic)
		st.array(partitions)
		st.array(from)
		st.array(to)
		st.int8(b.Epoch)
		st.int8(int64(n))
		st.int4(first - 1)
		list = append(list, st)
		rest = rest[n:]
	}
	return list
}

func (s *Store) checkpointStatement(sql string, b *store.Batch, guard bool) *statement {
	n := len(b.Checkpoints)
	topics, partitions, from, to := newArray(oidText, n, 6), newArray(oidInt4, n, 4), newArray(oidInt8, n, 8), newArray(oidInt8, n, 8)
	for _, c := range b.Checkpoints {
		topics.addText(c.Topic)
		partitions.addInt4(c.Partition)
		from.addInt8(c.From)
		to.addInt8(c.To)
	}
	st := &statement{sql: sql}
	st.int8(b.Build)
	for _, a := range []*array{topics, partitions, from, to} {
		st.array(a)
	}
	if guard {
		st.int8(b.Epoch)
		st.int8(int64(n))
	}
	return st
}

// Settle implements [store.Batches]. The fence lock is waited for in a
// transaction of its own kind: once it is had, the attempt has ended, and the
// checkpoints are read by a statement that begins after that (H2).
func (s *Store) Settle(ctx context.Context, b *store.Batch) (store.Outcome, error) {
	if err := rules.CheckBatch(b); err != nil {
		return store.OutcomeLost, err
	}
	if len(b.Checkpoints) == 0 && len(b.Retries) > 0 {
		return s.settleRetries(ctx, b)
	}
	e := s.engine
	var held int64
	from, to, other := 0, 0, 0
	leases := s.leaseStatement(s.q.lockLeases, b)
	leases.row = func(v [][]byte) error { held = int8Of(v[0]); return nil }
	points := s.checkpointStatement(s.q.checkpoints, b, false)
	points.row = func(v [][]byte) error {
		position := int8Of(v[0])
		switch {
		case int8Of(v[1]) != b.Epoch:
			other++
		case position == int8Of(v[2]):
			from++
		case position == int8Of(v[3]):
			to++
		default:
			other++
		}
		return nil
	}
	list := append(e.beginWrite(), leases, points, &statement{sql: "COMMIT"})
	err := e.inFlight(ctx, "settle", func() (bool, error) {
		return false, e.with(ctx, func(c *conn) error {
			held, from, to, other = 0, 0, 0, 0
			run, cancel := e.steady(ctx)
			defer cancel()
			_, err := c.run(run, list...)
			if err != nil {
				c.rollback(run)
			}
			return err
		})
	})
	if err != nil {
		return store.OutcomeLost, err
	}
	switch n := len(b.Checkpoints); {
	case n == 0 || held != int64(len(b.Leases)):
	case to == n:
		return store.OutcomeCommitted, nil
	case from == n:
		return store.OutcomeNotCommitted, nil
	}
	return store.OutcomeLost, nil
}

// settleRetries is Settle for a batch that moves no checkpoint.
func (s *Store) settleRetries(ctx context.Context, b *store.Batch) (outcome store.Outcome, err error) {
	err = s.engine.Write(ctx, "settle", func(c sqlstore.Conn) error {
		outcome = store.OutcomeLost
		held := int64(0)
		for i := range b.Leases {
			n, err := c.Exec(ctx, s.q.holdLease, b.Build, int64(b.Leases[i].Partition), b.Leases[i].Generation, b.InstanceID)
			if err != nil {
				return err
			}
			held += n
		}
		if held != int64(len(b.Leases)) {
			return nil
		}
		done, same, err := s.Retried(ctx, c, b)
		if err == nil {
			outcome = sqlstore.OutcomeOf(b, done, same)
		}
		return err
	})
	if err != nil {
		return store.OutcomeLost, err
	}
	return outcome, nil
}

// arena keeps the memory of arrays between batches.
type arena struct {
	arrays []*array
	used   int
}

var arenas = sync.Pool{New: func() any { return new(arena) }}

func (a *arena) array(oid uint32) *array {
	if a.used == len(a.arrays) {
		a.arrays = append(a.arrays, newArray(oid, 0, 0))
	}
	x := a.arrays[a.used]
	a.used++
	x.oid, x.n, x.null, x.buf = oid, 0, false, x.buf[:arrayHeader]
	return x
}

func notRow(table string, key string, err error) error {
	return fmt.Errorf("table %s, row %q: %w", table, key, err)
}

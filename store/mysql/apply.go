package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Apply implements [store.Batches].
//
// Promise: rows and checkpoints of a batch commit together or not at all (P1),
// and only under the leases it was read with (P2). COMMIT is sent after every
// guard's count was seen (H1).
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	if err := rules.CheckBatch(b); err != nil {
		return err
	}
	if b.Incarnation != s.Incarnation() {
		return store.ErrIncarnation
	}
	halt, err := s.HaltSteps(b)
	if err != nil {
		return err
	}
	err = s.engine.write(ctx, "apply", func(se *session) error {
		if err := s.holdLeases(ctx, se, b); err != nil {
			return err
		}
		if err := s.writeRows(ctx, se, b.Tables); err != nil {
			return err
		}
		if err := s.keep(ctx, se, s.RetrySteps(b)); err != nil {
			return err
		}
		if err := s.keep(ctx, se, s.RecordSteps(b)); err != nil {
			return err
		}
		if err := s.moveCheckpoints(ctx, se, b); err != nil {
			return err
		}
		if err := s.keep(ctx, se, halt); err != nil {
			return err
		}
		// Asked again: meanwhile another call may have lost the connection and
		// with it what the batch was read from.
		if b.Incarnation != s.Incarnation() {
			return store.ErrIncarnation
		}
		return nil
	})
	var data *store.DataError
	var kept *sqlstore.KeptError
	if errors.As(err, &data) || errors.As(err, &kept) {
		if stale := s.stale(ctx, b); stale != nil {
			return stale
		}
	}
	if kept != nil {
		return kept.Final()
	}
	return err
}

// keep runs steps about the host's own rows.
func (s *Store) keep(ctx context.Context, se *session, steps []sqlstore.Step) error {
	err := sqlstore.RunSteps(ctx, se, steps)
	class, _ := classOf(err)
	return sqlstore.Kept(class, err)
}

// stale tells whether a batch whose data was refused is out of date as well: then
// no message is to blame. It is decided in a transaction of its own, since the
// refused one saw the checkpoints' table last.
func (s *Store) stale(ctx context.Context, b *store.Batch) error {
	if b.Incarnation != s.Incarnation() {
		return store.ErrIncarnation
	}
	return s.engine.write(ctx, "apply", func(se *session) error {
		if err := s.holdLeases(ctx, se, b); err != nil {
			return err
		}
		if len(b.Retries) > 0 {
			n := 0
			err := each(ctx, se, s.AsReadSQL(b), nil, func(sqlstore.Rows) error { n++; return nil })
			if err == nil && n != len(b.Retries) {
				err = store.ErrRetryMoved
			}
			if err != nil {
				return err
			}
		}
		from, _, err := s.countCheckpoints(ctx, se, b)
		if err == nil && from != len(b.Checkpoints) {
			err = store.ErrCheckpointMoved
		}
		return err
	})
}

// holdLeases locks the ownership rows in order of their partitions, if all are
// still the batch's.
func (s *Store) holdLeases(ctx context.Context, se *session, b *store.Batch) error {
	if len(b.Leases) == 0 {
		return nil
	}
	byGeneration := make([]arm, len(b.Leases))
	for i, l := range b.Leases {
		byGeneration[i] = arm{l.Partition, l.Generation}
	}
	text := append([]byte(s.q.fence), "`partition` IN ("...)
	text = appendPartitions(text, byGeneration)
	text = append(text, ") AND generation = "...)
	text = appendCase(text, byGeneration)
	n, err := se.Exec(ctx, string(text), b.Build, b.InstanceID)
	if err == nil && n != int64(len(b.Leases)) {
		err = store.ErrFenced
	}
	return err
}

// arm is a value for one partition.
type arm struct {
	partition int
	value     int64
}

func appendPartitions(text []byte, arms []arm) []byte {
	for i, a := range arms {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, int64(a.partition), 10)
	}
	return text
}

// appendCase spells the value that belongs to a row's partition: mostly it is the
// same for all.
func appendCase(text []byte, arms []arm) []byte {
	if !slices.ContainsFunc(arms, func(a arm) bool { return a.value != arms[0].value }) {
		return strconv.AppendInt(text, arms[0].value, 10)
	}
	text = append(text, "CASE `partition`"...)
	for _, a := range arms {
		text = append(text, " WHEN "...)
		text = strconv.AppendInt(text, int64(a.partition), 10)
		text = append(text, " THEN "...)
		text = strconv.AppendInt(text, a.value, 10)
	}
	return append(text, " END"...)
}

// moveCheckpoints moves the checkpoints of each topic by compare-and-set, in one
// statement.
func (s *Store) moveCheckpoints(ctx context.Context, se *session, b *store.Batch) error {
	for moves := range topicsOf(b.Checkpoints) {
		from, to := make([]arm, len(moves)), make([]arm, len(moves))
		for i, m := range moves {
			from[i], to[i] = arm{m.Partition, m.From}, arm{m.Partition, m.To}
		}
		// Assignments are made from left to right.
		text := append([]byte(s.q.moveCheckpoint), " effects_through = GREATEST(effects_through, "...)
		text = appendCase(text, to)
		text = append(text, "), position = "...)
		text = appendCase(text, to)
		text = append(text, " WHERE build = ? AND topic = ? AND epoch = ? AND `partition` IN ("...)
		text = appendPartitions(text, from)
		text = append(text, ") AND position = "...)
		text = appendCase(text, from)
		n, err := se.Exec(ctx, string(text), b.Build, moves[0].Topic, b.Epoch)
		if err != nil {
			return err
		}
		if n != int64(len(moves)) {
			return store.ErrCheckpointMoved
		}
	}
	return nil
}

// topicsOf gives the moves of one topic after the other; they are sorted.
func topicsOf(moves []store.CheckpointMove) func(yield func([]store.CheckpointMove) bool) {
	return func(yield func([]store.CheckpointMove) bool) {
		for len(moves) > 0 {
			n := 1
			for n < len(moves) && moves[n].Topic == moves[0].Topic {
				n++
			}
			if !yield(moves[:n]) {
				return
			}
			moves = moves[n:]
		}
	}
}

// countCheckpoints counts the batch's checkpoints that are where it begins, and
// those that are where it ends.
func (s *Store) countCheckpoints(ctx context.Context, se *session, b *store.Batch) (from, to int, err error) {
	for moves := range topicsOf(b.Checkpoints) {
		text := []byte(s.q.checkpoints)
		byPartition := make(map[int64]store.CheckpointMove, len(moves))
		for i, m := range moves {
			if i > 0 {
				text = append(text, ',')
			}
			text = strconv.AppendInt(text, int64(m.Partition), 10)
			byPartition[int64(m.Partition)] = m
		}
		err := each(ctx, se, string(text)+")", []any{b.Build, moves[0].Topic}, func(r sqlstore.Rows) error {
			var partition, position, epoch int64
			if err := r.Scan(&partition, &position, &epoch); err != nil {
				return err
			}
			m := byPartition[partition]
			switch {
			case epoch != b.Epoch:
			case position == m.From:
				from++
			case position == m.To:
				to++
			}
			return nil
		})
		if err != nil {
			return 0, 0, err
		}
	}
	return from, to, nil
}

// Settle implements [store.Batches].
func (s *Store) Settle(ctx context.Context, b *store.Batch) (outcome store.Outcome, err error) {
	if err := rules.CheckBatch(b); err != nil {
		return store.OutcomeLost, err
	}
	err = s.engine.write(ctx, "settle", func(se *session) error {
		outcome = store.OutcomeLost
		// The locks are had once the first attempt has ended (H2).
		switch err := s.holdLeases(ctx, se, b); err {
		case nil:
		case store.ErrFenced:
			return nil
		default:
			return err
		}
		from, to, err := s.countCheckpoints(ctx, se, b)
		switch n := len(b.Checkpoints); {
		case err != nil:
			return err
		case n == 0:
			done, same, err := s.Retried(ctx, se, b)
			outcome = sqlstore.OutcomeOf(b, done, same)
			return err
		case to == n:
			outcome = store.OutcomeCommitted
		case from == n:
			outcome = store.OutcomeNotCommitted
		}
		return nil
	})
	if err != nil {
		return store.OutcomeLost, err
	}
	return outcome, nil
}

// refusal names the table whose data the database does not accept.
func refusal(p *sqlstore.Plan, err error) error {
	if class, _ := classOf(err); class == sqlstore.Data || class == sqlstore.Duplicate {
		return &store.DataError{Table: p.Table.Name, Err: err}
	}
	return err
}

func badRow(p *sqlstore.Plan, key string, err error) error {
	return fmt.Errorf("table %s, row %q: %w", p.Table.Name, key, err)
}

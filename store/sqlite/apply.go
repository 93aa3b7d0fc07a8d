package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"strconv"

	lib "modernc.org/sqlite/lib"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Apply implements [store.Batches].
//
// Promise: rows and checkpoints of a batch commit together or not at all (P1),
// and only under the leases it was read with (P2).
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
	rows := len(b.Checkpoints) + len(b.Retries) + len(b.Records) + len(b.Skips)
	for i := range b.Tables {
		rows += len(b.Tables[i].Writes)
	}
	err = s.write(ctx, "apply", rows, func(tx *tx) error {
		// Asked again: while this call waited, another may have lost the
		// connection and with it what the batch was read from.
		if b.Incarnation != s.Incarnation() {
			return store.ErrIncarnation
		}
		// SQLite has one lock, so the guards can all come first: a batch that
		// is out of date never reaches the point where its data could be
		// refused, which would be held against a message.
		if err := s.guardLeases(tx, b); err != nil {
			return err
		}
		if err := s.keep(tx, s.RetrySteps(b)); err != nil {
			return err
		}
		if err := s.moveCheckpoints(tx, b); err != nil {
			return err
		}
		if err := s.writeRows(tx, b.Tables); err != nil {
			return err
		}
		return s.keep(tx, append(s.RecordSteps(b), halt...))
	})
	var kept *sqlstore.KeptError
	if errors.As(err, &kept) {
		return kept.Final()
	}
	return err
}

// keep runs steps about the host's own rows.
func (s *Store) keep(tx *tx, steps []sqlstore.Step) error {
	if len(steps) == 0 {
		return nil
	}
	err := s.runSteps(tx, steps)
	if isData(err) {
		return &sqlstore.KeptError{Err: err}
	}
	return err
}

// guard runs a statement that cannot be evaluated when what the batch relies on
// is gone. Which guard it was is told by which statement failed, never by text.
func guard(tx *tx, broken error, text string, args ...driver.Value) error {
	_, err := tx.exec(text, args...)
	if isPlainError(err) {
		return broken
	}
	return err
}

func (s *Store) guardLeases(tx *tx, b *store.Batch) error {
	return guard(tx, store.ErrFenced, s.q.guardLeases, int64(len(b.Leases)), leaseList(b.Leases), b.Build, b.InstanceID)
}

// leaseList is a JSON array of [partition, generation] for json_each.
func leaseList(leases []store.Lease) string {
	list := make([]byte, 0, 2+12*len(leases))
	list = append(list, '[')
	for i, l := range leases {
		if i > 0 {
			list = append(list, ',')
		}
		list = append(list, '[')
		list = strconv.AppendInt(list, int64(l.Partition), 10)
		list = append(list, ',')
		list = strconv.AppendInt(list, l.Generation, 10)
		list = append(list, ']')
	}
	return string(append(list, ']'))
}

// moveCheckpoints moves each by compare-and-set. One statement a checkpoint is
// twice as fast as one for all of them.
func (s *Store) moveCheckpoints(tx *tx, b *store.Batch) error {
	if len(b.Checkpoints) == 0 {
		return nil
	}
	before, err := tx.queryInt(context.Background(), s.q.totalChanges)
	if err != nil {
		return err
	}
	for _, c := range b.Checkpoints {
		_, err := tx.exec(s.q.moveCheckpt, c.From, b.Epoch, c.To, c.To, b.Build, c.Topic, int64(c.Partition))
		if code(err) == lib.SQLITE_CONSTRAINT_NOTNULL {
			return store.ErrCheckpointMoved
		}
		if err != nil {
			return err
		}
	}
	// A checkpoint that does not exist changed no row.
	return guard(tx, store.ErrCheckpointMoved, s.q.guardChanges, before+int64(len(b.Checkpoints)))
}

// Settle implements [store.Batches].
func (s *Store) Settle(ctx context.Context, b *store.Batch) (outcome store.Outcome, err error) {
	if err := rules.CheckBatch(b); err != nil {
		return store.OutcomeLost, err
	}
	err = s.write(ctx, "settle", len(b.Checkpoints), func(tx *tx) error {
		outcome = store.OutcomeLost
		switch err := s.guardLeases(tx, b); err {
		case nil:
		case store.ErrFenced:
			return nil
		default:
			return err
		}
		from, to := 0, 0
		for _, c := range b.Checkpoints {
			row, err := tx.queryRow(context.Background(), s.q.checkpoint, b.Build, c.Topic, int64(c.Partition))
			if err != nil {
				return err
			}
			switch {
			case row == nil || row[1] != b.Epoch:
				return nil
			case row[0] == c.From:
				from++
			case row[0] == c.To:
				to++
			}
		}
		switch n := len(b.Checkpoints); {
		case n == 0:
			done, same, err := s.Retried(context.Background(), s.ledgerConn(tx.conn), b)
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

package sqlstore

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
)

// What a batch did not apply is steps of its transaction, in the one order of locks
// (H39): retries, records and skips behind the rows and before the checkpoints, the
// halt behind those.

// asRead is the condition that rows are still what a batch read them as, under the
// epoch that it read (H12). It holds none but numbers and statuses, which were
// checked.
func asRead(b *store.Batch, retries []store.Retry) string {
	var t []byte
	t = append(t, "build = "...)
	t = strconv.AppendInt(t, b.Build, 10)
	t = append(t, " AND ("...)
	for i := range retries {
		r := &retries[i]
		if i > 0 {
			t = append(t, " OR "...)
		}
		t = fmt.Appendf(t, `id = %d AND "partition" = %d AND status = '%s' AND attempts = %d AND passing = %d`, r.ID, r.Partition, r.Status, r.Attempts, r.Passing)
	}
	t = append(t, `) AND EXISTS (SELECT 1 FROM {{checkpoints}} c WHERE c.build = {{undelivered}}.build AND c.topic = {{undelivered}}.topic
 AND c."partition" = {{undelivered}}."partition" AND c.epoch = `...)
	return string(append(strconv.AppendInt(t, b.Epoch, 10), ')'))
}

// retriesMax bounds the rows that one statement names.
const retriesMax = 200

// lineStep gives the rows behind others a status: heads are ids.
func (l *Ledger) lineStep(build int64, status store.UndeliveredStatus, heads []int64) Step {
	// The inner table has its rows made first: MySQL does not read what it changes.
	return Step{Text: l.db.SQL(fmt.Sprintf(`UPDATE {{undelivered}} SET status = '%[1]s', last_us = {{now}}
 WHERE build = %[2]d AND status IN ('WAITING', 'DEAD_LETTER_KEY') AND status <> '%[1]s' AND id NOT IN (%[3]s)
 AND EXISTS (SELECT 1 FROM (SELECT DISTINCT h.id AS head, h."partition" AS p, h."key" AS k FROM {{undelivered}} h WHERE h.id IN (%[3]s)) l
 WHERE l.p = {{undelivered}}."partition" AND l.k = {{undelivered}}."key" AND l.head < {{undelivered}}.id)`, status, build, numbers(heads)))}
}

// due is the value of retry_us, with its arguments.
func due(r *store.Record) (value string, args []any) {
	if r.RetryIn <= 0 {
		return "NULL", nil
	}
	return "{{now}} + ?", []any{r.RetryIn.Microseconds()}
}

// RetrySteps are the batch's retries: an error of theirs is
// [store.ErrRetryMoved].
func (l *Ledger) RetrySteps(b *store.Batch) (steps []Step) {
	for _, status := range []store.UndeliveredStatus{store.StatusWaiting, store.StatusDeadLetterKey} {
		var heads []int64
		for i := range b.Retries {
			if b.Retries[i].Line == status {
				heads = append(heads, b.Retries[i].ID)
			}
		}
		for chunk := range slices.Chunk(heads, retriesMax) {
			steps = append(steps, l.lineStep(b.Build, status, chunk))
		}
	}
	var done []store.Retry
	for i := range b.Retries {
		if b.Retries[i].Then == nil {
			done = append(done, b.Retries[i])
		}
	}
	for chunk := range slices.Chunk(done, retriesMax) {
		steps = append(steps, Step{Text: l.db.SQL(`DELETE FROM {{undelivered}} WHERE ` + asRead(b, chunk)), Broken: store.ErrRetryMoved, Rows: int64(len(chunk))})
	}
	for i := range b.Retries {
		t := b.Retries[i].Then
		if t == nil {
			continue
		}
		value, more := due(t)
		begun := ""
		if b.Retries[i].Attempts+b.Retries[i].Passing == 0 {
			begun = ", budget_us = {{now}}"
		}
		args := append([]any{string(t.Status), int64(t.Code), rules.Reason(t.Reason), int64(t.Attempts), int64(t.Passing), t.Digest}, more...)
		steps = append(steps, Step{Args: args, Broken: store.ErrRetryMoved, Rows: 1,
			Text: l.db.SQL(`UPDATE {{undelivered}} SET status = ?, code = ?, reason = ?, attempts = ?, passing = ?, digest = ?, last_us = {{now}}, retry_us = ` +
				value + begun + ` WHERE ` + asRead(b, b.Retries[i:i+1]))})
	}
	return steps
}

// AsReadSQL selects those of the batch's retried rows that are as it read them.
func (l *Ledger) AsReadSQL(b *store.Batch) string {
	return l.db.SQL(`SELECT id FROM {{undelivered}} WHERE ` + asRead(b, b.Retries))
}

// insertBytes bounds the payloads that one INSERT carries, if it has more than one
// row.
const insertBytes = 1 << 20

// RecordSteps are the batch's records and skips.
func (l *Ledger) RecordSteps(b *store.Batch) (steps []Step) {
	for rest := b.Records; len(rest) > 0; {
		n, size := 0, 0
		for n < min(len(rest), l.db.InsertMax) && (n == 0 || size+len(rest[n].Event.Data)+len(rest[n].Event.Metadata) <= insertBytes) {
			size += len(rest[n].Event.Data) + len(rest[n].Event.Metadata)
			n++
		}
		var text strings.Builder
		var args []any
		text.WriteString(`INSERT INTO {{undelivered}} (` + recordColumns + `) VALUES `)
		for i := range rest[:n] {
			if i > 0 {
				text.WriteString(", ")
			}
			r := &rest[i]
			value, more := due(r)
			text.WriteString(`(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {{now}}, {{now}}, ` + value + `, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`)
			args = append(args, b.Build, r.Topic, r.Event.Position, int64(r.Partition), r.Key, flag(r.Unresolved), string(r.Status), int64(r.Code),
				rules.Reason(r.Reason), int64(r.Attempts), int64(r.Passing), r.Digest)
			args = append(append(args, more...), copyOf(r)...)
		}
		steps = append(steps, Step{Text: l.db.SQL(text.String()), Args: args})
		rest = rest[n:]
	}
	for i := range b.Skips {
		s := &b.Skips[i]
		place := []any{b.Build, s.Topic, s.Position, int64(s.Partition), s.Key}
		known := l.db.SQL(`INSERT INTO {{consumer_history}} (` + historyColumns + `) SELECT ?, ?, ?, {{now}}, ?, ?, ?, ?, ?, ?, ? FROM (SELECT 1 AS one) s
 WHERE NOT EXISTS (SELECT 1 FROM {{skipped}} k WHERE k.build = ? AND k.topic = {{?}} AND k.position = ? AND k."partition" = ? AND k."key" = {{?}})`)
		steps = append(steps,
			Step{Text: known, Args: append([]any{b.Consumer.Type, b.Consumer.Name, b.Build, hostActor, store.ActionSkip, s.Topic, int64(s.Partition),
				s.Position, s.Key, SkipDetail(s.EveryKey)}, place...)},
			Step{Text: l.q.skip, Args: slices.Concat(place, []any{flag(s.EveryKey)}, place)})
	}
	return steps
}

// SkipDetail is what the history tells of a skip besides its place.
func SkipDetail(everyKey bool) string {
	if everyKey {
		return `{"every_key":true}`
	}
	return "{}"
}

// hostActor is who decides what a lane does.
const hostActor = "host"

// copyOf is the values of the columns from event_id on.
func copyOf(r *store.Record) []any {
	e := r.Event
	if r.Unresolved {
		return []any{e.ID[:], e.AggregateType, e.AggregateID, int64(0), e.Type, int64(0), "", int64(0), int64(0), nil, nil, nil}
	}
	text, bytes := Payload(e.Codec, e.Data)
	var metadata any
	if e.Metadata != nil {
		metadata = string(e.Metadata)
	}
	return []any{e.ID[:], e.AggregateType, e.AggregateID, e.Sequence, e.Type, int64(e.Revision), e.Codec, int64(e.CodecVersion), e.OccurredUS,
		text, bytes, metadata}
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// HaltSteps halt the batch's consumer, if it asks for that and nothing has stopped
// the consumer before.
func (l *Ledger) HaltSteps(b *store.Batch) ([]Step, error) {
	if b.Halt == nil {
		return nil, nil
	}
	text, err := json.Marshal(b.Halt)
	if err != nil {
		return nil, err
	}
	return l.HeldHaltSteps(b.Consumer, b.Build, b.Halt, string(text)), nil
}

// HeldHaltSteps halt a consumer with a reason and its text, or the build if it is
// not the live one. The caller holds a lease of the build locked.
func (l *Ledger) HeldHaltSteps(id store.ConsumerID, build int64, h *store.Halt, text string) []Step {
	return []Step{
		{Text: l.db.SQL(`INSERT INTO {{consumer_history}} (` + historyColumns + `) SELECT c.type, c.name, ?, {{now}}, ?, ?, ?, ?, ?, ?, ? FROM {{consumers}} c
 WHERE c.type = {{?}} AND c.name = {{?}} AND c.live_build = ? AND c.state IN ('running', 'rebuilding')`),
			Args: []any{build, hostActor, store.ActionHalt, h.Topic, int64(h.Partition), h.Position, h.Key, text, id.Type, id.Name, build}},
		{Text: l.q.halt, Args: []any{text, id.Type, id.Name, build}},
		{Text: l.bq.haltEntry, Args: []any{hostActor, store.ActionHalt, h.Topic, int64(h.Partition), h.Position, h.Key, text, build, id.Type, id.Name}},
		{Text: l.bq.halt, Args: []any{text, build, id.Type, id.Name}},
	}
}

// Retried tells how the batch's retried rows stand: how many are as the batch makes
// them, and how many as it read them. The caller holds its leases locked. Of a row
// that is both it cannot be told, and it is neither.
func (l *Ledger) Retried(ctx context.Context, conn Conn, b *store.Batch) (done, same int, err error) {
	type state struct {
		status            store.UndeliveredStatus
		attempts, passing int64
	}
	for chunk := range slices.Chunk(b.Retries, retriesMax) {
		ids := make([]int64, len(chunk))
		for i := range chunk {
			ids[i] = chunk[i].ID
		}
		now := map[int64]state{}
		err := each(ctx, conn, l.db.SQL(fmt.Sprintf(`SELECT id, status, attempts, passing FROM {{undelivered}} WHERE build = %d AND id IN (%s)`, b.Build, numbers(ids))),
			nil, func(r Rows) error {
				var id int64
				var status string
				var s state
				err := r.Scan(&id, &status, &s.attempts, &s.passing)
				s.status = store.UndeliveredStatus(status)
				now[id] = s
				return err
			})
		if err != nil {
			return 0, 0, err
		}
		for i := range chunk {
			r := &chunk[i]
			s, there := now[r.ID]
			was := there && s == state{r.Status, int64(r.Attempts), int64(r.Passing)}
			is := !there && r.Then == nil
			if t := r.Then; there && t != nil {
				is = s == state{t.Status, int64(t.Attempts), int64(t.Passing)}
			}
			switch {
			case was == is:
			case is:
				done++
			default:
				same++
			}
		}
	}
	return done, same, nil
}

// OutcomeOf tells what became of a batch that moves no checkpoint by its retried
// rows.
func OutcomeOf(b *store.Batch, done, same int) store.Outcome {
	switch n := len(b.Retries); {
	case n == 0: // nothing tells
	case done == n:
		return store.OutcomeCommitted
	case same == n:
		return store.OutcomeNotCommitted
	}
	return store.OutcomeLost
}

// KeptError is the database's refusal of what the host keeps for itself.
type KeptError struct{ Err error }

func (e *KeptError) Error() string { return e.Err.Error() }
func (e *KeptError) Unwrap() error { return e.Err }

// Kept marks an error of a statement about the host's own rows, if the database
// refuses their data.
func Kept(class Class, err error) error {
	if class == Data || class == Duplicate {
		return &KeptError{err}
	}
	return err
}

// Final makes of a refusal what a caller of Apply is told: no message is to blame
// for it, and the batch can be tried again.
func (e *KeptError) Final() error {
	return &store.TransientError{Op: "apply", Err: e.Err,
		Hint: "the database refuses what the host keeps of undelivered messages: compare its tables with `projhost schema check`"}
}

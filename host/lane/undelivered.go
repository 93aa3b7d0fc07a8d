package lane

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/reader"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

// outcomes are what a batch says of messages that were not applied, beside rows
// and checkpoints.
type outcomes struct {
	records []store.Record
	retries []store.Retry
	skips   []store.Skip
	halt    *store.Halt
}

// SkipAt names a message that is passed over for a key.
type SkipAt struct {
	Topic    int
	Position int64
	Key      string
}

// errLine is a line that is not as its head in memory says.
var errLine = fmt.Errorf("%w: it is not in its line", store.ErrRetryMoved)

// fate is what is to become of an entry.
type fate int

const (
	called  fate = iota // the guest is asked
	passed              // it was skipped
	follows             // its key is held
	fails               // it cannot be applied, and that is known beforehand
)

// fate tells it of an entry, as things are. For one that fails it gives code and
// reason.
func (l *Lane) fate(it *item) (f fate, code abi.Status, reason string) {
	e := it.entry
	if len(l.cfg.Skips) > 0 {
		if _, ok := l.cfg.Skips[SkipAt{it.topic, e.Event.Position, e.Key}]; ok {
			return passed, 0, ""
		}
	}
	if l.isHeld(e) {
		return follows, 0, ""
	}
	if e.StandIn {
		return fails, abi.CodeMalformed, notStorable
	}
	if r := l.refusal(it.topic, e.Event.Position); r != nil {
		return fails, abi.CodeData, r.Reason
	}
	return called, 0, ""
}

// refusal is what the database said of a message that was alone in its batch,
// nil if nothing.
func (l *Lane) refusal(topic int, position int64) *Refusal {
	if l.cfg.Careful == nil {
		return nil
	}
	for i := range l.cfg.Careful.Refusals {
		if r := &l.cfg.Careful.Refusals[i]; r.Topic == topic && r.Position == position {
			return r
		}
	}
	return nil
}

const notStorable = "a key of this message cannot be stored (1 to 255 code points, no U+0000, no space at the end); it stands here as its hash"

// isHeld tells whether an entry has to wait for an earlier one: of its key, or
// of any where all keys are one scope.
func (l *Lane) isHeld(e *reader.Entry) bool {
	return l.blocked() || l.lines.get(int(e.Partition), e.Key) != nil
}

// blocked tells whether the lane takes no messages: in a consumer with a free
// table everything waits for a message that is held (H22).
func (l *Lane) blocked() bool { return l.cfg.Free && len(l.lines.byKey) > 0 }

// follow records an entry whose key is held, behind what holds it.
func (l *Lane) follow(it *item) {
	e := it.entry
	r := store.Record{
		Topic: l.cfg.Topics[it.topic], Partition: int(e.Partition), Key: e.Key,
		Status: store.StatusWaiting, Digest: l.cfg.Digest, Event: e.Event,
	}
	switch ln := l.lines.get(int(e.Partition), e.Key); {
	case ln == nil: // another key's message is what it waits for
		l.lines.add(int(e.Partition), e.Key, store.StatusWaiting, time.Now())
	default:
		if ln.status == store.StatusDeadLetterKey {
			r.Status = store.StatusDeadLetterKey
		}
		ln.rows++
	}
	l.cfg.Held.n.Add(1)
	l.counted++
	l.batch.records = append(l.batch.records, r)
}

// fail decides what becomes of an entry that failed for good.
func (l *Lane) fail(it *item, code abi.Status, reason string) {
	e, topic := it.entry, l.cfg.Topics[it.topic]
	v := l.cfg.Delivery.decide(code, 0, 0, 0, l.cfg.Free)
	l.tell(v, topic, e, code, reason)
	if v.skip {
		l.batch.skips = append(l.batch.skips, skipOf(topic, e))
		return
	}
	r := l.recordOf(v, code, reason)
	r.Topic, r.Partition, r.Key, r.Event = topic, int(e.Partition), e.Key, e.Event
	l.batch.records = append(l.batch.records, r)
	l.cfg.Held.n.Add(1)
	l.counted++
	if v.status != store.StatusDeadLetter {
		l.lines.add(int(e.Partition), e.Key, v.status, time.Now().Add(v.pause))
	}
	l.halts(v, topic, e, code, reason)
}

func skipOf(topic string, e *reader.Entry) store.Skip {
	return store.Skip{Topic: topic, Partition: int(e.Partition), Position: e.Event.Position, Key: e.Key}
}

// recordOf is the part of a record that says how it failed.
func (l *Lane) recordOf(v verdict, code abi.Status, reason string) store.Record {
	return store.Record{
		Status: v.status, Code: int(code), Reason: Reason(reason), Attempts: v.attempts, Passing: v.passing,
		RetryIn: v.pause, Digest: l.cfg.Digest,
	}
}

// halts has the consumer halt with the batch in hand, if that is the verdict.
func (l *Lane) halts(v verdict, topic string, e *reader.Entry, code abi.Status, reason string) {
	if v.skip || v.status != store.StatusHalted || l.batch.halt != nil {
		return
	}
	h := l.haltOf(topic, e, int(code), reason)
	l.batch.halt = &h
}

func (l *Lane) tell(v verdict, topic string, e *reader.Entry, code abi.Status, reason string) {
	status := string(v.status)
	if v.skip {
		status = "skipped"
	}
	log := l.deps.Log.Warn
	if v.attempts+v.passing > 1 {
		log = l.deps.Log.Debug
	}
	log("message could not be applied", "becomes", status, "topic", topic, "position", e.Event.Position, "partition", e.Partition,
		"key", e.Key, "event_type", e.Event.Type, "event_id", e.Event.ID.String(), "code", int(code), "reason", reason,
		"attempts", v.attempts, "passing", v.passing, "retry_in", v.pause)
}

// Reason gives a text, which may be the guest's, the form in which it is kept.
func Reason(s string) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if utf8.RuneCountInString(s) <= store.UndeliveredReasonMax {
		return s
	}
	n := 0
	for i := range s {
		if n++; n == store.UndeliveredReasonMax {
			return s[:i] + "…"
		}
	}
	return s
}

// retryDue tells whether it is time for those that are held: something is due,
// and what came since the latest retries has had a batch.
func (l *Lane) retryDue() bool {
	if l.over || !l.due(time.Now()) {
		return false
	}
	return !l.retried || l.blocked() || l.next == len(l.work) && l.queue.empty()
}

func (l *Lane) due(now time.Time) bool {
	if ln := l.lines.next(); ln != nil && !ln.due.After(now) {
		return true
	}
	return slices.ContainsFunc(l.unresolved, l.isResolved)
}

// isResolved tells whether a message whose keys could not be told is behind what
// is applied: they can be told now.
func (l *Lane) isResolved(m store.Head) bool {
	t := l.topic(m.Topic)
	return t >= 0 && l.through[t] >= m.Event.Position
}

// nextRetry is when something is due, if ever.
func (l *Lane) nextRetry() (time.Time, bool) {
	if ln := l.lines.next(); ln != nil {
		return ln.due, true
	}
	return time.Time{}, false
}

const (
	// retryRows is how many rows behind a head are read at once: each may have as
	// much payload as an event has at most.
	retryRows = 32
	// retryMax bounds the rows of a batch of retries.
	retryMax = 1000
)

// retry tries again what is due, in a batch of its own: nothing is in hand or in
// flight, so every row is in the database as the line says.
func (l *Lane) retry(ctx context.Context) error {
	l.batch.any, l.batch.began = true, time.Now()
	l.unresolved = slices.DeleteFunc(l.unresolved, func(m store.Head) bool {
		if !l.isResolved(m) {
			return false
		}
		l.batch.retries = append(l.batch.retries, store.Retry{
			ID: m.ID, Partition: m.Partition, Status: m.Status, Attempts: m.Attempts, Passing: m.Passing,
		})
		return true
	})
	for now := time.Now(); l.retryRoom(); {
		ln := l.lines.next()
		if ln == nil || ln.due.After(now) {
			break
		}
		if err := l.drain(ctx, ln); err != nil {
			return err
		}
	}
	return nil
}

// retryRoom tells whether the batch of retries in hand takes another row.
func (l *Lane) retryRoom() bool {
	b := &l.batch
	return b.halt == nil && !b.suspect && len(b.retries) < retryMax && b.bytes < l.cfg.BatchBytes && len(l.rows.dirty) < l.cfg.BatchRows
}

// drain tries the head of a line, and while that succeeds what follows it. The
// line is left with a head that is due later or never, or at once if there was
// no room for all of it.
func (l *Lane) drain(ctx context.Context, ln *line) error {
	limit := 1 // most often the head fails again
	for after := int64(0); ln.rows > 0 && l.retryRoom(); limit = retryRows {
		rows, err := l.readLine(ctx, ln, after, limit)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return errLine
		}
		for len(rows) > 0 && l.retryRoom() {
			n, held, err := l.drainRows(ctx, ln, rows, after == 0)
			if err != nil || held {
				return err
			}
			if n == 0 && after == 0 {
				return nil // it wants a batch of its own
			}
			if n == 0 {
				break
			}
			after, rows = rows[n-1].ID, rows[n:]
		}
	}
	if ln.rows == 0 {
		l.lines.remove(ln)
		// Where the replay is not that far, later messages may make its rows anew.
		if l.rows.rebuilt && !l.cfg.KeepOld && !l.cfg.Free && (l.cfg.Until == nil || l.replayed()) {
			l.rows.letGo(ln.key)
		}
	} else {
		l.lines.set(ln, store.StatusWaiting, time.Now())
	}
	return nil
}

func (l *Lane) readLine(ctx context.Context, ln *line, after int64, limit int) ([]store.UndeliveredMessage, error) {
	for {
		rows, err := l.deps.Store.Line(ctx, l.cfg.Build, ln.partition, ln.key, after, limit)
		if err == nil {
			return rows, nil
		}
		if err := l.again(ctx, fmt.Errorf("read undelivered messages: %w", err), nil); err != nil {
			return nil, err
		}
	}
}

// drainRows brings the first rows of a line to their outcomes, as many as go
// together, and tells how many. held: the line has a head again that is not to
// be tried now.
func (l *Lane) drainRows(ctx context.Context, ln *line, rows []store.UndeliveredMessage, first bool) (n int, held bool, err error) {
	head := &rows[0]
	switch {
	case !first && (head.Status == store.StatusHalted || head.Status == store.StatusFailed && head.RetryIn > 0):
		// It was tried before, out of turn.
		l.lines.set(ln, head.Status, time.Now().Add(head.RetryIn))
		return 0, true, nil
	case first && head.Status != store.StatusFailed && head.Status != store.StatusWaiting:
		return 0, false, errLine
	}
	refused, suspect := l.refused1(head)
	switch {
	case suspect && len(l.batch.retries) > 0:
		l.batch.suspect = true // the next batch is its own
		return 0, false, nil
	case suspect && refused.Reason == "":
		l.batch.suspect = true // nothing else goes with it
	}
	// Those after the first go together as long as they are plain ones.
	n = 1
	for n < len(rows) && !first && !suspect && len(l.batch.retries)+n < retryMax {
		if _, odd := l.refused1(&rows[n]); odd || isStandIn(rows[n].Key) || !waits(rows[n].Status) {
			break
		}
		n++
	}
	l.tasks = l.tasks[:0]
	for i := range rows[:n] {
		t, ok := l.taskOf(&rows[i])
		if !ok {
			n = i
			break
		}
		l.tasks = append(l.tasks, t)
	}
	var fail *plugins.Failure
	done := 0
	switch {
	case suspect && refused.Reason != "":
		fail, n = &plugins.Failure{Code: abi.CodeData, Message: refused.Reason}, 1
	case isStandIn(head.Key):
		fail, n = &plugins.Failure{Code: abi.CodeMalformed, Message: notStorable}, 1
	case n == 0:
		fail, n = &plugins.Failure{Code: abi.CodeMalformed, Message: "no input of the consumer takes this message any more"}, 1
	default:
		done, fail, err = l.attempt(ctx, l.tasks, abi.Status(head.Code))
	}
	for i := range rows[:done] {
		l.retried1(ln, &rows[i], nil)
	}
	if fail == nil || err != nil {
		return done, false, err
	}
	return done + 1, l.failAgain(ln, &rows[done], fail), nil
}

func waits(s store.UndeliveredStatus) bool {
	return s == store.StatusWaiting || s == store.StatusDeadLetterKey
}

// refused1 is what is known of a row whose retry the database refused, if it is
// still as it was then.
func (l *Lane) refused1(m *store.UndeliveredMessage) (RefusedRow, bool) {
	r, ok := l.cfg.Refused[m.ID]
	return r, ok && r.Attempts == m.Attempts && r.Passing == m.Passing
}

// isStandIn tells a key that stands for one that cannot be stored.
func isStandIn(key string) bool {
	const prefix, digits = "#sha256:", 64
	return len(key) == len(prefix)+digits && strings.HasPrefix(key, prefix) && strings.Trim(key[len(prefix):], "0123456789abcdef") == ""
}

// taskOf makes an entry of a copy; false if no input takes it.
func (l *Lane) taskOf(m *store.UndeliveredMessage) (task, bool) {
	input, typ, ok := l.cfg.Declared.Match(m.Topic, m.Event.AggregateType, m.Event.Type)
	t := task{
		entry: &reader.Entry{Event: &m.Event, Key: m.Key, Partition: uint16(m.Partition), Input: input, Type: typ},
		topic: l.topic(m.Topic),
	}
	if l.cfg.Replayed != nil && t.topic >= 0 {
		t.entry.Replay = l.cfg.Replayed[t.topic].Has(m.Event.Position, m.Partition, m.Key)
	}
	return t, ok
}

// retried1 notes what became of a row of a line; nil: it is gone.
func (l *Lane) retried1(ln *line, m *store.UndeliveredMessage, then *store.Record) *store.Retry {
	l.batch.retries = append(l.batch.retries, store.Retry{
		ID: m.ID, Partition: m.Partition, Status: m.Status, Attempts: m.Attempts, Passing: m.Passing, Then: then,
	})
	l.batch.bytes += len(m.Event.Data) + len(m.Event.Metadata)
	if then == nil {
		ln.rows--
		l.cfg.Held.n.Add(-1)
		l.counted--
	}
	return &l.batch.retries[len(l.batch.retries)-1]
}

// failAgain decides what becomes of a row whose retry failed, and tells whether
// it holds its line still.
func (l *Lane) failAgain(ln *line, m *store.UndeliveredMessage, fail *plugins.Failure) (held bool) {
	t, _ := l.taskOf(m)
	age := time.Duration(m.LastUS-m.BudgetUS) * time.Microsecond
	if m.Attempts+m.Passing == 0 {
		age = 0 // its budget is fresh
	}
	reason := failureText(fail)
	v := l.cfg.Delivery.decide(fail.Code, m.Attempts, m.Passing, age, l.cfg.Free)
	l.tell(v, m.Topic, t.entry, fail.Code, reason)
	if v.skip {
		l.retried1(ln, m, nil)
		l.batch.skips = append(l.batch.skips, skipOf(m.Topic, t.entry))
		return false
	}
	then := l.recordOf(v, fail.Code, reason)
	r := l.retried1(ln, m, &then)
	if v.status == store.StatusDeadLetter {
		ln.rows--
		return false
	}
	if v.status == store.StatusDeadLetterKey {
		r.Line = store.StatusDeadLetterKey
	}
	l.lines.set(ln, v.status, time.Now().Add(v.pause))
	l.halts(v, m.Topic, t.entry, fail.Code, reason)
	return true
}

// sealOutcomes hands what became of messages that failed to the batch.
func (l *Lane) sealOutcomes(b *store.Batch) {
	slices.SortFunc(l.batch.retries, func(a, b store.Retry) int { return cmp.Compare(a.ID, b.ID) })
	b.Records, b.Retries, b.Skips, b.Halt = l.batch.records, l.batch.retries, l.batch.skips, l.batch.halt
	for i := range b.Retries {
		b.Leases = append(b.Leases, l.deps.Lease(b.Retries[i].Partition))
	}
	for i := range b.Records {
		b.Leases = append(b.Leases, l.deps.Lease(b.Records[i].Partition))
	}
	for i := range b.Skips {
		b.Leases = append(b.Leases, l.deps.Lease(b.Skips[i].Partition))
	}
	l.sealed.outcomes = l.batch.outcomes
	l.retried = len(b.Retries) > 0
	l.sealHeld()
}

// sealHeld tells others what is held now.
func (l *Lane) sealHeld() {
	l.stats.held.Store(l.counted)
	l.stats.blocked.Store(l.blocked())
	l.stats.due.Store(0)
	if due, ever := l.nextRetry(); ever {
		l.stats.due.Store(due.UnixMicro())
	}
}

// failureText is what a failure says, in one line.
func failureText(f *plugins.Failure) string {
	text := f.Code.String()
	if f.Message != "" {
		text += ": " + f.Message
	}
	if f.Trap != "" && f.Trap != f.Message {
		text += " (" + f.Trap + ")"
	}
	return text
}

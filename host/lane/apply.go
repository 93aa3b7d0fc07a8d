package lane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/reader"
	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

// callMin is how small calls get when a guest runs out of memory or time in
// larger ones.
const callMin = 16

// task is an entry that the guest is asked about.
type task struct {
	entry *reader.Entry
	topic int
	place int // in work, of an entry that is there
}

// step brings the next whole messages to their outcomes, as many as one call of
// the guest may take.
//
// An entry that fails is decided before anything behind it is looked at. So what
// becomes of each does not depend on which share a batch (P7), also where one
// entry sees another's rows, and a consumer that halts has applied exactly what
// is before the message, and the rest of that.
func (l *Lane) step(ctx context.Context) error {
	end := l.gather()
	for at := l.next; at < end; {
		upto := l.choose(at, end)
		n, fail, err := l.attempt(ctx, l.tasks, 0)
		if err != nil {
			// What is in hand ends within a message.
			l.failed = l.failed || n > 0 || at > l.next
			return err
		}
		if n < len(l.tasks) {
			upto = l.tasks[n].place
		}
		for ; at < upto; at++ {
			if it := &l.work[at]; it.entry != nil {
				if f, _, _ := l.fate(it); f == follows {
					l.follow(it)
				}
			}
		}
		if at == end {
			break
		}
		it := &l.work[at]
		switch f, code, reason := l.fate(it); {
		case fail != nil:
			l.fail(it, fail.Code, failureText(fail))
		case f == fails:
			l.fail(it, code, reason)
		default:
			l.done(at)
			return l.haltAt(it, 0, fmt.Sprintf("%d undelivered messages are kept for the partitions of this host, as many as [delivery] max_undelivered allows: "+
				"mend what the first of them failed for, or retry, skip or delete them, and resume", l.cfg.Held.Count()))
		}
		at++
		if l.batch.halt != nil || l.blocked() {
			end = l.messageEnd(at - 1)
		}
	}
	l.done(end)
	return nil
}

// choose makes tasks of the entries of the work from at on that the guest is to
// be asked about, and tells where that ends: at end, at an entry that fails
// without being asked, or at a message for whose followers there is no room.
func (l *Lane) choose(at, end int) int {
	l.tasks = l.tasks[:0]
	followers := 0
	for i := at; i < end; i++ {
		it := &l.work[i]
		if it.entry == nil {
			continue
		}
		if !l.cfg.Held.room(followers) && l.messageStart(i) == i && l.messageWaits(i) {
			return i
		}
		switch f, _, _ := l.fate(it); f {
		case called:
			l.tasks = append(l.tasks, task{it.entry, it.topic, i})
		case follows:
			followers++
		case fails:
			return i
		}
	}
	return end
}

// messageStart is the place of the first entry of the message that has one at i.
func (l *Lane) messageStart(i int) int {
	for i > l.next && l.work[i-1].entry != nil && l.work[i-1].to == 0 {
		i--
	}
	return i
}

// messageEnd is the place behind the last entry of the message that has one at i.
func (l *Lane) messageEnd(i int) int {
	for l.work[i].to == 0 {
		i++
	}
	return i + 1
}

// messageWaits tells whether an entry of the message at i is to wait.
func (l *Lane) messageWaits(i int) bool {
	for end := l.messageEnd(i); i < end; i++ {
		if l.isHeld(l.work[i].entry) {
			return true
		}
	}
	return false
}

// gather tells up to which place of the work one step may go: whole messages,
// within the bounds of a call and of the batch.
func (l *Lane) gather() (end int) {
	room := l.limit() - l.batch.messages
	entries, bytes := 0, 0
	end = l.next
	for i := l.next; i < len(l.work) && room > 0; i++ {
		it := &l.work[i]
		if e := it.entry; e != nil {
			entries++
			bytes += len(e.Event.Data) + len(e.Event.Metadata)
		}
		if it.to == 0 {
			continue
		}
		// A whole message, or the end of a stretch.
		if end > l.next && (entries > l.callMax || bytes > l.cfg.CallBytes) {
			return end
		}
		end = i + 1
		if it.entry != nil {
			room--
		}
	}
	return end
}

// attempt asks the guest about tasks, in order, in as few calls as it takes, until
// one of them fails for good: done counts those before it. A failure that came
// in company, or for the first time, is believed if it comes again when the entry
// is run alone on a restored instance; expect is the failure that the first one
// had before. Errors are those that end the lane.
func (l *Lane) attempt(ctx context.Context, tasks []task, expect abi.Status) (done int, fail *plugins.Failure, err error) {
	for at := 0; at < len(tasks); {
		if at == 0 {
			if err := l.preload(ctx, tasks); err != nil {
				if err := l.again(ctx, err, &tasks[at]); err != nil {
					return at, nil, err
				}
				continue
			}
		}
		n, err := l.frame(ctx, tasks[at:])
		if err != nil {
			if err := l.again(ctx, err, &tasks[at]); err != nil {
				return at, nil, err
			}
			continue
		}
		if n == 0 {
			return at, tooLarge(), nil
		}
		fail, err := l.call(ctx, at)
		at += l.sink.done
		if l.sink.done > 0 {
			l.stats.steps.Add(1)
		}
		switch {
		case err != nil:
			if err := l.again(ctx, err, &tasks[min(at, len(tasks)-1)]); err != nil {
				return at, nil, err
			}
			continue
		case fail == nil:
			l.loop.Done()
			l.growCalls()
			continue
		}
		l.shrinkCalls(fail)
		if !(at == 0 && n == 1 && fail.Code == expect) {
			if fail, err = l.solo(ctx, tasks, at, fail); err != nil {
				return at, nil, err
			}
		}
		l.loop.Done()
		l.stats.steps.Add(1)
		if fail != nil {
			return at, fail, nil
		}
		at++
	}
	return len(tasks), nil, nil
}

func tooLarge() *plugins.Failure {
	return &plugins.Failure{
		Code: abi.CodeMalformed, Deterministic: true,
		Message: "the message is larger than the plugin's input region, which follows [store] max_event: raise that, and memory_limit with it",
	}
}

// frame makes a call of the first tasks, as many as there is room for, and tells
// how many. None means that not even the first one fits.
func (l *Lane) frame(ctx context.Context, tasks []task) (n int, err error) {
	if l.guest == nil {
		if l.guest, err = l.deps.NewGuest(ctx); err != nil {
			return 0, err
		}
	}
	l.callRows, l.callABI = l.callRows[:0], l.callABI[:0]
	for i := range tasks[:min(len(tasks), max(l.callMax, 1))] {
		l.callRows = append(l.callRows, tasks[i].entry)
		l.callABI = append(l.callABI, abi.Entry{})
		tasks[i].entry.ABI(&l.callABI[i])
	}
	n = len(l.callRows)
	for n > 0 && !l.guest.FrameFits(l.callABI[:n]) {
		n /= 2
	}
	l.callRows, l.callABI = l.callRows[:n], l.callABI[:n]
	return n, nil
}

// call hands the framed entries to the guest; first is the task of the first.
func (l *Lane) call(ctx context.Context, first int) (*plugins.Failure, error) {
	l.sink.call(ctx, l.callRows, first)
	start := time.Now()
	_, fail, err := l.guest.Apply(ctx, l.cfg.Index, l.callABI, &l.sink)
	took := time.Since(start)
	l.stats.called(took)
	l.deps.Observer.Called(l.sink.done, took)
	return fail, err
}

// solo runs the entry of a failed task again, alone on a restored guest, until it
// succeeds, nil, or fails twice in the same class: then the failure is the
// entry's own and not its company's.
//
// Running out of time counts as its own when it happens alone, on a fresh guest:
// as long as time is all that is metered, nothing else could ever end it.
func (l *Lane) solo(ctx context.Context, tasks []task, at int, fail *plugins.Failure) (*plugins.Failure, error) {
	t := &tasks[at]
	for tries := 1; ; {
		l.deps.Log.Debug("message is run alone to confirm its failure", "topic", l.cfg.Topics[t.topic],
			"position", t.entry.Event.Position, "code", int(fail.Code), "try", tries)
		if fail.Code == abi.CodeDeadline {
			l.freshGuest(ctx)
		}
		n, err := l.frame(ctx, tasks[at:at+1])
		if err == nil && n == 0 {
			return tooLarge(), nil
		}
		var again *plugins.Failure
		if err == nil {
			again, err = l.call(ctx, at)
		}
		switch {
		case err != nil:
			if err := l.again(ctx, err, t); err != nil {
				return nil, err
			}
			continue
		case again == nil:
			return nil, nil
		case again.Code == fail.Code || tries == soloTries:
			return again, nil
		}
		fail = again
		tries++
	}
}

// soloTries is how often a message is run alone whose failure shows another face
// each time.
const soloTries = 6

func (l *Lane) freshGuest(ctx context.Context) {
	if l.guest != nil {
		guest := l.guest
		l.guest = nil
		if err := guest.Close(ctx); err != nil {
			l.deps.Log.Warn("guest did not close", "error", err)
		}
	}
}

// again pauses before the same work is tried again, nil; what is no failure of
// a moment comes back. The task, if there is one, is where the lane is.
func (l *Lane) again(ctx context.Context, err error, at *task) error {
	if errors.Is(err, store.ErrIncarnation) {
		return err
	}
	err = l.loop.Again(ctx, err)
	var exhausted *retry.ExhaustedError
	if errors.As(err, &exhausted) {
		it := item{}
		if at != nil {
			it = item{entry: at.entry, topic: at.topic}
		}
		return l.haltAt(&it, int(abi.CodeDatabase), exhausted.Error())
	}
	return err
}

// haltAt ends the lane for something that no row tells of.
func (l *Lane) haltAt(it *item, code int, message string) error {
	return &HaltError{Halt: l.haltOf(l.cfg.Topics[it.topic], it.entry, code, message)}
}

// haltOf is a halt for an entry, if there is one.
func (l *Lane) haltOf(topic string, e *reader.Entry, code int, message string) store.Halt {
	h := store.Halt{
		Reason:    store.HaltApplyError,
		Code:      code,
		Message:   Reason(message),
		Topic:     topic,
		Digest:    l.cfg.Digest,
		AtUS:      time.Now().UnixMicro(),
		Partition: l.cfg.Partitions[0],
	}
	if e != nil {
		h.Position = e.Event.Position
		h.Partition = int(e.Partition)
		h.Key = e.Key
		h.EventType = e.Event.Type
		h.EventID = e.Event.ID.String()
	}
	return h
}

// shrinkCalls makes calls smaller after a guest ran out of memory or time in
// one with others: garbage of a whole call may have done it.
func (l *Lane) shrinkCalls(fail *plugins.Failure) {
	if fail.Code == abi.CodeMemory || fail.Code == abi.CodeDeadline {
		l.callMax = max(min(callMin, l.cfg.CallMessages), min(l.callMax, len(l.callRows))/2)
	}
}

// growCalls takes that back, slowly.
func (l *Lane) growCalls() {
	if l.callMax < l.cfg.CallMessages {
		l.callMax = min(l.cfg.CallMessages, l.callMax+max(1, l.callMax/16))
	}
}

// missing are rows of a table that a call will want and nobody knows yet.
type missing struct {
	keys []store.RowKey
	rows []*row
}

// preload reads the rows that tasks will want and that are not known, in one
// query a table: each entry's own row, and the child it declares.
func (l *Lane) preload(ctx context.Context, tasks []task) error {
	l.sink.expect()
	for i := range tasks {
		e := tasks[i].entry
		for k, t := range l.rows.tables {
			var n *row
			if !t.free {
				if child, ok := l.childKey(k, e); ok || !t.isChild {
					n = l.want(k, t, e, child)
				}
			}
			l.sink.expected = append(l.sink.expected, n)
		}
	}
	var failed error
	for k := range l.missing {
		m := &l.missing[k]
		if len(m.keys) > 0 && failed == nil {
			if err := l.load(ctx, l.rows.tables[k], m); err != nil {
				failed = fmt.Errorf("load rows of %s: %w", l.cfg.Tables[k].Table.Name, err)
			}
		}
		for _, n := range m.rows {
			n.loading = false
		}
		clear(m.rows)
		m.keys, m.rows = m.keys[:0], m.rows[:0]
	}
	return failed
}

func (l *Lane) want(k int, t *table, e *reader.Entry, child string) *row {
	n := l.rows.find(t, e.Key, child)
	if n == nil {
		n = l.rows.add(t, e.Key, child)
	}
	switch {
	case n.known():
		l.sink.hits++
		return n
	case n.loading:
		return n
	}
	n.loading = true
	l.sink.misses++
	m := &l.missing[k]
	m.keys = append(m.keys, store.RowKey{Key: n.key, Child: n.child})
	m.rows = append(m.rows, n)
	return n
}

func (l *Lane) load(ctx context.Context, t *table, m *missing) error {
	found, err := l.deps.Store.LoadRows(ctx, t.ref, m.keys)
	if err != nil {
		return err
	}
	for i := range found {
		if n := l.rows.find(t, found[i].Key.Key, found[i].Child); n != nil && n.loading {
			l.rows.loaded(n, found[i].Row, found[i].Position, found[i].UpdatedUS)
		}
	}
	for _, n := range m.rows {
		if n.loading {
			l.rows.loaded(n, nil, 0, 0)
		}
	}
	return nil
}

// childKey is the child an entry declares to want.
func (l *Lane) childKey(k int, e *reader.Entry) (string, bool) {
	rule := l.cfg.Tables[k].Table.ChildRule
	if rule == nil {
		return "", false
	}
	if rule.Kind == abi.KeyAggregateID {
		return e.Event.AggregateID, true
	}
	if l.childPointers[k] == nil {
		return "", false
	}
	l.found = l.childPointers[k].Extract(l.found[:0], e.Event.Data)
	r := &l.found[0]
	return r.Key, r.State == abi.PointerKey && !r.StandIn
}

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

// step applies the next whole messages, as many as one call of the guest may
// take.
func (l *Lane) step(ctx context.Context) error {
	end, bad := l.gather()
	if bad >= 0 {
		return l.halt(bad, &plugins.Failure{
			Code: abi.CodeMalformed, Deterministic: true,
			Message: "a key of this message cannot be stored (1 to 255 code points, no U+0000, no space at the end); it stands here as its hash",
		})
	}
	if err := l.preload(ctx, end); err != nil {
		return l.again(ctx, err)
	}
	for pos := l.next; pos < end; {
		after, err := l.frame(ctx, pos, end)
		if err != nil {
			return l.again(ctx, err)
		}
		if len(l.callRows) == 0 {
			if after > pos {
				l.done(after)
				return nil
			}
			l.takeBack()
			return l.halt(pos, tooLarge())
		}
		fail, err := l.call(ctx)
		done := l.sink.done
		pos = after
		if done < len(l.callRows) {
			pos = l.callIndex[done]
		}
		l.done(l.boundary(pos))
		switch {
		case err != nil:
			l.takeBack()
			return l.again(ctx, err)
		case fail != nil:
			l.shrinkCalls(fail)
			failed := l.callIndex[done]
			l.takeBack()
			return l.solo(ctx, failed, fail)
		}
		l.loop.Done()
		l.growCalls()
	}
	return nil
}

// gather tells up to which place of the work one call may go: whole messages,
// within the bounds of the call and of the batch. If the very first message has
// an entry that cannot be applied, bad is its place, else -1.
func (l *Lane) gather() (end, bad int) {
	room := l.limit() - l.batch.messages
	entries, bytes := 0, 0
	end, bad = l.next, -1
	for i := l.next; i < len(l.work); i++ {
		it := &l.work[i]
		if e := it.entry; e != nil {
			entries++
			bytes += len(e.Event.Data) + len(e.Event.Metadata)
			if e.StandIn && bad < 0 {
				bad = i
			}
		}
		if it.to == 0 {
			continue
		}
		// A whole message, or the end of a stretch.
		switch {
		case end == l.next && bad >= 0:
			return end, bad
		case end > l.next && (entries > l.callMax || bytes > l.cfg.CallBytes || bad >= 0):
			return end, -1
		}
		end = i + 1
		if it.entry != nil {
			if room--; room == 0 {
				break
			}
		}
	}
	return end, -1
}

func tooLarge() *plugins.Failure {
	return &plugins.Failure{
		Code: abi.CodeMalformed, Deterministic: true,
		Message: "the message is larger than the plugin's input region, which follows [store] max_event: raise that, and memory_limit with it",
	}
}

// boundary is the end of the last whole message that is done at pos.
func (l *Lane) boundary(pos int) int {
	for pos > l.next && l.work[pos-1].to == 0 {
		pos--
	}
	return pos
}

// message is the stretch of the work that holds the message of an entry.
func (l *Lane) message(at int) (from, to int) {
	m := l.work[at].entry.Event
	from, to = at, at+1
	for from > l.next && l.work[from-1].entry != nil && l.work[from-1].entry.Event == m {
		from--
	}
	for l.work[to-1].to == 0 {
		to++
	}
	return from, to
}

// frame makes a call of the entries from pos on, and tells where in the work it
// ends. A call without entries means that there are none, or that the first one
// does not fit.
func (l *Lane) frame(ctx context.Context, pos, end int) (after int, err error) {
	if l.guest == nil {
		if l.guest, err = l.deps.NewGuest(ctx); err != nil {
			return pos, err
		}
	}
	l.callRows, l.callABI, l.callIndex = l.callRows[:0], l.callABI[:0], l.callIndex[:0]
	for i := pos; i < end; i++ {
		if e := l.work[i].entry; e != nil {
			l.callRows = append(l.callRows, e)
			l.callIndex = append(l.callIndex, i)
			l.callABI = append(l.callABI, abi.Entry{})
			e.ABI(&l.callABI[len(l.callABI)-1])
		}
	}
	if len(l.callRows) == 0 || l.guest.FrameFits(l.callABI) {
		return end, nil
	}
	n := len(l.callRows)
	for n > 0 && !l.guest.FrameFits(l.callABI[:n]) {
		n /= 2
	}
	l.callRows, l.callABI, l.callIndex = l.callRows[:n], l.callABI[:n], l.callIndex[:n]
	if n == 0 {
		return pos, nil
	}
	return l.callIndex[n-1] + 1, nil
}

// call hands the framed entries to the guest.
func (l *Lane) call(ctx context.Context) (*plugins.Failure, error) {
	l.sink.call(ctx, l.callRows, l.callIndex)
	start := time.Now()
	_, fail, err := l.guest.Apply(ctx, l.cfg.Index, l.callABI, &l.sink)
	took := time.Since(start)
	l.stats.called(took)
	l.deps.Observer.Called(l.sink.done, took)
	return fail, err
}

// takeBack drops what entries of a message did that is not applied as a whole.
func (l *Lane) takeBack() {
	if l.next < len(l.work) && l.work[l.next].entry != nil {
		l.sink.rollback(l.work[l.next].entry.Event)
	}
}

// solo runs the message of a failed entry again, each of its entries alone on a
// restored guest. If it fails in the same way, the failure is the message's own
// and not its company's, and the consumer halts.
//
// A failure that may pass (the guest asks for a later retry) has its tries
// first. Running out of time counts as the message's own when it happens alone,
// on a fresh guest: as long as time is all that is metered, nothing else could
// ever end it.
func (l *Lane) solo(ctx context.Context, failed int, fail *plugins.Failure) error {
	from, to := l.message(failed)
	for tries := 1; ; tries++ {
		l.deps.Log.Debug("message is run alone to confirm its failure", "topic", l.cfg.Topics[l.work[from].topic],
			"position", l.work[from].entry.Event.Position, "code", int(fail.Code), "try", tries)
		if fail.Code == abi.CodeDeadline {
			if err := l.freshGuest(ctx); err != nil {
				return err
			}
		}
		again, at, err := l.alone(ctx, from, to)
		switch {
		case err != nil:
			l.sink.rollback(l.work[from].entry.Event)
			if err := l.again(ctx, err); err != nil {
				return err
			}
			tries--
		case again == nil:
			l.loop.Done()
			l.done(to)
			return nil
		default:
			l.sink.rollback(l.work[from].entry.Event)
			same := at == failed && again.Code == fail.Code
			failed, fail = at, again
			mayPass := fail.Code == abi.StatusRetry
			if same && !mayPass || tries >= soloTries {
				return l.halt(failed, fail)
			}
			if mayPass {
				busy := &store.TransientError{Op: "apply a message", Err: fail}
				if err := l.again(ctx, busy); err != nil {
					return err
				}
			}
		}
	}
}

// soloTries is how often a message is run alone whose failure may pass, or
// shows another face each time.
const soloTries = 6

// alone applies the entries of one message, each in a call of its own.
func (l *Lane) alone(ctx context.Context, from, to int) (fail *plugins.Failure, at int, err error) {
	for i := from; i < to; i++ {
		if _, err := l.frame(ctx, i, i+1); err != nil {
			return nil, i, err
		}
		if len(l.callRows) == 0 {
			return tooLarge(), i, nil
		}
		if fail, err = l.call(ctx); fail != nil || err != nil {
			return fail, i, err
		}
	}
	return nil, to, nil
}

func (l *Lane) freshGuest(ctx context.Context) error {
	if l.guest != nil {
		guest := l.guest
		l.guest = nil
		if err := guest.Close(ctx); err != nil {
			l.deps.Log.Warn("guest did not close", "error", err)
		}
	}
	return nil
}

// again pauses before the same work is tried again, nil; what is no failure of
// a moment comes back.
func (l *Lane) again(ctx context.Context, err error) error {
	if errors.Is(err, store.ErrIncarnation) {
		return err
	}
	err = l.loop.Again(ctx, err)
	var exhausted *retry.ExhaustedError
	if errors.As(err, &exhausted) && l.next < len(l.work) {
		return l.haltAt(&l.work[l.next], int(abi.CodeDatabase), exhausted.Error())
	}
	return err
}

// halt ends the lane for a failed entry.
func (l *Lane) halt(at int, fail *plugins.Failure) error {
	text := fail.Code.String()
	if fail.Message != "" {
		text += ": " + fail.Message
	}
	if fail.Trap != "" && fail.Trap != fail.Message {
		text += " (" + fail.Trap + ")"
	}
	return l.haltAt(&l.work[at], int(fail.Code), text)
}

func (l *Lane) haltAt(it *item, code int, message string) error {
	h := store.Halt{
		Reason:    store.HaltApplyError,
		Code:      code,
		Message:   message,
		Topic:     l.cfg.Topics[it.topic],
		Digest:    l.cfg.Digest,
		AtUS:      time.Now().UnixMicro(),
		Partition: l.cfg.Partitions[0],
	}
	if e := it.entry; e != nil {
		h.Position = e.Event.Position
		h.Partition = int(e.Partition)
		h.Key = e.Key
		h.EventType = e.Event.Type
		h.EventID = e.Event.ID.String()
	}
	return &HaltError{Halt: h}
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

// preload reads the rows that the entries up to end will want and that are not
// known, in one query a table: each entry's own row, and the child it declares.
func (l *Lane) preload(ctx context.Context, end int) error {
	l.sink.expect(l.next)
	for i := l.next; i < end; i++ {
		e := l.work[i].entry
		for k, t := range l.rows.tables {
			var n *row
			if e != nil && !t.free {
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

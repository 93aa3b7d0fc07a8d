package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/store"
)

var undeliveredCases = []testCase{
	{"RecordIsAFullCopy", undeliveredCopy},
	{"UnresolvedHasNoCopy", undeliveredUnresolved},
	{"LineIsInTheOrderOfInsertion", undeliveredLine},
	{"ManyRecordsInOneBatch", undeliveredMany},
	{"KeysAreExact", undeliveredKeys},
	{"ReasonsAreCut", undeliveredReasons},
	{"RetriesBecomeWhatTheBatchSays", undeliveredRetries},
	{"LineFollowsItsHead", undeliveredLineFollows},
	{"BudgetSurvivesReopenAndOwners", undeliveredBudget},
	{"MovedRetryWritesNothing", undeliveredMoved},
	{"MovedIsToldBeforeBadData", undeliveredMovedBeforeData},
	{"StaleBatchRecordsNothing", undeliveredStale},
	{"RefusedRecordBlamesNoMessage", undeliveredRefused},
	{"NonsenseIsRefused", undeliveredNonsense},
	{"SettleTellsByRetriedRows", undeliveredSettle},
	{"SkipsAreRecordedOnce", undeliveredSkips},
	{"SkipsAreSweptOnceNobodyMeetsThem", undeliveredSweep},
	{"HaltComesWithTheBatch", undeliveredHalt},
	{"ViewTellsWhatIsHeld", undeliveredView},
	{"CountsAndLists", undeliveredCounts},
}

// failed is an event that could not be applied, by its position.
func failed(position int64) *store.Event {
	return &store.Event{Position: position, ID: id(int(position)), AggregateType: "account", AggregateID: fmt.Sprint("é", position), Sequence: 3,
		Type: "Failed", Revision: 2, Codec: store.DefaultCodec, CodecVersion: store.DefaultCodecVersion, Data: fmt.Appendf(nil, `{"n": %d}`, position),
		Metadata: []byte(`{"actor":"x"}`), OccurredUS: 1_700_000_000_000_000 + position}
}

// record is a record of an event for a key of a partition.
func record(status store.UndeliveredStatus, partition int, key string, position int64) store.Record {
	r := store.Record{Topic: store.EventsTopic, Partition: partition, Key: key, Status: status, Digest: "sha256:1", Event: failed(position)}
	if status != store.StatusWaiting {
		r.Code, r.Reason, r.Attempts, r.Passing = 102, "no such account", 1, 2
	}
	return r
}

// held records messages and moves the checkpoints of their partitions.
func (l *lane) held(to int64, records ...store.Record) {
	l.d.t.Helper()
	var partitions []int
	for _, r := range records {
		partitions = append(partitions, r.Partition)
	}
	b := l.batch(to, slices.Compact(slices.Sorted(slices.Values(partitions)))...)
	b.Records = records
	l.apply(b)
}

// undelivered lists all rows of the consumer.
func (l *lane) undelivered() []store.UndeliveredMessage {
	l.d.t.Helper()
	list, err := l.d.ListUndelivered(l.d.ctx(), store.UndeliveredQuery{Consumer: l.c.ID, Limit: 1_000_000})
	require.NoError(l.d.t, err)
	return list
}

// statuses are the rows of the consumer as "position status".
func (l *lane) statuses() (list []string) {
	l.d.t.Helper()
	for _, m := range l.undelivered() {
		list = append(list, fmt.Sprint(m.Event.Position, " ", m.Status))
	}
	return list
}

// row is the row of a position.
func (l *lane) undeliveredAt(position int64) store.UndeliveredMessage {
	l.d.t.Helper()
	for _, m := range l.undelivered() {
		if m.Event.Position == position {
			return m
		}
	}
	l.d.t.Fatalf("nothing undelivered at position %d", position)
	return store.UndeliveredMessage{}
}

// retried is a retry of the row of a position as it is now.
func (l *lane) retried(position int64, then *store.Record, line ...store.UndeliveredStatus) store.Retry {
	l.d.t.Helper()
	m := l.undeliveredAt(position)
	r := store.Retry{ID: m.ID, Partition: m.Partition, Status: m.Status, Attempts: m.Attempts, Passing: m.Passing, Then: then}
	if len(line) > 0 {
		r.Line = line[0]
	}
	return r
}

func (l *lane) history(actions ...string) (list []store.HistoryEntry) {
	l.d.t.Helper()
	all, err := l.d.History(l.d.ctx(), l.c.ID, 0, 0)
	require.NoError(l.d.t, err)
	for i, h := range all {
		require.Positive(l.d.t, h.AtUS)
		require.True(l.d.t, i == 0 || h.ID > all[i-1].ID)
		if len(actions) == 0 || slices.Contains(actions, h.Action) {
			list = append(list, h)
		}
	}
	return list
}

func (l *lane) skips() []store.Skip {
	l.d.t.Helper()
	list, err := l.d.Skips(l.d.ctx(), l.c.Build, store.EventsTopic, 0)
	require.NoError(l.d.t, err)
	return list
}

// requireKept is requireUnchanged with what is kept of messages.
func (l *lane) requireKept() func() {
	l.d.t.Helper()
	unchanged := l.requireUnchanged()
	rows, skips, history := l.undelivered(), l.skips(), l.history()
	consumer, err := l.d.Consumer(l.d.ctx(), l.c.ID)
	require.NoError(l.d.t, err)
	return func() {
		l.d.t.Helper()
		unchanged()
		require.Equal(l.d.t, rows, l.undelivered())
		require.Equal(l.d.t, skips, l.skips())
		require.Equal(l.d.t, history, l.history())
		now, err := l.d.Consumer(l.d.ctx(), l.c.ID)
		require.NoError(l.d.t, err)
		require.Equal(l.d.t, consumer, now)
	}
}

func (l *lane) line(partition int, key string) []store.UndeliveredMessage {
	l.d.t.Helper()
	list, err := l.d.Line(l.d.ctx(), l.c.Build, partition, key, 0, 1000)
	require.NoError(l.d.t, err)
	return list
}

func (l *lane) heads(partitions ...int) []store.Head {
	l.d.t.Helper()
	list, err := l.d.Heads(l.d.ctx(), l.c.Build, partitions)
	require.NoError(l.d.t, err)
	return list
}

func undeliveredCopy(t *testing.T, d *db) {
	l := d.lane("i", 3, 4)
	plain, opaque, empty := record(store.StatusFailed, 3, "a", 5), record(store.StatusFailed, 4, "b", 6), record(store.StatusFailed, 4, "c", 7)
	plain.Event.Metadata = nil
	plain.Event.Data = []byte("{\"s\":\"\\u0000 é 😀 'quoted' \\\\ \"}")
	plain.RetryIn = 90 * time.Second
	opaque.Event.Codec, opaque.Event.CodecVersion, opaque.Event.Data = "proto", 7, []byte{0, 255, 1, '\''}
	empty.Event.Codec, empty.Event.Data, empty.Event.Metadata = "raw", []byte{}, []byte(`{}`)
	l.held(9, plain, opaque, empty)

	var rows []store.UndeliveredMessage
	for _, m := range l.undelivered() {
		require.Nil(t, m.Event.Data, "a list is without payloads")
		full, err := d.UndeliveredMessage(d.ctx(), l.c.ID, m.ID)
		require.NoError(t, err)
		rows = append(rows, full)
	}
	require.Len(t, rows, 3)
	info, err := d.Info(d.ctx())
	require.NoError(t, err)
	for i, r := range []store.Record{plain, opaque, empty} {
		m := rows[i]
		require.Positive(t, m.ID)
		require.Positive(t, m.FirstUS)
		require.Equal(t, m.FirstUS, m.LastUS)
		want := *r.Event
		want.Partition = store.PartitionOf(want.AggregateID, info.Partitions)
		require.Equal(t, want, m.Event)
		if i == 0 {
			require.InDelta(t, m.LastUS+90_000_000, m.RetryUS, 1_000_000)
		} else {
			require.Zero(t, m.RetryUS)
		}
		require.Equal(t, store.UndeliveredMessage{ID: m.ID, Topic: r.Topic, Partition: r.Partition, Key: r.Key, Status: r.Status, Code: r.Code,
			Reason: r.Reason, Attempts: r.Attempts, Passing: r.Passing, Digest: r.Digest, FirstUS: m.FirstUS, BudgetUS: m.FirstUS, LastUS: m.LastUS, RetryUS: m.RetryUS,
			Event: m.Event}, m)
	}
	require.Equal(t, rows[:1], l.line(3, "a"))
	require.Len(t, l.heads(3, 4), 3)
	for _, c := range l.checkpoints() {
		if c.Partition == 3 || c.Partition == 4 {
			require.EqualValues(t, 9, c.Position, "the checkpoint passes what is recorded")
		}
	}

	_, err = d.UndeliveredMessage(d.ctx(), l.c.ID, rows[2].ID+1)
	require.ErrorIs(t, err, store.ErrNotFound)
	d.subscribe(declare(t, "other", declareOther()...))
	_, err = d.UndeliveredMessage(d.ctx(), store.ConsumerID{Type: "projection", Name: "other"}, rows[0].ID)
	require.ErrorIs(t, err, store.ErrNotFound, "it is of another consumer")
}

func undeliveredUnresolved(t *testing.T, d *db) {
	l := d.lane("i", 3)
	r := record(store.StatusHalted, 3, "", 5)
	r.Unresolved = true
	b := l.batch(0)
	b.Records = []store.Record{r}
	l.apply(b)
	rows := l.line(3, "")
	require.Len(t, rows, 1)
	require.True(t, rows[0].Unresolved)
	require.Equal(t, store.Event{Position: 5, ID: id(5), AggregateType: "account", AggregateID: "é5", Type: "Failed", Partition: rows[0].Event.Partition}, rows[0].Event)
	require.Zero(t, l.checkpoints()[3].Position)
}

func undeliveredLine(t *testing.T, d *db) {
	l := d.lane("i", 3, 4)
	// Positions of another topic are no order, nor is what a batch has first.
	other := record(store.StatusWaiting, 3, "a", 2)
	other.Topic = "another"
	l.held(9, record(store.StatusFailed, 3, "a", 8), record(store.StatusFailed, 4, "a", 7), record(store.StatusWaiting, 3, "a", 9))
	l.held(20, other, record(store.StatusDeadLetter, 3, "a", 12), record(store.StatusWaiting, 3, "a", 10), record(store.StatusWaiting, 3, "b", 11))

	var positions []int64
	for _, m := range l.line(3, "a") {
		positions = append(positions, m.Event.Position)
	}
	require.Equal(t, []int64{8, 9, 2, 10}, positions, "without the one that holds nothing")
	all := l.line(3, "a")
	some, err := d.Line(d.ctx(), l.c.Build, 3, "a", all[0].ID, 2)
	require.NoError(t, err)
	require.Equal(t, all[1:3], some)

	heads := l.heads(3, 4, 200)
	require.Len(t, heads, 3)
	for i, want := range []struct {
		partition           int
		key                 string
		position, followers int64
	}{{3, "a", 8, 3}, {3, "b", 11, 0}, {4, "a", 7, 0}} {
		h := heads[i]
		require.Equal(t, want, struct {
			partition           int
			key                 string
			position, followers int64
		}{h.Partition, h.Key, h.Event.Position, h.Followers})
	}
	require.Len(t, l.heads(4), 1)
	require.Empty(t, l.heads())
	require.Empty(t, l.heads(5))
}

func undeliveredMany(t *testing.T, d *db) {
	l := d.lane("i", 3)
	const n = 700
	var records []store.Record
	for i := range int64(n) {
		r := record(store.StatusWaiting, 3, fmt.Sprint("k", i%7), i+1)
		if i%100 == 0 {
			r.Event.Data = []byte(`"` + long("x", 300_000) + `"`)
		}
		records = append(records, r)
	}
	l.held(n, records...)
	rows := l.undelivered()
	require.Len(t, rows, n)
	for i, m := range rows {
		require.EqualValues(t, i+1, m.Event.Position)
	}
	require.Len(t, l.heads(3), 7)
	full, err := d.UndeliveredMessage(d.ctx(), l.c.ID, rows[300].ID)
	require.NoError(t, err)
	require.Equal(t, records[300].Event.Data, full.Event.Data)

	b := l.batch(0)
	for i, m := range rows {
		r := store.Retry{ID: m.ID, Partition: 3, Status: m.Status}
		if i%2 == 0 {
			then := record(store.StatusFailed, 0, "", 0)
			then.RetryIn = time.Minute
			r.Then = &then
		}
		b.Retries = append(b.Retries, r)
	}
	l.apply(b)
	require.Len(t, l.undelivered(), n/2)
	l.settle(store.OutcomeCommitted, b)
}

func undeliveredKeys(t *testing.T, d *db) {
	l := d.lane("i", 3)
	keys := []string{"a", "A", "å", "a\u030a", "a b", "a'b", "#sha256:x", long("é", 255)}
	var records []store.Record
	for _, key := range keys {
		records = append(records, record(store.StatusFailed, 3, key, 5))
	}
	l.held(9, records...)
	heads := l.heads(3)
	require.Len(t, heads, len(keys), "each key is its own")
	for i, key := range keys {
		require.Equal(t, key, heads[i].Key)
		line := l.line(3, key)
		require.Len(t, line, 1, key)
		require.Equal(t, heads[i].ID, line[0].ID)
		b := l.batch(0)
		b.Skips = []store.Skip{{Topic: store.EventsTopic, Partition: 3, Position: 7, Key: key}}
		l.apply(b)
	}
	require.Len(t, l.skips(), len(keys))
	got, err := d.DeleteUndelivered(d.ctx(), l.c.ID, store.Selection{Key: "A"}, store.Action{Actor: "ops"})
	require.NoError(t, err)
	require.EqualValues(t, 1, got.Count)
	require.Len(t, l.heads(3), len(keys)-1)
	require.Empty(t, l.line(3, "A"))
}

func undeliveredReasons(t *testing.T, d *db) {
	l := d.lane("i", 3)
	bad := "a\x00b\xffc"
	r, s := record(store.StatusFailed, 3, "a", 5), record(store.StatusFailed, 3, "b", 6)
	r.Reason, s.Reason = long("é", store.UndeliveredReasonMax+5), bad
	l.held(9, r, s)
	require.Equal(t, long("é", store.UndeliveredReasonMax), l.undeliveredAt(5).Reason)
	got := l.undeliveredAt(6).Reason
	require.True(t, utf8.ValidString(got))
	require.Equal(t, "a\uFFFDb\uFFFDc", got)

	b := l.batch(0)
	then := r
	then.Reason = bad + long("x", 2000)
	b.Retries = []store.Retry{l.retried(5, &then)}
	l.apply(b)
	require.Equal(t, store.UndeliveredReasonMax, utf8.RuneCountInString(l.undeliveredAt(5).Reason))
}

func undeliveredRetries(t *testing.T, d *db) {
	for name, status := range map[string]store.UndeliveredStatus{
		"failed again": store.StatusFailed, "halted": store.StatusHalted, "dead key": store.StatusDeadLetterKey, "dead": store.StatusDeadLetter, "done": "",
	} {
		t.Run(name, func(t *testing.T) {
			d := d.fresh(Config{})
			l := d.lane("i", 3)
			l.held(9, record(store.StatusFailed, 3, "a", 5), record(store.StatusWaiting, 3, "b", 6))
			before, other := l.undeliveredAt(5), l.undeliveredAt(6)
			b := l.batch(0)
			l.write(b, "accounts", l.account("a", 1, ""))
			if status == "" {
				b.Retries = []store.Retry{l.retried(5, nil)}
				l.apply(b)
				require.Equal(t, []string{"6 WAITING"}, l.statuses())
				require.Len(t, l.all("accounts"), 1, "rows and the retry commit together")
				return
			}
			then := store.Record{Status: status, Code: 7, Reason: "again", Attempts: 4, Passing: 5, RetryIn: time.Hour, Digest: "sha256:2"}
			b.Retries = []store.Retry{l.retried(5, &then)}
			l.apply(b)
			m := l.undeliveredAt(5)
			require.GreaterOrEqual(t, m.LastUS, before.LastUS)
			require.InDelta(t, m.LastUS+3_600_000_000, m.RetryUS, 1_000_000)
			want := before
			want.Status, want.Code, want.Reason, want.Attempts, want.Passing, want.Digest = status, 7, "again", 4, 5, "sha256:2"
			want.LastUS, want.RetryUS = m.LastUS, m.RetryUS
			require.Equal(t, want, m)
			require.Equal(t, other, l.undeliveredAt(6), "another key")

			// At once.
			then.RetryIn, then.Passing = 0, 6
			b = l.batch(0)
			b.Retries = []store.Retry{l.retried(5, &then)}
			l.apply(b)
			require.Zero(t, l.undeliveredAt(5).RetryUS)
		})
	}
}

func undeliveredLineFollows(t *testing.T, d *db) {
	l := d.lane("i", 3, 4)
	l.held(9, record(store.StatusDeadLetter, 3, "a", 1), record(store.StatusFailed, 3, "a", 2), record(store.StatusWaiting, 3, "a", 3),
		record(store.StatusDeadLetterKey, 3, "a", 4), record(store.StatusWaiting, 3, "b", 5), record(store.StatusWaiting, 4, "a", 6))
	follower := l.undeliveredAt(4)
	dead := record(store.StatusDeadLetterKey, 0, "", 0)
	b := l.batch(0)
	b.Retries = []store.Retry{l.retried(2, &dead, store.StatusDeadLetterKey)}
	l.apply(b)
	require.Equal(t, []string{"1 DEAD_LETTER", "2 DEAD_LETTER_KEY", "3 DEAD_LETTER_KEY", "4 DEAD_LETTER_KEY", "5 WAITING", "6 WAITING"}, l.statuses())
	require.Equal(t, follower, l.undeliveredAt(4), "what is so already does not change")

	b = l.batch(0)
	b.Retries = []store.Retry{l.retried(2, nil, store.StatusWaiting)}
	l.apply(b)
	require.Equal(t, []string{"1 DEAD_LETTER", "3 WAITING", "4 WAITING", "5 WAITING", "6 WAITING"}, l.statuses())
	require.EqualValues(t, 3, l.heads(3)[0].Event.Position, "the next row is the head")
}

func undeliveredBudget(t *testing.T, d *db) {
	l := d.lane("i", 3)
	r := record(store.StatusFailed, 3, "a", 5)
	r.Attempts, r.Passing, r.RetryIn = 3, 99, time.Hour
	l.held(9, r)
	before := l.undelivered()
	d.reopen()
	require.Equal(t, before, l.undelivered())
	d.subscribe(declare(t, "accounts", accounts()...))
	require.NoError(t, d.Join(d.ctx(), store.Instance{ID: "k"}))
	l.instance = "k"
	if owners, err := d.Owners(d.ctx(), l.c.Build); err == nil && owners[3].InstanceID == "i" {
		require.NoError(t, d.Leave(d.ctx(), "i"))
	}
	l.claim(3)
	require.Equal(t, before, l.undelivered(), "neither a start nor another owner is a transition")
}

func undeliveredMoved(t *testing.T, d *db) {
	l := filled(d)
	l.held(9, record(store.StatusFailed, 3, "a", 8), record(store.StatusFailed, 4, "b", 9))
	then := record(store.StatusDeadLetterKey, 0, "", 0)
	for name, change := range map[string]func(r *store.Retry){
		"id":        func(r *store.Retry) { r.ID += 1000 },
		"status":    func(r *store.Retry) { r.Status = store.StatusWaiting },
		"attempts":  func(r *store.Retry) { r.Attempts++ },
		"passing":   func(r *store.Retry) { r.Passing-- },
		"partition": func(r *store.Retry) { r.Partition = 5 },
	} {
		for _, becomes := range []*store.Record{nil, &then} {
			for _, moves := range [][]int{nil, {3, 4}} {
				kept := l.requireKept()
				b := l.batch(20, moves...)
				b.Retries = []store.Retry{l.retried(8, nil, store.StatusWaiting), l.retried(9, becomes)}
				change(&b.Retries[1])
				b.Records = []store.Record{record(store.StatusWaiting, 3, "a", 11)}
				b.Skips = []store.Skip{{Topic: store.EventsTopic, Partition: 3, Position: 12, Key: "a"}}
				b.Halt = &store.Halt{Reason: store.HaltApplyError}
				l.refused(store.ErrRetryMoved, b)
				kept()
				_ = name
			}
		}
	}
	kept := l.requireKept()
	b := l.batch(0)
	b.Retries = []store.Retry{l.retried(8, nil)}
	b.Epoch++
	require.ErrorIs(t, d.Apply(d.ctx(), b), store.ErrRetryMoved, "the epoch is part of what was read")
	kept()
	b = l.batch(0)
	b.Retries = []store.Retry{l.retried(8, nil)}
	b.Leases[0].Generation--
	l.refused(store.ErrFenced, b)
	kept()
	b = l.batch(0)
	b.Retries = []store.Retry{l.retried(8, nil)}
	require.NoError(t, d.Apply(d.ctx(), b))
	require.ErrorIs(t, d.Apply(d.ctx(), b), store.ErrRetryMoved, "a retry is not applied twice")
}

func undeliveredMovedBeforeData(t *testing.T, d *db) {
	l := d.laneOf(declare(t, "users", uniqueTable()...), "i", 3)
	l.held(9, record(store.StatusFailed, 3, "a", 8))
	b := l.batch(0)
	b.Retries = []store.Retry{l.retried(8, nil)}
	b.Retries[0].Attempts++
	l.write(b, "users", l.user("a", "same"), l.user("b", "same"))
	require.ErrorIs(t, d.Apply(d.ctx(), b), store.ErrRetryMoved)
	b.Retries[0].Attempts--
	var data *store.DataError
	require.ErrorAs(t, d.Apply(d.ctx(), b), &data)
	require.Len(t, l.undelivered(), 1)
}

func undeliveredStale(t *testing.T, d *db) {
	l := filled(d)
	batch := func() *store.Batch {
		b := l.batch(20, 3, 4)
		b.Records = []store.Record{record(store.StatusFailed, 3, "a", 11)}
		b.Skips = []store.Skip{{Topic: store.EventsTopic, Partition: 3, Position: 12, Key: "a"}}
		b.Halt = &store.Halt{Reason: store.HaltApplyError}
		return b
	}
	kept := l.requireKept()
	b := batch()
	b.Leases[1].Generation--
	l.refused(store.ErrFenced, b)
	b = batch()
	b.Checkpoints[1].From--
	l.refused(store.ErrCheckpointMoved, b)
	b = batch()
	b.InstanceID = "j"
	l.refused(store.ErrFenced, b)
	b = batch()
	b.Incarnation++
	l.refused(store.ErrIncarnation, b)
	kept()

	b = batch()
	l.apply(b)
	kept = l.requireKept()
	require.ErrorIs(t, d.Apply(d.ctx(), b), store.ErrCheckpointMoved, "a batch that is applied is told so, and not that its record is there")
	kept()
}

func undeliveredRefused(t *testing.T, d *db) {
	l := filled(d)
	l.held(9, record(store.StatusFailed, 3, "a", 8))
	kept := l.requireKept()
	b := l.batch(20, 3)
	b.Records = []store.Record{record(store.StatusFailed, 3, "a", 8)}
	l.write(b, "accounts", l.account("a", 999, ""))
	err := d.Apply(d.ctx(), b)
	var data *store.DataError
	require.False(t, errors.As(err, &data), "%v", err)
	var transient *store.TransientError
	require.ErrorAs(t, err, &transient)
	require.False(t, transient.OutcomeUnknown)
	require.NotEmpty(t, transient.Hint)
	kept()
}

func undeliveredNonsense(t *testing.T, d *db) {
	l := filled(d)
	l.held(9, record(store.StatusFailed, 3, "a", 8), record(store.StatusFailed, 4, "b", 9))
	for name, change := range map[string]func(b *store.Batch){
		"no lease of a record":  func(b *store.Batch) { b.Records[0].Partition = 9 },
		"no lease of a retry":   func(b *store.Batch) { b.Retries[0].Partition = 9 },
		"retries out of order":  func(b *store.Batch) { slices.Reverse(b.Retries) },
		"a retry twice":         func(b *store.Batch) { b.Retries[1] = b.Retries[0] },
		"no event":              func(b *store.Batch) { b.Records[0].Event = nil },
		"status of a record":    func(b *store.Batch) { b.Records[0].Status = "X' OR 1" },
		"status of a retry":     func(b *store.Batch) { b.Retries[0].Status = "X' OR 1" },
		"status then":           func(b *store.Batch) { b.Retries[0].Then = &store.Record{} },
		"line":                  func(b *store.Batch) { b.Retries[0].Line = store.StatusFailed },
		"no key":                func(b *store.Batch) { b.Records[0].Key = "" },
		"unresolved with a key": func(b *store.Batch) { b.Records[0].Unresolved = true },
		"key too long":          func(b *store.Batch) { b.Records[0].Key = long("x", 256) },
		"skip of no key":        func(b *store.Batch) { b.Skips[0].Key = "" },
		"skip of all and one":   func(b *store.Batch) { b.Skips[0].EveryKey = true },
	} {
		kept := l.requireKept()
		b := l.batch(20, 3)
		b.Records = []store.Record{record(store.StatusFailed, 3, "a", 11)}
		b.Retries = []store.Retry{l.retried(8, nil), l.retried(9, nil)}
		b.Skips = []store.Skip{{Topic: store.EventsTopic, Partition: 3, Position: 12, Key: "a"}}
		change(b)
		require.Error(t, d.Apply(d.ctx(), b), name)
		kept()
	}
}

func undeliveredSettle(t *testing.T, d *db) {
	l := filled(d)
	l.held(9, record(store.StatusFailed, 3, "a", 7), record(store.StatusFailed, 3, "b", 8), record(store.StatusFailed, 4, "c", 9))
	then := record(store.StatusFailed, 0, "", 0)
	then.Attempts = 5
	b := l.batch(0)
	b.Retries = []store.Retry{l.retried(7, nil), l.retried(8, &then)}
	l.settle(store.OutcomeNotCommitted, b)
	b.Incarnation++
	l.settle(store.OutcomeNotCommitted, b)
	b.Incarnation--
	l.apply(b)
	l.settle(store.OutcomeCommitted, b)
	mixed := l.batch(0)
	mixed.Retries = []store.Retry{b.Retries[0], l.retried(9, nil)}
	l.settle(store.OutcomeLost, mixed)
	same := l.batch(0)
	same.Retries = []store.Retry{l.retried(8, &then)}
	l.settle(store.OutcomeLost, same)
	gone := l.batch(0)
	gone.Retries = []store.Retry{b.Retries[0]}
	gone.Retries[0].Then = &then
	l.settle(store.OutcomeLost, gone)
	moves := l.batch(30, 3)
	moves.Retries = []store.Retry{b.Retries[0]}
	l.settle(store.OutcomeNotCommitted, moves)
	stale := l.batch(0)
	stale.Retries = []store.Retry{b.Retries[0]}
	stale.Leases[0].Generation++
	l.settle(store.OutcomeLost, stale)
	only := l.batch(0)
	only.Records = []store.Record{record(store.StatusFailed, 3, "x", 20)}
	l.settle(store.OutcomeLost, only)
}

func undeliveredSkips(t *testing.T, d *db) {
	l := d.lane("i", 3, 4)
	b := l.batch(9, 3, 4)
	b.Skips = []store.Skip{{Topic: store.EventsTopic, Partition: 4, Position: 5, Key: "b"}, {Topic: store.EventsTopic, Partition: 3, Position: 5, Key: "a"},
		{Topic: store.EventsTopic, Partition: 3, Position: 2, EveryKey: true}, {Topic: "another", Partition: 3, Position: 2, Key: "a"}}
	l.apply(b)
	want := []store.Skip{b.Skips[2], b.Skips[1], b.Skips[0]}
	require.Equal(t, want, l.skips())
	again := l.batch(20, 3)
	again.Skips = []store.Skip{b.Skips[1], b.Skips[2], b.Skips[1]}
	l.apply(again)
	require.Equal(t, want, l.skips())
	later, err := d.Skips(d.ctx(), l.c.Build, store.EventsTopic, 2)
	require.NoError(t, err)
	require.Equal(t, want[1:], later)

	entries := l.history(store.ActionSkip)
	require.Len(t, entries, 4, "what is skipped already is nothing new")
	for i, s := range b.Skips {
		h := entries[i]
		require.Equal(t, store.HistoryEntry{ID: h.ID, Build: l.c.Build, AtUS: h.AtUS, Actor: "host", Action: store.ActionSkip, Topic: s.Topic,
			Partition: s.Partition, Position: s.Position, Key: s.Key, Detail: h.Detail}, h)
		require.Equal(t, s.EveryKey, strings.Contains(h.Detail, "every_key"))
	}
}

func undeliveredSweep(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 4})
	l := d.lane("i")
	b := l.batch(10, 0, 1)
	b.Skips = []store.Skip{{Topic: store.EventsTopic, Partition: 0, Position: 5, Key: "met"}, {Topic: store.EventsTopic, Partition: 2, Position: 6, Key: "ahead"},
		{Topic: store.EventsTopic, Partition: 0, Position: 7, EveryKey: true}, {Topic: store.EventsTopic, Partition: 1, Position: 8, Key: "lies there"}}
	b.Records = []store.Record{record(store.StatusDeadLetter, 0, "other key", 8)}
	l.apply(b)
	sweep := func(want int, left ...int64) {
		t.Helper()
		n, err := d.SweepSkips(d.ctx(), l.c.Build)
		require.NoError(t, err)
		require.Equal(t, want, n)
		var have []int64
		for _, s := range l.skips() {
			have = append(have, s.Position)
		}
		require.Equal(t, left, have)
	}
	sweep(1, 6, 7, 8)
	sweep(0, 6, 7, 8)
	l.apply(l.batch(6, 2))
	sweep(1, 7, 8)
	l.apply(l.batch(6, 3))
	l.apply(l.batch(7, 2))
	sweep(0, 7, 8)
	l.apply(l.batch(7, 3))
	sweep(1, 8)
	b = l.batch(0)
	b.Retries = []store.Retry{l.retried(8, nil)}
	l.apply(b)
	sweep(1)
	require.Len(t, l.history(store.ActionSkip), 4, "the history is kept")
}

func undeliveredHalt(t *testing.T, d *db) {
	l := d.lane("i", 3, 4)
	halt := store.Halt{Reason: store.HaltApplyError, Code: 102, Message: "no \"such\" account ä", Topic: store.EventsTopic, Position: 5, Partition: 3, Key: "a",
		EventType: "Failed", EventID: "x", Digest: "sha256:1"}
	b := l.batch(9, 3)
	b.Records = []store.Record{record(store.StatusHalted, 3, "a", 5)}
	b.Halt = &halt
	l.apply(b)
	c, err := d.Consumer(d.ctx(), l.c.ID)
	require.NoError(t, err)
	require.Equal(t, store.StateHalted, c.State)
	require.Positive(t, c.Halt.AtUS)
	require.Equal(t, c.StateSinceUS, c.Halt.AtUS, "it is timed by the database")
	want := halt
	want.AtUS = c.Halt.AtUS
	require.Equal(t, want, *c.Halt)
	survey, err := d.Survey(d.ctx(), nil)
	require.NoError(t, err)
	require.Equal(t, &want, survey.Consumers[0].Halt)

	other := l.batch(9, 4)
	other.Halt = &store.Halt{Reason: store.HaltMissingHistory}
	l.apply(other)
	again, err := d.Consumer(d.ctx(), l.c.ID)
	require.NoError(t, err)
	require.Equal(t, c, again, "the first halt stands")
	entries := l.history(store.ActionHalt)
	require.Len(t, entries, 1)
	h := entries[0]
	require.Equal(t, store.HistoryEntry{ID: h.ID, Build: l.c.Build, AtUS: h.AtUS, Actor: "host", Action: store.ActionHalt, Topic: store.EventsTopic,
		Partition: 3, Position: 5, Key: "a", Detail: h.Detail}, h)
	require.Contains(t, h.Detail, store.HaltApplyError)

	require.NoError(t, d.Resume(d.ctx(), l.c.ID, 0, "ops"))
	require.NoError(t, d.Pause(d.ctx(), l.c.ID, "ops"))
	l.claim(3)
	b = l.batch(20, 3)
	b.Halt = &halt
	l.apply(b)
	c, err = d.Consumer(d.ctx(), l.c.ID)
	require.NoError(t, err)
	require.Equal(t, store.StatePaused, c.State, "an operator's pause is not displaced")
	require.Nil(t, c.Halt)
}

func undeliveredView(t *testing.T, d *db) {
	l := d.lane("i", 3)
	l.held(9, record(store.StatusDeadLetter, 3, "a", 1), record(store.StatusFailed, 3, "a", 2), record(store.StatusWaiting, 3, "a", 3))
	v, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	defer v.Close()
	b := l.batch(0)
	look := func(v store.ReadView, position, count int64) {
		t.Helper()
		n, err := v.CountHeld()
		require.NoError(t, err)
		require.Equal(t, count, n)
		m, err := v.Held(3, "a")
		require.NoError(t, err)
		if position == 0 {
			require.Nil(t, m)
			return
		}
		require.Equal(t, position, m.Event.Position)
		require.Nil(t, m.Event.Data)
	}
	look(v, 2, 2)
	b.Retries = []store.Retry{l.retried(2, nil)}
	l.apply(b)
	look(v, 2, 2) // of the view's moment
	for _, absent := range []struct {
		partition int
		key       string
	}{{4, "a"}, {3, "A"}, {3, "b"}} {
		m, err := v.Held(absent.partition, absent.key)
		require.NoError(t, err)
		require.Nil(t, m)
	}
	now, err := d.View(d.ctx(), l.c.ID)
	require.NoError(t, err)
	defer now.Close()
	look(now, 3, 1)
}

func undeliveredCounts(t *testing.T, d *db) {
	l := d.lane("i", 3, 4)
	typed := record(store.StatusWaiting, 3, "a", 2)
	typed.Event.Type = "Other"
	l.held(9, record(store.StatusFailed, 3, "a", 1), typed, record(store.StatusWaiting, 4, "b", 3), record(store.StatusDeadLetter, 3, "b", 4))
	other := d.laneOf(declare(t, "other", declareOther()...), "j", 3)
	elsewhere := record(store.StatusHalted, 3, "a", 1)
	elsewhere.Topic = "another"
	other.held(5, elsewhere)
	counts, err := d.CountUndelivered(d.ctx())
	require.NoError(t, err)
	require.Equal(t, map[store.ConsumerID]map[store.UndeliveredStatus]int64{
		l.c.ID:     {store.StatusFailed: 1, store.StatusWaiting: 2, store.StatusDeadLetter: 1},
		other.c.ID: {store.StatusHalted: 1},
	}, counts)

	all := l.undelivered()
	require.Len(t, all, 4)
	list := func(q store.UndeliveredQuery, positions ...int64) {
		t.Helper()
		got, err := d.ListUndelivered(d.ctx(), q)
		require.NoError(t, err)
		var have []int64
		for _, m := range got {
			have = append(have, m.Event.Position)
		}
		require.Equal(t, positions, have)
	}
	of := func(sel store.Selection) store.UndeliveredQuery {
		return store.UndeliveredQuery{Consumer: l.c.ID, Selection: sel}
	}
	list(of(store.Selection{}), 1, 2, 3, 4)
	list(of(store.Selection{ID: all[2].ID}), 3)
	list(of(store.Selection{Key: "a"}), 1, 2)
	list(of(store.Selection{EventType: "Other"}), 2)
	list(of(store.Selection{Status: store.StatusWaiting}), 2, 3)
	list(of(store.Selection{Topic: "another"}))
	list(of(store.Selection{Key: "a", Status: store.StatusWaiting}), 2)
	list(store.UndeliveredQuery{Consumer: l.c.ID, After: all[0].ID, Limit: 2}, 2, 3)
	list(store.UndeliveredQuery{Selection: store.Selection{Key: "a"}}, 1, 2, 1)
	list(store.UndeliveredQuery{Consumer: store.ConsumerID{Type: "projection", Name: "nobody"}})
}

package storetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

var applyCases = []testCase{
	{"RowsAndCheckpointsCommitTogether", applyTogether},
	{"StaleGenerationWritesNothing", applyStaleGeneration},
	{"LostLeaseWritesNothing", applyLostLease},
	{"ForeignLeaseWritesNothing", applyForeignLease},
	{"StaleEpochWritesNothing", applyStaleEpoch},
	{"StaleCheckpointWritesNothing", applyStaleCheckpoint},
	{"MissingCheckpointWritesNothing", applyMissingCheckpoint},
	{"StaleIncarnationWritesNothing", applyStaleIncarnation},
	{"StaleIsToldBeforeBadData", applyStaleBeforeData},
	{"LeasesMustCoverCheckpoints", applyUncovered},
	{"NonsenseIsRefused", applyNonsense},
	{"EveryLeaseIsChecked", applyEveryLease},
	{"RepeatedBatchIsRefused", applyRepeated},
	{"CancelledBeforeWritesNothing", applyCancelled},
	{"BatchOfNothing", applyNothing},
	{"ManyRowsAndAllCheckpoints", applyLarge},
	{"EffectsThroughOnlyRises", applyEffectsThrough},
	{"TopicsHaveTheirOwnCheckpoints", applyTopics},
	{"RefusedDataNamesTheTable", applyRefusedData},
	{"TwoLanesOfOnePartitionTakeTurns", applyTwoLanes},
	{"LanesOfManyPartitionsDoNotDisturbEachOther", applyManyLanes},
	{"WhatWasBeforeMakesNoDifference", applyBefore},
	{"SurvivesReopen", applySurvivesReopen},
}

func applyTogether(t *testing.T, d *db) {
	l := d.lane("i", 3, 4)
	a, b, e := l.account("a", 1, "x"), l.account("b", 2, ""), l.entry("a", "1", 5)
	batch := l.batch(7, 3, 4)
	l.write(batch, "accounts", a, b)
	l.write(batch, "entries", e)
	l.apply(batch)
	require.Equal(t, []store.StoredRow{stored(a), stored(b)}, l.all("accounts"))
	require.Equal(t, []store.StoredRow{stored(e)}, l.all("entries"))
	for _, c := range l.checkpoints() {
		want := store.Checkpoint{Topic: store.EventsTopic, Partition: c.Partition}
		if c.Partition == 3 || c.Partition == 4 {
			want.Position, want.EffectsThrough = 7, 7
		}
		require.Equal(t, want, c)
	}

	// The next one changes, adds and removes.
	a2, c := l.account("a", 10, "y"), l.account("c", 3, "z")
	batch = l.batch(9, 3)
	l.write(batch, "accounts", a2, remove("b"), c)
	l.apply(batch)
	require.Equal(t, []store.StoredRow{stored(a2), stored(c)}, l.all("accounts"))
}

// refused applies a batch that is out of date in one way and right in all
// others, with rows and checkpoints in it, and checks that nothing of it stays.
func (l *lane) refused(want error, b *store.Batch) {
	l.d.t.Helper()
	unchanged := l.requireUnchanged()
	l.write(b, "accounts", l.account("a", 999, "stale"), remove("b"), l.account("new", 1, "stale"))
	l.write(b, "entries", l.entry("a", "1", 999), l.entry("a", "2", 999))
	for range 2 { // the second time on statements that have failed once
		require.ErrorIs(l.d.t, l.d.Apply(l.d.ctx(), b), want)
		unchanged()
	}
}

// filled is a lane with something in its tables.
func filled(d *db) *lane {
	d.t.Helper()
	l := d.lane("i", 3, 4, 5)
	b := l.batch(7, 3, 4)
	l.write(b, "accounts", l.account("a", 1, "x"), l.account("b", 2, ""))
	l.write(b, "entries", l.entry("a", "1", 5))
	l.apply(b)
	return l
}

func applyStaleGeneration(t *testing.T, d *db) {
	l := filled(d)
	for _, by := range []int64{-1, 1} {
		b := l.batch(9, 3, 4, 5)
		b.Leases[1].Generation += by
		l.refused(store.ErrFenced, b)
	}
	old := l.batch(9, 3, 4, 5)
	l.claim(4)
	l.refused(store.ErrFenced, old)
}

func applyLostLease(t *testing.T, d *db) {
	l := filled(d)
	b := l.batch(9, 3, 4, 5)
	require.NoError(t, d.Release(d.ctx(), "i", l.leases[2:]))
	l.refused(store.ErrFenced, b)
	d.join("next")
	taken := d.claim("next", l.c.Build, 5)
	b = l.batch(9, 3, 4, 5)
	b.Leases[2] = taken[0]
	l.refused(store.ErrFenced, b) // the right generation, but not ours
}

func applyForeignLease(t *testing.T, d *db) {
	l := filled(d)
	b := l.batch(9, 3, 4, 5)
	b.InstanceID = "j"
	l.refused(store.ErrFenced, b)
	d.join("j")
	b = l.batch(9, 3, 4, 5)
	b.InstanceID = "j"
	l.refused(store.ErrFenced, b)
}

func applyStaleEpoch(t *testing.T, d *db) {
	l := filled(d)
	for _, epoch := range []int64{1, -1} {
		b := l.batch(9, 3, 4, 5)
		b.Epoch = epoch
		for i := range l.c.Tables {
			l.c.Tables[i].Epoch = epoch
		}
		l.write(b, "accounts", l.account("a", 999, "stale"))
		for i := range l.c.Tables {
			l.c.Tables[i].Epoch = l.c.Epoch
		}
		unchanged := l.requireUnchanged()
		require.ErrorIs(t, d.Apply(d.ctx(), b), store.ErrCheckpointMoved)
		unchanged()
	}
}

// A checkpoint that is not where the batch was read from is refused even if it
// lies behind the batch's end: otherwise a commit of unknown outcome would be
// applied twice.
func applyStaleCheckpoint(t *testing.T, d *db) {
	l := filled(d)
	for _, from := range []int64{0, 6, 8} {
		b := l.batch(20, 3, 4, 5)
		b.Checkpoints[1].From = from
		l.refused(store.ErrCheckpointMoved, b)
	}
	first, second := l.batch(9, 4), l.batch(20, 4)
	l.apply(first)
	l.refused(store.ErrCheckpointMoved, second)
}

func applyMissingCheckpoint(t *testing.T, d *db) {
	l := filled(d)
	b := l.batch(9, 3, 4)
	b.Checkpoints = append(b.Checkpoints, store.CheckpointMove{Topic: "nowhere", Partition: 4, From: 0, To: 9})
	l.refused(store.ErrCheckpointMoved, b)
}

func applyStaleIncarnation(t *testing.T, d *db) {
	l := filled(d)
	for _, by := range []uint64{1, ^uint64(0)} {
		b := l.batch(9, 3, 4)
		b.Incarnation += by
		l.refused(store.ErrIncarnation, b)
	}
}

// uniqueTable refuses one value twice, which makes a batch whose data the
// database does not accept.
func uniqueTable() []abi.Table {
	return []abi.Table{
		{Name: "plain", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}},
		{Name: "users", Columns: []abi.Column{{Name: "email", Kind: abi.ColumnText, Max: 100, Unique: true}, {Name: "n", Kind: abi.ColumnInt}}},
	}
}

func (l *lane) user(key, email string) readmodel.Write {
	l.d.t.Helper()
	var cols []abi.ColumnValue
	if email != "" {
		cols = append(cols, abi.ColumnValue{Column: 0, Value: textValue(email)})
	}
	return put(key, l.row("users", cols...), 1)
}

// What a write tells of the row in the database may spare the driver work and
// changes nothing else, whether it tells all, some or nothing of it.
func applyBefore(t *testing.T, d *db) {
	decl := append(accounts(), uniqueTable()[1])
	l := d.laneOf(declare(t, "before", decl...), "i", 3)
	random := rand.New(rand.NewSource(1))
	rows := map[string]map[readmodel.Key]readmodel.Write{"accounts": {}, "entries": {}, "users": {}}
	draw := func(table, key string) readmodel.Write {
		switch n := random.Int63n(3); table {
		case "accounts":
			rank := abi.ColumnValue{Column: colRank, Value: abi.Value{Tag: abi.TagDecimal, B: fmt.Appendf(nil, "%d.50", random.Intn(2))}}
			return put(key, l.row(table, abi.ColumnValue{Column: colBalance, Value: intValue(n)},
				abi.ColumnValue{Column: colOwner, Value: textValue(fmt.Sprint("owner", random.Intn(2)))}, rank), n)
		case "entries":
			return l.entry(key, fmt.Sprint("c", n), random.Int63n(3))
		default:
			return put(key, l.row(table, abi.ColumnValue{Column: 0, Value: textValue(key + "@" + fmt.Sprint(n))},
				abi.ColumnValue{Column: 1, Value: intValue(random.Int63n(3))}), n)
		}
	}
	for to := range int64(40) {
		b := l.batch(to+1, 3)
		for _, table := range []string{"accounts", "entries", "users"} {
			there, batch := rows[table], map[readmodel.Key]readmodel.Write{}
			for range 6 {
				w := draw(table, fmt.Sprint("k", random.Intn(8)))
				old, present := there[w.Key]
				if table != "accounts" && random.Intn(5) == 0 { // an account's deletion would take its entries along
					w.Row = nil
				}
				tells := random.Intn(3)
				switch {
				case tells > 0 && present:
					w.Exists = readmodel.Present
				case tells > 0:
					w.Exists = readmodel.Absent
				}
				if tells > 1 {
					w.Before = old.Row
				}
				batch[w.Key] = w
			}
			l.write(b, table, slices.Collect(maps.Values(batch))...)
			for key, w := range batch {
				if there[key] = w; w.Row == nil {
					delete(there, key)
				}
			}
		}
		l.apply(b)
		for _, ref := range l.c.Tables {
			writes := slices.Collect(maps.Values(rows[ref.Table.Name]))
			require.Len(t, l.load(ref.Table.Name, keysOf(writes)...), len(writes))
			for i, c := range ref.Table.Columns {
				if c.Index && ref.Table.Parent == nil {
					requireRows(t, ordered(t, ref.Table, writes, i, false), pages(d, l.c.ID, ref.Table.Name, store.Query{Order: c.Name, Limit: 100}))
				}
			}
			if len(writes) > 0 {
				slices.SortFunc(writes, func(x, y readmodel.Write) int {
					return cmp.Or(cmp.Compare(x.Key.Key, y.Key.Key), cmp.Compare(x.Child, y.Child))
				})
				requireRows(t, writes, l.load(ref.Table.Name, keysOf(writes)...))
			}
		}
	}

	// It may even be wrong: a row that somebody took away is written all the same.
	for table, w := range map[string]readmodel.Write{"accounts": l.account("gone", 1, "x"), "entries": l.entry("gone", "c", 1), "users": l.user("gone", "x")} {
		w.Exists, w.Before = readmodel.Present, w.Row
		b := l.batch(l.positions[3]+1, 3)
		l.write(b, table, w)
		l.apply(b)
		require.Equal(t, []store.StoredRow{stored(w)}, l.load(table, w.Key))
	}
}

// A message must not be blamed for data that was made from old rows.
func applyStaleBeforeData(t *testing.T, d *db) {
	l := d.laneOf(declare(t, "users", uniqueTable()...), "i", 3)
	for want, change := range map[error]func(b *store.Batch){
		store.ErrFenced:          func(b *store.Batch) { b.Leases[0].Generation++ },
		store.ErrCheckpointMoved: func(b *store.Batch) { b.Checkpoints[0].From = 5 },
		store.ErrIncarnation:     func(b *store.Batch) { b.Incarnation++ },
	} {
		b := l.batch(9, 3)
		l.write(b, "users", l.user("a", "same"), l.user("b", "same"))
		change(b)
		require.ErrorIs(t, d.Apply(d.ctx(), b), want)
	}
}

func applyUncovered(t *testing.T, d *db) {
	l := filled(d)
	unchanged := l.requireUnchanged()
	for name, change := range map[string]func(b *store.Batch){
		"no lease":                  func(b *store.Batch) { b.Leases = nil },
		"one is missing":            func(b *store.Batch) { b.Leases = slices.Delete(b.Leases, 1, 2) },
		"the last is missing":       func(b *store.Batch) { b.Leases = b.Leases[:2] },
		"missing for another topic": func(b *store.Batch) { b.Leases = b.Leases[:2]; b.Checkpoints[2].Topic = "later" },
		"lease of another build":    func(b *store.Batch) { b.Leases[1].Build++ },
		"checkpoints out of order":  func(b *store.Batch) { slices.Reverse(b.Checkpoints) },
		"leases out of order":       func(b *store.Batch) { slices.Reverse(b.Leases) },
		"a checkpoint twice":        func(b *store.Batch) { b.Checkpoints[1] = b.Checkpoints[0] },
		"a lease twice":             func(b *store.Batch) { b.Leases[1] = b.Leases[0] },
	} {
		b := l.batch(9, 3, 4, 5)
		l.write(b, "accounts", l.account("a", 999, "stale"))
		change(b)
		require.Error(t, d.Apply(d.ctx(), b), name)
		unchanged()
	}
}

func applyNonsense(t *testing.T, d *db) {
	l := filled(d)
	unchanged := l.requireUnchanged()
	for name, change := range map[string]func(b *store.Batch){
		"checkpoint stays":       func(b *store.Batch) { b.Checkpoints[0].To = b.Checkpoints[0].From },
		"checkpoint goes back":   func(b *store.Batch) { b.Checkpoints[0].To = 1 },
		"table of another build": func(b *store.Batch) { b.Tables[0].Table.Build++ },
		"table of another epoch": func(b *store.Batch) { b.Tables[0].Table.Epoch++ },
		"children of no child":   func(b *store.Batch) { b.Tables[0].DeleteChildrenOf = []string{"a"} },
		"row of another table":   func(b *store.Batch) { b.Tables[0].Writes[0].Row = l.row("entries") },
		"row cut short":          func(b *store.Batch) { w := &b.Tables[0].Writes[0]; w.Row = w.Row[:len(w.Row)-1] },
	} {
		b := l.batch(9, 3, 4, 5)
		l.write(b, "accounts", l.account("a", 999, "stale"))
		change(b)
		require.Error(t, d.Apply(d.ctx(), b), name)
		unchanged()
	}
}

// The leases of a batch are all checked, not only those whose checkpoints move.
func applyEveryLease(t *testing.T, d *db) {
	l := filled(d)
	b := l.batch(9, 3)
	b.Leases[2].Generation++
	l.refused(store.ErrFenced, b)
	l.apply(l.batch(9, 3))
}

func applyRepeated(t *testing.T, d *db) {
	l := filled(d)
	b := l.batch(9, 3)
	l.write(b, "accounts", l.account("a", 11, "x"))
	l.apply(b)
	unchanged := l.requireUnchanged()
	require.ErrorIs(t, d.Apply(d.ctx(), b), store.ErrCheckpointMoved)
	unchanged()
}

func applyCancelled(t *testing.T, d *db) {
	l := filled(d)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := l.batch(9, 3)
	l.write(b, "accounts", l.account("a", 11, "x"))
	unchanged := l.requireUnchanged()
	require.ErrorIs(t, d.Apply(ctx, b), context.Canceled)
	unchanged()
	l.apply(b)
}

func applyNothing(t *testing.T, d *db) {
	l := filled(d)
	l.apply(l.batch(0)) // leases alone: are they still held?
	b := l.batch(0)
	b.Leases[0].Generation++
	require.ErrorIs(t, d.Apply(d.ctx(), b), store.ErrFenced)
	b = l.batch(9, 3) // an idle stretch: a checkpoint alone
	l.apply(b)
}

func applyLarge(t *testing.T, d *db) {
	l := d.lane("i")
	b := l.batch(7, d.partitions()...)
	var writes, entries []readmodel.Write
	for i := range 3000 {
		writes = append(writes, l.account(fmt.Sprintf("k%05d", i), int64(i), "o"))
		entries = append(entries, l.entry(fmt.Sprintf("k%05d", i/50), fmt.Sprint(i), int64(i)))
	}
	l.write(b, "accounts", writes...)
	l.write(b, "entries", entries...)
	l.apply(b)
	rows := l.all("accounts")
	require.Len(t, rows, 3000)
	for i, row := range rows {
		require.Equal(t, stored(writes[i]), row)
	}
	require.Len(t, l.all("entries"), 3000)
	for _, c := range l.checkpoints() {
		require.EqualValues(t, 7, c.Position)
	}
	var keys []readmodel.Key
	for i := range 3500 {
		keys = append(keys, readmodel.Key{Key: fmt.Sprintf("k%05d", i)})
	}
	require.Len(t, l.load("accounts", keys...), 3000)
}

func applyEffectsThrough(t *testing.T, d *db) {
	l := d.lane("i", 3)
	l.apply(l.batch(7, 3))
	l.apply(l.batch(20, 3))
	c := l.checkpoints()[3]
	require.Equal(t, store.Checkpoint{Topic: store.EventsTopic, Partition: 3, Position: 20, EffectsThrough: 20}, c)
}

// Only one topic exists yet, so this checks that a move names its topic.
func applyTopics(t *testing.T, d *db) {
	l := d.lane("i", 3)
	b := l.batch(7, 3)
	b.Checkpoints[0].Topic = "Events"
	require.ErrorIs(t, d.Apply(d.ctx(), b), store.ErrCheckpointMoved, "topics compare exactly")
}

func applyRefusedData(t *testing.T, d *db) {
	l := d.laneOf(declare(t, "users", uniqueTable()...), "i", 3)
	b := l.batch(7, 3)
	l.write(b, "plain", put("p", l.row("plain"), 1))
	l.write(b, "users", l.user("a", "a@x"), l.user("b", "b@x"), l.user("c", ""), l.user("d", ""))
	l.apply(b)
	unchanged := l.requireUnchanged()

	b = l.batch(9, 3)
	l.write(b, "plain", put("q", l.row("plain"), 1))
	l.write(b, "users", l.user("e", "e@x"), l.user("f", "a@x"))
	err := d.Apply(d.ctx(), b)
	var data *store.DataError
	require.ErrorAs(t, err, &data)
	require.Equal(t, "users", data.Table)
	var transient *store.TransientError
	require.False(t, errors.As(err, &transient), "the data is to blame, not the moment")
	require.NotContains(t, err.Error(), "a@x", "what the rows hold is for the database, not for logs")
	unchanged()

	// A value moves from one row to another in whatever order they come, and
	// no row that was not named is touched.
	b = l.batch(9, 3)
	l.write(b, "users", l.user("a", "b@x"), l.user("b", "a@x"), l.user("c", "c@x"))
	l.apply(b)
	b = l.batch(11, 3)
	l.write(b, "users", l.user("a", ""), l.user("e", "b@x"), remove("b"), l.user("f", "a@x"))
	l.apply(b)
	require.Equal(t, []store.StoredRow{stored(l.user("a", "")), stored(l.user("c", "c@x")), stored(l.user("d", "")),
		stored(l.user("e", "b@x")), stored(l.user("f", "a@x"))}, l.all("users"))
}

// The fence does not tell two goroutines of one instance apart, the checkpoint
// does: of two batches that begin at the same place one is applied.
func applyTwoLanes(t *testing.T, d *db) {
	l := d.lane("i", 3)
	const lanes, steps = 4, 25
	for step := range steps {
		batches := make([]*store.Batch, lanes)
		for n := range lanes {
			batches[n] = l.batch(int64(step*10+n+1), 3)
			l.write(batches[n], "accounts", l.account("a", int64(step*10+n+1), ""), l.account(fmt.Sprint("step ", step), int64(n), ""))
		}
		errs := make([]error, lanes)
		var wg sync.WaitGroup
		for n := range lanes {
			wg.Go(func() { errs[n] = d.Apply(d.ctx(), batches[n]) })
		}
		wg.Wait()
		winner := -1
		for n, err := range errs {
			if err == nil {
				require.Equal(t, -1, winner, "two batches moved one checkpoint from %d", l.positions[3])
				winner = n
			} else {
				require.ErrorIs(t, err, store.ErrCheckpointMoved)
			}
		}
		require.NotEqual(t, -1, winner)
		l.moved(batches[winner])
		require.Equal(t, []store.StoredRow{stored(l.account("a", l.positions[3], ""))}, l.load("accounts", readmodel.Key{Key: "a"}))
		require.Equal(t, []store.StoredRow{stored(l.account(fmt.Sprint("step ", step), int64(winner), ""))},
			l.load("accounts", readmodel.Key{Key: fmt.Sprint("step ", step)}), "the losers' rows are gone with them")
	}
}

// Lanes, appends and reads at once: every checkpoint equals the sum of what was
// applied with it, whenever it is looked at.
func applyManyLanes(t *testing.T, d *db) {
	const lanes, steps = 8, 20
	base := d.lane("i", 0, 1, 2, 3, 4, 5, 6, 7)
	done := make(chan struct{})
	var writers, readers sync.WaitGroup
	for n := range lanes {
		l := &lane{d: d, c: base.c, instance: "i", leases: base.leases[n : n+1], positions: map[int]int64{}}
		writers.Go(func() {
			for step := range steps {
				b := l.batch(int64(step+1), n)
				l.write(b, "accounts", l.account(fmt.Sprint("sum ", n), int64(step+1), ""))
				if err := d.Apply(d.ctx(), b); err != nil {
					t.Errorf("lane %d, step %d: %v", n, step, err)
					return
				}
				l.moved(b)
				if _, err := d.Commit(d.ctx(), appendTo("account", fmt.Sprint(n), store.AnyVersion, event("Opened"))); err != nil {
					t.Errorf("append beside applies: %v", err)
				}
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := sumsMatch(d, base.c.ID, lanes); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	require.NoError(t, sumsMatch(d, base.c.ID, lanes))
}

// sumsMatch compares rows and checkpoints in one view.
func sumsMatch(d *db, id store.ConsumerID, lanes int) error {
	ctx := d.ctx()
	v, err := d.View(ctx, id)
	if err != nil {
		return err
	}
	defer v.Close()
	table := v.Consumer().Tables[0].Table
	for n := range lanes {
		position, err := v.Position(store.EventsTopic, n)
		if err != nil {
			return err
		}
		var have int64
		row, err := v.Get(ctx, "accounts", store.RowKey{Key: fmt.Sprint("sum ", n)})
		if err == nil {
			values, err := table.Values(row.Row, nil)
			if err != nil {
				return err
			}
			have = values[colBalance].I
		} else if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if have != position {
			return fmt.Errorf("lane %d: the checkpoint is %d, its row says %d", n, position, have)
		}
	}
	return nil
}

func applySurvivesReopen(t *testing.T, d *db) {
	l := filled(d)
	require.NoError(t, d.Leave(d.ctx(), "i"))
	unchanged := l.requireUnchanged()
	d.reopen()
	unchanged()
	d.join("i")
	l.claim(3, 4)
	require.EqualValues(t, 7, l.positions[3])
	l.apply(l.batch(9, 3, 4))
}

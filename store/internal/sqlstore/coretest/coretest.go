// Package coretest is what drivers built on package sqlstore promise besides
// package storetest: several hosts at once on one database, and hosts that die
// between any two statements. A driver's test calls [Run].
package coretest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Database is an empty database of one test.
type Database struct {
	// Open opens it as a host does; the caller closes the store.
	Open func(opt store.Options) (store.Store, *sqlstore.Core, error)
	// Script runs a script of statements, as an operator does.
	Script func(text string) error
}

// Run runs all cases. create makes an empty database, which it removes with the
// test.
func Run(t *testing.T, create func(t testing.TB) *Database) {
	for name, run := range map[string]func(t *testing.T, d *db){
		"ConcurrentFirstStarts":              concurrentStarts,
		"PrefixesSideBySide":                 prefixes,
		"HostsSubscribeAtOnce":               subscribeAtOnce,
		"OneLockForAllApplications":          oneLock,
		"LostLockMakesNoSecondBuild":         lostLock,
		"ScriptEqualsFirstStart":             script,
		"MissingOrOtherTablesStopTheStart":   otherTables,
		"SchemaInShapeIsNotLookedAtAnew":     schemaInShape,
		"ReadModelsAreCompared":              comparedTables,
		"StrangersTableStopsTheFirstStart":   strangersTable,
		"FirstStartDiesAnywhere":             startDies,
		"SubscribeDiesAnywhere":              subscribeDies,
		"SubscribeThatFailsLeavesNoTables":   subscribeFails,
		"AdoptingSubscribeDiesAnywhere":      adoptDies,
		"DropDiesAnywhere":                   dropDies,
		"RebuildDiesAnywhere":                rebuildDies,
		"RecordsThatCannotBeKeptHoldAll":     cannotKeep,
		"ClaimsLeaveLiveOwnersWhatTheyTook":  claimAfterWait,
		"HeartbeatOfTheFutureProvesNothing":  clockSetBack,
		"SpoiltHalt":                         spoiltHalt,
		"TopicsAdvanceEachByItself":          twoTopics,
		"ReplacedViewsOfOtherColumnsAreOurs": replacedView,
		"ShadowDiesAnywhere":                 shadowDies,
		"UsersViewsReadTheLiveBuild":         usersViews,
		"LiveBuildsOfOtherColumnsAreShown":   otherColumns,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, &db{create(t), t})
		})
	}
}

type db struct {
	*Database
	t *testing.T
}

// host is one that has the database open.
type host struct {
	store.Store
	*sqlstore.Core
}

func (d *db) open(opt store.Options) host {
	d.t.Helper()
	s, c, err := d.Open(opt)
	require.NoError(d.t, err)
	d.t.Cleanup(func() { require.NoError(d.t, s.Close()) })
	return host{s, c}
}

func (d *db) script(text string) {
	d.t.Helper()
	require.NoError(d.t, d.Script(text))
}

// ctx bounds what is waited for.
func (d *db) ctx() context.Context {
	ctx, cancel := context.WithTimeout(d.t.Context(), 2*time.Minute)
	d.t.Cleanup(cancel)
	return ctx
}

// small is few partitions, for the sake of time.
func small(prefix, models string) store.Options {
	return store.Options{TablePrefix: prefix, ReadModelPrefix: models, Partitions: 4}
}

func declare(t require.TestingT, name string, tables ...string) store.Declaration {
	var list []abi.Table
	for _, table := range tables {
		list = append(list, abi.Table{Name: table, Columns: []abi.Column{
			{Name: "n", Kind: abi.ColumnInt, Index: true}, {Name: "t", Kind: abi.ColumnText, Max: 20}}})
	}
	resolved, err := readmodel.NewTables(list)
	require.NoError(t, err)
	return store.Declaration{ID: store.ConsumerID{Type: "projection", Name: name}, Topics: []string{store.EventsTopic}, Tables: resolved,
		Fingerprint: store.Fingerprint{Version: 1, Inputs: "i", Keys: "k", Tables: strings.Join(tables, " "), Logic: "l"}, Plugin: name, Digest: "sha256:1"}
}

// hostTables are the names of the host's tables without prefix.
var hostTables = []string{"schema_migrations", "partition_metadata", "counters", "topics", "events", "snapshots",
	"consumers", "builds", "checkpoints", "ownership", "instances", "members", "read_model_tables", "undelivered", "skipped", "effects_owed", "consumer_history"}

// catalogue describes the host's tables.
func (d *db) catalogue(h host) map[string]readmodel.ActualTable {
	d.t.Helper()
	all := map[string]readmodel.ActualTable{}
	require.NoError(d.t, h.Engine.Read(d.ctx(), "describe", func(c sqlstore.Conn) error {
		for _, name := range hostTables {
			have, err := h.Dialect.Describe(d.ctx(), c, h.Opt.TablePrefix+name)
			if err != nil {
				return err
			}
			for i := range have.Indexes {
				have.Indexes[i].Name = strings.TrimPrefix(have.Indexes[i].Name, h.Opt.TablePrefix)
			}
			all[name] = have
		}
		return nil
	}))
	for _, name := range hostTables {
		require.NotEmpty(d.t, all[name].Columns, name)
	}
	return all
}

func concurrentStarts(t *testing.T, d *db) {
	const hosts = 8
	var wg sync.WaitGroup
	var errs [hosts]error
	var stores [hosts]store.Store
	for i := range hosts {
		opt := store.Options{TablePrefix: "one_"}
		if i%4 == 3 {
			opt.TablePrefix = "two_"
		}
		wg.Go(func() { stores[i], _, errs[i] = d.Open(opt) })
	}
	wg.Wait()
	for i := range hosts {
		require.NoError(t, errs[i])
		info, err := stores[i].Info(d.ctx())
		require.NoError(t, err)
		require.Equal(t, 256, info.Partitions)
		require.NoError(t, stores[i].Check(d.ctx()))
	}
	for i := range hosts {
		require.NoError(t, stores[i].Close())
	}
}

// Two applications share a database, and even the names of their tables.
func prefixes(t *testing.T, d *db) {
	one, two := d.open(small("one_", "m1_")), d.open(small("two_", "m2_"))
	for i, h := range []host{one, two} {
		for n := range i + 1 {
			_, err := h.Commit(d.ctx(), store.Commit{Streams: []store.StreamAppend{{AggregateType: "a", AggregateID: fmt.Sprint(n),
				Events: []store.NewEvent{{Type: "E", Data: []byte(`{}`)}}}}})
			require.NoError(t, err)
		}
		c, err := h.Store.Subscribe(d.ctx(), declare(t, "p", "accounts"))
		require.NoError(t, err)
		require.EqualValues(t, 1, c.Build, "each has numbers of its own")
	}
	for i, h := range []host{one, two} {
		events, err := h.ReadStream(d.ctx(), "a", "1", 1, 10)
		require.NoError(t, err)
		require.Len(t, events, i)
		list, err := h.Store.ListConsumers(d.ctx())
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.NoError(t, h.Check(d.ctx()))
	}
	// With the same prefix of read models the first keeps its table (H17), and
	// builds of a third pass over numbers whose names are taken.
	three := d.open(small("three_", "m1_"))
	_, err := three.Store.Subscribe(d.ctx(), declare(t, "p", "accounts"))
	var taken *store.NameTakenError
	require.ErrorAs(t, err, &taken)
	decl := declare(t, "p", "accounts")
	decl.Adopt = []string{"accounts"} // a view, which is the first's
	c, err := three.Store.Subscribe(d.ctx(), decl)
	require.NoError(t, err)
	require.EqualValues(t, 2, c.Build)
}

func subscribeAtOnce(t *testing.T, d *db) {
	const hosts = 4
	var list [hosts]host
	for i := range list {
		list[i] = d.open(small([]string{"ph_", "app_"}[i%2], ""))
	}
	// Two applications. All hosts of one record the same consumer; each wants a
	// table that only one can have, whatever its application.
	var wg sync.WaitGroup
	var same [hosts]store.Consumer
	var errs, thefts [hosts]error
	for i, h := range list {
		alike, wanted := declare(t, "alike", fmt.Sprint("a", i%2), fmt.Sprint("b", i%2)), declare(t, fmt.Sprint("wants", i), "own"+fmt.Sprint(i), "wanted")
		wg.Go(func() {
			same[i], errs[i] = h.Store.Subscribe(d.ctx(), alike)
			_, thefts[i] = h.Store.Subscribe(d.ctx(), wanted)
		})
	}
	wg.Wait()
	winners := 0
	for i := range list {
		require.NoError(t, errs[i])
		require.Equal(t, same[i%2].Build, same[i].Build)
		if thefts[i] == nil {
			winners++
			continue
		}
		var taken *store.NameTakenError
		require.ErrorAs(t, thefts[i], &taken)
		require.Equal(t, "wanted", taken.Table)
	}
	require.Equal(t, 1, winners)
}

// Names of read models are one space, so what looks whether one is free keeps
// every other application out meanwhile.
func oneLock(t *testing.T, d *db) {
	one, two := d.open(small("one_", "")), d.open(small("two_", ""))
	release, err := one.Engine.Lock(d.ctx(), "projhost")
	require.NoError(t, err)
	soon, cancel := context.WithTimeout(d.ctx(), 300*time.Millisecond)
	defer cancel()
	_, err = two.Engine.Lock(soon, "projhost")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, release())
	release, err = two.Engine.Lock(d.ctx(), "projhost")
	require.NoError(t, err)
	require.NoError(t, release())
}

// Without the lock a host may fail, but a consumer is never recorded twice and
// a name has one owner.
func lostLock(t *testing.T, d *db) {
	const hosts = 4
	var list [hosts]host
	for i := range list {
		h := d.open(small("ph_", ""))
		c, err := sqlstore.New(lockless{h.Engine}, h.Dialect, h.Opt)
		require.NoError(t, err)
		require.NoError(t, c.Initialize(d.ctx(), "1"))
		list[i] = host{h.Store, c}
	}
	for round := range 4 {
		table := fmt.Sprint("t", round)
		consumer := func(i int) store.Declaration { return declare(t, fmt.Sprint("p", round, " ", i%2), table) }
		var wg sync.WaitGroup
		var got [hosts]store.Consumer
		var errs [hosts]error
		for i, h := range list {
			wg.Go(func() { got[i], errs[i] = h.Core.Subscribe(d.ctx(), consumer(i)) })
		}
		wg.Wait()
		owners := map[store.ConsumerID]int64{}
		for i, h := range list {
			c, err := h.Core.Subscribe(d.ctx(), consumer(i))
			var taken *store.NameTakenError
			if errors.As(err, &taken) {
				require.Error(t, errs[i])
				continue
			}
			require.NoError(t, err)
			if errs[i] == nil {
				require.Equal(t, c.Build, got[i].Build)
			}
			owners[c.ID] = c.Build
			d.settled(h, c)
		}
		require.Len(t, owners, 1)
	}
	consumers, err := list[0].Core.ListConsumers(d.ctx())
	require.NoError(t, err)
	require.Len(t, consumers, 4)
}

func script(t *testing.T, d *db) {
	made := d.open(small("made_", ""))
	text, err := sqlstore.SchemaSQL(made.Dialect, "hand_", 4)
	require.NoError(t, err)
	opt := small("hand_", "")
	opt.NeverInitialize = true
	_, _, err = d.Open(opt)
	var missing *store.SchemaError
	require.ErrorAs(t, err, &missing)
	require.True(t, missing.New)
	require.ErrorContains(t, err, "as the database is new")
	d.script(text)
	hand := d.open(opt)
	require.Equal(t, d.catalogue(made), d.catalogue(hand))
	a, err := made.Store.Info(d.ctx())
	require.NoError(t, err)
	b, err := hand.Store.Info(d.ctx())
	require.NoError(t, err)
	require.Equal(t, a, b)
	c, err := hand.Store.Subscribe(d.ctx(), declare(t, "p", "accounts"))
	require.NoError(t, err)
	require.EqualValues(t, 1, c.Build)
}

func otherTables(t *testing.T, d *db) {
	opt := small("ph_", "")
	h := d.open(opt)
	quote := h.Dialect.Rows.Quote
	opt.NeverInitialize = true
	stops := func(table, column string) {
		t.Helper()
		_, _, err := d.Open(opt)
		var e *store.SchemaError
		require.ErrorAs(t, err, &e)
		require.Equal(t, "ph_"+table, e.Table)
		require.Contains(t, e.Column, column)
		require.ErrorContains(t, err, "projhost schema print --driver "+h.Dialect.Name)
		require.ErrorAs(t, h.Check(d.ctx()), &e)
	}
	d.script("ALTER TABLE " + quote("ph_instances") + " ADD mine int")
	again := d.open(opt)
	require.NoError(t, again.Check(d.ctx()), "a column that may be left out does no harm")
	d.script("ALTER TABLE " + quote("ph_instances") + " ADD other int NOT NULL")
	stops("instances", "other")
	d.script("ALTER TABLE " + quote("ph_instances") + " DROP COLUMN other")
	d.script("ALTER TABLE " + quote("ph_builds") + " DROP COLUMN digest")
	stops("builds", "digest")
	d.script("ALTER TABLE " + quote("ph_builds") + " ADD digest bigint NOT NULL")
	stops("builds", "digest")
	d.script("DROP TABLE " + quote("ph_snapshots"))
	stops("snapshots", "")
	_, _, err := d.Open(opt)
	require.ErrorContains(t, err, "restore it from a backup", "there was one, and no start makes it again")
	opt.NeverInitialize = false
	_, _, err = d.Open(opt)
	require.Error(t, err, "what is on record is not made anew")
}

// The schema is not looked at for everyone who asks whether the host is well,
// but again in another incarnation of the database, and until nothing is wrong.
func schemaInShape(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	table := h.Dialect.Rows.Quote("ph_instances")
	require.NoError(t, h.Core.InShape(d.ctx()))
	d.script("ALTER TABLE " + table + " ADD other int NOT NULL")
	require.NoError(t, h.Core.InShape(d.ctx()), "it was in shape a moment ago")
	h.Core.Raise()
	var e *store.SchemaError
	for range 2 {
		require.ErrorAs(t, h.Core.InShape(d.ctx()), &e)
	}
	d.script("ALTER TABLE " + table + " DROP COLUMN other")
	require.NoError(t, h.Core.InShape(d.ctx()))
}

// Who looks at the tables of read models is told of all that differ, and
// whose they are; nothing is changed.
func comparedTables(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	quote := h.Dialect.Rows.Quote
	sound, err := h.Store.Subscribe(d.ctx(), declare(t, "sound", "s"))
	require.NoError(t, err)
	p, err := h.Store.Subscribe(d.ctx(), declare(t, "p", "a", "b"))
	require.NoError(t, err)
	require.NoError(t, h.Store.CheckTables(d.ctx()))
	for i := range p.Tables {
		d.script("DROP VIEW " + quote(readmodel.PublicName("", p.Tables[i].Table.Name)))
	}
	require.NoError(t, h.Store.CheckTables(d.ctx()), "the next start makes views")
	d.script("ALTER TABLE " + quote(p.Tables[0].Physical) + " DROP COLUMN t")
	d.script("DROP TABLE " + quote(p.Tables[1].Physical))
	err = h.Store.CheckTables(d.ctx())
	var shape *readmodel.ShapeError
	require.ErrorAs(t, err, &shape)
	require.Equal(t, "t", shape.Column)
	require.ErrorContains(t, err, p.ID.String()+": "+shape.Error())
	require.ErrorContains(t, err, fmt.Sprintf("table %q: declared is a table, the database has none", p.Tables[1].Physical))
	require.NotContains(t, err.Error(), sound.Tables[0].Physical)
}

// A table of ours is not made where a stranger's has its name, and nothing is on
// record before all are as they have to be.
func strangersTable(t *testing.T, d *db) {
	other := d.open(small("other_", ""))
	topics := other.Dialect.Rows.Quote("ph_topics")
	d.script("CREATE TABLE " + topics + " (id int)")
	_, _, err := d.Open(small("ph_", ""))
	var e *store.SchemaError
	require.ErrorAs(t, err, &e)
	require.Equal(t, "ph_topics", e.Table)
	d.script("DROP TABLE " + topics)
	require.NoError(t, d.open(small("ph_", "")).Check(d.ctx()))
}

// A host that is killed while it makes the schema leaves what the next one
// completes.
func startDies(t *testing.T, d *db) {
	whole := d.open(small("whole_", ""))
	want := d.catalogue(whole)
	// Not every place each time, for the sake of time.
	for n := rand.N(stride); ; n += stride {
		opt := small(fmt.Sprintf("d%d_", n), "")
		m := &mortal{Engine: whole.Engine, left: n}
		c, err := sqlstore.New(m, whole.Dialect, opt)
		require.NoError(t, err)
		err = c.Initialize(d.ctx(), "1")
		if !m.died() {
			require.NoError(t, err)
			require.Greater(t, n, 20, "the host died at many places")
			return
		}
		require.ErrorIs(t, err, errDied)
		next, err := sqlstore.New(whole.Engine, whole.Dialect, opt)
		require.NoError(t, err)
		require.NoError(t, next.Initialize(d.ctx(), "1"), "after %d statements", n)
		require.Equal(t, want, d.catalogue(host{whole.Store, next}), "after %d statements", n)
		_, err = next.Subscribe(d.ctx(), declare(t, "p", fmt.Sprint("t", n)))
		require.NoError(t, err)
	}
}

// everywhere lets a host subscribe and die after each number of steps, and the
// next one subscribe again. prepare makes what is there before.
func (d *db) everywhere(prepare func(h host, table string) []string, settled func(h host, c store.Consumer, table string)) {
	t := d.t
	h := d.open(small("ph_", ""))
	m := &mortal{Engine: h.Engine}
	c, err := sqlstore.New(m, h.Dialect, h.Opt)
	require.NoError(t, err)
	m.dieAt(1 << 30)
	require.NoError(t, c.Initialize(d.ctx(), "1"))
	for n := 0; ; n++ {
		table, other := fmt.Sprint("t", n), fmt.Sprint("u", n)
		decl := declare(t, fmt.Sprint("p", n), table, other)
		decl.Adopt = prepare(h, table)
		m.dieAt(n)
		_, err := c.Subscribe(d.ctx(), decl)
		died := m.died()
		if died {
			require.ErrorIs(t, err, errDied, "after %d steps", n)
		} else {
			require.NoError(t, err)
		}
		// The record and what can be seen of it agree at every moment.
		found, err := h.Store.Consumer(d.ctx(), decl.ID)
		if err == nil {
			list, err := h.Store.Checkpoints(d.ctx(), found.Build)
			require.NoError(t, err)
			require.Len(t, list, 4, "after %d steps", n)
		} else {
			require.ErrorIs(t, err, store.ErrNotFound)
		}
		again := declare(t, fmt.Sprint("p", n), table, other)
		again.Adopt = decl.Adopt
		got, err := h.Store.Subscribe(d.ctx(), again)
		require.NoError(t, err, "after %d steps", n)
		if found.Build != 0 {
			require.Equal(t, found.Build, got.Build)
		}
		d.settled(h, got)
		settled(h, got, table)
		if !died {
			require.Greater(t, n, 20, "the host died at many places")
			return
		}
	}
}

// settled checks that a consumer has all that belongs to it.
func (d *db) settled(h host, c store.Consumer) {
	t := d.t
	t.Helper()
	owners, err := h.Store.Owners(d.ctx(), c.Build)
	require.NoError(t, err)
	require.Len(t, owners, 4)
	require.NoError(t, h.Engine.Read(d.ctx(), "look", func(conn sqlstore.Conn) error {
		for _, ref := range c.Tables {
			have, err := h.Dialect.Describe(d.ctx(), conn, ref.Physical)
			require.NoError(t, err)
			require.NoError(t, h.Dialect.Rows.Check(ref.Physical, ref.Table, have))
			is, err := h.Dialect.ViewIs(d.ctx(), conn, readmodel.PublicName("", ref.Table.Name), ref.Physical, ref.Table)
			require.NoError(t, err)
			require.True(t, is, ref.Physical)
		}
		var left int64
		rows, err := conn.Query(d.ctx(), h.SQL(`SELECT count(*) FROM {{read_model_tables}} WHERE adopting IS NOT NULL`))
		require.NoError(t, err)
		require.True(t, rows.Next())
		require.NoError(t, rows.Scan(&left))
		require.NoError(t, rows.Close())
		require.Zero(t, left, "adopted tables wait for nothing")
		return nil
	}))
}

func subscribeDies(t *testing.T, d *db) {
	d.everywhere(func(host, string) []string { return nil }, func(host, store.Consumer, string) {})
}

// A host tries again for as long as the disk is full.
func subscribeFails(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	c, err := sqlstore.New(full{h.Engine}, h.Dialect, h.Opt)
	require.NoError(t, err)
	require.NoError(t, c.Initialize(d.ctx(), "1"))
	for range 3 {
		_, err = c.Subscribe(d.ctx(), declare(t, "p", "a", "b"))
		require.ErrorIs(t, err, errFull)
	}
	require.NoError(t, h.Engine.Read(d.ctx(), "look", func(conn sqlstore.Conn) error {
		for build := range int64(4) {
			for _, table := range []string{"a", "b"} {
				kind, _, err := h.Dialect.Find(d.ctx(), conn, readmodel.PhysicalName("", table, build))
				require.NoError(t, err)
				require.Empty(t, kind)
			}
		}
		return nil
	}))
	got, err := h.Store.Subscribe(d.ctx(), declare(t, "p", "a", "b"))
	require.NoError(t, err)
	require.EqualValues(t, 4, got.Build, "a number is used once")
}

func adoptDies(t *testing.T, d *db) {
	d.everywhere(func(h host, table string) []string {
		decl := declare(t, "x", table)
		rows := h.Dialect.Rows
		d.script(strings.Join(rows.CreateTable(table, decl.Tables[0]), ";\n"))
		d.script("INSERT INTO " + rows.Quote(table) + " (" + rows.Quote("key") + ", n) VALUES ('mine', 7)")
		return []string{strings.ToUpper(table)}
	}, func(h host, c store.Consumer, table string) {
		for _, name := range []string{table, c.Tables[0].Physical} {
			var key string
			var n int64
			require.NoError(t, h.Engine.Read(d.ctx(), "look", func(conn sqlstore.Conn) error {
				r, err := conn.Query(d.ctx(), h.SQL(`SELECT "key", n FROM "`+name+`"`))
				require.NoError(t, err)
				require.True(t, r.Next(), "the user's rows stay")
				require.NoError(t, r.Scan(&key, &n))
				require.False(t, r.Next())
				return r.Close()
			}))
			require.Equal(t, "mine", key)
			require.EqualValues(t, 7, n)
		}
	})
}

// A claim that began before another instance had joined must not take from it
// what it has got meanwhile.
func claimAfterWait(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	c, err := h.Store.Subscribe(d.ctx(), declare(t, "p", "t"))
	require.NoError(t, err)
	require.NoError(t, h.Store.Join(d.ctx(), store.Instance{ID: "first"}))
	var late []store.Lease
	between := &between{Engine: h.Engine, run: func() {
		// The other joins and claims when the first has looked and not yet taken.
		require.NoError(t, h.Store.Join(d.ctx(), store.Instance{ID: "second"}))
		got, _, err := h.Store.Claim(d.ctx(), "second", c.Build, []int{1, 2})
		require.NoError(t, err)
		require.Len(t, got, 2)
	}}
	slow, err := sqlstore.New(between, h.Dialect, h.Opt)
	require.NoError(t, err)
	late, _, err = slow.Claim(d.ctx(), "first", c.Build, []int{0, 1, 2, 3})
	require.NoError(t, err)
	require.Equal(t, []store.Lease{{Build: c.Build, Partition: 0, Generation: 1}, {Build: c.Build, Partition: 3, Generation: 1}}, late)
	owners, err := h.Store.Owners(d.ctx(), c.Build)
	require.NoError(t, err)
	for i, want := range []string{"first", "second", "second", "first"} {
		require.Equal(t, store.Ownership{Partition: i, InstanceID: want, Generation: 1}, owners[i])
	}
}

// The database's clock is set back: who died before that must not count as
// running until it is there again, and who runs is back with its next heartbeat
// (H36).
func clockSetBack(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	c, err := h.Store.Subscribe(d.ctx(), declare(t, "p", "t"))
	require.NoError(t, err)
	const ttl = 100 * time.Second
	for i, id := range []string{"dead", "awake", "next"} {
		require.NoError(t, h.Store.Join(d.ctx(), store.Instance{ID: id, TTL: ttl}))
		require.NoError(t, h.Store.Enlist(d.ctx(), id, []store.Enlistment{{Build: c.Build}}))
		_, _, err := h.Store.Claim(d.ctx(), id, c.Build, []int{i})
		require.NoError(t, err)
	}
	ahead := func(id string, by time.Duration) {
		require.NoError(t, h.Engine.Write(d.ctx(), "set", func(conn sqlstore.Conn) error {
			_, err := conn.Exec(d.ctx(), h.SQL(`UPDATE {{instances}} SET last_heartbeat_us = {{now}} + ? WHERE id = {{?}}`), by.Microseconds(), id)
			return err
		}))
	}
	live := func() (ids []string) {
		list, err := h.Store.ListInstances(d.ctx())
		require.NoError(t, err)
		for _, i := range list {
			if i.Live {
				ids = append(ids, i.ID)
			}
		}
		return ids
	}
	claim := func() (taken []int) {
		leases, _, err := h.Store.Claim(d.ctx(), "next", c.Build, []int{0, 1})
		require.NoError(t, err)
		for _, l := range leases {
			taken = append(taken, l.Partition)
		}
		return taken
	}
	ahead("dead", ttl/2)
	require.ElementsMatch(t, []string{"dead", "awake", "next"}, live(), "a small step is no reason")
	require.Empty(t, claim())
	ahead("dead", time.Hour)
	ahead("awake", time.Hour)
	require.Equal(t, []string{"next"}, live())
	_, _, err = h.Store.Claim(d.ctx(), "awake", c.Build, []int{3})
	require.ErrorIs(t, err, store.ErrNotFound)
	require.NoError(t, h.Store.Heartbeat(d.ctx(), "awake"))
	require.ElementsMatch(t, []string{"awake", "next"}, live())
	require.Equal(t, []int{0}, claim())
	require.NoError(t, h.Store.Join(d.ctx(), store.Instance{ID: "another", TTL: ttl}))
	require.ErrorIs(t, h.Store.Heartbeat(d.ctx(), "dead"), store.ErrNotFound)
	require.NoError(t, h.Store.Heartbeat(d.ctx(), "awake"))
}

// A view that shows something else in other columns cannot be replaced in place
// everywhere; the consumer that was given its name has it all the same.
func replacedView(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	quote := h.Dialect.Rows.Quote
	d.script("CREATE VIEW " + quote("accounts") + " AS SELECT 'x' AS nothing, 1 AS of_ours")
	decl := declare(t, "p", "accounts")
	_, err := h.Store.Subscribe(d.ctx(), decl)
	var taken *store.NameTakenError
	require.ErrorAs(t, err, &taken)
	require.Contains(t, taken.Owner, "a view that projhost did not create")
	decl.Adopt = []string{"accounts"}
	c, err := h.Store.Subscribe(d.ctx(), decl)
	require.NoError(t, err)
	d.settled(h, c)
	// Whoever drops or replaces it gets it back at the next start.
	d.script("DROP VIEW " + quote("accounts"))
	c, err = h.Store.Subscribe(d.ctx(), declare(t, "p", "accounts"))
	require.NoError(t, err)
	d.settled(h, c)
}

// A membership has a read-through for each topic of its build.
func twoTopics(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	require.NoError(t, h.Engine.Write(d.ctx(), "another topic", func(conn sqlstore.Conn) error {
		_, err := conn.Exec(d.ctx(), h.SQL(`INSERT INTO {{topics}} (name, kind) VALUES (?, 'capture')`), "more")
		return err
	}))
	decl := declare(t, "p", "t")
	decl.Topics = []string{store.EventsTopic, "more"}
	c, err := h.Store.Subscribe(d.ctx(), decl)
	require.NoError(t, err)
	require.NoError(t, h.Store.Join(d.ctx(), store.Instance{ID: "a"}))
	require.NoError(t, h.Store.Enlist(d.ctx(), "a", []store.Enlistment{{Build: c.Build}}))
	leases, _, err := h.Store.Claim(d.ctx(), "a", c.Build, []int{0, 1})
	require.NoError(t, err)
	require.NoError(t, h.Store.Apply(d.ctx(), &store.Batch{Consumer: c.ID, Build: c.Build, InstanceID: "a", Incarnation: h.Store.Incarnation(), Leases: leases,
		Checkpoints: []store.CheckpointMove{{Topic: "more", Partition: 0, To: 5}, {Topic: "more", Partition: 1, To: 6}}}))
	_, tenure, err := h.Store.Claim(d.ctx(), "a", c.Build, []int{0})
	require.NoError(t, err)
	through := func(events, more int64) {
		t.Helper()
		s, err := h.Store.Survey(d.ctx(), nil)
		require.NoError(t, err)
		require.Len(t, s.Members, 1)
		require.Equal(t, map[string]int64{store.EventsTopic: events, "more": more}, s.Members[0].ReadThrough)
		v, err := h.Store.View(d.ctx(), c.ID)
		require.NoError(t, err)
		defer v.Close()
		positions, err := v.Positions()
		require.NoError(t, err)
		require.Equal(t, map[string]int64{store.EventsTopic: 0, "more": 0}, positions, "some have no owner")
		at, err := v.Position(store.EventsTopic, 1)
		require.NoError(t, err)
		require.Equal(t, events, at)
		at, err = v.Position("more", 1)
		require.NoError(t, err)
		require.Equal(t, max(more, 6), at)
	}
	through(0, 0)
	tell := func(events, more int64) {
		t.Helper()
		require.NoError(t, h.Store.Advance(d.ctx(), "a", []store.Progress{
			{Build: c.Build, Incarnation: h.Store.Incarnation(), Tenure: tenure, Topic: "more", ReadThrough: more}, {Build: c.Build, Incarnation: h.Store.Incarnation(), Tenure: tenure, Topic: store.EventsTopic, ReadThrough: events}}))
	}
	tell(40, 30)
	through(40, 30)
	tell(39, 31)
	through(40, 31)
	_, _, err = h.Store.Claim(d.ctx(), "a", c.Build, []int{0})
	require.NoError(t, err)
	through(0, 5)

	_, tenure, err = h.Store.Claim(d.ctx(), "a", c.Build, []int{2, 3})
	require.NoError(t, err)
	tell(50, 60)
	v, err := h.Store.View(d.ctx(), c.ID)
	require.NoError(t, err)
	defer v.Close()
	positions, err := v.Positions()
	require.NoError(t, err)
	require.Equal(t, map[string]int64{store.EventsTopic: 50, "more": 60}, positions)
}

// Of a host that dies anywhere while it drops a consumer, the next one finishes the
// work: by dropping it again, or by subscribing to it.
func dropDies(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	m := &mortal{Engine: h.Engine}
	c, err := sqlstore.New(m, h.Dialect, h.Opt)
	require.NoError(t, err)
	m.dieAt(1 << 30)
	require.NoError(t, c.Initialize(d.ctx(), "1"))
	for n := 0; ; n++ {
		decl := declare(t, "p", "t", "u")
		before, err := h.Store.Subscribe(d.ctx(), decl)
		require.NoError(t, err, "after %d steps", n)
		m.dieAt(n)
		err = c.Drop(d.ctx(), decl.ID, "ops")
		died := m.died()
		if !died {
			require.NoError(t, err)
		}
		if n%2 == 0 {
			if err := h.Store.Drop(d.ctx(), decl.ID, "ops"); err != nil {
				require.ErrorIs(t, err, store.ErrNotFound, "after %d steps", n)
			}
			again, err := h.Store.Subscribe(d.ctx(), declare(t, "other", "t", "u"))
			require.NoError(t, err, "after %d steps: the names are free", n)
			d.settled(h, again)
			require.NoError(t, h.Store.Drop(d.ctx(), again.ID, "ops"))
		}
		found, err := h.Store.Subscribe(d.ctx(), declare(t, "p", "t", "u"))
		require.NoError(t, err, "after %d steps", n)
		d.settled(h, found)
		if found.Build != before.Build {
			for _, ref := range before.Tables {
				_, err := h.Store.LoadRows(d.ctx(), ref, []store.RowKey{{Key: "a"}})
				require.Error(t, err, "after %d steps: the table of the build before is there", n)
			}
		}
		if !died {
			require.Greater(t, n, 15, "the host died at many places")
			return
		}
	}
}

// What cannot be recorded is not passed: neither rows nor checkpoints of its batch
// are stored, no message is to blame, and afterwards the very batch goes through.
func cannotKeep(t *testing.T, d *db) {
	h := d.open(small("ph_", ""))
	c, err := h.Store.Subscribe(d.ctx(), declare(t, "p", "t"))
	require.NoError(t, err)
	require.NoError(t, h.Store.Join(d.ctx(), store.Instance{ID: "i"}))
	leases, _, err := h.Store.Claim(d.ctx(), "i", c.Build, []int{1})
	require.NoError(t, err)
	e := store.Event{Position: 5, AggregateType: "a", AggregateID: "b", Sequence: 1, Type: "E", Codec: store.DefaultCodec, CodecVersion: 1, Data: []byte(`{}`)}
	b := &store.Batch{Consumer: c.ID, Build: c.Build, InstanceID: "i", Incarnation: h.Store.Incarnation(), Leases: leases,
		Checkpoints: []store.CheckpointMove{{Topic: store.EventsTopic, Partition: 1, To: 5}},
		Records:     []store.Record{{Topic: store.EventsTopic, Partition: 1, Key: "k", Status: store.StatusFailed, Event: &e}}}
	q := h.Dialect.Rows.Quote
	require.NoError(t, d.Script("ALTER TABLE "+q("ph_undelivered")+" RENAME TO "+q("elsewhere")))
	for range 2 {
		err := h.Store.Apply(d.ctx(), b)
		var transient *store.TransientError
		require.ErrorAs(t, err, &transient)
		require.False(t, transient.OutcomeUnknown)
		list, err := h.Store.Checkpoints(d.ctx(), c.Build)
		require.NoError(t, err)
		require.Zero(t, list[1].Position)
	}
	require.NoError(t, d.Script("ALTER TABLE "+q("elsewhere")+" RENAME TO "+q("ph_undelivered")))
	b.Incarnation = h.Store.Incarnation()
	require.NoError(t, h.Store.Apply(d.ctx(), b))
	heads, err := h.Store.Heads(d.ctx(), c.Build, []int{1})
	require.NoError(t, err)
	require.Len(t, heads, 1)
}

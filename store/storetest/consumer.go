package storetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/store"
)

var consumerCases = []testCase{
	{"SubscribeRecordsEverything", consumerSubscribe},
	{"SubscribeAgainFindsIt", consumerSubscribeAgain},
	{"SubscribeConcurrently", consumerSubscribeConcurrently},
	{"SubscribeRefusesNonsense", consumerSubscribeNonsense},
	{"SubscribeRefusesUnknownTopics", consumerUnknownTopic},
	{"ReopenedReadsWithoutTheModule", consumerReopened},
	{"AnotherDeclarationIsRefusedByName", consumerDeclarationChanged},
	{"AnotherLogicGoesOn", consumerLogicChanged},
	{"TableNameHasOneOwner", consumerNameTaken},
	{"RefusedNameLeavesNothing", consumerNameTakenLeavesNothing},
	{"TableNamesIgnoreCase", consumerNamesIgnoreCase},
	{"HostTableNamesAreTaken", consumerHostNames},
	{"NamesAreExact", consumerNamesExact},
	{"PrefixesKeepApart", consumerPrefixes},
	{"ForeignNameIsTakenUnlessAdopted", consumerForeignName},
	{"HaltNeedsTheLease", consumerHaltFenced},
	{"FirstHaltStands", consumerFirstHalt},
	{"ClearHaltRuns", consumerClearHalt},
	{"UnknownIsNotFound", consumerUnknown},
}

func consumerSubscribe(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: 16})
	decl := declare(t, "accounts", accounts()...)
	c := d.subscribe(decl)
	require.Equal(t, decl.ID, c.ID)
	require.Equal(t, store.StateRunning, c.State)
	require.Positive(t, c.StateSinceUS)
	require.Nil(t, c.Halt)
	require.Zero(t, c.Epoch)
	require.Positive(t, c.Build)
	require.Equal(t, decl.Plugin, c.Plugin)
	require.Equal(t, decl.Digest, c.Digest)
	require.Equal(t, decl.Topics, c.Topics)
	require.Equal(t, decl.Fingerprint, c.Fingerprint)
	require.Len(t, c.Tables, 2)
	for i, ref := range c.Tables {
		require.Same(t, decl.Tables[i], ref.Table)
		require.NotEmpty(t, ref.Physical)
		require.Equal(t, c.Build, ref.Build)
	}

	checkpoints, err := d.Checkpoints(d.ctx(), c.Build)
	require.NoError(t, err)
	require.Len(t, checkpoints, 16)
	for p, have := range checkpoints {
		require.Equal(t, store.Checkpoint{Topic: store.EventsTopic, Partition: p}, have, "a checkpoint begins before the first message")
	}
	owners, err := d.Owners(d.ctx(), c.Build)
	require.NoError(t, err)
	require.Len(t, owners, 16)
	for p, have := range owners {
		require.Equal(t, store.Ownership{Partition: p}, have)
	}

	got, err := d.Consumer(d.ctx(), decl.ID)
	require.NoError(t, err)
	require.Equal(t, c, got)
	list, err := d.ListConsumers(d.ctx())
	require.NoError(t, err)
	require.Equal(t, []store.Consumer{c}, list)
}

func consumerSubscribeAgain(t *testing.T, d *db) {
	l := d.lane("i")
	b := l.batch(7, 3)
	l.write(b, "accounts", l.account("a", 1, ""))
	l.apply(b)
	unchanged := l.requireUnchanged()
	again := d.subscribe(declare(t, "accounts", accounts()...))
	require.Equal(t, l.c, again)
	unchanged()
	owners, err := d.Owners(d.ctx(), l.c.Build)
	require.NoError(t, err)
	require.Equal(t, store.Ownership{Partition: 3, InstanceID: "i", Generation: 1}, owners[3], "subscribing again takes nothing from the owner")
}

func consumerSubscribeConcurrently(t *testing.T, d *db) {
	const callers = 8
	var wg sync.WaitGroup
	got := make([]store.Consumer, callers)
	errs := make([]error, callers)
	for i := range callers {
		decl := declare(t, fmt.Sprint("p", i%2), abi.Table{Name: fmt.Sprint("t", i%2), Columns: accounts()[0].Columns})
		wg.Go(func() { got[i], errs[i] = d.Subscribe(d.ctx(), decl) })
	}
	wg.Wait()
	for i := range callers {
		require.NoError(t, errs[i])
		require.Equal(t, got[i%2].Build, got[i].Build, "one consumer has one build")
	}
	list, err := d.ListConsumers(d.ctx())
	require.NoError(t, err)
	require.Len(t, list, 2)
}

func consumerSubscribeNonsense(t *testing.T, d *db) {
	for name, change := range map[string]func(*store.Declaration){
		"no name":        func(c *store.Declaration) { c.ID.Name = "" },
		"no type":        func(c *store.Declaration) { c.ID.Type = "" },
		"NUL in name":    func(c *store.Declaration) { c.ID.Name = "a\x00" },
		"trailing space": func(c *store.Declaration) { c.ID.Name = "a " },
		"long name":      func(c *store.Declaration) { c.ID.Name = long("ä", 256) },
		"no topic":       func(c *store.Declaration) { c.Topics = nil },
		"topic twice":    func(c *store.Declaration) { c.Topics = []string{store.EventsTopic, store.EventsTopic} },
	} {
		t.Run(name, func(t *testing.T) {
			decl := declare(t, "accounts", accounts()...)
			change(&decl)
			_, err := d.Subscribe(d.ctx(), decl)
			requireInvalid(t, err, "bad_request", -1)
		})
	}
	list, err := d.ListConsumers(d.ctx())
	require.NoError(t, err)
	require.Empty(t, list)
}

func consumerUnknownTopic(t *testing.T, d *db) {
	decl := declare(t, "accounts", accounts()...)
	decl.Topics = []string{store.EventsTopic, "nowhere"}
	_, err := d.Subscribe(d.ctx(), decl)
	require.ErrorIs(t, err, store.ErrNotFound)
	require.ErrorContains(t, err, "nowhere")
	list, err := d.ListConsumers(d.ctx())
	require.NoError(t, err)
	require.Empty(t, list)
}

// Whoever opens a database can read its read models: what the tables are like
// is stored with them.
func consumerReopened(t *testing.T, d *db) {
	l := d.lane("i")
	b := l.batch(7, 3)
	l.write(b, "accounts", l.account("a", 1, "x"))
	l.write(b, "entries", l.entry("a", "1", 5))
	l.apply(b)
	before := map[string][]store.StoredRow{"accounts": l.all("accounts"), "entries": l.all("entries")}
	d.reopen()
	list, err := d.ListConsumers(d.ctx())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, l.c.Fingerprint, list[0].Fingerprint)
	require.Equal(t, l.c.Topics, list[0].Topics)
	for i, ref := range list[0].Tables {
		require.Equal(t, l.c.Tables[i].Physical, ref.Physical)
		require.Equal(t, l.c.Tables[i].Table.Columns, ref.Table.Columns)
	}
	for name, want := range before {
		require.Equal(t, want, l.all(name))
	}
}

func consumerDeclarationChanged(t *testing.T, d *db) {
	for name, c := range map[string]struct {
		change func(*store.Declaration)
		want   []string
	}{
		"inputs": {func(d *store.Declaration) { d.Fingerprint.Inputs = "other" }, []string{"inputs"}},
		"keys":   {func(d *store.Declaration) { d.Fingerprint.Keys = "other" }, []string{"keys"}},
		"tables": {func(d *store.Declaration) { d.Fingerprint.Tables = "other" }, []string{"tables"}},
		"two":    {func(d *store.Declaration) { d.Fingerprint.Tables, d.Fingerprint.Inputs = "o", "o" }, []string{"inputs", "tables"}},
		"hashes of another kind": {func(d *store.Declaration) { d.Fingerprint.Version = 2 },
			[]string{"inputs", "keys", "tables"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDB(t, d.open, Config{})
			was := d.subscribe(declare(t, "accounts", accounts()...))
			decl := declare(t, "accounts", accounts()...)
			c.change(&decl)
			_, err := d.Subscribe(d.ctx(), decl)
			var changed *store.DeclarationError
			require.ErrorAs(t, err, &changed)
			require.Equal(t, store.DeclarationError{Consumer: decl.ID, Changed: c.want}, *changed)
			now, err := d.Consumer(d.ctx(), decl.ID)
			require.NoError(t, err)
			require.Equal(t, was, now, "a newcomer with another declaration leaves the consumer as it is")
		})
	}
}

func consumerLogicChanged(t *testing.T, d *db) {
	was := d.subscribe(declare(t, "accounts", accounts()...))
	decl := declare(t, "accounts", accounts()...)
	decl.Fingerprint.Logic, decl.Digest, decl.Plugin = "other", "sha256:other", "renamed"
	now := d.subscribe(decl)
	was.Fingerprint.Logic, was.Digest, was.Plugin = "other", "sha256:other", "renamed"
	for i := range was.Tables {
		was.Tables[i].Table = decl.Tables[i]
	}
	require.Equal(t, was, now)
	stored, err := d.Consumer(d.ctx(), decl.ID)
	require.NoError(t, err)
	require.Equal(t, now, stored)
}

func requireNameTaken(t require.TestingT, err error, table, owner string) {
	var taken *store.NameTakenError
	require.ErrorAs(t, err, &taken)
	require.Equal(t, table, taken.Table)
	require.Contains(t, taken.Owner, owner)
}

func consumerNameTaken(t *testing.T, d *db) {
	l := d.lane("i")
	unchanged := l.requireUnchanged()
	// Of the same shape, so that nothing but the name keeps it out.
	thief := declare(t, "thief", accounts()...)
	_, err := d.Subscribe(d.ctx(), thief)
	requireNameTaken(t, err, "accounts", "projection/accounts of plugin accounts-plugin")
	thief.Adopt = []string{"accounts", "entries"}
	_, err = d.Subscribe(d.ctx(), thief)
	requireNameTaken(t, err, "accounts", "projection/accounts of plugin accounts-plugin")
	unchanged()
	d.reopen()
	_, err = d.Subscribe(d.ctx(), thief)
	requireNameTaken(t, err, "accounts", "projection/accounts")
}

func consumerNameTakenLeavesNothing(t *testing.T, d *db) {
	d.subscribe(declare(t, "accounts", accounts()...))
	cols := accounts()[0].Columns
	_, err := d.Subscribe(d.ctx(), declare(t, "thief", abi.Table{Name: "mine", Columns: cols}, abi.Table{Name: "accounts", Columns: cols}))
	requireNameTaken(t, err, "accounts", "projection/accounts")
	_, err = d.Consumer(d.ctx(), store.ConsumerID{Type: "projection", Name: "thief"})
	require.ErrorIs(t, err, store.ErrNotFound)
	// The name it had claimed before it was refused is free.
	d.subscribe(declare(t, "honest", abi.Table{Name: "mine", Columns: cols}))
}

func consumerNamesIgnoreCase(t *testing.T, d *db) {
	d.subscribe(declare(t, "accounts", accounts()...))
	_, err := d.Subscribe(d.ctx(), declare(t, "thief", abi.Table{Name: "ACCOUNTS", Columns: accounts()[0].Columns}))
	requireNameTaken(t, err, "accounts", "projection/accounts")
}

func consumerHostNames(t *testing.T, d *db) {
	d = d.fresh(Config{TablePrefix: "app_"})
	for _, name := range []string{"app_events", "APP_anything"} {
		_, err := d.Subscribe(d.ctx(), declare(t, "thief", abi.Table{Name: name, Columns: accounts()[0].Columns}))
		var taken *store.NameTakenError
		require.ErrorAs(t, err, &taken)
		require.Contains(t, taken.Owner, "projhost itself")
	}
}

// Consumers whose names differ in case, accents or normal form are different.
func consumerNamesExact(t *testing.T, d *db) {
	builds := map[int64]string{}
	for i, name := range identifiers {
		c := d.subscribe(declare(t, name, abi.Table{Name: fmt.Sprint("t", i), Columns: accounts()[0].Columns}))
		require.Empty(t, builds[c.Build])
		builds[c.Build] = name
	}
	for build, name := range builds {
		c, err := d.Consumer(d.ctx(), store.ConsumerID{Type: "projection", Name: name})
		require.NoError(t, err)
		require.Equal(t, build, c.Build)
	}
	list, err := d.ListConsumers(d.ctx())
	require.NoError(t, err)
	for i := 1; i < len(list); i++ {
		require.Less(t, list[i-1].ID.Name, list[i].ID.Name, "consumers come in order of code points")
	}
}

// as opens the same database again with other prefixes.
func (d *db) as(tablePrefix, readModelPrefix string) {
	d.t.Helper()
	d.cfg.TablePrefix, d.cfg.ReadModelPrefix = tablePrefix, readModelPrefix
	d.reopen()
}

// Two applications share a database if their prefixes differ.
func consumerPrefixes(t *testing.T, d *db) {
	d.as("one_", "m1_")
	first := d.lane("i")
	b := first.batch(7, 3)
	first.write(b, "accounts", first.account("a", 1, "first"))
	first.apply(b)
	want, checkpoints := first.all("accounts"), first.checkpoints()

	d.as("two_", "m2_")
	list, err := d.ListConsumers(d.ctx())
	require.NoError(t, err)
	require.Empty(t, list)
	second := d.lane("i")
	require.Empty(t, second.all("accounts"))
	b = second.batch(9, 3, 4)
	second.write(b, "accounts", second.account("a", 2, "second"), second.account("b", 3, "second"))
	second.apply(b)
	require.Len(t, second.all("accounts"), 2)

	d.as("one_", "m1_")
	require.Equal(t, want, first.all("accounts"))
	require.Equal(t, checkpoints, first.checkpoints())
}

// A name that something else has in the database is not the consumer's to
// take, unless the operator gives it.
func consumerForeignName(t *testing.T, d *db) {
	d.as("one_", "")
	first := d.lane("i")
	b := first.batch(7, 3)
	first.write(b, "accounts", first.account("a", 1, "first"))
	first.apply(b)
	want := first.all("accounts")

	d.as("two_", "")
	// Until the numbers of builds differ, so do the names of tables.
	d.subscribe(declare(t, "filler", abi.Table{Name: "filler", Columns: accounts()[0].Columns}))
	decl := declare(t, "accounts", accounts()...)
	_, err := d.Subscribe(d.ctx(), decl)
	requireNameTaken(t, err, "accounts", "did not create")
	decl.Adopt = []string{"Accounts"}
	_, err = d.Subscribe(d.ctx(), decl)
	requireNameTaken(t, err, "entries", "did not create")
	decl.Adopt = []string{"Accounts", "entries"}
	second := d.laneOf(decl, "i")
	require.Empty(t, second.all("accounts"), "adopting a view takes its name, not what it showed")

	d.as("one_", "")
	require.Equal(t, want, first.all("accounts"))
}

func testHalt(position int64) store.Halt {
	return store.Halt{Reason: store.HaltApplyError, Code: 2, Message: "no such “account”", Topic: store.EventsTopic, Position: position,
		Partition: 3, Key: "kéy", EventType: "Opened", EventID: id(1).String(), Digest: "sha256:1", AtUS: 5}
}

func consumerHaltFenced(t *testing.T, d *db) {
	l := d.lane("i", 3)
	lease := l.leases[0]
	other := d.laneOf(declare(t, "other", abi.Table{Name: "t", Columns: accounts()[0].Columns}), "j", 3)
	for name, wrong := range map[string]store.Lease{
		"generation behind":   {Build: lease.Build, Partition: 3, Generation: lease.Generation - 1},
		"generation ahead":    {Build: lease.Build, Partition: 3, Generation: lease.Generation + 1},
		"unclaimed partition": {Build: lease.Build, Partition: 4, Generation: 0},
		"unknown build":       {Build: lease.Build + 100, Partition: 3, Generation: lease.Generation},
		"another consumer's":  other.leases[0],
	} {
		require.ErrorIs(t, d.Halt(d.ctx(), l.c.ID, wrong, testHalt(9)), store.ErrFenced, name)
	}
	require.NoError(t, d.Release(d.ctx(), "i", l.leases))
	require.ErrorIs(t, d.Halt(d.ctx(), l.c.ID, lease, testHalt(9)), store.ErrFenced, "released")
	l.claim(3)
	require.ErrorIs(t, d.Halt(d.ctx(), l.c.ID, lease, testHalt(9)), store.ErrFenced, "claimed anew")
	c, err := d.Consumer(d.ctx(), l.c.ID)
	require.NoError(t, err)
	require.Equal(t, store.StateRunning, c.State)
	require.Nil(t, c.Halt)
	require.NoError(t, d.Halt(d.ctx(), l.c.ID, l.leases[0], testHalt(9)))
}

func consumerFirstHalt(t *testing.T, d *db) {
	l := d.lane("i", 3, 4)
	require.NoError(t, d.Halt(d.ctx(), l.c.ID, l.leases[0], testHalt(9)))
	require.NoError(t, d.Halt(d.ctx(), l.c.ID, l.leases[1], testHalt(4)))
	check := func() {
		t.Helper()
		c, err := d.Consumer(d.ctx(), l.c.ID)
		require.NoError(t, err)
		require.Equal(t, store.StateHalted, c.State)
		require.Equal(t, testHalt(9), *c.Halt)
		require.GreaterOrEqual(t, c.StateSinceUS, l.c.StateSinceUS)
	}
	check()
	d.reopen()
	check()
	c := d.subscribe(declare(t, "accounts", accounts()...))
	require.Equal(t, store.StateHalted, c.State, "a start alone is no decision")
}

func consumerClearHalt(t *testing.T, d *db) {
	l := d.lane("i", 3)
	was, err := d.ClearHalt(d.ctx(), l.c.ID)
	require.NoError(t, err)
	require.False(t, was)
	require.NoError(t, d.Halt(d.ctx(), l.c.ID, l.leases[0], testHalt(9)))
	was, err = d.ClearHalt(d.ctx(), l.c.ID)
	require.NoError(t, err)
	require.True(t, was)
	c, err := d.Consumer(d.ctx(), l.c.ID)
	require.NoError(t, err)
	require.Equal(t, store.StateRunning, c.State)
	require.Nil(t, c.Halt)
	require.NoError(t, d.Halt(d.ctx(), l.c.ID, l.leases[0], testHalt(10)), "the lease outlives a halt")
	c, err = d.Consumer(d.ctx(), l.c.ID)
	require.NoError(t, err)
	require.EqualValues(t, 10, c.Halt.Position)
}

func consumerUnknown(t *testing.T, d *db) {
	id := store.ConsumerID{Type: "projection", Name: "nobody"}
	_, err := d.Consumer(d.ctx(), id)
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = d.View(d.ctx(), id)
	require.ErrorIs(t, err, store.ErrNotFound)
	was, err := d.ClearHalt(d.ctx(), id)
	require.NoError(t, err)
	require.False(t, was)
	list, err := d.Checkpoints(d.ctx(), 12345)
	require.NoError(t, err)
	require.Empty(t, list)
}

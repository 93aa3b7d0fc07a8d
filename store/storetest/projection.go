package storetest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// Columns of the table accounts, by index.
const (
	colBalance uint16 = iota
	colOwner
	colRank
)

// accounts declares the suite's usual tables: one, and a child of it.
func accounts() []abi.Table {
	return []abi.Table{
		{Name: "accounts", Columns: []abi.Column{
			{Name: "balance", Kind: abi.ColumnInt},
			{Name: "owner", Kind: abi.ColumnText, Max: 100, Index: true},
			{Name: "rank", Kind: abi.ColumnDecimal, Precision: 19, Scale: 2, Index: true},
		}},
		{Name: "entries", Parent: "accounts", Columns: []abi.Column{{Name: "amount", Kind: abi.ColumnInt, Index: true}}},
	}
}

// declareOther declares a table for a second consumer.
func declareOther() []abi.Table {
	return []abi.Table{{Name: "other", Columns: accounts()[0].Columns}}
}

// tables resolves a declaration.
func tables(t require.TestingT, decl []abi.Table) []*readmodel.Table {
	list, err := readmodel.NewTables(decl)
	require.NoError(t, err)
	return list
}

// declare makes the declaration of a projection.
func declare(t require.TestingT, name string, decl ...abi.Table) store.Declaration {
	hash := func(text string) string {
		sum := sha256.Sum256([]byte(text))
		return hex.EncodeToString(sum[:])
	}
	return store.Declaration{
		ID: store.ConsumerID{Type: "projection", Name: name}, Topics: []string{store.EventsTopic}, Tables: tables(t, decl),
		Fingerprint: store.Fingerprint{Version: 1, Inputs: hash("inputs"), Keys: hash("keys"), Tables: hash(fmt.Sprint(decl)), Logic: hash("logic")},
		Plugin:      name + "-plugin", Digest: "sha256:" + hash("module"),
	}
}

// subscribe subscribes and expects success.
func (d *db) subscribe(decl store.Declaration) store.Consumer {
	d.t.Helper()
	c, err := d.Subscribe(d.ctx(), decl)
	require.NoError(d.t, err)
	return c
}

// lane is one owner of partitions of a projection and what it applies.
type lane struct {
	d         *db
	c         store.Consumer
	instance  string
	leases    []store.Lease
	positions map[int]int64 // by partition, of the events topic
}

// lane subscribes to a projection with the usual tables and claims partitions
// of it, all if none are named.
func (d *db) lane(instance string, partitions ...int) *lane {
	d.t.Helper()
	return d.laneOf(declare(d.t, "accounts", accounts()...), instance, partitions...)
}

func (d *db) laneOf(decl store.Declaration, instance string, partitions ...int) *lane {
	d.t.Helper()
	return d.laneUntil(decl, instance, 0, partitions...)
}

// laneTTL is lane for an instance that lapses.
func (d *db) laneTTL(instance string, ttl time.Duration, partitions ...int) *lane {
	d.t.Helper()
	return d.laneUntil(declare(d.t, "accounts", accounts()...), instance, ttl, partitions...)
}

func (d *db) laneUntil(decl store.Declaration, instance string, ttl time.Duration, partitions ...int) *lane {
	d.t.Helper()
	l := &lane{d: d, c: d.subscribe(decl), instance: instance}
	require.NoError(d.t, d.Join(d.ctx(), store.Instance{ID: instance, HostName: "host", TTL: ttl}))
	d.enlist(instance, l.c.Build)
	l.claim(partitions...)
	return l
}

// claim claims partitions, all if none are named, and reads their checkpoints.
func (l *lane) claim(partitions ...int) {
	l.d.t.Helper()
	if len(partitions) == 0 {
		partitions = l.d.partitions()
	}
	var err error
	l.leases, _, err = l.d.Claim(l.d.ctx(), l.instance, l.c.Build, partitions)
	require.NoError(l.d.t, err)
	require.Len(l.d.t, l.leases, len(partitions))
	l.positions = map[int]int64{}
	for _, c := range l.checkpoints() {
		l.positions[c.Partition] = c.Position
	}
}

// partitions lists all.
func (d *db) partitions() []int {
	d.t.Helper()
	info, err := d.Info(d.ctx())
	require.NoError(d.t, err)
	list := make([]int, info.Partitions)
	for p := range list {
		list[p] = p
	}
	return list
}

func (l *lane) checkpoints() []store.Checkpoint {
	l.d.t.Helper()
	list, err := l.d.Checkpoints(l.d.ctx(), l.c.Build)
	require.NoError(l.d.t, err)
	return list
}

// batch makes a batch that moves the checkpoints of partitions to a position.
func (l *lane) batch(to int64, partitions ...int) *store.Batch {
	b := &store.Batch{Consumer: l.c.ID, Build: l.c.Build, Epoch: l.c.Epoch, InstanceID: l.instance,
		Incarnation: l.d.Incarnation(), Leases: slices.Clone(l.leases)}
	for _, p := range partitions {
		b.Checkpoints = append(b.Checkpoints, store.CheckpointMove{Topic: store.EventsTopic, Partition: p, From: l.positions[p], To: to})
	}
	return b
}

// ref is a table of the consumer by name.
func (l *lane) ref(name string) store.TableRef {
	l.d.t.Helper()
	for _, ref := range l.c.Tables {
		if strings.EqualFold(ref.Table.Name, name) {
			return ref
		}
	}
	l.d.t.Fatalf("%s has no table %s", l.c.ID, name)
	return store.TableRef{}
}

// write adds rows of a table to a batch.
func (l *lane) write(b *store.Batch, table string, writes ...readmodel.Write) {
	l.d.t.Helper()
	slices.SortFunc(writes, func(x, y readmodel.Write) int {
		if x.Key == y.Key {
			l.d.t.Fatalf("row %v is written twice in one batch", x.Key)
		}
		if x.Key.Less(y.Key) {
			return -1
		}
		return 1
	})
	b.Tables = append(b.Tables, store.TableWrites{Table: l.ref(table), Writes: writes})
}

// apply applies a batch and expects success.
func (l *lane) apply(b *store.Batch) {
	l.d.t.Helper()
	require.NoError(l.d.t, l.d.Apply(l.d.ctx(), b))
	l.moved(b)
}

// moved notes the checkpoints of a batch that was applied.
func (l *lane) moved(b *store.Batch) {
	for _, c := range b.Checkpoints {
		l.positions[c.Partition] = c.To
	}
}

// row makes a row of a table.
func (l *lane) row(table string, cols ...abi.ColumnValue) readmodel.Row {
	l.d.t.Helper()
	row, err := l.ref(table).Table.Upsert(cols)
	require.NoError(l.d.t, err)
	return row
}

// account writes a row of the table accounts.
func (l *lane) account(key string, balance int64, owner string) readmodel.Write {
	l.d.t.Helper()
	cols := []abi.ColumnValue{{Column: colBalance, Value: intValue(balance)}}
	if owner != "" {
		cols = append(cols, abi.ColumnValue{Column: colOwner, Value: textValue(owner)})
	}
	return put(key, l.row("accounts", cols...), balance)
}

// entry writes a row of the child table entries.
func (l *lane) entry(key, child string, amount int64) readmodel.Write {
	l.d.t.Helper()
	w := put(key, l.row("entries", abi.ColumnValue{Column: 0, Value: intValue(amount)}), amount)
	w.Child = child
	return w
}

func put(key string, row readmodel.Row, position int64) readmodel.Write {
	return readmodel.Write{Key: readmodel.Key{Key: key}, Row: row, Position: position, UpdatedUS: 1_700_000_000_000_000 + position}
}

// remove deletes a row.
func remove(key string, child ...string) readmodel.Write {
	return readmodel.Write{Key: readmodel.Key{Key: key, Child: strings.Join(child, "")}}
}

func intValue(i int64) abi.Value   { return abi.Value{Tag: abi.TagInt, I: i} }
func textValue(s string) abi.Value { return abi.Value{Tag: abi.TagText, B: []byte(s)} }

// stored is the row that a write leaves behind.
func stored(w readmodel.Write) store.StoredRow {
	return store.StoredRow{Key: w.Key, Row: w.Row, Position: w.Position, UpdatedUS: w.UpdatedUS}
}

// load reads rows by key, sorted.
func (l *lane) load(table string, keys ...readmodel.Key) []store.StoredRow {
	l.d.t.Helper()
	rows, err := l.d.LoadRows(l.d.ctx(), l.ref(table), keys)
	require.NoError(l.d.t, err)
	slices.SortFunc(rows, func(x, y store.StoredRow) int {
		if x.Key.Less(y.Key) {
			return -1
		}
		return 1
	})
	return rows
}

// all reads a whole table through views, a page at a time.
func (l *lane) all(table string) []store.StoredRow {
	l.d.t.Helper()
	list, err := readTable(l.d, l.c.ID, table)
	require.NoError(l.d.t, err)
	return list
}

func readTable(d *db, id store.ConsumerID, table string) (list []store.StoredRow, err error) {
	ctx := d.ctx()
	v, err := d.View(ctx, id)
	if err != nil {
		return nil, err
	}
	defer v.Close()
	for after := ""; ; {
		rows, next, err := v.Query(ctx, table, store.Query{Limit: 100, After: after})
		if err != nil {
			return nil, err
		}
		list = append(list, rows...)
		if next == "" {
			return list, nil
		}
		after = next
	}
}

// requireUnchanged checks that neither rows nor checkpoints differ from what
// they were when it was made.
func (l *lane) requireUnchanged() func() {
	l.d.t.Helper()
	type state struct {
		tables      map[string][]store.StoredRow
		checkpoints []store.Checkpoint
	}
	take := func() state {
		s := state{map[string][]store.StoredRow{}, l.checkpoints()}
		for _, ref := range l.c.Tables {
			s.tables[ref.Table.Name] = l.all(ref.Table.Name)
		}
		return s
	}
	before := take()
	return func() {
		l.d.t.Helper()
		require.Equal(l.d.t, before, take(), "what was refused has left something behind")
	}
}

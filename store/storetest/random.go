package storetest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

var randomCases = []testCase{
	{"AppliesEqualTheModel", randomApplies},
	{"PositionsAreNeverAheadOfWhatIsApplied", randomAdvances},
	{"UndeliveredEqualsTheModel", randomUndelivered},
	{"BuildsEqualTheModel", randomBuilds},
}

// model is what a projection holds, in memory: the same operations on it and on
// the database must give the same.
type model struct {
	*lane
	t         *rapid.T
	rows      [2]map[readmodel.Key]readmodel.Write // by table: parent, child
	held      map[int]int64                        // generation of the partitions held
	last      map[int]int64                        // generation by partition
	batch     *store.Batch                         // the last one sent
	committed bool
}

const modelPartitions = 4

var modelTables = [2]string{"parent", "child"}

// randomApplies runs random operations: batches that are right, batches that
// are out of date in one way, claims, releases, settling, restarts.
func randomApplies(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: modelPartitions})
	var runs atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		n := runs.Add(1)
		// Each run has a consumer of its own in the one database.
		decl := declare(rt, fmt.Sprint("p", n),
			abi.Table{Name: fmt.Sprint("parent", n), Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt, Index: true}, {Name: "t", Kind: abi.ColumnText}}},
			abi.Table{Name: fmt.Sprint("child", n), Parent: fmt.Sprint("parent", n), Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}})
		m := &model{t: rt, held: map[int]int64{}, last: map[int]int64{},
			rows: [2]map[readmodel.Key]readmodel.Write{{}, {}},
			lane: &lane{d: d, c: d.subscribe(decl), positions: map[int]int64{}}}
		m.start()
		for range rapid.IntRange(1, 10).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				m.claimSome()
			case 1:
				m.releaseSome()
			case 2:
				m.settleLast()
			case 3:
				if rapid.IntRange(0, 3).Draw(rt, "restart") == 0 {
					require.NoError(rt, m.d.Leave(m.d.ctx(), m.instance))
					m.d.reopen()
					m.batch = nil // of the incarnation before
					m.start()
				}
			default:
				m.applySome()
			}
			m.check()
		}
	})
}

var instances atomic.Int64

// start is a new run of the host: a new instance that claims everything.
func (m *model) start() {
	m.instance = fmt.Sprint("run ", instances.Add(1))
	if err := m.d.Join(m.d.ctx(), store.Instance{ID: m.instance}); err != nil {
		m.t.Fatalf("join: %v", err)
	}
	clear(m.held)
	m.claimed(m.d.partitions())
}

func (m *model) claimed(partitions []int) {
	leases, _, err := m.d.Claim(m.d.ctx(), m.instance, m.c.Build, partitions)
	require.NoError(m.t, err)
	require.Len(m.t, leases, len(partitions))
	for _, l := range leases {
		m.last[l.Partition]++
		require.Equal(m.t, m.last[l.Partition], l.Generation)
		m.held[l.Partition] = l.Generation
	}
}

func (m *model) somePartitions(label string) []int {
	return rapid.SliceOfNDistinct(rapid.IntRange(0, modelPartitions-1), 1, modelPartitions, rapid.ID[int]).Draw(m.t, label)
}

func (m *model) claimSome() { m.claimed(m.somePartitions("claim")) }

func (m *model) releaseSome() {
	var leases []store.Lease
	for _, p := range m.somePartitions("release") {
		if g, ok := m.held[p]; ok {
			leases = append(leases, store.Lease{Build: m.c.Build, Partition: p, Generation: g})
			delete(m.held, p)
		}
	}
	require.NoError(m.t, m.d.Release(m.d.ctx(), m.instance, leases))
}

func (m *model) heldLeases() (leases []store.Lease) {
	for _, p := range slices.Sorted(maps.Keys(m.held)) {
		leases = append(leases, store.Lease{Build: m.c.Build, Partition: p, Generation: m.held[p]})
	}
	return leases
}

// applySome sends a batch and expects what the model says.
func (m *model) applySome() {
	if len(m.held) == 0 {
		return
	}
	b := &store.Batch{Consumer: m.c.ID, Build: m.c.Build, InstanceID: m.instance, Incarnation: m.d.Incarnation(), Leases: m.heldLeases()}
	for _, l := range b.Leases {
		if rapid.Bool().Draw(m.t, "moves") {
			from := m.positions[l.Partition]
			b.Checkpoints = append(b.Checkpoints, store.CheckpointMove{Topic: store.EventsTopic, Partition: l.Partition,
				From: from, To: from + rapid.Int64Range(1, 5).Draw(m.t, "by")})
		}
	}
	for _, i := range rapid.Permutation([]int{0, 1}).Draw(m.t, "tables") {
		b.Tables = append(b.Tables, m.someWrites(i))
	}
	want := m.makeStale(b)
	err := m.d.Apply(m.d.ctx(), b)
	if want != nil {
		require.ErrorIs(m.t, err, want)
	} else {
		require.NoError(m.t, err)
		m.fold(b)
	}
	m.batch, m.committed = b, want == nil
}

// someWrites draws final rows of few keys, so that they meet.
func (m *model) someWrites(table int) store.TableWrites {
	w := store.TableWrites{Table: m.c.Tables[table]}
	key := rapid.SampledFrom([]string{"a", "b", "ab", "A", "é"})
	if table == 1 {
		w.DeleteChildrenOf = slices.Sorted(slices.Values(rapid.SliceOfNDistinct(key, 0, 2, rapid.ID[string]).Draw(m.t, "children of")))
	}
	keys := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) readmodel.Key {
		k := readmodel.Key{Key: key.Draw(t, "key")}
		if table == 1 {
			k.Child = rapid.SampledFrom([]string{"1", "2", "10"}).Draw(t, "child")
		}
		return k
	}), 0, 4, rapid.ID[readmodel.Key]).Draw(m.t, "keys")
	slices.SortFunc(keys, compareKeys)
	for _, k := range keys {
		write := readmodel.Write{Key: k}
		if rapid.IntRange(0, 3).Draw(m.t, "delete") > 0 {
			n := rapid.Int64().Draw(m.t, "n")
			cols := []abi.ColumnValue{{Column: 0, Value: intValue(n)}}
			if table == 0 && rapid.Bool().Draw(m.t, "text") {
				cols = append(cols, abi.ColumnValue{Column: 1, Value: textValue(rapid.StringMatching(`[a-z'é€]{0,8}`).Draw(m.t, "t"))})
			}
			row, err := w.Table.Table.Upsert(cols)
			require.NoError(m.t, err)
			write.Row, write.Position, write.UpdatedUS = row, n&0xffff, n
		}
		// What the lane believes of the row may be wrong in either way.
		write.Exists = readmodel.Existence(rapid.IntRange(0, 2).Draw(m.t, "exists"))
		w.Writes = append(w.Writes, write)
	}
	return w
}

func compareKeys(a, b readmodel.Key) int {
	return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Child, b.Child))
}

// makeStale sometimes puts the batch out of date, and tells the error expected.
func (m *model) makeStale(b *store.Batch) error {
	lease := &b.Leases[rapid.IntRange(0, len(b.Leases)-1).Draw(m.t, "lease")]
	switch rapid.IntRange(0, 9).Draw(m.t, "stale") {
	case 0:
		lease.Generation--
		return store.ErrFenced
	case 1:
		b.InstanceID = "nobody"
		return store.ErrFenced
	case 2:
		b.Incarnation++
		return store.ErrIncarnation
	case 3:
		if len(b.Checkpoints) > 0 {
			b.Checkpoints[len(b.Checkpoints)-1].From--
			return store.ErrCheckpointMoved
		}
	case 4:
		if len(b.Checkpoints) > 0 {
			b.Epoch++
			for i := range b.Tables {
				b.Tables[i].Table.Epoch++
			}
			return store.ErrCheckpointMoved
		}
	case 5:
		if m.batch != nil && m.committed && len(m.batch.Checkpoints) > 0 { // sent again
			*b = *m.batch
			held := m.heldLeases()
			for _, l := range b.Leases {
				if !slices.Contains(held, l) {
					return store.ErrFenced
				}
			}
			return store.ErrCheckpointMoved
		}
	}
	return nil
}

// fold does to the model what the batch does to the database.
func (m *model) fold(b *store.Batch) {
	for i := range b.Tables {
		w := &b.Tables[i]
		parent := w.Table.Table.Parent == nil
		for _, key := range w.DeleteChildrenOf {
			m.deleteChildren(key)
		}
		for _, row := range w.Writes {
			if row.Row == nil {
				delete(m.table(parent), row.Key)
				if parent {
					m.deleteChildren(row.Key.Key)
				}
			}
		}
	}
	for i := range b.Tables {
		w := &b.Tables[i]
		for _, row := range w.Writes {
			if row.Row != nil {
				m.table(w.Table.Table.Parent == nil)[row.Key] = row
			}
		}
	}
	m.moved(b)
}

func (m *model) table(parent bool) map[readmodel.Key]readmodel.Write {
	if parent {
		return m.rows[0]
	}
	return m.rows[1]
}

func (m *model) deleteChildren(key string) {
	maps.DeleteFunc(m.rows[1], func(k readmodel.Key, _ readmodel.Write) bool { return k.Key == key })
}

func (m *model) settleLast() {
	if m.batch == nil || len(m.batch.Checkpoints) == 0 {
		return
	}
	want := store.OutcomeLost
	if m.batch.InstanceID == m.instance && slices.Equal(m.batch.Leases, m.heldSame(m.batch.Leases)) && m.batch.Epoch == 0 {
		from, to := 0, 0
		for _, c := range m.batch.Checkpoints {
			switch m.positions[c.Partition] {
			case c.From:
				from++
			case c.To:
				to++
			}
		}
		switch len(m.batch.Checkpoints) {
		case from:
			want = store.OutcomeNotCommitted
		case to:
			want = store.OutcomeCommitted
		}
	}
	got, err := m.d.Settle(m.d.ctx(), m.batch)
	require.NoError(m.t, err)
	require.Equal(m.t, want, got)
}

// heldSame are the leases held of the same partitions.
func (m *model) heldSame(leases []store.Lease) (held []store.Lease) {
	for _, l := range leases {
		if g, ok := m.held[l.Partition]; ok {
			held = append(held, store.Lease{Build: m.c.Build, Partition: l.Partition, Generation: g})
		}
	}
	return held
}

// check compares everything the database holds with the model.
func (m *model) check() {
	ctx := m.d.ctx()
	v, err := m.d.View(ctx, m.c.ID)
	require.NoError(m.t, err)
	defer v.Close()
	for i, ref := range m.c.Tables {
		keys := slices.SortedFunc(maps.Keys(m.rows[i]), compareKeys)
		have, next, err := v.Query(ctx, ref.Table.Name, store.Query{Limit: 1000})
		require.NoError(m.t, err)
		require.Empty(m.t, next)
		require.Len(m.t, have, len(keys), "table %s", modelTables[i])
		for n, k := range keys {
			require.Equal(m.t, stored(m.rows[i][k]), have[n])
		}
		loaded, err := m.d.LoadRows(ctx, ref, keys)
		require.NoError(m.t, err)
		slices.SortFunc(loaded, func(a, b store.StoredRow) int { return compareKeys(a.Key, b.Key) })
		require.Equal(m.t, len(have), len(loaded))
		for n := range have {
			require.Equal(m.t, have[n], loaded[n])
		}
	}
	checkpoints, err := m.d.Checkpoints(ctx, m.c.Build)
	require.NoError(m.t, err)
	require.Len(m.t, checkpoints, modelPartitions)
	for _, c := range checkpoints {
		require.Equal(m.t, m.positions[c.Partition], c.Position)
	}
	owners, err := m.d.Owners(ctx, m.c.Build)
	require.NoError(m.t, err)
	for _, o := range owners {
		want := store.Ownership{Partition: o.Partition, Generation: m.last[o.Partition]}
		if _, ok := m.held[o.Partition]; ok {
			want.InstanceID = m.instance
		}
		require.Equal(m.t, want, o)
	}
}

// randomAdvances has two hosts take and hand back partitions and tell how far they
// have applied them, in part so late that all has changed since.
func randomAdvances(t *testing.T, d *db) {
	d = d.fresh(Config{Partitions: modelPartitions})
	var runs atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		c := d.subscribe(declare(rt, fmt.Sprint("p", runs.Add(1))))
		type host struct {
			id     string
			held   map[int]store.Lease
			tenure int64
			late   []store.Progress
		}
		hosts := [2]*host{}
		for i := range hosts {
			hosts[i] = &host{id: fmt.Sprint("run ", instances.Add(1)), held: map[int]store.Lease{}}
			require.NoError(rt, d.Join(d.ctx(), store.Instance{ID: hosts[i].id}))
			require.NoError(rt, d.Enlist(d.ctx(), hosts[i].id, []store.Enlistment{{Build: c.Build}}))
		}
		defer func() {
			for _, h := range hosts {
				require.NoError(rt, d.Leave(d.ctx(), h.id))
			}
		}()
		var applied, saved [modelPartitions]int64
		positions := func() (list [modelPartitions]int64) {
			v, err := d.View(d.ctx(), c.ID)
			require.NoError(rt, err)
			defer v.Close()
			for p := range list {
				list[p], err = v.Position(store.EventsTopic, p)
				require.NoError(rt, err)
			}
			lowest, err := v.Positions()
			require.NoError(rt, err)
			require.LessOrEqual(rt, lowest[store.EventsTopic], slices.Min(list[:]))
			require.GreaterOrEqual(rt, lowest[store.EventsTopic], slices.Min(saved[:]))
			return list
		}
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			h := hosts[rapid.IntRange(0, 1).Draw(rt, "host")]
			some := rapid.SliceOfNDistinct(rapid.IntRange(0, modelPartitions-1), 1, modelPartitions, rapid.ID[int]).Draw(rt, "partitions")
			mine := slices.DeleteFunc(slices.Clone(some), func(p int) bool { return h.held[p].Generation == 0 })
			slices.Sort(mine)
			var leases []store.Lease
			for _, p := range mine {
				leases = append(leases, h.held[p])
			}
			switch rapid.SampledFrom([]string{"claim", "release", "apply", "apply", "save", "tell", "tell", "tell late", "tell late"}).Draw(rt, "step") {
			case "claim":
				got, tenure, err := d.Claim(d.ctx(), h.id, c.Build, some)
				require.NoError(rt, err)
				for _, l := range got {
					h.held[l.Partition], h.tenure = l, tenure
					if last := applied[l.Partition]; last > saved[l.Partition] {
						applied[l.Partition] = saved[l.Partition] // it begins at the checkpoint
					}
				}
			case "release":
				require.NoError(rt, d.Release(d.ctx(), h.id, leases))
				for _, p := range mine {
					delete(h.held, p)
				}
			case "apply":
				for _, p := range mine {
					applied[p] += rapid.Int64Range(1, 5).Draw(rt, "by")
				}
			case "save":
				b := &store.Batch{Consumer: c.ID, Build: c.Build, InstanceID: h.id, Incarnation: d.Incarnation(), Leases: leases}
				for _, p := range mine {
					if applied[p] > saved[p] {
						b.Checkpoints = append(b.Checkpoints, store.CheckpointMove{Topic: store.EventsTopic, Partition: p, From: saved[p], To: applied[p]})
						saved[p] = applied[p]
					}
				}
				if len(b.Checkpoints) > 0 {
					require.NoError(rt, d.Apply(d.ctx(), b))
				}
			case "tell":
				if len(h.held) == 0 {
					continue
				}
				all := slices.Collect(maps.Keys(h.held))
				lowest := slices.MinFunc(all, func(a, b int) int { return cmp.Compare(applied[a], applied[b]) })
				now := store.Progress{Incarnation: d.Incarnation(), Build: c.Build, Tenure: h.tenure, Topic: store.EventsTopic, ReadThrough: applied[lowest]}
				h.late = append(h.late, now)
				if rapid.Bool().Draw(rt, "at once") {
					require.NoError(rt, d.Advance(d.ctx(), h.id, []store.Progress{now}))
					at := positions()
					for _, p := range all {
						require.GreaterOrEqual(rt, at[p], now.ReadThrough)
					}
				}
			case "tell late":
				if len(h.late) > 0 {
					require.NoError(rt, d.Advance(d.ctx(), h.id, h.late[len(h.late)-1:]))
					h.late = h.late[:len(h.late)-1]
				}
			}
			for p, at := range positions() {
				require.LessOrEqual(rt, at, applied[p])
				require.GreaterOrEqual(rt, at, saved[p])
			}
		}
	})
}

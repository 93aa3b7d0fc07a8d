package lane

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// cacheModel holds rows against what they stand for: every row as it is after
// the messages that were kept (truth), and what the database has (db).
type cacheModel struct {
	rows      *rows
	truth, db map[place]readmodel.Row
	sealed    map[place]readmodel.Row // truth as of the seal, nil: nothing in flight
	before    map[place]readmodel.Row // truth as of the message's begin
	pos       int64
}

type place struct {
	table int
	key   readmodel.Key
}

func clone(m map[place]readmodel.Row) map[place]readmodel.Row {
	out := make(map[place]readmodel.Row, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

// Promises P1 and P7 for the cache, whatever is changed, taken back, sealed,
// committed and dropped: what it knows of a row is the row after all messages
// kept so far, and what it does not know the database has as it is.
func TestRowsAgainstModel(t *testing.T) {
	t.Parallel()
	tables, err := readmodel.NewTables(declared().Tables)
	require.NoError(t, err)
	var refs []store.TableRef
	for _, table := range tables {
		refs = append(refs, store.TableRef{Table: table})
	}
	newRow := func(n int64) readmodel.Row {
		r, err := tables[tableOwn].Upsert([]abi.ColumnValue{{Column: 0, Value: abi.Value{Tag: abi.TagInt, I: n}}})
		require.NoError(t, err)
		return r
	}
	// The holes this has found need a few hundred runs to show.
	for range 20 {
		rapid.Check(t, rowsAgainstModel(refs, newRow))
	}
}

func rowsAgainstModel(refs []store.TableRef, newRow func(n int64) readmodel.Row) func(t *rapid.T) {
	return func(t *rapid.T) {
		m := &cacheModel{
			truth: make(map[place]readmodel.Row), db: make(map[place]readmodel.Row), before: make(map[place]readmodel.Row),
		}
		var empty []bool
		for i := range refs {
			empty = append(empty, rapid.Bool().Draw(t, "empty"))
			if p := (place{i, readmodel.Key{Key: "1"}}); !empty[i] && i <= tableChild {
				if i == tableChild {
					p.key.Child = "2"
				}
				m.db[p] = newRow(-1)
				m.truth[p], m.before[p] = m.db[p], m.db[p]
			}
		}
		m.rows = newRows(refs, empty, rapid.SampledFrom([]int{0, 1500, 1 << 20}).Draw(t, "bound"), false)
		draw := func() (*table, place) {
			p := place{table: rapid.IntRange(0, 1).Draw(t, "table")}
			p.key.Key = fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "key"))
			if p.table == tableChild {
				p.key.Child = fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "child"))
			}
			return m.rows.tables[p.table], p
		}
		// get is what a guest would be answered.
		get := func(tab *table, p place) *row {
			n := m.rows.find(tab, p.key.Key, p.key.Child)
			if n == nil {
				n = m.rows.add(tab, p.key.Key, p.key.Child)
			}
			if !n.known() {
				m.rows.loaded(n, m.db[p], 0, 0)
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"get": func(*rapid.T) { get(draw()) },
			"put": func(t *rapid.T) {
				m.pos++
				tab, p := draw()
				// A put needs no knowledge of the row, sometimes it has it.
				if rapid.Bool().Draw(t, "load") {
					get(tab, p)
				}
				n := m.rows.find(tab, p.key.Key, p.key.Child)
				if n == nil {
					n = m.rows.add(tab, p.key.Key, p.key.Child)
				}
				m.truth[p] = newRow(m.pos)
				m.rows.change(n, m.truth[p], m.pos, 0)
			},
			"delete": func(*rapid.T) {
				tab, p := draw()
				n := get(tab, p)
				if n.value != nil {
					m.rows.change(n, nil, 0, 0)
				}
				delete(m.truth, p)
			},
			"empty": func(*rapid.T) {
				_, p := draw()
				m.rows.empty(m.rows.tables[tableChild], p.key.Key, 0, 0)
				for q := range m.truth {
					if q.table == tableChild && q.key.Key == p.key.Key {
						delete(m.truth, q)
					}
				}
			},
			"keep": func(*rapid.T) {
				m.rows.begin()
				m.before = clone(m.truth)
			},
			"take back": func(*rapid.T) {
				m.rows.rollback()
				m.truth = clone(m.before)
			},
			"seal": func(t *rapid.T) {
				if m.sealed != nil {
					t.Skip("one batch is in flight at a time")
				}
				m.before, m.sealed = clone(m.truth), clone(m.truth)
				after := clone(m.db)
				type write struct {
					p place
					n readmodel.Row
				}
				var writes []write
				m.rows.seal(func(n *row) {
					p := place{int(n.table.ref.Table.Index), readmodel.Key{Key: n.key, Child: n.child}}
					writes = append(writes, write{p, n.value})
					if n.stored != nil {
						require.Equal(t, m.db[p], n.stored, "what the row is said to be before")
					}
				}, func(f *family) {
					for q := range after {
						if q.table == tableChild && q.key.Key == f.key {
							delete(after, q)
						}
					}
				}, func(*table, string) { t.Fatal("nothing is stale") })
				for _, w := range writes {
					if after[w.p] = w.n; w.n == nil {
						delete(after, w.p)
					}
				}
				require.Equal(t, m.sealed, after, "what the batch writes")
			},
			"commit": func(t *rapid.T) {
				if m.sealed == nil {
					t.Skip("nothing is in flight")
				}
				m.db, m.sealed = m.sealed, nil
				m.rows.commit()
			},
			"": func(t *rapid.T) {
				for i, tab := range m.rows.tables[:2] {
					check := func(n *row) {
						if n.known() {
							p := place{i, readmodel.Key{Key: n.key, Child: n.child}}
							require.Equal(t, m.truth[p], n.value, "row %v", p)
						}
					}
					for _, n := range tab.own {
						check(n)
					}
					for _, f := range tab.families {
						for _, n := range f.children {
							check(n)
						}
					}
				}
				// What is not known is read, and must be right.
				for _, key := range []string{"0", "1", "2", "3"} {
					for _, child := range []string{"0", "1", "2", "3"} {
						p := place{tableChild, readmodel.Key{Key: key, Child: child}}
						f := m.rows.tables[tableChild].families[key]
						if m.rows.noneStored(m.rows.tables[tableChild], key) && f.children[child] == nil {
							require.Nil(t, m.truth[p], "child %v of an emptied key", p)
						} else if f == nil || f.children[child] == nil || !f.children[child].known() {
							require.Equal(t, m.truth[p], m.db[p], "child %v", p)
						}
					}
					p := place{tableOwn, readmodel.Key{Key: key}}
					if n := m.rows.tables[tableOwn].own[key]; n == nil || !n.known() {
						require.Equal(t, m.truth[p], m.db[p], "row %v", p)
					}
				}
			},
		})
	}
}

// Over the bound the row used least recently goes first, and none that the
// database does not have.
func TestRowsDropTheLeastRecent(t *testing.T) {
	t.Parallel()
	tables, err := readmodel.NewTables(declared().Tables)
	require.NoError(t, err)
	var refs []store.TableRef
	for _, table := range tables {
		refs = append(refs, store.TableRef{Table: table})
	}
	r := newRows(refs, nil, 3*(rowBytes+10), false)
	own := r.tables[0]
	for _, key := range []string{"a", "b", "c", "d"} {
		r.loaded(r.add(own, key, ""), nil, 0, 0)
	}
	r.find(own, "a", "")
	r.change(r.find(own, "b", ""), readmodel.Row{0, 0}, 1, 1)
	r.evict()
	require.Equal(t, 3, r.count)
	require.Nil(t, r.find(own, "c", ""), "the least recent that may go")
	for _, key := range []string{"a", "b", "d"} {
		require.NotNil(t, r.find(own, key, ""))
	}
	r.bytesMax = 0
	r.evict()
	require.Equal(t, 1, r.count)
	require.NotNil(t, r.find(own, "b", ""))
}

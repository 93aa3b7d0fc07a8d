package sqlite

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

const (
	crashLanes = 4
	crashKeys  = 30 // rows of a lane
)

// A process that applies batches is killed at random moments. What it leaves
// behind agrees: rows and checkpoints (P1), and what was acknowledged is there
// (P9).
func TestKilledWhileApplying(t *testing.T) {
	kills := 40
	if testing.Short() {
		kills = 5
	}
	path := filepath.Join(t.TempDir(), "projhost.db")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	acknowledged := map[int]int64{}
	unacknowledged := 0
	for kill := range kills {
		c := startChild(t, "apply", path)
		acknowledge := func(line string) bool {
			var lane int
			var position int64
			n, _ := fmt.Sscan(line, &lane, &position)
			if n == 2 {
				acknowledged[lane] = max(acknowledged[lane], position)
			}
			return n == 2
		}
		for range 1 + r.IntN(100) {
			require.True(t, acknowledge(c.line()))
		}
		// A moment that nobody has chosen is what this test is about.
		time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond)
		require.NoError(t, c.Process.Kill())
		for line := c.line(); line != ""; line = c.line() {
			// What was said before the kill holds; the last line may be cut.
			if strings.Count(line, " ") == 1 && strings.HasSuffix(line, ".") {
				acknowledge(line)
			}
		}
		_ = c.Wait()
		positions := checkCrashed(t, path)
		for lane, at := range acknowledged {
			require.GreaterOrEqual(t, positions[lane], at, "kill %d: lane %d lost what it was told is applied", kill, lane)
			if positions[lane] > at {
				unacknowledged++
			}
		}
	}
	t.Logf("lanes are at %v after %d kills; %d batches were committed and not acknowledged", acknowledged, kills, unacknowledged)
}

func crashTables() ([]*readmodel.Table, error) {
	return readmodel.NewTables([]abi.Table{
		{Name: "sums", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt, Index: true}, {Name: "note", Kind: abi.ColumnText}}},
		{Name: "parts", Parent: "sums", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}},
	})
}

func crashDeclaration(tables []*readmodel.Table) store.Declaration {
	return store.Declaration{ID: store.ConsumerID{Type: "projection", Name: "sums"}, Topics: []string{store.EventsTopic}, Tables: tables}
}

// checkCrashed opens the database like the next start does. In each lane the
// numbers of all rows, children included, add up to the checkpoint.
func checkCrashed(t *testing.T, path string) map[int]int64 {
	t.Helper()
	s, err := Open(t.Context(), Options{DSN: path, TablePrefix: "ph_"})
	require.NoError(t, err)
	defer s.Close()
	tables, err := crashTables()
	require.NoError(t, err)
	c := subscribe(t, s, crashDeclaration(tables))
	v, err := s.View(t.Context(), c.ID)
	require.NoError(t, err)
	defer v.Close()
	sums := map[int]int64{}
	for _, ref := range c.Tables {
		for after := ""; ; {
			rows, next, err := v.Query(t.Context(), ref.Table.Name, store.Query{Limit: 1000, After: after})
			require.NoError(t, err)
			for _, row := range rows {
				lane, err := strconv.Atoi(row.Key.Key[:1])
				require.NoError(t, err)
				values, err := ref.Table.Values(row.Row, nil)
				require.NoError(t, err)
				sums[lane] += values[0].I
			}
			if after = next; next == "" {
				break
			}
		}
	}
	positions := map[int]int64{}
	for lane := range crashLanes {
		positions[lane], err = v.Position(store.EventsTopic, lane)
		require.NoError(t, err)
		require.Equal(t, positions[lane], sums[lane], "lane %d: the checkpoint and its rows", lane)
	}
	require.Equal(t, []string{"ok"}, s.texts(t, `SELECT integrity_check FROM pragma_integrity_check`))
	return positions
}

// childApplies applies batches for ever, in several lanes, and tells how far
// each has come.
func childApplies(path string) {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			childFails(err)
		}
	}
	s, err := Open(ctx, Options{DSN: path, TablePrefix: "ph_"})
	check(err)
	tables, err := crashTables()
	check(err)
	c, err := s.Subscribe(ctx, crashDeclaration(tables))
	check(err)
	instance := fmt.Sprint("process ", os.Getpid())
	check(s.Join(ctx, store.Instance{ID: instance}))
	leases, _, err := s.Claim(ctx, instance, c.Build, []int{0, 1, 2, 3})
	check(err)
	for lane := range crashLanes {
		l := crashLane{s: s, c: c, instance: instance, lane: lane, lease: leases[lane], r: rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(lane)))}
		go func() {
			check(l.load(ctx))
			for {
				check(l.step(ctx))
				fmt.Printf("%d %d.\n", lane, l.position)
			}
		}()
	}
	select {}
}

// crashLane keeps its rows in memory like a lane's cache.
type crashLane struct {
	s        *Store
	c        store.Consumer
	instance string
	lane     int
	lease    store.Lease
	r        *rand.Rand
	position int64
	n        map[readmodel.Key]int64 // what each row holds
}

func (l *crashLane) keys() (parents, children []readmodel.Key) {
	for i := range crashKeys {
		key := fmt.Sprintf("%d-%02d", l.lane, i)
		parents = append(parents, readmodel.Key{Key: key})
		children = append(children, readmodel.Key{Key: key, Child: "a"}, readmodel.Key{Key: key, Child: "b"})
	}
	return parents, children
}

func (l *crashLane) load(ctx context.Context) error {
	l.n = map[readmodel.Key]int64{}
	parents, children := l.keys()
	for i, keys := range [][]readmodel.Key{parents, children} {
		rows, err := l.s.LoadRows(ctx, l.c.Tables[i], keys)
		if err != nil {
			return err
		}
		for _, row := range rows {
			values, err := l.c.Tables[i].Table.Values(row.Row, nil)
			if err != nil {
				return err
			}
			l.n[row.Key] = values[0].I
		}
	}
	checkpoints, err := l.s.Checkpoints(ctx, l.c.Build)
	if err != nil {
		return err
	}
	l.position = checkpoints[l.lane].Position
	return nil
}

// step applies a batch that adds to some rows, deletes some with their children
// and gives what they held to another, so that all of it adds up to the
// checkpoint's new position.
func (l *crashLane) step(ctx context.Context) error {
	parents, children := l.keys()
	changed := map[readmodel.Key]bool{}
	childless := map[string]bool{}
	to := l.position
	add := func(k readmodel.Key, by int64) {
		l.n[k] += by
		changed[k] = true
	}
	heir := parents[0]
	for range 1 + l.r.IntN(3) {
		i := 1 + l.r.IntN(crashKeys-1)
		gone := []readmodel.Key{parents[i], children[2*i], children[2*i+1]}
		for _, k := range gone {
			add(heir, l.n[k])
			delete(l.n, k)
		}
		// Said beside the deletion of the row, which may be written again.
		changed[parents[i]], childless[parents[i].Key] = true, true
	}
	for range 1 + l.r.IntN(40) {
		by := int64(1 + l.r.IntN(5))
		to += by
		if i := l.r.IntN(3 * crashKeys); i < crashKeys {
			add(parents[i], by)
		} else {
			add(children[i-crashKeys], by)
		}
	}
	b := &store.Batch{Consumer: l.c.ID, Build: l.c.Build, InstanceID: l.instance, Incarnation: l.s.Incarnation(), Leases: []store.Lease{l.lease},
		Checkpoints: []store.CheckpointMove{{Topic: store.EventsTopic, Partition: l.lane, From: l.position, To: to}},
		Tables:      []store.TableWrites{{Table: l.c.Tables[0]}, {Table: l.c.Tables[1], DeleteChildrenOf: slices.Sorted(maps.Keys(childless))}}}
	for _, k := range slices.SortedFunc(maps.Keys(changed), func(a, b readmodel.Key) int { return strings.Compare(a.Key+a.Child, b.Key+b.Child) }) {
		i := 0
		if k.Child != "" {
			i = 1
		}
		w := readmodel.Write{Key: k, Position: to}
		if n, ok := l.n[k]; ok {
			row, err := l.c.Tables[i].Table.Upsert([]abi.ColumnValue{{Column: 0, Value: abi.Value{Tag: abi.TagInt, I: n}}})
			if err != nil {
				return err
			}
			w.Row = row
		}
		b.Tables[i].Writes = append(b.Tables[i].Writes, w)
	}
	if err := l.s.Apply(ctx, b); err != nil {
		return err
	}
	l.position = to
	return nil
}

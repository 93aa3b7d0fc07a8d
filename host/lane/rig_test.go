package lane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/internal/fake"
	"github.com/projhost/projhost/host/reader"
	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

const testPartitions = 8

// The consumer of these tests: an own table, a child table, and one whose child
// is declared.
const (
	tableOwn = iota
	tableChild
	tableDeclared
	tableUnique
)

func declared() *abi.Consumer {
	return &abi.Consumer{
		Type: abi.Projection, Name: "c",
		Inputs: []abi.Input{{Topic: store.EventsTopic, Types: []string{"*"}, Key: abi.KeyRule{Kind: abi.KeyAggregateID}}},
		Tables: []abi.Table{
			{Name: "own", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}, {Name: "note", Kind: abi.ColumnText}}},
			{Name: "child", Parent: "own", Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}},
			{Name: "declared", Parent: "own", Child: &abi.KeyRule{Kind: abi.KeyPointers, Pointers: []string{"/child"}},
				Columns: []abi.Column{{Name: "n", Kind: abi.ColumnInt}}},
			{Name: "unique", Columns: []abi.Column{{Name: "mail", Kind: abi.ColumnText, Max: 100, Unique: true}}},
		},
	}
}

// handle runs the script in an event's data: words, each an op or more.
func handle(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
	script := string(e.Data)
	if i := strings.Index(script, `"do":"`); i >= 0 {
		script = script[i+6:]
		script = script[:strings.IndexByte(script, '"')]
	}
	for word := range strings.FieldsSeq(script) {
		arg := word[1:]
		switch word[0] {
		case 'u':
			c.Begin(abi.OpUpsert, tableOwn, "", "")
			c.Ops.Int(0, int64(e.Position))
		case 'p':
			c.Begin(abi.OpPatch, tableOwn, "", "")
			c.Ops.Text(1, arg)
		case 'a':
			c.Begin(abi.OpAdd, tableOwn, "", "")
			c.Ops.Int(0, 1)
		case 'i':
			if c.Get(tableOwn, "", "") == nil {
				c.Begin(abi.OpInsert, tableOwn, "", "")
				c.Ops.Int(0, 1000)
			}
		case 'I':
			c.Begin(abi.OpInsert, tableOwn, "", "")
			c.Ops.Int(0, 1)
		case 'd':
			c.Begin(abi.OpDelete, tableOwn, "", "")
		case 'g':
			n := int64(0)
			if v := c.Values(tableOwn, "", ""); v != nil {
				n = v[0].I
			}
			c.Begin(abi.OpPatch, tableOwn, "", "")
			c.Ops.Int(0, 2*n+1)
		case 'c', 'e':
			c.Begin(abi.OpAdd, uint16(strings.IndexByte(" ce", word[0])), "", arg)
			c.Ops.Int(0, 1)
		case 'k':
			c.Begin(abi.OpUpsert, tableChild, "", arg)
			c.Ops.Int(0, int64(e.Position))
		case 'x':
			c.Begin(abi.OpDelete, tableChild, "", arg)
		case 'C':
			c.Begin(abi.OpDeleteChildren, tableChild, "", "")
		case 'l':
			from, _ := strconv.Atoi(arg)
			list := strings.Join(c.List(tableChild, "", strconv.Itoa(from), 3), ",")
			c.Begin(abi.OpPatch, tableOwn, "", "")
			c.Ops.Text(1, list)
		case 'L': // count the children that one answer lists
			limit, _ := strconv.Atoi(arg)
			c.Begin(abi.OpPatch, tableOwn, "", "")
			c.Ops.Int(0, int64(len(c.List(tableChild, "", "", limit))))
		case 'M': // take a value that is unique
			c.Begin(abi.OpUpsert, tableUnique, "", "")
			c.Ops.Text(0, arg)
		case 'N': // give it up
			c.Begin(abi.OpDelete, tableUnique, "", "")
		case 't':
			return 0, &plugins.Failure{Code: abi.CodeTrap, Message: "unreachable", Deterministic: true}
		case 'T': // fails in company only
			if c.Sizes > 1 {
				return 0, &plugins.Failure{Code: abi.CodeMemory, Message: "no memory", Deterministic: true}
			}
		case 'B': // a bad op, in company only
			if c.Sizes > 1 {
				c.Ops.Send("there", "k", nil, nil)
			}
		case 'D':
			return 0, &plugins.Failure{Code: abi.CodeDeadline, Message: "too slow"}
		case 'r':
			return abi.StatusReject, nil
		case 'R':
			return abi.StatusRetry, nil
		case 's':
			c.Ops.Send("there", "k", nil, nil)
		case 'z':
			return abi.StatusIgnored, nil
		case '!':
			c.Begin(abi.OpPatch, tableOwn, "", "")
			c.Ops.Text(1, fake.Poison)
		case 'P':
			panic("a bug of the host")
		}
	}
	return abi.StatusOK, nil
}

// naive is a sink that keeps everything in maps and applies each entry at once:
// what any batch split, restart and failure must come out as.
type naive struct {
	tables []*readmodel.Table
	rows   []map[readmodel.Key]store.StoredRow
	entry  *abi.Entry
}

func newNaive(tables []*readmodel.Table) *naive {
	n := &naive{tables: tables}
	for range tables {
		n.rows = append(n.rows, make(map[readmodel.Key]store.StoredRow))
	}
	return n
}

func (n *naive) key(table uint16, key []byte) readmodel.Key {
	k, child, _ := abi.ReadRowKey(key, n.tables[table].Shape())
	if n.tables[table].Free {
		return readmodel.Key{Key: string(k), Child: string(child)}
	}
	return readmodel.Key{Key: n.entry.Key, Child: string(child)}
}

func (n *naive) Get(table uint16, key []byte) ([]byte, bool, error) {
	row, ok := n.rows[table][n.key(table, key)]
	return row.Row, ok, nil
}

func (n *naive) List(table uint16, key, after []byte, limit int) ([]byte, error) {
	var found []store.StoredRow
	for k, row := range n.rows[table] {
		if k.Key == n.entry.Key && k.Child > string(after) {
			found = append(found, row)
		}
	}
	sortRows(found)
	found = found[:min(limit, len(found))]
	out := abi.AppendCount(nil, len(found))
	for _, row := range found {
		out = abi.AppendChild(out, row.Child, row.Row)
	}
	return out, nil
}

func (n *naive) Done(_ int, status abi.Status, ops []byte) error {
	if status != abi.StatusOK {
		return nil
	}
	r := abi.ReadOps(ops, func(t uint16) (abi.TableShape, bool) { return n.tables[t].Shape(), true })
	var op abi.Op
	for {
		more, err := r.Next(&op)
		if err != nil || !more {
			return err
		}
		k := readmodel.Key{Key: n.entry.Key, Child: string(op.Child)}
		if n.tables[op.Table].Free {
			k.Key = string(op.Key)
		}
		if op.Code == abi.OpDeleteChildren {
			n.empty(int(op.Table), k.Key)
			continue
		}
		row, err := n.tables[op.Table].Fold(n.rows[op.Table][k].Row, &op)
		if err != nil {
			return err
		}
		if row == nil {
			delete(n.rows[op.Table], k)
			for _, child := range n.tables[op.Table].Children {
				n.empty(int(child.Index), k.Key)
			}
			continue
		}
		for other, there := range n.rows[op.Table] {
			if n.tables[op.Table].Unique && other != k && string(there.Row) == string(row) {
				return errors.New("unique")
			}
		}
		n.rows[op.Table][k] = store.StoredRow{Key: k, Row: row, Position: int64(n.entry.Position), UpdatedUS: n.entry.TimeUS}
	}
}

func (n *naive) empty(table int, key string) {
	for k := range n.rows[table] {
		if k.Key == key {
			delete(n.rows[table], k)
		}
	}
}

// fold applies events one at a time; none may fail.
func (n *naive) fold(t testing.TB, events []store.Event) {
	require.Equal(t, -1, n.foldUntil(t, events))
}

// foldUntil applies events one at a time until one fails, and returns its index,
// -1 if none does.
func (n *naive) foldUntil(t testing.TB, events []store.Event) int {
	guest := &fake.Guest{Handle: handle, Shapes: declared().Shape}
	for i := range events {
		var e abi.Entry
		(&reader.Entry{Event: &events[i], Key: events[i].AggregateID}).ABI(&e)
		n.entry = &e
		_, fail, err := guest.Apply(t.Context(), 0, []abi.Entry{e}, n)
		require.NoError(t, err)
		if fail != nil {
			return i
		}
	}
	return -1
}

// rig runs lanes over a fake store, session after session.
type rig struct {
	t      testing.TB
	st     *fake.Store
	events []store.Event
	tables []*readmodel.Table
	con    store.Consumer

	page    int   // messages of a slice
	end     int64 // of the topic, for open
	lanes   int
	cfg     Config           // bounds and the like
	careful map[int]*Careful // by lane
	refused map[int64]RefusedRow
	guests  []*fake.Guest
	before  func(ctx context.Context, entries int) error // of every guest
	// first, if set, may answer for an entry in the guest's stead.
	first func(e *abi.Entry) (status abi.Status, fail *plugins.Failure, answered bool)
	// linger is how long a session stays after everything was handed out.
	linger time.Duration
	asked  []int64 // positions of the entries that guests were asked about

	mu       sync.Mutex
	retrying []error
	progress atomic.Int64
}

func newRig(t testing.TB, events ...store.Event) *rig {
	t.Helper()
	r := &rig{t: t, st: fake.NewStore(testPartitions), page: 10, lanes: 1}
	events = slices.Clone(events)
	for i := range events {
		events[i].Position = int64(i + 1)
		events[i].Sequence = int64(i + 1)
		events[i].OccurredUS = int64(1_000_000 * (i + 1))
		events[i].Type = "T"
		events[i].ID[15] = byte(i)
	}
	r.events = events
	r.st.Append(events...)
	var err error
	r.tables, err = readmodel.NewTables(declared().Tables)
	require.NoError(t, err)
	r.con, err = r.st.Subscribe(t.Context(), store.Declaration{ID: id, Topics: []string{store.EventsTopic}, Tables: r.tables})
	require.NoError(t, err)
	require.NoError(t, r.st.Join(t.Context(), store.Instance{ID: "me"}))
	r.cfg = Config{
		BatchMax: 5000, BatchRows: 5000, BatchBytes: 1 << 20, BatchAge: 100 * time.Millisecond, CallMessages: 512, CallBytes: 1 << 20,
		CacheBytes: 1 << 20, QueueBytes: 1 << 20, IdleSave: time.Minute,
		Retry: retry.Policy{Min: time.Millisecond, Max: 10 * time.Millisecond},
		Delivery: Delivery{
			MaxAttempts: 5, Backoff: retry.Policy{Min: 200 * time.Millisecond, Max: 30 * time.Second},
			MaxTransient: 100, MaxTransientAge: 24 * time.Hour, OnExhausted: ExhaustedHalt,
		},
		Held: &Held{Max: 100_000},
	}
	r.careful, r.refused = make(map[int]*Careful), make(map[int64]RefusedRow)
	t.Cleanup(func() {
		require.Empty(t, r.st.Problems())
		for _, g := range r.guests {
			require.True(t, g.Closed)
		}
	})
	return r
}

var id = store.ConsumerID{Type: "projection", Name: "c"}

// script makes an event with a script for one aggregate.
func script(key, do string) store.Event {
	return store.Event{AggregateType: "a", AggregateID: key, Data: []byte(do)}
}

func (r *rig) Reporter() func(error) {
	return func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.retrying = append(r.retrying, err)
	}
}
func (r *rig) Progress()                    { r.progress.Add(1) }
func (r *rig) Called(int, time.Duration)    {}
func (r *rig) Committed(int, time.Duration) {}

func (r *rig) newGuest(context.Context) (Guest, error) {
	g := &fake.Guest{Shapes: declared().Shape, Before: r.before}
	g.Handle = func(c *fake.Call, e *abi.Entry) (abi.Status, *plugins.Failure) {
		r.mu.Lock()
		r.asked = append(r.asked, int64(e.Position))
		r.mu.Unlock()
		if r.first != nil {
			if status, fail, answered := r.first(e); answered {
				return status, fail
			}
		}
		return handle(c, e)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.guests = append(r.guests, g)
	return g, nil
}

// session claims, reads the checkpoints, and runs lanes over what is left of
// the events, until drop messages were handed out (0: all) or a lane fails.
func (r *rig) session(ctx context.Context, drop int) ([]*Lane, error) {
	all := make([]int, testPartitions)
	for p := range all {
		all[p] = p
	}
	leases, _, err := r.st.Claim(ctx, "me", r.con.Build, all)
	if err != nil {
		return nil, err
	}
	incarnation := r.st.Incarnation()
	checkpoints, err := r.st.Checkpoints(ctx, r.con.Build)
	if err != nil {
		return nil, err
	}
	at := make([]int64, testPartitions)
	start := checkpoints[0].Position
	for _, c := range checkpoints {
		at[c.Partition] = c.Position
		start = min(start, c.Position)
	}

	skips := make(map[SkipAt]struct{})
	recorded, err := r.st.Skips(ctx, r.con.Build, store.EventsTopic, start)
	if err != nil {
		return nil, err
	}
	for _, k := range recorded {
		skips[SkipAt{0, k.Position, k.Key}] = struct{}{}
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lanes := make([]*Lane, r.lanes)
	type laneEnd struct {
		lane int
		err  error
	}
	ended := make(chan laneEnd, r.lanes)
	for l := range lanes {
		cfg := r.cfg
		cfg.Consumer, cfg.Declared, cfg.Build, cfg.Epoch = id, declared(), r.con.Build, r.con.Epoch
		cfg.InstanceID, cfg.Incarnation = "me", incarnation
		cfg.Topics, cfg.Tables = []string{store.EventsTopic}, r.con.Tables
		cfg.Start, cfg.Checkpoints, cfg.Fence = []int64{start}, [][]int64{at}, -1
		cfg.Careful, cfg.Refused = r.careful[l], maps.Clone(r.refused)
		for p := l; p < testPartitions; p += r.lanes {
			cfg.Partitions = append(cfg.Partitions, p)
		}
		if cfg.Heads, err = r.st.Heads(ctx, r.con.Build, cfg.Partitions); err != nil {
			return nil, err
		}
		cfg.Skips = skips
		lanes[l] = New(cfg, Deps{
			Store: r.st, NewGuest: r.newGuest, Observer: r, Log: hclog.NewNullLogger(),
			Lease: func(p int) store.Lease { return leases[p] },
		})
		go func() { ended <- laneEnd{l, lanes[l].Run(ctx)} }()
	}
	handed := 0
	for from := start; from < int64(len(r.events)); {
		to := min(from+int64(r.page), int64(len(r.events)))
		for l := range lanes {
			s := reader.Slice{From: from, To: to, End: int64(len(r.events)), Incarnation: incarnation}
			for i := from; i < to; i++ {
				e := &r.events[i]
				p := partition.Of(e.AggregateID, testPartitions)
				if p%r.lanes != l || e.Position <= at[p] {
					continue
				}
				s.Entries = append(s.Entries, reader.Entry{Event: e, Key: e.AggregateID, Partition: uint16(p), Type: abi.TypeByName})
				s.Bytes += len(e.Data)
			}
			if err := lanes[l].Queue().Push(ctx, s); err != nil {
				break
			}
		}
		from = to
		if handed += r.page; drop > 0 && handed >= drop {
			break
		}
	}
	var first error
	left := len(lanes)
	end := func(e laneEnd) {
		left--
		var refused *RefusedError
		if errors.As(e.err, &refused) {
			r.note(e.lane, refused)
		}
		if e.err != nil && first == nil {
			first = e.err
			cancel()
			for _, l := range lanes {
				l.Queue().Close(true)
			}
		}
	}
	if r.linger > 0 {
		select {
		case e := <-ended:
			end(e)
		case <-time.After(r.linger):
		}
	}
	if first == nil {
		for _, l := range lanes {
			l.Queue().Close(drop > 0)
		}
	}
	for left > 0 {
		end(<-ended)
	}
	return lanes, first
}

// settle runs sessions until all is applied, as the host does.
func (r *rig) settle(ctx context.Context) error {
	for range 300 {
		_, err := r.session(ctx, 0)
		var halt *HaltError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &halt):
			return err
		}
	}
	return errors.New("it does not come to an end")
}

// note keeps what a refused batch has told for the next session.
func (r *rig) note(lane int, e *RefusedError) {
	if len(e.Rows) > 0 {
		maps.Copy(r.refused, e.Rows)
	} else {
		r.careful[lane] = &e.Careful
	}
}

func (r *rig) requireRows(want *naive) {
	r.t.Helper()
	for i := range r.tables {
		require.Equal(r.t, want.rows[i], r.st.Rows(id, i), "table %s", r.tables[i].Name)
	}
}

// random makes events with every op, over few keys, so that they meet.
func random(rng *rand.Rand, n int) []store.Event {
	words := []string{"u", "pnote", "a", "i", "d", "g", "c%d", "c%d", "e%d", "k%d", "x%d", "C", "l%d", "z"}
	events := make([]store.Event, n)
	for i := range events {
		var do []string
		for range 1 + rng.IntN(4) {
			w := words[rng.IntN(len(words))]
			if w == "i" && len(do) > 0 {
				continue // it must see what comes before it in its message
			}
			if strings.Contains(w, "%") {
				w = fmt.Sprintf(w, rng.IntN(12))
			}
			do = append(do, w)
		}
		data := fmt.Sprintf(`{"child":"%d","do":"%s"}`, rng.IntN(12), strings.Join(do, " "))
		events[i] = script(fmt.Sprintf("k%d", rng.IntN(7)), data)
	}
	return events
}

func sortRows(rows []store.StoredRow) {
	for i := range rows {
		for j := i; j > 0 && rows[j].Child < rows[j-1].Child; j-- {
			rows[j], rows[j-1] = rows[j-1], rows[j]
		}
	}
}

// slice is one without entries.
func slice(from, to int64) reader.Slice { return reader.Slice{From: from, To: to, End: to} }

// open starts one lane over all partitions. push hands it a stretch up to a
// position, stop closes its queue and waits for its end.
func (r *rig) open(ctx context.Context) (lanes []*Lane, push func(to int64, events []store.Event), stop func() error) {
	all := make([]int, testPartitions)
	for p := range all {
		all[p] = p
	}
	leases, _, err := r.st.Claim(ctx, "me", r.con.Build, all)
	require.NoError(r.t, err)
	cfg := r.cfg
	cfg.Consumer, cfg.Declared, cfg.Build = id, declared(), r.con.Build
	cfg.InstanceID = "me"
	cfg.Topics, cfg.Tables = []string{store.EventsTopic}, r.con.Tables
	cfg.Start, cfg.Checkpoints, cfg.Fence = []int64{0}, [][]int64{make([]int64, testPartitions)}, -1
	cfg.Partitions = all
	cfg.Heads, err = r.st.Heads(ctx, r.con.Build, all)
	require.NoError(r.t, err)
	l := New(cfg, Deps{
		Store: r.st, NewGuest: r.newGuest, Observer: r, Log: hclog.NewNullLogger(),
		Lease: func(p int) store.Lease { return leases[p] },
	})
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	from := int64(0)
	push = func(to int64, events []store.Event) {
		s := slice(from, to)
		s.End = max(s.End, r.end)
		for i := range events {
			e := &events[i]
			s.Entries = append(s.Entries, reader.Entry{Event: e, Key: e.AggregateID,
				Partition: uint16(partition.Of(e.AggregateID, testPartitions)), Type: abi.TypeByName})
		}
		require.NoError(r.t, l.Queue().Push(ctx, s))
		from = to
	}
	return []*Lane{l}, push, func() error {
		l.Queue().Close(false)
		return <-ended
	}
}

// reader2 runs one message for several keys, of which one may be a stand-in.
type reader2 struct {
	event *store.Event
	keys  []string
	bad   int
}

func (m reader2) run(r *rig) error {
	lanes, _, stop := r.open(r.t.Context())
	s := slice(0, 1)
	for i, k := range m.keys {
		s.Entries = append(s.Entries, reader.Entry{Event: m.event, Key: k, StandIn: i == m.bad,
			Partition: uint16(partition.Of(k, testPartitions))})
	}
	require.NoError(r.t, lanes[0].Queue().Push(r.t.Context(), s))
	return stop()
}

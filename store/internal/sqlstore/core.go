package sqlstore

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/migrate"
	"github.com/projhost/projhost/store/internal/rules"
)

// Core implements the roles of a store that are alike on all servers. Drivers
// embed it.
type Core struct {
	*Ledger
	Engine  Engine
	Dialect *Dialect
	Opt     store.Options
	// Beats has one connection, for heartbeats alone: however many calls wait for
	// the others, or for locks with them, a host that is well is heard. nil: they
	// share the rest.
	Beats Engine

	names      *naming
	q          queries
	migrations []migrate.Migration
	info       store.Info
	lockSlot   chan struct{} // see lock

	incarnation atomic.Uint64
	seen        sync.Map // topic → *atomic.Int64, see Look
	shape       atomic.Pointer[inShape]
	builds      sync.Map // build → *buildTables
	plans       sync.Map // physical table → *Plan
}

// New makes a core that has not looked at its database yet.
func New(e Engine, d *Dialect, opt store.Options) (*Core, error) {
	if opt.Partitions < 0 || opt.Partitions > rules.PartitionsMax {
		return nil, fmt.Errorf("%s: %d partitions: want 1 to %d ([partitions] count)", d.Name, opt.Partitions, rules.PartitionsMax)
	}
	names, err := newNaming(d, opt.TablePrefix)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Name, err)
	}
	if err := rules.CheckPrefix(opt.ReadModelPrefix); err != nil {
		return nil, fmt.Errorf("%s: read model prefix: %w", d.Name, err)
	}
	migrations, err := migrate.Load(d.Schema, "schema")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Name, err)
	}
	opt.MaxEvent = cmp.Or(opt.MaxEvent, store.DefaultMaxEvent)
	c := &Core{Engine: e, Dialect: d, Opt: opt, names: names, migrations: migrations, lockSlot: make(chan struct{}, 1)}
	c.q = newQueries(names)
	c.Ledger = NewLedger(LedgerDB{Rows: d.Rows, SQL: names.sql, Read: e.Read, WriteAll: c.writeAll, Partitions: c.Partitions,
		Tables: func(build, epoch int64, text string) ([]store.TableRef, error) {
			tables, err := c.tablesOf(build, text)
			return c.tableRefs(tables, build, epoch), err
		},
		InsertMax: insertMax, ForUpdate: d.ForUpdate, KeyHash: d.KeyHash,
		Consumer: func(ctx context.Context, conn Conn, id store.ConsumerID) (store.Consumer, error) {
			r, err := c.loadConsumer(ctx, conn, id)
			return r.Consumer, err
		}})
	c.incarnation.Store(1)
	return c, nil
}

// insertMax bounds the rows of one INSERT of undelivered messages, for the sake of
// the engines' bounds on parameters.
const insertMax = 100

// Initialize creates or checks the schema, checks what the first start froze,
// and fills in what Info tells.
func (c *Core) Initialize(ctx context.Context, serverVersion string) error {
	if !c.Opt.NeverInitialize {
		if err := migrate.Run(ctx, migrator{c}, c.migrations); err != nil {
			return err
		}
	}
	if err := c.CheckSchema(ctx); err != nil {
		return err
	}
	return c.freeze(ctx, serverVersion)
}

// SQL spells a statement for the engine: {{name}} is a table of the host with
// its prefix, "name" an identifier, ? a parameter, {{?}} one that is compared
// with a text key, {{now}} the database's clock. Literals hold none of these.
func (c *Core) SQL(text string) string { return c.names.sql(text) }

// Info implements [store.Store].
func (c *Core) Info(context.Context) (store.Info, error) { return c.info, nil }

// Partitions is N.
func (c *Core) Partitions() int { return c.info.Partitions }

// Incarnation implements [store.Topics].
func (c *Core) Incarnation() uint64 { return c.incarnation.Load() }

// Raise starts a new incarnation: what was read may no longer be true.
func (c *Core) Raise() { c.incarnation.Add(1) }

// writeAll runs steps in a transaction.
func (c *Core) writeAll(ctx context.Context, op string, steps []Step) error {
	if b, ok := c.Engine.(Batcher); ok {
		return b.WriteAll(ctx, op, steps)
	}
	return c.Engine.Write(ctx, op, func(conn Conn) error { return RunSteps(ctx, conn, steps) })
}

// RunSteps runs steps, one after the other, up to the first that goes wrong.
func RunSteps(ctx context.Context, conn Conn, steps []Step) error {
	for _, s := range steps {
		n, err := conn.Exec(ctx, s.Text, s.Args...)
		if err != nil {
			return err
		}
		if s.Broken != nil && n != s.Rows {
			return s.Broken
		}
	}
	return nil
}

// Look begins a read of a topic's readable end.
func (c *Core) Look(topic string) Look {
	v, ok := c.seen.Load(topic)
	if !ok {
		v, _ = c.seen.LoadOrStore(topic, new(atomic.Int64))
	}
	seen := v.(*atomic.Int64)
	return Look{core: c, seen: seen, before: seen.Load(), incarnation: c.Incarnation()}
}

// Look is a read of a topic's readable end that is under way.
type Look struct {
	core        *Core
	seen        *atomic.Int64
	before      int64
	incarnation uint64
}

// Saw gives the incarnation that what was read with this end belongs to. The
// incarnation rises when the end is lower than one that was seen before the
// read began: another database stands where the one was that we read (H3).
func (l Look) Saw(end int64) uint64 {
	if end < l.before {
		// Of several readers that see it, the first has raised it for all that
		// began before.
		if l.seen.CompareAndSwap(l.before, end) || l.core.Incarnation() == l.incarnation {
			l.core.Raise()
		}
		return l.core.Incarnation()
	}
	for old := l.seen.Load(); end > old && l.core.Incarnation() == l.incarnation && !l.seen.CompareAndSwap(old, end); {
		old = l.seen.Load()
	}
	return l.incarnation
}

// naming spells statements: the table prefix, quotes and parameters.
type naming struct {
	d      *Dialect
	prefix string
}

func newNaming(d *Dialect, prefix string) (*naming, error) {
	if err := rules.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	return &naming{d: d, prefix: prefix}, nil
}

func (n *naming) sql(text string) string {
	var b strings.Builder
	args := 0
	for text != "" {
		i := strings.IndexAny(text, `{"?`)
		if i < 0 {
			i = len(text)
		}
		b.WriteString(text[:i])
		text = text[i:]
		switch {
		case text == "":
		case strings.HasPrefix(text, "{{?}}"):
			args++
			b.WriteString(n.d.Rows.KeyPlaceholder(args))
			text = text[len("{{?}}"):]
		case strings.HasPrefix(text, "{{now}}"):
			b.WriteString(n.d.Now)
			text = text[len("{{now}}"):]
		case strings.HasPrefix(text, "{{"):
			name, rest, _ := strings.Cut(text[2:], "}}")
			b.WriteString(n.table(name))
			text = rest
		case text[0] == '"':
			name, rest, _ := strings.Cut(text[1:], `"`)
			b.WriteString(n.d.Rows.Quote(name))
			text = rest
		case text[0] == '?':
			args++
			b.WriteString(n.d.Rows.Placeholder(args))
			text = text[1:]
		default:
			b.WriteByte(text[0])
			text = text[1:]
		}
	}
	return b.String()
}

// table is the quoted name of one of the host's tables.
func (n *naming) table(name string) string { return n.d.Rows.Quote(n.prefix + name) }

// script is the text of a schema file with the names put in. Nothing else in it
// is changed: it is written for this engine.
func (n *naming) script(text string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "{{")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		var name string
		name, text, _ = strings.Cut(rest, "}}")
		if word, ok := n.d.Words[name]; ok {
			b.WriteString(word)
		} else {
			b.WriteString(n.table(name))
		}
	}
}

// lock takes the lock under which the schema changes. Within the process one
// caller at a time asks the database for it, so that those who wait hold no
// connections that the one at work needs.
func (c *Core) lock(ctx context.Context) (release func(), err error) {
	select {
	case c.lockSlot <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	// One name for all applications in the database: their read models may
	// share a schema.
	unlock, err := c.Engine.Lock(ctx, "projhost")
	if err != nil {
		<-c.lockSlot
		return nil, err
	}
	return func() {
		// What cannot be given back is gone with its connection.
		_ = unlock()
		<-c.lockSlot
	}, nil
}

// Plan is what a physical table needs to be read and written, made once.
type Plan struct {
	*readmodel.Statements
	Children []*Plan // whose rows go with a row of this table
}

// Plan finds or makes the plan of a table. Physical names are of one build and
// a build's tables do not change, but the same build can be declared again at a
// later start of the consumer, which makes another *Table.
func (c *Core) Plan(ref *store.TableRef) *Plan {
	if p, ok := c.plans.Load(ref.Physical); ok && p.(*Plan).Table == ref.Table {
		return p.(*Plan)
	}
	p := &Plan{Statements: c.Dialect.Rows.Statements(ref.Physical, ref.Table)}
	for _, t := range ref.Table.Children {
		p.Children = append(p.Children, &Plan{
			Statements: c.Dialect.Rows.Statements(readmodel.PhysicalName(c.Opt.ReadModelPrefix, t.Name, ref.Build), t)})
	}
	c.plans.Store(ref.Physical, p)
	return p
}

// Collect appends the rows of a query of the plan's table.
func (p *Plan) Collect(ctx context.Context, conn Conn, list []store.StoredRow, text string, args []any) ([]store.StoredRow, error) {
	sc := p.NewScanner()
	err := each(ctx, conn, text, args, func(r Rows) error {
		if err := r.Scan(sc.Dest()...); err != nil {
			return err
		}
		row, err := sc.Row()
		if err == nil {
			list = append(list, row)
		}
		return err
	})
	return list, err
}

// each runs a query and fn on each row of its result.
func each(ctx context.Context, conn Conn, text string, args []any, fn func(Rows) error) error {
	rows, err := conn.Query(ctx, text, args...)
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := fn(rows); err != nil {
			_ = rows.Close()
			return err
		}
	}
	return rows.Close()
}

// one scans the first row of a query, if there is any.
func one(ctx context.Context, conn Conn, text string, args []any, dest ...any) (found bool, err error) {
	err = each(ctx, conn, text, args, func(r Rows) error {
		if found {
			return nil
		}
		found = true
		return r.Scan(dest...)
	})
	return found, err
}

// number is the one value of a query of one integer.
func number(ctx context.Context, conn Conn, text string, args ...any) (n int64, err error) {
	_, err = one(ctx, conn, text, args, &n)
	return n, err
}

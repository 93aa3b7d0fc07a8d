package sqlstore

import (
	"context"
	"sync/atomic"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// Core implements the roles of a store that are alike on all servers. Drivers
// embed it.
type Core struct {
	Engine  Engine
	Dialect *Dialect
	Opt     Options

	incarnation atomic.Uint64
}

// New makes a core that has not looked at its database yet.
func New(e Engine, d *Dialect, opt Options) (*Core, error) { panic("todo") }

// Initialize creates or checks the schema, checks what the first start froze,
// and fills in what Info tells.
func (c *Core) Initialize(ctx context.Context, serverVersion string) error { panic("todo") }

// CheckSchema compares the host's tables with what the migrations make.
func (c *Core) CheckSchema(ctx context.Context) error { panic("todo") }

// SchemaSQL is the script that makes what Initialize makes in an empty
// database. partitions 0 is the default.
func SchemaSQL(d *Dialect, tablePrefix string, partitions int) (string, error) { panic("todo") }

// SQL spells a statement for the engine: {{name}} is a table of the host with
// its prefix, "name" an identifier, ? a parameter, {{?}} one that is compared
// with a text key, {{now}} the database's clock. Literals hold none of these.
func (c *Core) SQL(text string) string { panic("todo") }

// Info implements [store.Store].
func (c *Core) Info(context.Context) (store.Info, error) { panic("todo") }

// Partitions is N.
func (c *Core) Partitions() int { panic("todo") }

// Incarnation implements [store.Topics].
func (c *Core) Incarnation() uint64 { return c.incarnation.Load() }

// Raise starts a new incarnation: what was read may no longer be true.
func (c *Core) Raise() { c.incarnation.Add(1) }

// Look begins a read of a topic's readable end.
func (c *Core) Look(topic string) Look { panic("todo") }

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
func (l Look) Saw(end int64) uint64 { panic("todo") }

// SaveSnapshotIn stores a snapshot within a transaction; see [store.EventLog].
func (c *Core) SaveSnapshotIn(ctx context.Context, conn Conn, s *store.Snapshot) error { panic("todo") }

// LoadSnapshot implements [store.EventLog].
func (c *Core) LoadSnapshot(ctx context.Context, aggregateType, aggregateID string) (store.Snapshot, error) {
	panic("todo")
}

// SaveSnapshot implements [store.EventLog].
func (c *Core) SaveSnapshot(ctx context.Context, s store.Snapshot) error { panic("todo") }

// StreamVersion implements [store.EventLog].
func (c *Core) StreamVersion(ctx context.Context, aggregateType, aggregateID string) (int64, error) {
	panic("todo")
}

// Plan is what a physical table needs to be read and written, made once.
type Plan struct {
	*readmodel.Statements
	Children []*Plan // whose rows go with a row of this table
}

// Plan finds or makes the plan of a table.
func (c *Core) Plan(ref *store.TableRef) *Plan { panic("todo") }

// Collect appends the rows of a query of the plan's table.
func (p *Plan) Collect(ctx context.Context, conn Conn, list []store.StoredRow, text string, args []any) ([]store.StoredRow, error) {
	panic("todo")
}

// Payload gives the columns data and data_bytes of a payload, one of them nil.
func Payload(codec string, data []byte) (text, bytes any) { panic("todo") }

// Again runs attempt until it succeeds or fails with what another attempt
// cannot mend, but only a few times, waiting a little in between: how
// [Engine].Write repeats what the database gave up. attempt returns errors in
// any form.
func Again(ctx context.Context, e Engine, attempt func() error) error { panic("todo") }

// Fail gives an error of a call its final form: errors that callers act on and
// ctx's stay what they are, an error of the database becomes a
// [*store.TransientError]; committing says that the outcome is unknown if the
// connection was lost.
func Fail(e Engine, op string, committing bool, err error) error { panic("todo") }

func (c *Core) ListTopics(ctx context.Context) ([]store.Topic, error)       { panic("todo") }
func (c *Core) Topic(ctx context.Context, name string) (store.Topic, error) { panic("todo") }
func (c *Core) Subscribe(ctx context.Context, d store.Declaration) (store.Consumer, error) {
	panic("todo")
}
func (c *Core) ListConsumers(ctx context.Context) ([]store.Consumer, error) { panic("todo") }
func (c *Core) Consumer(ctx context.Context, id store.ConsumerID) (store.Consumer, error) {
	panic("todo")
}
func (c *Core) Checkpoints(ctx context.Context, build int64) ([]store.Checkpoint, error) {
	panic("todo")
}
func (c *Core) Halt(ctx context.Context, id store.ConsumerID, lease store.Lease, h store.Halt) error {
	panic("todo")
}
func (c *Core) ClearHalt(ctx context.Context, id store.ConsumerID) (bool, error) { panic("todo") }
func (c *Core) Join(ctx context.Context, i store.Instance) error                 { panic("todo") }
func (c *Core) Heartbeat(ctx context.Context, instanceID string) error           { panic("todo") }
func (c *Core) Leave(ctx context.Context, instanceID string) error               { panic("todo") }
func (c *Core) ListInstances(ctx context.Context) ([]store.InstanceStatus, error) {
	panic("todo")
}
func (c *Core) Claim(ctx context.Context, instanceID string, build int64, partitions []int) ([]store.Lease, error) {
	panic("todo")
}
func (c *Core) Release(ctx context.Context, instanceID string, leases []store.Lease) error {
	panic("todo")
}
func (c *Core) Owners(ctx context.Context, build int64) ([]store.Ownership, error) { panic("todo") }
func (c *Core) LoadRows(ctx context.Context, t store.TableRef, keys []store.RowKey) ([]store.StoredRow, error) {
	panic("todo")
}
func (c *Core) ListChildren(ctx context.Context, t store.TableRef, key, after string, limit int) ([]store.StoredRow, error) {
	panic("todo")
}
func (c *Core) FindUnique(ctx context.Context, t store.TableRef, column int, row readmodel.Row) (store.StoredRow, error) {
	panic("todo")
}
func (c *Core) Empty(ctx context.Context, t store.TableRef) (bool, error)             { panic("todo") }
func (c *Core) View(ctx context.Context, id store.ConsumerID) (store.ReadView, error) { panic("todo") }

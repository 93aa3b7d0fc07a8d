package store

import (
	"context"

	"github.com/projhost/projhost/readmodel"
)

// Store is everything a database does for the host. A caller takes the role it
// needs. The set of drivers is ours: a method may be added to any role.
//
// All methods are safe for concurrent use. Every method can return a
// [*TransientError] (try again later), and ctx's error.
type Store interface {
	EventLog
	Topics
	Consumers
	Leases
	Batches
	ReadModels
	Undelivered
	Operations
	Rebuilds
	Builds

	// Info describes the driver, the server and the schema.
	Info(ctx context.Context) (Info, error)
	// Check examines the database for doctor and readyz: reachable, schema in
	// shape, settings that matter. The error says what to mend. It may be asked
	// often: what was in shape less than a minute ago need not be looked at anew.
	Check(ctx context.Context) error
	// CheckTables compares the tables of all consumers' live builds with what
	// they were declared as. The error joins a [*readmodel.ShapeError] for each
	// difference. Views are not looked at: the next start makes them anew.
	CheckTables(ctx context.Context) error
	Close() error
}

// Info describes an open store. Driver limits that tests may take into account
// are facts here, never switches on the driver's name.
type Info struct {
	Driver        string // "sqlite", "postgres", …
	ServerVersion string
	SchemaVersion int
	Partitions    int    // N, frozen by the first start
	Hash          string // name of the partition hash, frozen likewise
	PositionMode  string // "counter" | "sequence" | "xid", frozen likewise
	Embedded      bool   // the database belongs to this process: there are no other hosts
}

// EventLog appends events and reads streams.
type EventLog interface {
	// Commit appends to one or more streams and stores snapshots, all or
	// nothing. What is refused before any SQL: [*InvalidError] (names, ids,
	// sizes, codecs, a stream named twice, an event id given twice).
	//
	// It is idempotent by event id: when every event of a stream's append
	// carries an id, and all are in this stream already, consecutive and with
	// equal content (only members the caller gave are compared), that
	// stream's answer is the original one with Replayed set, and that is
	// decided before the expected version is looked at. Any other use of a
	// known id is a [*DuplicateEventError]. A version that differs from the
	// expected one is a [*ConflictError], with the actual version read after
	// the roll-back.
	//
	// An error that leaves the outcome unknown is a *TransientError with
	// OutcomeUnknown set.
	Commit(ctx context.Context, c Commit) (CommitResult, error)

	// Import appends events of any streams at their streams' ends, all in one
	// transaction. Every event carries an id (the caller derives one where it
	// has none). An event already stored in the same stream with equal content
	// is counted as already there and its position given; with other content,
	// or in another stream, it is a *DuplicateEventError naming its index, and
	// nothing of the call is stored. A given Sequence that does not match is
	// an *InvalidError.
	Import(ctx context.Context, events []ImportEvent) (ImportResult, error)

	// ReadStream returns up to limit events of a stream with sequence ≥ from,
	// in sequence order. An unknown stream is empty, not an error.
	ReadStream(ctx context.Context, aggregateType, aggregateID string, from int64, limit int) ([]Event, error)

	// StreamVersion is the number of events of a stream, 0 if unknown.
	StreamVersion(ctx context.Context, aggregateType, aggregateID string) (int64, error)

	// LoadSnapshot returns the stream's latest snapshot. ErrNotFound if there
	// is none or it is ahead of the stream.
	LoadSnapshot(ctx context.Context, aggregateType, aggregateID string) (Snapshot, error)

	// SaveSnapshot stores a snapshot; an older one than the stored is ignored.
	SaveSnapshot(ctx context.Context, s Snapshot) error
}

// Topics reads topics in position order, never past the high-water mark.
type Topics interface {
	// ListTopics returns every topic by name.
	ListTopics(ctx context.Context) ([]Topic, error)
	// Topic returns one; ErrNotFound.
	Topic(ctx context.Context, name string) (Topic, error)
	// ReadPage returns messages with position > q.After, at most q.Limit of
	// them and, past the first, at most q.MaxBytes of payload. See [Page] for
	// what its range promises.
	ReadPage(ctx context.Context, q PageQuery) (Page, error)
	// Wake returns a channel that is closed at the next append to the topic
	// that this process knows of. It shortens a poll and proves nothing.
	Wake(topic string) <-chan struct{}
	// Incarnation rises whenever what this process has read from the database
	// may no longer be true. Whoever holds pages, cursors or cached rows
	// of a lower one drops them.
	Incarnation() uint64
}

// Consumers keeps consumers, their builds and checkpoints.
type Consumers interface {
	// Subscribe records a consumer at its first start and finds it at later
	// ones, in one transaction: consumer row, live build, names of its
	// tables, the physical tables and their public views, N checkpoint rows
	// for every input topic and N ownership rows. Concurrent calls are safe.
	//
	// Errors callers act on: [*NameTakenError] when a table name belongs to
	// another consumer or to a table that is not ours, *readmodel.ShapeError
	// when a table differs from the declaration, [*DeclarationError] when
	// inputs, keys or tables differ from the stored declaration, which then
	// stays as it is. Another logic, digest or plugin is recorded.
	//
	// A name in d.Adopt may be somebody else's so far: a table of the declared
	// shape becomes the physical table with all its rows, a view is replaced.
	Subscribe(ctx context.Context, d Declaration) (Consumer, error)
	// ListConsumers returns all, by type and name.
	ListConsumers(ctx context.Context) ([]Consumer, error)
	// Consumer returns one; ErrNotFound.
	Consumer(ctx context.Context, id ConsumerID) (Consumer, error)
	// Checkpoints returns a build's, by topic and partition.
	Checkpoints(ctx context.Context, build int64) ([]Checkpoint, error)
	// Halt marks a consumer halted with the reason, if the caller still holds
	// the given lease: ErrFenced otherwise. The first halt stands. If the lease is of
	// a build that is not live, that is halted instead, and the consumer is not.
	Halt(ctx context.Context, id ConsumerID, lease Lease, h Halt) error
	// ClearHalt lets a halted consumer run again (a restart or a new module
	// tries the message again). It reports whether it was halted. Leases stay
	// as they are.
	ClearHalt(ctx context.Context, id ConsumerID) (bool, error)
}

// Leases keeps instances and who owns which partition.
type Leases interface {
	// Join records a running host, and removes those that are no longer live.
	// Its ID is random per run.
	Join(ctx context.Context, i Instance) error
	// Heartbeat tells that an instance runs, in one statement on one row.
	// ErrNotFound if it has not joined or was removed: it holds nothing then.
	Heartbeat(ctx context.Context, instanceID string) error
	// Leave releases the instance's leases and removes it with its memberships.
	Leave(ctx context.Context, instanceID string) error
	// Reap removes the instances that are not live, with their memberships, as
	// Join does. Their ownership rows stay, and what those name is anybody's. What
	// they have left open in the database, and holds others up, is ended first; an
	// instance of which something remains is not removed yet. So is what processes
	// have left open whose instance was removed before. It reports how many it
	// removed. It is worth a call now and then also
	// when every instance is live.
	Reap(ctx context.Context) (int, error)
	// Enlist sets which builds an instance runs: it is a member of exactly these
	// afterwards, but for those that do not exist. A membership that was there
	// goes on. ErrNotFound if the instance has not joined.
	Enlist(ctx context.Context, instanceID string, list []Enlistment) error
	// Survey looks at the cluster, in a number of statements that does not depend
	// on its size. Its parts need not be of one moment, but whatever names an
	// instance is read before the instances: one that is missing there has left.
	Survey(ctx context.Context, builds []int64) (Survey, error)
	// ListInstances returns those that have joined and were not removed, in the
	// order of their starts and ids.
	ListInstances(ctx context.Context) ([]InstanceStatus, error)
	// Claim takes the partitions of a build for an instance: each gets the
	// next generation, also one that the instance holds already. Partitions
	// owned by a live other member of the build, unknown ones, and those whose row another
	// transaction holds locked are left out of the answer, which is by partition;
	// it waits for none. What an owner that is not live has left open in the
	// database is ended. An owner that has left, was removed, let its
	// TTL pass without a heartbeat, or has one further than that in the future (the
	// database's clock was set back) is not live, and one that is not enlisted for
	// the build is no member. ErrNotFound if the instance has
	// not joined, or no longer counts as joined.
	//
	// With a claim that took something begins a tenure of the membership, which
	// Advance names. No two have one name; 0 is none.
	Claim(ctx context.Context, instanceID string, build int64, partitions []int) (leases []Lease, tenure int64, err error)
	// Release gives leases back; those no longer held are passed over. The
	// tenure goes on: what was true of all is true of those that remain.
	Release(ctx context.Context, instanceID string, leases []Lease) error
	// Advance tells up to where the instance has applied topics (not: read them)
	// in all the partitions of a build that it has claimed and not given back, or
	// lost to somebody else. It is kept in the memberships, in one statement, and
	// only rises. An entry of another tenure than the latest changes nothing: a
	// claim sets what was told back to the lowest checkpoint of what it took, so
	// one that comes late does not tell more than is true. ErrIncarnation, and
	// nothing is changed, if one is of another incarnation than the database's: what
	// was applied may have been lost since, with the tail of it.
	Advance(ctx context.Context, instanceID string, list []Progress) error
	// Owners returns a build's ownership rows by partition.
	Owners(ctx context.Context, build int64) ([]Ownership, error)
}

// Batches commits what a batch decided.
type Batches interface {
	// Apply commits a batch in one transaction: the leases' generations
	// checked under a row lock, the rows, the checkpoints moved by
	// compare-and-set under the batch's epoch. The leases must cover every partition of the checkpoints.
	//
	// Errors callers act on: ErrFenced (a lease is no longer held),
	// ErrCheckpointMoved (a checkpoint or the epoch is not what the batch was
	// read from), ErrIncarnation; for these nothing was committed.
	// *DataError: the database refuses some entry's data. *TransientError:
	// try again; with OutcomeUnknown set call Settle first. A batch that is
	// out of date is told so even if its data would be refused as well.
	//
	// Writes are final rows: whatever a batch deletes, a row it writes is
	// there afterwards. So for a parent row that was deleted and written
	// again, DeleteChildrenOf says that the old children went.
	//
	// Retries are guarded by their rows: ErrRetryMoved if one is not what it was
	// read as. The leases must cover their partitions and those of Records.
	Apply(ctx context.Context, b *Batch) error

	// Settle tells what became of a batch whose Apply ended with an unknown
	// outcome. It takes the fence lock first, so an attempt that has reached it
	// has ended, and then reads the checkpoints. OutcomeNotCommitted lets the
	// same batch be sent again, and nothing else: an attempt that was still on
	// its way to the server may yet commit, and then the other one is refused
	// with ErrCheckpointMoved. OutcomeLost is anything that is neither all moved
	// nor all unmoved, or a lost lease. A batch that moves no checkpoint is told by
	// its retried rows; without those it is OutcomeLost. The batch's
	// incarnation is not looked at: what made the outcome unknown may have raised
	// it, and then the batch is not sent again.
	Settle(ctx context.Context, b *Batch) (Outcome, error)
}

// ReadModels reads the rows of declared tables.
type ReadModels interface {
	// LoadRows returns the rows of one table that exist among keys, in any
	// order, in as few queries as the engine allows. Rows of a lower epoch
	// than the build's are absent.
	LoadRows(ctx context.Context, t TableRef, keys []RowKey) ([]StoredRow, error)
	// ListChildren returns up to limit children of a key in child-key order
	// after the child key given ("" for the first).
	ListChildren(ctx context.Context, t TableRef, key, after string, limit int) ([]StoredRow, error)
	// FindUnique returns the row whose value in a unique column is that of
	// the given row (not null there). ErrNotFound.
	FindUnique(ctx context.Context, t TableRef, column int, row readmodel.Row) (StoredRow, error)
	// Empty tells whether a table has no row at all, of whatever epoch. Who
	// holds the leases of a build knows from it that all rows are absent.
	Empty(ctx context.Context, t TableRef) (bool, error)
	// View opens a consistent read of a consumer's live build: the live
	// pointer, its checkpoints and rows come from one snapshot. The
	// caller closes it soon; no client is written to while it is open.
	View(ctx context.Context, id ConsumerID) (ReadView, error)
}

// ReadView is a consistent read of one consumer's live build. It is not safe
// for concurrent use.
type ReadView interface {
	Consumer() Consumer
	// Position is how far a topic is applied in a partition, as of the view: up
	// to its checkpoint, or to what its owner has told by Advance, if that is more.
	Position(topic string, partition int) (int64, error)
	// Positions is how far each input topic is applied in all partitions: to the
	// lowest checkpoint, or to the lowest of what the owners have told, if that is
	// more and all partitions have one.
	Positions() (map[string]int64, error)
	// Standings is Position of every partition, with what it follows from: by topic,
	// each by partition.
	Standings() (map[string][]Standing, error)
	// Get returns one row; ErrNotFound.
	Get(ctx context.Context, table string, key RowKey) (StoredRow, error)
	// Children returns a page of a key's children.
	Children(ctx context.Context, table, key, after string, limit int) ([]StoredRow, error)
	// Query returns a page of rows and the cursor of the next, "" at the end.
	// Errors: *readmodel.UnknownFieldError, *readmodel.CursorError,
	// *readmodel.ValueError (a filter value of the wrong type).
	Query(ctx context.Context, table string, q Query) (rows []StoredRow, next string, err error)
	// Held is the message that a key of a partition waits for, without its
	// payload: the head of its line. nil: none, the key is not held.
	Held(partition int, key string) (*UndeliveredMessage, error)
	// CountHeld counts the undelivered messages that hold their keys, or wait
	// behind one that does.
	CountHeld() (int64, error)
	Close() error
}

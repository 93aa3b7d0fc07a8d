package store

import (
	"time"

	"github.com/projhost/projhost/readmodel"
)

// EventsTopic is the name of the event store's topic.
const EventsTopic = "events"

// Codec defaults.
const (
	DefaultCodec        = "json"
	DefaultCodecVersion = 1
)

// Limits: identifiers are valid UTF-8 of 1 to 255 code points,
// without U+0000 and without trailing U+0020.
const IdentifierMax = 255

// ID is a UUID.
type ID [16]byte

// Event is a stored event. Times are microseconds since 1970, UTC.
type Event struct {
	Position      int64
	ID            ID
	AggregateType string
	AggregateID   string
	Sequence      int64
	Type          string
	Revision      int32
	Codec         string
	CodecVersion  int32
	Data          []byte // as it was appended, byte for byte
	Metadata      []byte // nil: absent
	OccurredUS    int64
	Partition     int // hash of AggregateID
}

// NewEvent is an event to append. What Has… leaves unset is filled in by the
// store and not compared when an append is repeated.
type NewEvent struct {
	ID           ID
	HasID        bool
	Type         string
	Revision     int32
	HasRevision  bool
	Codec        string // "": DefaultCodec
	CodecVersion int32  // 0: DefaultCodecVersion
	Data         []byte
	Metadata     []byte // nil: absent
	OccurredUS   int64
	HasOccurred  bool
}

// Versions a caller may expect besides a number of events.
const (
	AnyVersion int64 = -1
	NewStream  int64 = 0
)

// StreamAppend is an append to one stream. ExpectedVersion is the number of
// events the caller believes the stream has, NewStream, or AnyVersion.
type StreamAppend struct {
	AggregateType   string
	AggregateID     string
	ExpectedVersion int64
	Events          []NewEvent
}

// Commit is an all-or-nothing set of appends and snapshots.
type Commit struct {
	Streams   []StreamAppend
	Snapshots []Snapshot
}

// CommitResult answers a Commit: one StreamResult per stream, in its order.
type CommitResult struct {
	Streams []StreamResult
}

// StreamResult tells what one stream's append became.
type StreamResult struct {
	AggregateType string
	AggregateID   string
	Version       int64 // the stream's version after the append
	FirstPosition int64
	LastPosition  int64
	IDs           []ID
	Replayed      bool // the append was stored before; nothing was written
}

// ImportEvent is one event of an import. Sequence 0 is not checked.
type ImportEvent struct {
	AggregateType string
	AggregateID   string
	Sequence      int64
	NewEvent
}

// ImportResult counts an import call. LastPosition is the highest position
// among the call's events, stored now or before. There are the indexes, rising,
// of the events that were stored before, so that a caller can tell those whose
// id it derived.
type ImportResult struct {
	Stored       int
	AlreadyThere int
	There        []int
	LastPosition int64
}

// Snapshot is the latest saved state of a stream as of Sequence.
type Snapshot struct {
	AggregateType string
	AggregateID   string
	Sequence      int64
	Version       int32 // of the snapshot's own schema; 0 is stored as 1
	Codec         string
	CodecVersion  int32
	Data          []byte
	CreatedUS     int64
}

// Topic describes a topic. Positions up to HighWaterMark may be read.
type Topic struct {
	Name          string
	Kind          string // "events" | "capture" | "read-model"
	Start         int64  // everything ≤ Start was deleted
	End           int64  // highest position handed out
	HighWaterMark int64
	Messages      int64 // -1: not counted
	// Holder is the open transaction that has held the mark back longest, nil
	// where nothing does. Engines that need no detector have none.
	Holder *MarkHolder
	// Reason is why the mark stands still for another cause than an open
	// transaction, and what to do about it; "" while it does not.
	Reason string
}

// MarkHolder is a transaction that drew positions, or may have, and has not
// ended: everything behind its first position waits for it.
type MarkHolder struct {
	PID         int64  // of its session; 0 for a prepared transaction
	Prepared    string // name of a prepared transaction
	Application string
	State       string // as the database says: "active", "idle in transaction"
	SinceUS     int64  // when the transaction began
}

// PageQuery asks for a page of a topic.
type PageQuery struct {
	Topic    string
	After    int64
	Limit    int
	MaxBytes int // of payload; 0: no limit
	// Partitions, rising, asks for the messages of these stored partitions only:
	// those whose stream's id belongs there. nil: all.
	Partitions []int
}

// Page is a contiguous part of a topic: Events are all committed messages with
// a position in (From, To] (of the partitions asked for, if any were), in order,
// and none will ever appear there later. To is at least the last event's
// position and at most the high-water mark; From == To means nothing new.
type Page struct {
	Topic       string
	From        int64
	To          int64
	End         int64 // the high-water mark the page was read under
	Start       int64 // topic_start, read no earlier than the page
	Incarnation uint64
	Events      []Event
}

// ConsumerID names a consumer.
type ConsumerID struct {
	Type string // "projection" | "saga" | "handler"
	Name string
}

func (c ConsumerID) String() string { return c.Type + "/" + c.Name }

// Declaration is what a module says of a consumer, as the store needs it.
type Declaration struct {
	ID          ConsumerID
	Topics      []string // inputs, without repetition
	Tables      []*readmodel.Table
	Fingerprint Fingerprint
	Plugin      string // the deployment's name
	Digest      string // "sha256:…" of the module
	Adopt       []string
}

// Fingerprint is the four hashes of a declaration (hex SHA-256), of the
// algorithm's version.
type Fingerprint struct {
	Version int
	Inputs  string
	Keys    string
	Tables  string
	Logic   string
}

// ConsumerState is what a consumer is doing, as stored.
type ConsumerState string

// States of a consumer.
const (
	StateRunning    ConsumerState = "running"
	StatePaused     ConsumerState = "paused"
	StateHalted     ConsumerState = "halted"
	StateRebuilding ConsumerState = "rebuilding"
)

// Reasons for a halt.
const (
	HaltApplyError         = "APPLY_ERROR"
	HaltMissingHistory     = "MISSING_HISTORY"
	HaltDeclarationChanged = "DECLARATION_CHANGED"
	HaltUnknown            = "UNKNOWN" // the reason in the database does not read
)

// Halt says why and where a consumer stopped.
type Halt struct {
	Reason    string `json:"reason"`
	Code      int    `json:"code,omitempty"`
	Message   string `json:"message"`
	Topic     string `json:"topic,omitempty"`
	Position  int64  `json:"position,omitempty"`
	Partition int    `json:"partition"`
	Key       string `json:"key,omitempty"`
	EventType string `json:"event_type,omitempty"`
	EventID   string `json:"event_id,omitempty"`
	Digest    string `json:"digest,omitempty"`
	AtUS      int64  `json:"at_us,omitempty"`
}

// Consumer is a recorded consumer. Build is its live build.
type Consumer struct {
	ID           ConsumerID
	State        ConsumerState
	StateSinceUS int64
	Halt         *Halt
	Epoch        int64
	Build        int64
	Plugin       string
	Digest       string
	Topics       []string
	Fingerprint  Fingerprint
	Tables       []TableRef // physical tables of the live build, in declaration order; set by Subscribe
}

// TableRef is a physical table of a build.
type TableRef struct {
	Table    *readmodel.Table
	Physical string // unquoted
	Build    int64
	Epoch    int64
}

// Checkpoint says that everything of Topic up to Position is done in Partition
// of a build. Position 0 is before the first message.
type Checkpoint struct {
	Topic     string
	Partition int
	Position  int64
	Epoch     int64
	// EffectsThrough is the highest position that was applied; effects of what is
	// at or below EffectsBefore, that of the moment when the latest rebuild began,
	// were had then, but for those that are owed.
	EffectsThrough int64
	EffectsBefore  int64
	// ReplayThrough is where a rebuild pauses until all is pruned; 0: none is under
	// way.
	ReplayThrough int64
	// PrunedEpoch is the latest epoch of which the partition was pruned.
	PrunedEpoch int64
	// IncompleteThrough is up to where history was missing, since the latest
	// rebuild.
	IncompleteThrough int64
	// StopAt is where the partition's owner stops, 0 for nowhere. It reads it with
	// the checkpoint, after each claim.
	StopAt int64
}

// Standing is how far a topic is applied in a partition of a build, and by whom.
// Applied is the checkpoint, or what the owner has told by Advance if that is more.
type Standing struct {
	Partition  int
	Checkpoint int64
	Applied    int64
	Owner      string // instance; "" for nobody
	Generation int64
	// Of a rebuild, see [Checkpoint].
	ReplayThrough     int64
	IncompleteThrough int64
	Rebuilding        bool // the partition is not done with it
}

// Instance is a running host.
type Instance struct {
	ID       string
	HostName string
	// TTL is how long after its last heartbeat the instance counts as running,
	// by the database's clock. 0: for ever.
	TTL time.Duration
	// MaxPartitions is how many partitions the instance takes at most, over all
	// consumers that are spread. 0: no limit.
	MaxPartitions int
}

// InstanceStatus is a recorded instance as the database's clock sees it.
type InstanceStatus struct {
	Instance
	StartedUS   int64
	HeartbeatUS int64 // its last sign of life
	Live        bool  // false: its TTL has passed, and others may take what it holds
}

// Lease is the right of an instance to apply one partition of a build, as long
// as its generation is current.
type Lease struct {
	Build      int64
	Partition  int
	Generation int64
}

// Ownership is who owns a partition. InstanceID is empty for nobody.
type Ownership struct {
	Partition  int
	InstanceID string
	Generation int64
}

// Enlistment is a build that an instance runs. SingleOwner says that all its
// partitions are to be together.
type Enlistment struct {
	Build       int64
	SingleOwner bool
}

// Membership is an enlistment as others see it: the build's partitions may be
// assigned to the instance. ReadThrough is by topic; Tenure is the latest that a
// claim began, 0 before the first.
type Membership struct {
	Enlistment
	InstanceID  string
	Tenure      int64
	ReadThrough map[string]int64
}

// Progress tells how far an instance has applied a topic in all that it owns of a
// build, in the tenure that a claim began. Incarnation is that of the database when
// the checkpoints were read from which it was applied.
type Progress struct {
	Build       int64
	Incarnation uint64
	Tenure      int64
	Topic       string
	ReadThrough int64
}

// ConsumerStatus is what a consumer is doing. Build is its live build.
type ConsumerStatus struct {
	Build int64
	ID    ConsumerID
	State ConsumerState
	Halt  *Halt
	Epoch int64
}

// Survey is what all hosts decide from who applies what. Its parts need not be of
// one moment.
type Survey struct {
	Instances []InstanceStatus      // by start, id
	Members   []Membership          // by build, instance; of all instances there are
	Consumers []ConsumerStatus      // by type, name
	Builds    []BuildStatus         // by consumer, build; those that are not live
	Owners    map[int64][]Ownership // by build, each by partition; of the builds asked for
}

// Batch is what one lane decided for a contiguous stretch of each of its
// input topics. The driver does not keep it after Apply returns.
type Batch struct {
	Consumer    ConsumerID
	Build       int64
	Epoch       int64
	InstanceID  string
	Incarnation uint64
	Leases      []Lease // sorted by partition
	Tables      []TableWrites
	Checkpoints []CheckpointMove // sorted by topic, partition
	Retries     []Retry          // sorted by id
	Records     []Record
	Skips       []Skip // recorded also in the consumer's history
	Halt        *Halt  // the consumer (or the build, if it is not live) halts with this batch, unless it is not running
}

// TableWrites are the final rows of one table, at most one a key, sorted by key
// and child. DeleteChildrenOf lists keys (sorted) whose rows in this child
// table are all deleted before Writes are applied. PruneKeys lists keys (sorted)
// whose rows in this table, of whatever child, are deleted before as well if they
// are of a lower epoch than the table's.
type TableWrites struct {
	Table            TableRef
	DeleteChildrenOf []string
	PruneKeys        []string
	Writes           []readmodel.Write
}

// CheckpointMove moves one checkpoint from the value the batch was read from.
// EffectsThrough of the row becomes the larger of itself and To.
type CheckpointMove struct {
	Topic     string
	Partition int
	From      int64
	To        int64
}

// Outcome is what became of a batch.
type Outcome int

// Outcomes of Settle.
const (
	OutcomeLost Outcome = iota
	OutcomeCommitted
	OutcomeNotCommitted
)

// Names from readmodel that the roles above use.
type (
	RowKey    = readmodel.Key
	StoredRow = readmodel.StoredRow
	Query     = readmodel.Query
)

package host

import (
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

// Status is what the host is doing, at one moment.
type Status struct {
	InstanceID string
	StartedUS  int64
	Topics     []store.Topic
	Instances  []store.InstanceStatus // that the database knows, this host among them
	Consumers  []ConsumerStatus       // those this host runs, then those only the store knows
	Plugins    []PluginStatus
	Moves      []partition.Move // the latest partitions that changed hands, in order
	Claims     partition.Counts
}

// What a consumer is doing on this host.
const (
	StateStarting   = "starting"
	StateRunning    = "running"
	StateRebuilding = "rebuilding"          // its rows are made anew
	StateWaiting    = "waiting"             // other hosts have the partitions; Reason says which
	StateWithdrawn  = "withdrawn"           // others are to run it, Reason says why; this host tries again later
	StatePending    = "declaration_pending" // the stored declaration differs; Reason says how
	StateRetrying   = "retrying"            // a transient failure is tried again; Reason says which
	StateHalted     = "halted"              // Halt says why and where
	StatePaused     = "paused"              // by an operator
	StateStopped    = "stopped"
	StateNotRunning = "not_running" // recorded in the store, no loaded plugin declares it
)

// ConsumerStatus is what one consumer is doing.
type ConsumerStatus struct {
	ID           store.ConsumerID
	State        string
	Reason       string // of waiting and retrying
	SinceUS      int64
	Halt         *store.Halt
	Epoch        int64
	Build        int64
	Plugin       string
	Digest       string
	Distribution string
	Lag          int64  // positions between the ends of its topics and what is applied everywhere
	Owned        int    // partitions this host has
	Orphans      []int  // partitions that no host may have
	Unowned      []int  // partitions that no live host has, though one may
	Stuck        []int  // own partitions that do not move though messages wait
	Fenced       uint64 // times a lease was found lost
	Topics       []ConsumerTopic
	Lanes        []LaneStatus
	Rebuild      *RebuildStatus // nil: none is under way
	Held         int64          // undelivered messages of this host's partitions, but for earlier dead letters
	NextRetryUS  int64          // when this host tries the next of them again; 0: never
	Alarms       []string       // what will halt the consumer if nobody minds it
}

// ConsumerTopic is how far a consumer is in one topic, on all hosts. Applied is
// the lowest read-through of all partitions: everything up to it is applied and
// committed.
type ConsumerTopic struct {
	Topic      string
	End        int64
	Applied    int64
	Partitions []PartitionStatus
}

// PartitionStatus is how far one partition is and who has it. Checkpoint is what
// is saved, ReadThrough what is applied and committed; the difference had no
// messages. Of another host's partition it is what that has told last.
type PartitionStatus struct {
	Partition   int
	Checkpoint  int64
	ReadThrough int64
	Lag         int64
	Owner       string // instance; "" for nobody
	Generation  int64
	Move        partition.Moved // how it came to its owner
}

// LaneStatus is what one lane of a consumer holds and has done.
type LaneStatus struct {
	Partitions    int
	QueueMessages int
	QueueBytes    int64
	CacheRows     int
	CacheBytes    int64
	Batches       uint64
	Messages      uint64
	LastBatch     int // messages of the latest batch
}

// PluginStatus is a loaded plugin.
type PluginStatus struct {
	Name             string
	Digest           string
	Version          string
	ABI              int
	Consumers        []store.ConsumerID
	Instances        int
	MemoryBytes      uint64 // linear memory of all instances
	Restores         uint64
	Reinstantiations uint64
}

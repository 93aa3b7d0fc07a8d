package store

import (
	"context"
	"fmt"
)

// Rebuilds make the rows of a consumer anew from history, in the tables they are
// in. A rebuild is an epoch: rows of a lower one are absent to the lanes and there
// for readers, until they are made again or pruned.
//
// Each partition is applied from its beginning up to replay_through, where its
// topic was readable to when the rebuild began; its rows that were not made again
// by then are pruned; and once that is so of all partitions the consumer goes on.
// Until then nobody applies anything past replay_through.
type Rebuilds interface {
	// RebuildInPlace begins a rebuild, in one transaction: epoch and generations
	// rise, checkpoints and what owners have told go back to 0, undelivered
	// messages and skip records go. Of what was undelivered the effects are owed
	// still. One that is under way is superseded. [*StateError] while the consumer
	// is paused, [*DeclarationError] if more than the logic is to be another.
	RebuildInPlace(ctx context.Context, id ConsumerID, r Rebuild) error
	// EffectsOwed returns the messages of a topic at positions above after whose
	// effects were not had when the latest rebuild began, though they are at or
	// below EffectsBefore, by position, partition, key.
	EffectsOwed(ctx context.Context, build int64, topic string, after int64) ([]Owed, error)
	// StaleKeys returns up to limit keys above after, in order, that have rows of
	// a lower epoch in a table. They are removed by [TableWrites].PruneKeys.
	StaleKeys(ctx context.Context, t TableRef, after string, limit int) ([]string, error)
	// Pruned notes that the leased partitions have no stale rows but those of keys
	// that are held, or keep them since history was missing; and ends the
	// rebuild, which it reports, if that is so of all. It may be called again.
	// ErrFenced if a lease is no longer held, ErrCheckpointMoved if a partition is
	// not applied up to replay_through, or another rebuild has begun. While the
	// consumer is halted or paused nothing ends.
	Pruned(ctx context.Context, p Pruned) (ended bool, err error)
}

// Rebuild is what an operator asks for.
type Rebuild struct {
	Actor string
	// Declared, unless nil, is what the rows are to be made by: it may differ from
	// the stored declaration in its logic only.
	Declared *Fingerprint
}

// Owed names a message and a key for which its effects were not had.
type Owed struct {
	Position  int64
	Partition int
	Key       string
}

// Pruned names partitions by their leases.
type Pruned struct {
	Consumer   ConsumerID
	Build      int64
	Epoch      int64
	InstanceID string
	Leases     []Lease // by partition
}

// Modes of a rebuild.
const (
	RebuildInPlace = "in-place"
	RebuildShadow  = "shadow"
)

// ActionRebuild and ActionRebuilt are entries of a consumer's history: a rebuild
// began (detail: mode, epoch, digest, fingerprint), and it ended (epoch).
const (
	ActionRebuild = "rebuild"
	ActionRebuilt = "rebuilt"
)

// Rebuilding tells whether a partition's rows are being made anew, or its build
// waits for other partitions.
func (c *Checkpoint) Rebuilding() bool { return c.PrunedEpoch < c.Epoch }

// Replayed tells whether a partition has come as far as it is to go before it is
// pruned.
func (c *Checkpoint) Replayed() bool { return c.Position >= c.ReplayThrough }

// UnknownModeError is a mode of a rebuild that this version does not have.
type UnknownModeError struct{ Mode string }

func (e *UnknownModeError) Error() string {
	return fmt.Sprintf("this version has no rebuild of mode %q: give %q", e.Mode, RebuildInPlace)
}

package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Builds keeps the builds of consumers: sets of their tables, each with a
// declaration, checkpoints, ownership rows, undelivered messages and skip records
// of its own. A consumer's pointer names the live one. Beside it there is at most
// one other: a shadow, which is being made from history, or a standby, which was
// live before.
//
// Whatever names a build by its number (leases, checkpoints, batches, memberships)
// is the same for all of them. A halt of a build that is not live halts that build
// only. Every action is a transaction that raises the generations of the builds
// concerned and keeps their owners, as those of [Operations] do; they may be asked
// again after an unknown outcome.
//
// Errors: ErrNotFound (of the consumer, or the build is none of its), [*BuildError].
type Builds interface {
	// ListBuilds returns a consumer's builds by their numbers, but for those that
	// were given up.
	ListBuilds(ctx context.Context, id ConsumerID) ([]Build, error)
	// StartShadow makes a build of a consumer by a declaration, which may be another
	// than the live one's in all but the consumer's name. Its tables are made under
	// names of its own; public names that the live build does not have are the
	// consumer's from now on, and show nothing before a switch. Checkpoints are at 0.
	// A shadow of the same declaration that is there already is the answer. Errors
	// besides: [*NameTakenError]; Adopt may name a view, but no table: the rows of a
	// shadow are its own. [*StateError] while the consumer is rebuilt in place.
	StartShadow(ctx context.Context, d Declaration, actor string) (Build, error)
	// CancelShadow gives a shadow up. It leaves nothing but its history.
	CancelShadow(ctx context.Context, id ConsumerID, build int64, actor string) error
	// DropBuild gives a standby up.
	DropBuild(ctx context.Context, id ConsumerID, build int64, actor string) error
	// StopAt has the live build stop at its highest checkpoint of each topic, so that
	// another can come as far: see [Checkpoint]. ErrNotFound if there is no other.
	StopAt(ctx context.Context, id ConsumerID) (map[string]int64, error)
	// GoOn ends what StopAt began, if it began that long ago by the database's clock,
	// and reports whether it did.
	GoOn(ctx context.Context, id ConsumerID, after time.Duration) (bool, error)
	// Switch makes another build the live one, in one transaction. Its checkpoints
	// must be at the highest of the live build's of each topic, or past that:
	// [*BehindError]. If the consumer may have effects ([ConsumerID.HasEffects]) they
	// must be exactly where the live build's are, and the live build must not have
	// undelivered messages, whose effects are still to come. The build that was live
	// is kept as a standby, with its halt if it had one; the consumer runs, unless an
	// operator has paused it. [*StateError] while it is rebuilt in place; a build of
	// which a rebuild in place was never finished cannot be live again. A build that
	// is live already stays so.
	//
	// What the public names show follows by ShowLive, which is not part of it.
	Switch(ctx context.Context, s Switch) error
	// ShowLive has a consumer's public names show its live build, and those that this
	// does not have show nothing. It is repeated until it succeeds; Subscribe does it
	// as well, but goes on after a [*ViewError].
	ShowLive(ctx context.Context, id ConsumerID) error
	// KeepBuild sets how a standby is kept.
	KeepBuild(ctx context.Context, id ConsumerID, build int64, k Keep, actor string) error
	// ResumeBuild lets a halted shadow or standby go on: its HALTED rows become FAILED
	// with a fresh budget. One that runs stays so.
	ResumeBuild(ctx context.Context, id ConsumerID, build int64, actor string) error
}

// BuildRole is what a build is to its consumer.
type BuildRole string

// Roles of a build.
const (
	RoleLive    BuildRole = "live"
	RoleShadow  BuildRole = "shadow"  // it never was live
	RoleStandby BuildRole = "standby" // it was
)

// Build is one set of a consumer's tables, and the declaration it is made by.
type Build struct {
	ID       int64
	Consumer ConsumerID
	Role     BuildRole
	// State is running or halted; of the live build it is the consumer's.
	State        ConsumerState
	StateSinceUS int64
	Halt         *Halt
	Epoch        int64
	CreatedUS    int64
	Plugin       string
	Digest       string
	Topics       []string
	Fingerprint  Fingerprint
	Tables       []TableRef // in declaration order
	// Of a standby: when it was live last, and how it is kept.
	StoodDownUS int64
	Cold        bool
	KeepUntilUS int64 // 0: for good
	// StoppedUS is when StopAt stopped it, 0 if it is not stopped.
	StoppedUS int64
}

// Made tells whether a build is made by a declaration: by all of it, so that one
// who runs the declaration's module may apply the build.
func (b *Build) Made(d *Declaration) bool {
	return b.Fingerprint == d.Fingerprint && b.Digest == d.Digest && slices.Equal(b.Topics, d.Topics)
}

// BuildStatus is a build that is not live, as all hosts see it.
type BuildStatus struct {
	Build    int64
	Consumer ConsumerID
	Role     BuildRole
	State    ConsumerState
	Halt     *Halt
	Epoch    int64
	Cold     bool
}

// Keep says how a build is kept when another is live.
type Keep struct {
	// Cold: nobody applies it, and it has to catch up before it can be live again.
	Cold bool
	// For is how long, from now on. 0: for good.
	For time.Duration
}

// Switch asks for a build to be the live one.
type Switch struct {
	Consumer ConsumerID
	Build    int64
	Keep     Keep // of the one that is live now
	Actor    string
}

// HasEffects tells whether a consumer may do more than write its tables, so that
// what one build did must not be done again by another.
func (c ConsumerID) HasEffects() bool { return c.Type != "projection" }

// What a consumer's history tells of its builds.
const (
	ActionShadow    = "shadow"         // a shadow was begun; detail: digest, fingerprint
	ActionCancel    = "cancel-shadow"  //
	ActionDropBuild = "drop-standby"   //
	ActionSwitch    = "switch"         // to this build, of a topic at a position; detail: from
	ActionKeep      = "keep-standby"   // detail: cold, for_us
	ActionResumed   = "resume-standby" // a halted shadow or standby
)

// BuildError is an action that the builds of a consumer do not allow.
type BuildError struct {
	Consumer ConsumerID
	Build    int64
	Action   string
	Why      string
}

func (e *BuildError) Error() string {
	return fmt.Sprintf("%s of %s, build %d: %s", e.Action, e.Consumer, e.Build, e.Why)
}

// BehindError is a switch to a build that is not where the live one is.
type BehindError struct {
	Consumer ConsumerID
	Build    int64
	Topics   []TopicBehind // by name
}

// TopicBehind tells which partitions of a topic are not where they need to be.
type TopicBehind struct {
	Topic      string
	Need       int64 // the highest checkpoint of the live build
	Partitions []PartitionBehind
}

// PartitionBehind is a partition that is not where it needs to be: behind, or
// ahead where the consumer may have effects.
type PartitionBehind struct {
	Partition int
	Position  int64
	Need      int64
}

func (e *BehindError) Error() string {
	var list []string
	for _, t := range e.Topics {
		lowest := t.Partitions[0]
		for _, p := range t.Partitions {
			if p.Position < lowest.Position {
				lowest = p
			}
		}
		list = append(list, fmt.Sprintf("topic %s: %d partitions, the last of them %d at %d of %d", t.Topic, len(t.Partitions), lowest.Partition, lowest.Position, lowest.Need))
	}
	return fmt.Sprintf("build %d of %s is not where the live build is: %s", e.Build, e.Consumer, strings.Join(list, "; "))
}

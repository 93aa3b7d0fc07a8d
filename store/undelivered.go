package store

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Undelivered keeps the messages of builds that could not be applied for one of
// their keys, and what hosts and operators have decided about them. What a lane
// decides itself is part of its [Batch].
//
// The rows of one key in one partition of a build are a line, in the order of
// their ids. Its head is the oldest row that is not DEAD_LETTER (those hold
// nothing). As long as a key has a head, its later messages go to the end of the
// line instead of to the guest.
type Undelivered interface {
	// Heads returns the head of every line in partitions of a build, by
	// partition and id, without payloads.
	Heads(ctx context.Context, build int64, partitions []int) ([]Head, error)
	// Line returns up to limit rows of a line that are not DEAD_LETTER, with an
	// id above after, by id, with their copies.
	Line(ctx context.Context, build int64, partition int, key string, after int64, limit int) ([]UndeliveredMessage, error)
	// Skips returns a build's skip records of a topic at positions above after,
	// by position, partition, key.
	Skips(ctx context.Context, build int64, topic string, after int64) ([]Skip, error)
	// SweepSkips removes the skip records of a build that no partition can meet
	// any more: its checkpoint (for EveryKey: those of all partitions) is at or
	// past it, and no row lies at its position. It reports how many.
	SweepSkips(ctx context.Context, build int64) (int, error)
	// CountUndelivered counts the rows of all consumers' live builds by status.
	CountUndelivered(ctx context.Context) (map[ConsumerID]map[UndeliveredStatus]int64, error)
	// ListUndelivered returns a page of rows, by id, without payloads.
	ListUndelivered(ctx context.Context, q UndeliveredQuery) ([]UndeliveredMessage, error)
	// UndeliveredMessage returns one row with its copy, of whatever build;
	// ErrNotFound, also if it is of another consumer.
	UndeliveredMessage(ctx context.Context, id ConsumerID, row int64) (UndeliveredMessage, error)
	// History returns up to limit entries of a consumer's history with an id
	// above after, by id. It is kept for good, also of dropped consumers.
	History(ctx context.Context, id ConsumerID, after int64, limit int) ([]HistoryEntry, error)
}

// Operations are the actions of operators. Each is one transaction on whichever
// host is asked: it checks what it relies on (the consumer's state, rows), raises
// the generation of every partition concerned and keeps its owner, and adds to
// the consumer's history who did what. So the owner's next write is refused, it
// drops what it has in memory and claims anew.
//
// Errors: ErrNotFound, [*StateError], [*ChangedError], [*InUseError].
type Operations interface {
	// Pause stops a consumer until Resume. One that is paused already stays so.
	Pause(ctx context.Context, id ConsumerID, actor string) error
	// Resume lets a paused or halted consumer run. Its HALTED rows become FAILED
	// with a fresh budget, due at once. With pastPoison, the id of the row the
	// operator saw, that row is removed and skipped instead; *ChangedError if it
	// is not a HALTED row by now.
	Resume(ctx context.Context, id ConsumerID, pastPoison int64, actor string) error
	// Reset moves the checkpoints of a topic that are below a position up to it,
	// and marks the history incomplete up to there. A position above the topic's
	// high-water mark is an *InvalidError. Lines stay.
	Reset(ctx context.Context, id ConsumerID, topic string, position int64, actor string) error
	// Drop removes a consumer for good: rows, checkpoints, leases, memberships,
	// tables and views. *InUseError while a live instance runs it.
	Drop(ctx context.Context, id ConsumerID, actor string) error
	// RetryUndelivered makes the rows a selection names due at once, with a fresh
	// budget. Only heads can be; the rest of a line follows by itself. What holds
	// nothing (DEAD_LETTER) may have been overtaken by later messages of its key
	// and is retried only out of order. A retried DEAD_LETTER_KEY head has its
	// line wait again.
	RetryUndelivered(ctx context.Context, id ConsumerID, sel Selection, a Action) (Decision, error)
	// DeleteUndelivered removes rows and records that they are skipped. The next
	// row of each line becomes its head; behind a DEAD_LETTER_KEY head that was
	// removed the line waits, and so is applied.
	DeleteUndelivered(ctx context.Context, id ConsumerID, sel Selection, a Action) (Decision, error)
}

// Action says how an operator acts on rows.
type Action struct {
	Actor string
	// DryRun tells what would be done, and does nothing.
	DryRun bool
	// OutOfOrder retries also what may have been overtaken. Deleting does not ask.
	OutOfOrder bool
}

// UndeliveredStatus is the state of an undelivered message.
type UndeliveredStatus string

// States of an undelivered message.
const (
	// StatusFailed is tried again when its time has come.
	StatusFailed UndeliveredStatus = "FAILED"
	// StatusWaiting has an earlier message of its key before it.
	StatusWaiting UndeliveredStatus = "WAITING"
	// StatusHalted has used up its tries and halted its consumer.
	StatusHalted UndeliveredStatus = "HALTED"
	// StatusDeadLetterKey has used up its tries, or is behind one that has: the key
	// stands still until an operator decides.
	StatusDeadLetterKey UndeliveredStatus = "DEAD_LETTER_KEY"
	// StatusDeadLetter has used up its tries and holds nothing.
	StatusDeadLetter UndeliveredStatus = "DEAD_LETTER"
)

// UndeliveredReasonMax bounds the reason of a row, in code points.
const UndeliveredReasonMax = 1000

// UndeliveredMessage is a row: a message that could not be applied for a key.
// Times are the database's.
type UndeliveredMessage struct {
	ID         int64
	Topic      string
	Partition  int
	Key        string
	Unresolved bool // the keys cannot be told: no copy, and checkpoints do not pass it
	Status     UndeliveredStatus
	Code       int // of the last failure; 0: it was never tried
	Reason     string
	Attempts   int // tries that count against the budget
	Passing    int // failed tries that do not, since they may pass
	Digest     string
	FirstUS    int64 // when it was recorded
	BudgetUS   int64 // when the first try failed that counts, or does not but is bounded by time; FirstUS before one has
	LastUS     int64 // when its state last changed
	RetryUS    int64 // when it is due; 0: now, if it is a head that is tried at all
	RetryIn    time.Duration
	Event      Event // the copy; of an unresolved message position, id, type and stream only
}

// Head is the first row of a line, and how many there are behind it.
type Head struct {
	UndeliveredMessage
	Followers int64
}

// UndeliveredQuery selects a page of rows. Empty members select all.
type UndeliveredQuery struct {
	Consumer  ConsumerID
	Build     int64 // of the consumer's; 0: the live one
	Selection Selection
	After     int64 // id
	Limit     int
}

// Selection names rows of a consumer: those that match all that is given. An
// empty one is all of them.
type Selection struct {
	ID        int64
	Key       string
	EventType string
	Status    UndeliveredStatus
	Topic     string
}

// Record is a message of a batch that was not applied for one of its keys. It
// is recorded in the batch's transaction, records of one key in their order.
type Record struct {
	Topic      string
	Partition  int
	Key        string
	Unresolved bool
	Status     UndeliveredStatus
	Code       int
	Reason     string
	Attempts   int
	Passing    int
	RetryIn    time.Duration // 0: none, or at once
	Digest     string
	Event      *Event
}

// Retry is what became of an undelivered message that was tried again. The row
// must still be as it was read, or the batch is refused with ErrRetryMoved.
type Retry struct {
	ID        int64
	Partition int
	// What the row was.
	Status   UndeliveredStatus
	Attempts int
	Passing  int
	// Then is what it becomes; nil: it is done, and gone.
	Then *Record // Status, Code, Reason, Attempts, Passing, RetryIn and Digest of it
	// Line, unless empty, is what the WAITING and DEAD_LETTER_KEY rows behind it become.
	Line UndeliveredStatus
}

// Skip says that a message is passed over for a key, or for all of them.
type Skip struct {
	Topic     string
	Partition int
	Position  int64
	Key       string
	EveryKey  bool
}

// Decision is what an action of an operator did, or would do.
type Decision struct {
	Rows []DecidedRow // by id, at most DecisionMax
	// Count is the number of rows concerned, Refused of those selected that the
	// action passes over.
	Count, Refused int64
}

// DecisionMax bounds the rows that a [Decision] lists.
const DecisionMax = 1000

// DecidedRow is a row of a decision.
type DecidedRow struct {
	ID        int64
	Topic     string
	Position  int64
	Key       string
	EventType string
	Was       UndeliveredStatus
	// Refused is why the action passes it over, "" if it does not.
	Refused string
}

// HistoryEntry is something that was done to a consumer and that its rows do
// not tell. Detail is JSON.
type HistoryEntry struct {
	ID        int64
	Build     int64
	AtUS      int64
	Actor     string // "host" for what hosts decide
	Action    string
	Topic     string
	Partition int // -1: none
	Position  int64
	Key       string
	Detail    string
}

// What a consumer's history tells.
const (
	ActionSubscribe  = "subscribe"    // detail: digest, fingerprint
	ActionRevision   = "revision"     // another digest or logic from here on
	ActionHalt       = "halt"         // detail: the halt
	ActionPause      = "pause"        //
	ActionResume     = "resume"       //
	ActionReset      = "reset"        // of a topic to a position
	ActionDrop       = "drop"         //
	ActionSkip       = "skip"         // of a message for a key
	ActionRetry      = "retry"        // of rows
	ActionDelete     = "delete"       // of rows
	ActionOutOfOrder = "out-of-order" // retry of a message that was overtaken
)

// ErrRetryMoved is a batch whose retried row is not what it was read as.
var ErrRetryMoved = errors.New("an undelivered message is not what it was read as")

// StateError is an action that a consumer's state does not allow.
type StateError struct {
	Consumer ConsumerID
	Action   string
	State    ConsumerState
}

func (e *StateError) Error() string {
	return fmt.Sprintf("%s cannot be done to %s: it is %s", e.Action, e.Consumer, e.State)
}

// ChangedError is an action on a row that is no longer what the operator saw.
type ChangedError struct {
	ID  int64
	Why string
}

func (e *ChangedError) Error() string { return fmt.Sprintf("undelivered message %d: %s", e.ID, e.Why) }

// InUseError is a consumer that cannot be dropped, since hosts run it.
type InUseError struct {
	Consumer  ConsumerID
	Instances []string
}

func (e *InUseError) Error() string {
	hosts := "hosts"
	if len(e.Instances) == 1 {
		hosts = "host"
	}
	return fmt.Sprintf("%s is run by %d %s: take it out of the configuration first", e.Consumer, len(e.Instances), hosts)
}

package lane

import (
	"sync/atomic"
	"time"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/store"
)

// Exhausted says what becomes of a message that has used up its tries.
type Exhausted string

// What becomes of it.
const (
	// ExhaustedHalt halts the consumer; the key waits.
	ExhaustedHalt Exhausted = "halt"
	// ExhaustedDeadLetterKey has the key stand still until an operator decides.
	ExhaustedDeadLetterKey Exhausted = "dead_letter_key"
	// ExhaustedDeadLetter keeps the message aside; its key goes on without it.
	ExhaustedDeadLetter Exhausted = "dead_letter"
	// ExhaustedSkip passes the message over for its key, and records that.
	ExhaustedSkip Exhausted = "skip"
)

// Valid tells whether it is one of those.
func (e Exhausted) Valid() bool {
	switch e {
	case ExhaustedHalt, ExhaustedDeadLetterKey, ExhaustedDeadLetter, ExhaustedSkip:
		return true
	}
	return false
}

// Delivery is how often a message that failed is tried again, and what follows.
//
// A deterministic failure is not tried again at all: a pure guest does not heal
// with time. What the database refuses has MaxAttempts more tries. What may pass
// (the guest asks for a retry) is tried for as long as MaxTransient tries and
// MaxTransientAge allow, with pauses that grow as Backoff says.
type Delivery struct {
	MaxAttempts     int
	Backoff         retry.Policy
	MaxTransient    int
	MaxTransientAge time.Duration
	OnExhausted     Exhausted
}

// verdict is what a failure makes of a message.
type verdict struct {
	skip              bool
	status            store.UndeliveredStatus // of its row, unless it is skipped
	attempts, passing int
	pause             time.Duration // of FAILED
}

// decide weighs a failure of a message that has failed so often before, and for
// so long. In a consumer with a free table nothing can go on beside a message
// that is held, so a key that stands still is a consumer that does.
func (d *Delivery) decide(code abi.Status, attempts, passing int, age time.Duration, free bool) verdict {
	switch {
	case code == abi.StatusRetry:
		passing++
		if passing < d.MaxTransient && age < d.MaxTransientAge {
			return verdict{status: store.StatusFailed, attempts: attempts, passing: passing, pause: d.Backoff.Pause(passing)}
		}
	case code == abi.CodeData:
		attempts++
		if attempts <= d.MaxAttempts {
			return verdict{status: store.StatusFailed, attempts: attempts, passing: passing, pause: d.Backoff.Pause(attempts)}
		}
	default:
		attempts++
	}
	v := verdict{status: store.StatusHalted, attempts: attempts, passing: passing}
	policy := d.OnExhausted
	switch {
	case code == abi.StatusFatal:
		// The plugin itself asks for a halt.
	case policy == ExhaustedSkip:
		v.skip = true
	case policy == ExhaustedDeadLetter:
		v.status = store.StatusDeadLetter
	case policy == ExhaustedDeadLetterKey && !free:
		v.status = store.StatusDeadLetterKey
	}
	return v
}

// Held counts the undelivered messages that a host keeps for a consumer, those
// that wait behind a failed one included. Its lanes share it.
type Held struct {
	Max int64
	n   atomic.Int64
}

// Count is how many there are.
func (h *Held) Count() int64 { return h.n.Load() }

// room tells whether there may be more than so many beside those that count
// already.
func (h *Held) room(more int) bool { return h.n.Load()+int64(more) < h.Max }

// RefusedRow is a retry whose batch the database has refused for its data, with
// what its row was. If it was alone in that batch Reason is what the database
// said, and the next session records that without another try. Else it is tried
// alone in a batch, to find out which of them it was.
type RefusedRow struct {
	Attempts, Passing int
	Reason            string
}

// Refusal is a message that was alone in a batch the database refused for its
// data: it is recorded without being run.
type Refusal struct {
	Topic    int
	Position int64
	Reason   string
}

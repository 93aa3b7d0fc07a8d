package host

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/projhost/projhost/host/lane"
	"github.com/projhost/projhost/host/retry"
)

// Config is the host's settings. Start from [DefaultConfig]: zero means zero
// here, apart from the fields that say otherwise.
type Config struct {
	// HostName is recorded with the instance, for people.
	HostName string
	// InstanceTTL is how long after its last heartbeat the host counts as
	// running, by the database's clock: as long may its partitions stand still
	// when it dies. Heartbeat is the time between two of them. Defaults 15 s and
	// 3 s.
	InstanceTTL time.Duration
	Heartbeat   time.Duration
	// Rebalance is the time between two looks at who owns which partition. Default
	// 5 s.
	Rebalance time.Duration
	// MaxPartitions is how many partitions the host takes at most, over all
	// consumers that are spread. What no host may take is nobody's. 0: no limit.
	// Default 0.
	MaxPartitions int

	// Lanes is how many lanes apply the partitions of one consumer in
	// parallel. Single-owner consumers have one whatever is said here.
	// 0: from the cores. Default 0.
	Lanes int
	// Batch is the most messages of one apply transaction. 0: adaptive, small
	// at the tail of a topic and up to BatchMax behind it. Default 0.
	Batch int
	// BatchMax bounds an adaptive batch, in messages, and BatchRows in rows it
	// changes: those are what its transaction costs, and for as long as that
	// takes SQLite lets nobody append. A message of many keys, and the call it
	// is in, may go over them. Defaults 20,000 and 5000.
	BatchMax  int
	BatchRows int
	// BatchBytes bounds the payload of a batch. Default 8 MiB.
	BatchBytes int
	// BatchAge is how long an adaptive batch may grow behind the tail of a topic,
	// so that rows changed often are written once: four times the messages in
	// one batch were a quarter faster with 10,000 keys. At the tail a batch
	// waits for nothing. Default 250 ms.
	BatchAge time.Duration
	// CallMessages and CallBytes bound one call of a guest; a batch is as many
	// calls as it takes. Guests with a garbage collector grow with the size of
	// a call, and a guest that grew is made anew; smaller calls pay more for putting its
	// state back. Defaults 1024 and 1 MiB.
	CallMessages int
	CallBytes    int

	// Poll is how often a topic is looked at without a notification.
	// Default 250 ms.
	Poll time.Duration
	// PageMessages and PageBytes bound one read of a topic. A page behind the tail
	// is as large as they allow: what a server takes for a statement and its way
	// there and back is paid once for it. Defaults 4000 and 1 MiB.
	PageMessages int
	PageBytes    int
	// RingBytes bounds the recent pages a topic keeps for consumers that are
	// slightly behind the first. Default 4 MiB.
	RingBytes int
	// QueueBytes bounds what waits in front of one consumer's lanes.
	// Default 2 MiB.
	QueueBytes int
	// CacheBytes bounds the rows one consumer keeps in memory, all its lanes
	// together. Rows of an uncommitted batch may exceed it. Default 32 MiB.
	CacheBytes int

	// Delivery is how often a message that failed is tried again and what follows;
	// a consumer may have its own OnExhausted. Defaults: 5 more attempts, pauses
	// from 200 ms to 30 s, of what may pass 100 tries or 24 h, halt.
	Delivery lane.Delivery
	// MaxUndelivered is how many undelivered messages the host keeps for a consumer,
	// those that wait behind others included, before that halts: each is a copy.
	// Default 100,000.
	MaxUndelivered int

	// IdleSave is how often the checkpoints of partitions that had no messages
	// are saved. Default 1 minute.
	IdleSave time.Duration
	// RetryMin and RetryMax bound the pause before a transient failure is
	// tried again; it doubles from one to the other. Defaults 50 ms and 10 s.
	RetryMin time.Duration
	RetryMax time.Duration
	// ShutdownTimeout bounds how long a stop waits for batches to commit, and
	// ReleaseTimeout how long it then takes to give the leases back.
	// Defaults 15 s and 5 s.
	ShutdownTimeout time.Duration
	ReleaseTimeout  time.Duration
}

// DefaultConfig is a config with every default filled in.
func DefaultConfig() Config {
	return Config{
		InstanceTTL:  15 * time.Second,
		Heartbeat:    3 * time.Second,
		Rebalance:    5 * time.Second,
		BatchMax:     20_000,
		BatchRows:    5000,
		BatchBytes:   8 << 20,
		BatchAge:     250 * time.Millisecond,
		CallMessages: 1024,
		CallBytes:    1 << 20,
		Poll:         250 * time.Millisecond,
		PageMessages: 4000,
		PageBytes:    1 << 20,
		RingBytes:    4 << 20,
		QueueBytes:   2 << 20,
		CacheBytes:   32 << 20,
		Delivery: lane.Delivery{
			MaxAttempts: 5, Backoff: retry.Policy{Min: 200 * time.Millisecond, Max: 30 * time.Second},
			MaxTransient: 100, MaxTransientAge: 24 * time.Hour, OnExhausted: lane.ExhaustedHalt,
		},
		MaxUndelivered:  100_000,
		IdleSave:        time.Minute,
		RetryMin:        50 * time.Millisecond,
		RetryMax:        10 * time.Second,
		ShutdownTimeout: 15 * time.Second,
		ReleaseTimeout:  5 * time.Second,
	}
}

// Validate joins every problem of the config.
func (c Config) Validate() error {
	var errs []error
	notNegative := func(name string, v int) {
		if v < 0 {
			errs = append(errs, fmt.Errorf("%s must not be negative, it is %d", name, v))
		}
	}
	positive := func(name string, v int64) {
		if v <= 0 {
			errs = append(errs, fmt.Errorf("%s must be positive, it is %d", name, v))
		}
	}
	notNegative("max_partitions", c.MaxPartitions)
	notNegative("lanes", c.Lanes)
	notNegative("batch", c.Batch)
	positive("batch_max", int64(c.BatchMax))
	positive("batch_rows", int64(c.BatchRows))
	positive("batch_bytes", int64(c.BatchBytes))
	notNegative("batch_age", int(c.BatchAge))
	positive("call_messages", int64(c.CallMessages))
	positive("call_bytes", int64(c.CallBytes))
	positive("poll", int64(c.Poll))
	positive("page_messages", int64(c.PageMessages))
	positive("page_bytes", int64(c.PageBytes))
	notNegative("ring_bytes", c.RingBytes)
	positive("queue_bytes", int64(c.QueueBytes))
	notNegative("cache_bytes", c.CacheBytes)
	notNegative("max_attempts", c.Delivery.MaxAttempts)
	positive("backoff", int64(c.Delivery.Backoff.Min))
	positive("max_transient", int64(c.Delivery.MaxTransient))
	positive("max_transient_age", int64(c.Delivery.MaxTransientAge))
	positive("max_undelivered", int64(c.MaxUndelivered))
	if c.Delivery.Backoff.Max < c.Delivery.Backoff.Min {
		errs = append(errs, fmt.Errorf("max_backoff must be at least backoff, %s, it is %s", c.Delivery.Backoff.Min, c.Delivery.Backoff.Max))
	}
	if !c.Delivery.OnExhausted.Valid() {
		errs = append(errs, fmt.Errorf("on_exhausted must be halt, dead_letter_key, dead_letter or skip, it is %q", c.Delivery.OnExhausted))
	}
	positive("idle_save", int64(c.IdleSave))
	positive("retry_min", int64(c.RetryMin))
	positive("retry_max", int64(c.RetryMax))
	positive("shutdown_timeout", int64(c.ShutdownTimeout))
	positive("release_timeout", int64(c.ReleaseTimeout))
	positive("heartbeat", int64(c.Heartbeat))
	positive("rebalance", int64(c.Rebalance))
	if c.InstanceTTL < 3*c.Heartbeat {
		errs = append(errs, fmt.Errorf("instance_ttl must be at least three heartbeats of %s, it is %s", c.Heartbeat, c.InstanceTTL))
	}
	return errors.Join(errs...)
}

// lanes is the number of lanes of a spread consumer.
func (c Config) lanes() int {
	if c.Lanes > 0 {
		return c.Lanes
	}
	return max(1, min(runtime.GOMAXPROCS(0), 8))
}

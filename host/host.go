package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/projhost/projhost/store"
)

// Deps are the things a host is made of. The caller closes them after Run.
type Deps struct {
	Store   store.Store
	Plugins []Plugin
	Log     hclog.Logger
	Metrics prometheus.Registerer // nil: none are kept
}

// Plugin is a loaded module under its deployment's name.
type Plugin struct {
	Name   string
	Module Module
	// Consumers overrides settings of single consumers, by consumer name.
	Consumers map[string]ConsumerConfig
}

// ConsumerConfig overrides the declaration of one consumer.
type ConsumerConfig struct {
	// SingleOwner applies the consumer in one pass in position order although
	// it was declared to be spread. The reverse is not possible.
	SingleOwner bool
	// Adopt names tables that exist already and may be taken over.
	Adopt []string
}

// Module is a compiled plugin. [ModuleOf] makes one of a *plugins.Module.
type Module interface {
	Digest() string
}

// Host runs the consumers of its plugins.
type Host struct {
	deps Deps
	cfg  Config
}

// New makes a host. It does no I/O; the error joins every problem of the
// config and the plugins' names.
func New(deps Deps, cfg Config) (*Host, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("host config: %w", err)
	}
	return &Host{deps: deps, cfg: cfg}, nil
}

// Run subscribes and claims, applies until ctx ends, lets the batches in hand
// commit, saves checkpoints, gives the leases back and returns nil. An error
// means that the host could not start, or cannot go on at all: a consumer that
// fails only halts itself.
func (h *Host) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Ready reports whether every consumer is running (or halted and saying so),
// with the reasons if not.
func (h *Host) Ready() (bool, []string) { return false, []string{"starting"} }

// Status tells what the host is doing.
func (h *Host) Status(ctx context.Context) (Status, error) { return Status{}, nil }

// AllPartitions asks WaitApplied for every partition.
const AllPartitions = -1

// Errors of WaitApplied.
var (
	ErrUnknownConsumer = errors.New("no such consumer on this host")
	ErrNotAnInput      = errors.New("the consumer does not read this topic")
)

// NotCaughtUpError is a wait that ended too early. Lagging are the partitions
// that are not there yet.
type NotCaughtUpError struct {
	Consumer store.ConsumerID
	Topic    string
	Position int64
	Lagging  []int
}

func (e *NotCaughtUpError) Error() string {
	return fmt.Sprintf("%s has not applied %s up to %d: %d partitions lag", e.Consumer, e.Topic, e.Position, len(e.Lagging))
}

// HaltedError is a wait for a consumer that halted before it got there.
type HaltedError struct {
	Consumer store.ConsumerID
	Halt     store.Halt
}

func (e *HaltedError) Error() string {
	return fmt.Sprintf("%s is halted at %s:%d: %s", e.Consumer, e.Halt.Topic, e.Halt.Position, e.Halt.Message)
}

// WaitApplied blocks until everything of topic up to position is applied and
// committed in one partition of the consumer, or in AllPartitions. When ctx
// ends first the error is a *NotCaughtUpError; others are *HaltedError,
// ErrUnknownConsumer and ErrNotAnInput.
func (h *Host) WaitApplied(ctx context.Context, consumer store.ConsumerID, topic string, position int64, partition int) error {
	return ErrUnknownConsumer
}

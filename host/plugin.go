package host

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/lane"
	"github.com/projhost/projhost/plugins"
)

// Plugin is a loaded module under its deployment's name.
type Plugin struct {
	Name   string
	Module Module
	// Config is the JSON the module was loaded with; it is part of what the
	// store knows a consumer's logic by.
	Config []byte
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
	// OnExhausted is what becomes of its messages that have used up their tries.
	// "": as the host's config says.
	OnExhausted lane.Exhausted
}

// Module is an admitted module. [ModuleOf] makes one of a *plugins.Module.
type Module interface {
	Manifest() *abi.Manifest
	Digest() string
	NewInstance(ctx context.Context, log hclog.Logger) (Instance, error)
}

// Instance is a guest that serves one call at a time.
type Instance interface {
	lane.Guest
	Keys(ctx context.Context, consumer int, entries []abi.Entry, each func(index int, keys [][]byte) error) (done int, fail *plugins.Failure, err error)
	Stats() plugins.Stats
}

// instances keeps count of a plugin's instances and of what they have done.
type instances struct {
	mu   sync.Mutex
	live map[*instance]plugins.Stats
	past plugins.Stats
}

func (s *instances) make(ctx context.Context, m Module, log hclog.Logger) (*instance, error) {
	inner, err := m.NewInstance(ctx, log)
	if err != nil {
		return nil, fmt.Errorf("instantiate module %s: %w", m.Digest(), err)
	}
	i := &instance{Instance: inner, all: s}
	i.note()
	return i, nil
}

// total is the number of instances and the sum of what all, ended ones too,
// have done; memory is that of the live ones.
func (s *instances) total() (live int, sum plugins.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum = s.past
	for _, st := range s.live {
		sum = add(sum, st)
		sum.MemoryBytes += st.MemoryBytes
	}
	return len(s.live), sum
}

func add(a, b plugins.Stats) plugins.Stats {
	a.Calls += b.Calls
	a.Entries += b.Entries
	a.Failures += b.Failures
	a.Restores += b.Restores
	a.Instantiated += b.Instantiated
	a.Dropped += b.Dropped
	return a
}

// instance is an instance whose statistics others can read while it works.
type instance struct {
	Instance
	all *instances
}

func (i *instance) note() {
	stats := i.Instance.Stats()
	i.all.mu.Lock()
	defer i.all.mu.Unlock()
	if i.all.live == nil {
		i.all.live = make(map[*instance]plugins.Stats)
	}
	i.all.live[i] = stats
}

// Apply implements lane.Guest.
func (i *instance) Apply(ctx context.Context, consumer int, entries []abi.Entry, sink plugins.Sink) (int, *plugins.Failure, error) {
	done, fail, err := i.Instance.Apply(ctx, consumer, entries, sink)
	i.note()
	return done, fail, err
}

// Close implements lane.Guest.
func (i *instance) Close(ctx context.Context) error {
	i.all.mu.Lock()
	stats := i.all.live[i]
	delete(i.all.live, i)
	i.all.past = add(i.all.past, stats)
	i.all.mu.Unlock()
	return i.Instance.Close(ctx)
}

// teller asks a guest of its own for the keys of messages.
type teller struct {
	index int
	make  func(ctx context.Context) (*instance, error)
	guest *instance
}

// Tell implements reader.KeyTeller. A message the guest fails on is asked for
// alone before it counts as one whose keys cannot be told.
func (k *teller) Tell(ctx context.Context, messages []abi.Entry, each func(index int, keys [][]byte)) (int, string, error) {
	for at := 0; at < len(messages); {
		if k.guest == nil {
			guest, err := k.make(ctx)
			if err != nil {
				return at, "", err
			}
			k.guest = guest
		}
		n := len(messages) - at
		for n > 1 && !k.guest.FrameFits(messages[at:at+n]) {
			n /= 2
		}
		done, fail, err := k.ask(ctx, messages[at:at+n], at, each)
		at += done
		var frame *plugins.FrameError
		switch {
		case errors.As(err, &frame):
			return at, err.Error(), nil
		case err != nil:
			return at, "", err
		case fail == nil:
			continue
		}
		_, again, err := k.ask(ctx, messages[at:at+1], at, each)
		switch {
		case err != nil:
			return at, "", err
		case again != nil:
			return at, again.Error(), nil
		}
		at++
	}
	return len(messages), "", nil
}

func (k *teller) ask(ctx context.Context, messages []abi.Entry, at int, each func(index int, keys [][]byte)) (int, *plugins.Failure, error) {
	return k.guest.Keys(ctx, k.index, messages, func(i int, keys [][]byte) error {
		each(at+i, keys)
		return nil
	})
}

func (k *teller) close(ctx context.Context) error {
	if k == nil || k.guest == nil {
		return nil
	}
	return k.guest.Close(ctx)
}

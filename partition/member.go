package partition

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/store"
)

// MemberConfig is how a host counts as running. Every field is needed
// but HostName and MaxPartitions.
type MemberConfig struct {
	HostName string // for people
	// TTL is how long after a heartbeat the host counts as running, by the
	// database's clock. Heartbeat is the time between two of them.
	TTL       time.Duration
	Heartbeat time.Duration
	// MaxPartitions is how many partitions the host takes at most, over all
	// consumers that are spread. 0: no limit.
	MaxPartitions int
}

// Member keeps a host among the instances of its database. It is an instance
// under a random id for as long as the database knows that id. One that was
// removed, because it was silent for too long, comes back under another id: what
// it held under the old one is anybody's, and is to be claimed anew. It is safe
// for concurrent use.
type Member struct {
	leases  store.Leases
	cfg     MemberConfig
	log     hclog.Logger
	doubted chan struct{}

	failed int // heartbeats in a row; Run's own

	mu     sync.Mutex
	id     string
	ended  chan struct{} // closed when that is an instance no longer
	beaten time.Time     // when the latest heartbeat that succeeded was sent
}

// Join records an instance. Run keeps it.
func Join(ctx context.Context, leases store.Leases, cfg MemberConfig, log hclog.Logger) (*Member, error) {
	m := &Member{leases: leases, cfg: cfg, log: log, doubted: make(chan struct{}, 1)}
	if err := m.join(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// join makes a new instance the current one. Its id is never one that was used
// before: ownership rows may still name that, and would come to life with it.
func (m *Member) join(ctx context.Context) error {
	id, asked := uuid.NewString(), time.Now()
	if err := m.leases.Join(ctx, store.Instance{ID: id, HostName: m.cfg.HostName, TTL: m.cfg.TTL, MaxPartitions: m.cfg.MaxPartitions}); err != nil {
		return fmt.Errorf("join as an instance: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended != nil {
		close(m.ended)
	}
	m.id, m.ended, m.beaten = id, make(chan struct{}), asked
	return nil
}

// Instance is the id of the current instance. Once ended is closed, that is no
// longer, and neither is what it held.
func (m *Member) Instance() (id string, ended <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id, m.ended
}

// Beaten is when the latest heartbeat was sent that succeeded.
func (m *Member) Beaten() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.beaten
}

// Doubt has the next heartbeat sent at once: somebody was told that the instance
// does not count as joined.
func (m *Member) Doubt() {
	signal(m.doubted)
}

// Run sends heartbeats until ctx ends.
func (m *Member) Run(ctx context.Context) {
	ticker := time.NewTicker(m.cfg.Heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-m.doubted:
		}
		m.beat(ctx)
	}
}

// beat sends one heartbeat. One that hangs is given up early enough for others
// to be sent before the time is over.
func (m *Member) beat(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, m.cfg.TTL/3)
	defer cancel()
	was, _ := m.Instance()
	asked := time.Now()
	err := m.leases.Heartbeat(call, was)
	removed := errors.Is(err, store.ErrNotFound)
	if removed {
		err = m.join(call)
	}
	if err == nil {
		m.mu.Lock()
		m.beaten = asked
		m.mu.Unlock()
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		if m.failed++; m.failed == 1 {
			m.log.Warn("heartbeat failed: it is tried again, and after the TTL others may take the partitions", "error", err, "ttl", m.cfg.TTL)
		} else {
			m.log.Debug("heartbeat failed", "error", err, "times", m.failed)
		}
	default:
		if m.failed > 0 {
			m.log.Info("heartbeats succeed again", "failed", m.failed)
		}
		m.failed = 0
		if removed {
			now, _ := m.Instance()
			m.log.Warn("the instance was silent for longer than its TTL and was removed: the host joined again, and claims its partitions anew",
				"was", was, "is", now, "ttl", m.cfg.TTL)
		}
	}
}

// Leave gives everything back and ends the instance, so that others need not
// wait for the TTL. It comes after Run.
func (m *Member) Leave(ctx context.Context) error {
	id, _ := m.Instance()
	return m.leases.Leave(ctx, id)
}

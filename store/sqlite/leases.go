package sqlite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
)

// Join implements [store.Leases].
func (s *Store) Join(ctx context.Context, i store.Instance) error {
	if i.ID == "" {
		return errors.New("join: an instance needs an id")
	}
	return s.write(ctx, "join", 1, func(tx *tx) error {
		now := s.nowUS()
		if _, err := s.reap(tx); err != nil {
			return err
		}
		_, err := tx.exec(s.q.joinInstance, i.ID, i.HostName, now, i.TTL.Microseconds(), now, int64(i.MaxPartitions))
		return err
	})
}

// Reap implements [store.Leases].
func (s *Store) Reap(ctx context.Context) (reaped int, err error) {
	err = s.write(ctx, "reap", 1, func(tx *tx) error {
		reaped, err = s.reap(tx)
		return err
	})
	return reaped, err
}

func (s *Store) reap(tx *tx) (int, error) {
	n, err := tx.exec(s.q.dropLapsed, s.nowUS())
	if err != nil || n == 0 {
		return 0, err
	}
	_, err = tx.exec(s.q.dropStrangers)
	return int(n), err
}

// Heartbeat implements [store.Leases].
func (s *Store) Heartbeat(ctx context.Context, instanceID string) error {
	return s.write(ctx, "heartbeat", 1, func(tx *tx) error {
		n, err := tx.exec(s.q.heartbeat, s.nowUS(), instanceID)
		if err == nil && n == 0 {
			err = fmt.Errorf("heartbeat: instance %s: %w", instanceID, store.ErrNotFound)
		}
		return err
	})
}

// buryInstances forgets the instances of earlier processes. The lock file is
// ours, so none of them lives, and what they held can be claimed at once.
func (s *Store) buryInstances(ctx context.Context) error {
	return s.write(ctx, "forget instances that ended", 1, func(tx *tx) error {
		if _, err := tx.exec(s.q.dropInstances); err != nil {
			return err
		}
		_, err := tx.exec(s.q.dropStrangers)
		return err
	})
}

// Leave implements [store.Leases].
func (s *Store) Leave(ctx context.Context, instanceID string) error {
	return s.write(ctx, "leave", 1, func(tx *tx) error {
		if _, err := tx.exec(s.q.releaseAll, instanceID); err != nil {
			return err
		}
		if _, err := tx.exec(s.q.dropMemberships, instanceID); err != nil {
			return err
		}
		_, err := tx.exec(s.q.dropInstance, instanceID)
		return err
	})
}

// ListInstances implements [store.Leases].
func (s *Store) ListInstances(ctx context.Context) (list []store.InstanceStatus, err error) {
	err = s.read(ctx, "list instances", func(c *conn) error {
		list, err = s.listInstances(ctx, c)
		return err
	})
	return list, err
}

func (s *Store) listInstances(ctx context.Context, c *conn) (list []store.InstanceStatus, err error) {
	rows, err := c.query(ctx, s.q.instances, s.nowUS())
	if err != nil {
		return nil, err
	}
	for rows.next() {
		list = append(list, store.InstanceStatus{
			Instance: store.Instance{ID: rows.text(0), HostName: rows.text(1), TTL: time.Duration(rows.int(3)) * time.Microsecond,
				MaxPartitions: int(rows.int(5))},
			StartedUS: rows.int(2), HeartbeatUS: rows.int(4), Live: rows.int(6) != 0,
		})
	}
	return list, rows.close()
}

// Claim implements [store.Leases].
func (s *Store) Claim(ctx context.Context, instanceID string, build int64, partitions []int) (leases []store.Lease, tenure int64, err error) {
	err = s.write(ctx, "claim", len(partitions), func(tx *tx) error {
		leases, tenure = nil, 0
		now := s.nowUS()
		joined, err := tx.queryInt(context.Background(), s.q.instance, now, instanceID)
		if err != nil {
			return err
		}
		if joined == 0 {
			return fmt.Errorf("claim: instance %s: %w", instanceID, store.ErrNotFound)
		}
		// One statement for all: P2 needs every lease to have one holder at
		// each generation, and the generation to rise at each claim, also of
		// what this instance holds already.
		rows, err := tx.query(context.Background(), s.q.claim, now, instanceID, build, intList(partitions))
		if err != nil {
			return err
		}
		for rows.next() {
			leases = append(leases, store.Lease{Build: build, Partition: int(rows.int(0)), Generation: rows.int(1)})
		}
		if err := rows.close(); err != nil || len(leases) == 0 {
			return err
		}
		tenure = rules.NewTenure()
		taken := make([]int, len(leases))
		for i, l := range leases {
			taken[i] = l.Partition
		}
		_, err = tx.exec(s.q.beginTenure, tenure, intList(taken), instanceID, build)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	slices.SortFunc(leases, func(a, b store.Lease) int { return a.Partition - b.Partition })
	return leases, tenure, nil
}

// intList is a JSON array for json_each.
func intList[N int | int64](list []N) string {
	b := []byte{'['}
	for i, n := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(append(b, ']'))
}

// Release implements [store.Leases].
func (s *Store) Release(ctx context.Context, instanceID string, leases []store.Lease) error {
	return s.write(ctx, "release", len(leases), func(tx *tx) error {
		for _, l := range leases {
			if _, err := tx.exec(s.q.release, l.Build, int64(l.Partition), l.Generation, instanceID); err != nil {
				return err
			}
		}
		return nil
	})
}

// Owners implements [store.Leases].
func (s *Store) Owners(ctx context.Context, build int64) (owners []store.Ownership, err error) {
	err = s.read(ctx, "read owners", func(c *conn) error {
		rows, err := c.query(ctx, s.q.owners, build)
		if err != nil {
			return err
		}
		for rows.next() {
			owners = append(owners, store.Ownership{Partition: int(rows.int(0)), InstanceID: rows.text(1), Generation: rows.int(2)})
		}
		return rows.close()
	})
	return owners, err
}

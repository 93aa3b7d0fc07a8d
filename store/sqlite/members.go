package sqlite

import (
	"context"
	"fmt"
	"slices"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// Enlist implements [store.Leases].
func (s *Store) Enlist(ctx context.Context, instanceID string, list []store.Enlistment) error {
	return s.write(ctx, "enlist", len(list), func(tx *tx) error {
		joined, err := tx.queryInt(context.Background(), s.q.joined, instanceID)
		if err != nil {
			return err
		}
		if joined == 0 {
			return fmt.Errorf("enlist: instance %s: %w", instanceID, store.ErrNotFound)
		}
		b := []byte{'['}
		for i, e := range list {
			if i > 0 {
				b = append(b, ',')
			}
			single := 0
			if e.SingleOwner {
				single = 1
			}
			b = fmt.Appendf(b, "[%d,%d]", e.Build, single)
		}
		builds := string(append(b, ']'))
		if _, err := tx.exec(s.q.delist, instanceID, builds); err != nil {
			return err
		}
		_, err = tx.exec(s.q.enlist, instanceID, builds)
		return err
	})
}

// Advance implements [store.Leases].
func (s *Store) Advance(ctx context.Context, instanceID string, list []store.Progress) error {
	return s.write(ctx, "advance", len(list), func(tx *tx) error {
		if slices.ContainsFunc(list, func(p store.Progress) bool { return p.Incarnation != s.Incarnation() }) {
			return store.ErrIncarnation
		}
		for _, p := range list {
			if _, err := tx.exec(s.q.advance, p.ReadThrough, instanceID, p.Build, p.Topic, p.Tenure); err != nil {
				return err
			}
		}
		return nil
	})
}

// Survey implements [store.Leases].
func (s *Store) Survey(ctx context.Context, builds []int64) (v store.Survey, err error) {
	err = s.read(ctx, "survey", func(c *conn) (err error) {
		v = store.Survey{}
		if v.Owners, err = s.ownersOf(ctx, c, builds); err != nil {
			return err
		}
		if v.Members, err = s.listMembers(ctx, c); err != nil {
			return err
		}
		if v.Consumers, v.Builds, err = sqlstore.States(ctx, s.ledgerConn(c), s.q.states); err != nil {
			return err
		}
		v.Instances, err = s.listInstances(ctx, c)
		return err
	})
	if err != nil {
		return store.Survey{}, err
	}
	return v, nil
}

func (s *Store) ownersOf(ctx context.Context, c *conn, builds []int64) (map[int64][]store.Ownership, error) {
	owners := make(map[int64][]store.Ownership, len(builds))
	rows, err := c.query(ctx, s.q.ownersOf, intList(builds))
	if err != nil {
		return nil, err
	}
	for rows.next() {
		build := rows.int(0)
		owners[build] = append(owners[build], store.Ownership{Partition: int(rows.int(1)), InstanceID: c.intern(rows.text(2)), Generation: rows.int(3)})
	}
	return owners, rows.close()
}

func (s *Store) listMembers(ctx context.Context, c *conn) (list []store.Membership, err error) {
	rows, err := c.query(ctx, s.q.members)
	if err != nil {
		return nil, err
	}
	for rows.next() {
		m := store.Membership{Enlistment: store.Enlistment{Build: rows.int(0), SingleOwner: rows.int(3) != 0}, InstanceID: c.intern(rows.text(1)), Tenure: rows.int(5)}
		if n := len(list); n == 0 || list[n-1].Build != m.Build || list[n-1].InstanceID != m.InstanceID {
			m.ReadThrough = map[string]int64{}
			list = append(list, m)
		}
		list[len(list)-1].ReadThrough[c.intern(rows.text(2))] = rows.int(4)
	}
	return list, rows.close()
}

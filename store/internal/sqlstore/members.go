package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// Enlist implements [store.Leases].
func (c *Core) Enlist(ctx context.Context, instanceID string, list []store.Enlistment) error {
	var recorded int64
	err := c.Engine.Read(ctx, "enlist", func(conn Conn) (err error) {
		recorded, err = number(ctx, conn, c.q.recorded, instanceID)
		return err
	})
	if err == nil && recorded == 0 {
		err = fmt.Errorf("enlist: instance %s: %w", instanceID, store.ErrNotFound)
	}
	if err != nil {
		return err
	}
	// There is no build 0: it makes the lists valid where they are empty.
	builds, single := []int64{0}, []int64{0}
	for _, e := range list {
		builds = append(builds, e.Build)
		if e.SingleOwner {
			single = append(single, e.Build)
		}
	}
	all, some := numbers(builds), numbers(single)
	me := []any{instanceID}
	return c.writeAll(ctx, "enlist", []Step{
		{Text: c.q.lockInstance, Args: me},
		{Text: c.SQL(fmt.Sprintf(delistSQL, all)), Args: me},
		{Text: c.SQL(fmt.Sprintf(changedSQL, some)), Args: me},
		{Text: c.SQL(fmt.Sprintf(enlistSQL, all, some)), Args: me},
	})
}

// Advance implements [store.Leases].
func (c *Core) Advance(ctx context.Context, instanceID string, list []store.Progress) error {
	current := func() error {
		if slices.ContainsFunc(list, func(p store.Progress) bool { return p.Incarnation != c.Incarnation() }) {
			return store.ErrIncarnation
		}
		return nil
	}
	if err := current(); err != nil {
		return err
	}
	return c.Engine.Read(ctx, "advance", func(conn Conn) error {
		if err := current(); err != nil { // the way to the database may be another by now
			return err
		}
		for rest := list; len(rest) > 0; {
			size := readmodel.SelectSize(len(rest))
			chunk := rest[:min(size, len(rest))]
			var values, keys []any
			for i := range size {
				p := chunk[min(i, len(chunk)-1)] // the last fills it up
				values = append(values, p.Build, p.Topic, p.ReadThrough)
				keys = append(keys, p.Build, p.Topic, p.Tenure, p.ReadThrough)
			}
			text := c.SQL(fmt.Sprintf(advanceSQL, strings.Repeat(advanceCase, size), strings.Repeat(" OR "+advanceKey, size)[len(" OR "):]))
			if _, err := conn.Exec(ctx, text, append(append(values, instanceID), keys...)...); err != nil {
				return err
			}
			rest = rest[len(chunk):]
		}
		return nil
	})
}

// Survey implements [store.Leases].
func (c *Core) Survey(ctx context.Context, builds []int64) (s store.Survey, err error) {
	err = c.Engine.Read(ctx, "survey", func(conn Conn) (err error) {
		s = store.Survey{}
		if s.Owners, err = c.ownersOf(ctx, conn, builds); err != nil {
			return err
		}
		if s.Members, err = c.members(ctx, conn); err != nil {
			return err
		}
		if s.Consumers, s.Builds, err = States(ctx, conn, c.q.states); err != nil {
			return err
		}
		s.Instances, err = c.instances(ctx, conn)
		return err
	})
	if err != nil {
		return store.Survey{}, err
	}
	return s, nil
}

func (c *Core) ownersOf(ctx context.Context, conn Conn, builds []int64) (map[int64][]store.Ownership, error) {
	owners := make(map[int64][]store.Ownership, len(builds))
	if len(builds) == 0 {
		return owners, nil
	}
	var at, build, partition int64
	var id sql.NullString
	var o store.Ownership
	row := []any{&build, &partition, &id, &o.Generation} // one for thousands of rows
	var of []store.Ownership
	err := each(ctx, conn, c.SQL(fmt.Sprintf(ownersOfSQL, numbers(builds))), nil, func(r Rows) error {
		if err := r.Scan(row...); err != nil {
			return err
		}
		if build != at || of == nil {
			at, of = build, make([]store.Ownership, 0, c.info.Partitions)
		}
		o.Partition, o.InstanceID = int(partition), id.String
		of = append(of, o)
		owners[build] = of
		return nil
	})
	return owners, err
}

func (c *Core) members(ctx context.Context, conn Conn) (list []store.Membership, err error) {
	err = each(ctx, conn, c.q.members, nil, func(r Rows) error {
		var m store.Membership
		var topic string
		var single, through int64
		if err := r.Scan(&m.Build, &m.InstanceID, &topic, &single, &through, &m.Tenure); err != nil {
			return err
		}
		if n := len(list); n == 0 || list[n-1].Build != m.Build || list[n-1].InstanceID != m.InstanceID {
			m.SingleOwner, m.ReadThrough = single != 0, map[string]int64{}
			list = append(list, m)
		}
		list[len(list)-1].ReadThrough[topic] = through
		return nil
	})
	return list, err
}

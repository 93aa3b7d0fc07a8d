package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/rules"
)

// Join implements [store.Leases].
func (c *Core) Join(ctx context.Context, i store.Instance) error {
	if i.ID == "" {
		return errors.New("join: an instance needs an id")
	}
	steps, _, now, err := c.reaping(ctx, "join")
	if err != nil {
		return err
	}
	return c.writeAll(ctx, "join", append(steps,
		Step{Text: c.q.join, Args: []any{i.ID, i.HostName, now, i.TTL.Microseconds(), now, int64(i.MaxPartitions)}}))
}

// Reap implements [store.Leases].
func (c *Core) Reap(ctx context.Context) (int, error) {
	steps, n, _, err := c.reaping(ctx, "reap")
	if err != nil || n == 0 {
		return 0, err
	}
	if err := c.writeAll(ctx, "reap", steps); err != nil {
		return 0, err
	}
	return n, nil
}

// reaping gives the steps that remove the n instances that are not live, and the
// database's time. They are looked for first, so that those that are live are not
// locked, and nobody's heartbeat waits.
func (c *Core) reaping(ctx context.Context, op string) (steps []Step, n int, now int64, err error) {
	err = c.Engine.Read(ctx, op, func(conn Conn) error {
		steps, n = nil, 0
		err := each(ctx, conn, c.q.lapsed, nil, func(r Rows) error {
			var id string
			err := r.Scan(&id)
			steps, n = append(steps, Step{Text: c.q.dropLapsed, Args: []any{id}}, Step{Text: c.q.dropStranger, Args: []any{id}}), n+1
			return err
		})
		if err != nil {
			return err
		}
		_, left, err := c.endLapsed(ctx, conn)
		if err != nil {
			return err
		}
		if left > 0 {
			steps, n = nil, 0 // with their instance they are found as soon as they are due
		}
		now, err = number(ctx, conn, c.q.now)
		return err
	})
	return steps, n, now, err
}

// endLapsed ends the sessions that hosts which are not live have left open, with
// the locks and the positions that others wait for (H35).
func (c *Core) endLapsed(ctx context.Context, conn Conn) (found, left int64, err error) {
	if c.Dialect.EndLapsed != "" {
		_, err = one(ctx, conn, c.q.endLapsed, nil, &found, &left)
	}
	return found, left, err
}

// Heartbeat implements [store.Leases].
func (c *Core) Heartbeat(ctx context.Context, instanceID string) error {
	e := c.Engine
	if c.Beats != nil {
		e = c.Beats
	}
	return e.Read(ctx, "heartbeat", func(conn Conn) error {
		n, err := conn.Exec(ctx, c.q.heartbeat, instanceID)
		if err == nil && n == 0 {
			err = fmt.Errorf("heartbeat: instance %s: %w", instanceID, store.ErrNotFound)
		}
		return err
	})
}

// Leave implements [store.Leases].
func (c *Core) Leave(ctx context.Context, instanceID string) error {
	return c.Engine.Write(ctx, "leave", func(conn Conn) error {
		// Looked for first, so that rows are locked by their key and in order.
		var held []store.Lease
		err := each(ctx, conn, c.q.held, []any{instanceID}, func(r Rows) error {
			var l store.Lease
			var partition int64
			err := r.Scan(&l.Build, &partition, &l.Generation)
			l.Partition = int(partition)
			held = append(held, l)
			return err
		})
		if err != nil {
			return err
		}
		if err := c.release(ctx, conn, instanceID, held); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, c.q.dropInstance, instanceID); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, c.q.dropMemberships, instanceID)
		return err
	})
}

// ListInstances implements [store.Leases].
func (c *Core) ListInstances(ctx context.Context) (list []store.InstanceStatus, err error) {
	err = c.Engine.Read(ctx, "list instances", func(conn Conn) error {
		list, err = c.instances(ctx, conn)
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

func (c *Core) instances(ctx context.Context, conn Conn) (list []store.InstanceStatus, err error) {
	err = each(ctx, conn, c.q.instances, nil, func(r Rows) error {
		var i store.InstanceStatus
		var ttl, limit, live int64
		err := r.Scan(&i.ID, &i.HostName, &i.StartedUS, &ttl, &i.HeartbeatUS, &limit, &live)
		i.TTL, i.MaxPartitions, i.Live = time.Duration(ttl)*time.Microsecond, int(limit), live != 0
		list = append(list, i)
		return err
	})
	return list, err
}

// Claim implements [store.Leases].
//
// Promise (P2): each lease has one holder at each generation. What may be
// claimed is looked up first and then taken by compare-and-set on the
// generation, so two claims cannot take it for the same one. It waits for nobody:
// a row that somebody holds locked is left out.
func (c *Core) Claim(ctx context.Context, instanceID string, build int64, partitions []int) (leases []store.Lease, tenure int64, err error) {
	partitions = slices.Sorted(slices.Values(partitions))
	leases, tenure, lapsed, err := c.claimFree(ctx, instanceID, build, partitions)
	if err != nil || !lapsed {
		return leases, tenure, err
	}
	// What the owner had under way may be in the way of more than these rows. How
	// that goes does not matter to what is held already: the caller tries again.
	var ended int64
	_ = c.Engine.Read(ctx, "claim", func(conn Conn) (err error) {
		ended, _, err = c.endLapsed(ctx, conn)
		return err
	})
	if ended == 0 {
		return leases, tenure, nil
	}
	rest := slices.DeleteFunc(partitions, func(p int) bool {
		return slices.ContainsFunc(leases, func(l store.Lease) bool { return l.Partition == p })
	})
	if more, later, _, _ := c.claimFree(ctx, instanceID, build, rest); len(more) > 0 {
		leases, tenure = append(leases, more...), later
	}
	slices.SortFunc(leases, func(a, b store.Lease) int { return a.Partition - b.Partition })
	return leases, tenure, nil
}

// claimFree claims what nobody holds locked. lapsed tells that some of it, locked
// or not, had an owner that is not live, or does not run the build (H36).
func (c *Core) claimFree(ctx context.Context, instanceID string, build int64, partitions []int) (leases []store.Lease, tenure int64, lapsed bool, err error) {
	err = c.Engine.Write(ctx, "claim", func(conn Conn) error {
		leases, tenure, lapsed = nil, 0, false
		joined, err := number(ctx, conn, c.q.joined, instanceID)
		if err != nil {
			return err
		}
		if joined == 0 {
			return fmt.Errorf("claim: instance %s: %w", instanceID, store.ErrNotFound)
		}
		for chunk := range slices.Chunk(partitions, rowsMax) {
			got, late, err := c.claim(ctx, conn, instanceID, build, chunk)
			if err != nil {
				return err
			}
			leases, lapsed = append(leases, got...), lapsed || late
		}
		if len(leases) == 0 {
			return nil
		}
		taken := make([]int, len(leases))
		for i, l := range leases {
			taken[i] = l.Partition
		}
		tenure = rules.NewTenure()
		_, err = conn.Exec(ctx, c.SQL(fmt.Sprintf(beginSQL, fmt.Sprintf(lowestOfSQL, numbers(taken)))), tenure, instanceID, build)
		return err
	})
	if err != nil {
		return nil, 0, false, err
	}
	return leases, tenure, lapsed, nil
}

func (c *Core) claim(ctx context.Context, conn Conn, instanceID string, build int64, partitions []int) (leases []store.Lease, lapsed bool, err error) {
	read := func(text string, args ...any) ([]store.Lease, error) {
		var list []store.Lease
		err := each(ctx, conn, c.SQL(text), args, func(r Rows) error {
			var partition, late int64
			l := store.Lease{Build: build}
			err := r.Scan(&partition, &l.Generation, &late)
			l.Partition = int(partition)
			list, lapsed = append(list, l), lapsed || late != 0
			return err
		})
		return list, err
	}
	if leases, err = read(fmt.Sprintf(claimableSQL, numbers(partitions)), instanceID, build, instanceID, build); err != nil || len(leases) == 0 {
		return nil, lapsed, err
	}
	if leases, err = read(fmt.Sprintf(freeSQL, held(leases)), build); err != nil || len(leases) == 0 {
		return nil, lapsed, err
	}
	n, err := conn.Exec(ctx, c.SQL(fmt.Sprintf(claimSQL, held(leases))), instanceID, build)
	if err != nil {
		return nil, lapsed, err
	}
	if n != int64(len(leases)) {
		return nil, lapsed, fmt.Errorf("claim: %w", ErrRace)
	}
	for i := range leases {
		leases[i].Generation++
	}
	return leases, lapsed, nil
}

// numbers is a list of numbers for IN.
func numbers[N int | int64](list []N) string {
	var b []byte
	for i, n := range list {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(b)
}

// rowsMax bounds the rows of one statement, for the sake of SQL Server's 1,000.
const rowsMax = 1000

// held is the condition on ownership rows that are at a lease's generation.
func held(leases []store.Lease) string {
	var b []byte
	for i, l := range leases {
		if i > 0 {
			b = append(b, " OR "...)
		}
		b = append(b, `"partition" = `...)
		b = strconv.AppendInt(b, int64(l.Partition), 10)
		b = append(b, " AND generation = "...)
		b = strconv.AppendInt(b, l.Generation, 10)
	}
	return string(b)
}

// Release implements [store.Leases].
func (c *Core) Release(ctx context.Context, instanceID string, leases []store.Lease) error {
	if len(leases) == 0 {
		return nil
	}
	return c.Engine.Write(ctx, "release", func(conn Conn) error { return c.release(ctx, conn, instanceID, leases) })
}

func (c *Core) release(ctx context.Context, conn Conn, instanceID string, leases []store.Lease) error {
	leases = slices.Clone(leases)
	slices.SortFunc(leases, func(a, b store.Lease) int {
		if a.Build != b.Build {
			return int(min(max(a.Build-b.Build, -1), 1))
		}
		return a.Partition - b.Partition
	})
	for len(leases) > 0 {
		n := 1
		for n < min(len(leases), rowsMax) && leases[n].Build == leases[0].Build {
			n++
		}
		text := c.SQL(fmt.Sprintf(releaseSQL, held(leases[:n])))
		if _, err := conn.Exec(ctx, text, leases[0].Build, instanceID); err != nil {
			return err
		}
		leases = leases[n:]
	}
	return nil
}

// Owners implements [store.Leases].
func (c *Core) Owners(ctx context.Context, build int64) (owners []store.Ownership, err error) {
	err = c.Engine.Read(ctx, "read owners", func(conn Conn) error {
		owners = nil
		return each(ctx, conn, c.q.owners, []any{build}, func(r Rows) error {
			var partition int64
			var instance sql.NullString
			var o store.Ownership
			err := r.Scan(&partition, &instance, &o.Generation)
			o.Partition, o.InstanceID = int(partition), instance.String
			owners = append(owners, o)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	return owners, nil
}

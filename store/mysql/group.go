package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/projhost/projhost/store"
	"github.com/projhost/projhost/store/internal/sqlstore"
)

// groups lets appends of this process that wait for each other share a
// transaction: all of them would take turns at the counter, each with its own
// commit. One group is at the counter while the next gets ready. Appends to one
// stream never share one and are never under way together, so that they do not
// race. The zero value is ready.
type groups struct {
	mu      sync.Mutex
	running int
	busy    map[streamKey]bool // streams of the groups that run
	queue   []*member
}

const groupsRunning = 2

// A group is bounded by members and events, so that a single append never waits
// for more than a few milliseconds of others' work in its own transaction.
const (
	groupMax     = 64
	groupRowsMax = 512
	groupSizeMax = 1 << 20
)

// member is an append on its way.
type member struct {
	c     *store.Commit
	ids   []store.ID
	size  int
	res   store.CommitResult
	err   error
	alone bool      // the group met something that only one of its members is to blame for
	turn  chan turn // buffered, one value
}

type turn uint8

const (
	turnDone turn = iota
	turnLead
)

// newMember is nil for a commit that takes its own way: there is little to share
// in a large one.
func newMember(c *store.Commit, ids []store.ID) *member {
	if len(c.Snapshots) > 0 || len(c.Streams) == 0 || len(c.Streams) > guardsMax || len(ids) > groupRowsMax/4 {
		return nil
	}
	m := &member{c: c, ids: ids, turn: make(chan turn, 1)}
	for i := range c.Streams {
		for j := range c.Streams[i].Events {
			e := &c.Streams[i].Events[j]
			m.size += len(e.Data) + len(e.Metadata)
		}
	}
	if m.size > groupSizeMax/4 {
		return nil
	}
	return m
}

func (g *groups) free(m *member) bool {
	for i := range m.c.Streams {
		if g.busy[streamKey{m.c.Streams[i].AggregateType, m.c.Streams[i].AggregateID}] {
			return false
		}
	}
	return true
}

func (g *groups) mark(m *member, busy bool) {
	if g.busy == nil {
		g.busy = map[streamKey]bool{}
	}
	for i := range m.c.Streams {
		key := streamKey{m.c.Streams[i].AggregateType, m.c.Streams[i].AggregateID}
		if busy {
			g.busy[key] = true
		} else {
			delete(g.busy, key)
		}
	}
}

// enter reports whether m leads at once. If it does not, its turn will come.
func (g *groups) enter(m *member) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running < groupsRunning && g.free(m) {
		g.running++
		g.mark(m, true)
		return true
	}
	g.queue = append(g.queue, m)
	return false
}

// leave takes a member whose caller went out of the queue; false if it is under
// way.
func (g *groups) leave(m *member) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.queue, m)
	if i < 0 {
		return false
	}
	g.queue = slices.Delete(g.queue, i, i+1)
	return true
}

// join takes from the queue what goes along with the leader.
func (g *groups) join(leader *member) []*member {
	g.mu.Lock()
	defer g.mu.Unlock()
	group := []*member{leader}
	streams, rows, size := len(leader.c.Streams), len(leader.ids), leader.size
	g.queue = slices.DeleteFunc(g.queue, func(m *member) bool {
		if len(group) == groupMax || streams+len(m.c.Streams) > groupMax || rows+len(m.ids) > groupRowsMax || size+m.size > groupSizeMax || !g.free(m) {
			return false
		}
		g.mark(m, true)
		group = append(group, m)
		streams, rows, size = streams+len(m.c.Streams), rows+len(m.ids), size+m.size
		return true
	})
	return group
}

// end lets the members' streams go and hands over to whoever can lead next.
func (g *groups) end(group []*member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range group {
		g.mark(m, false)
	}
	i := slices.IndexFunc(g.queue, g.free)
	if i < 0 {
		// What waits has a stream of the other group, which will see to it.
		g.running--
		return
	}
	next := g.queue[i]
	g.queue = slices.Delete(g.queue, i, i+1)
	g.mark(next, true)
	next.turn <- turnLead
}

// commitShared appends together with others that wait.
func (s *Store) commitShared(ctx context.Context, m *member) (store.CommitResult, error) {
	if err := ctx.Err(); err != nil {
		return store.CommitResult{}, err
	}
	t := turnLead
	if !s.groups.enter(m) {
		select {
		case t = <-m.turn:
		case <-ctx.Done():
			if s.groups.leave(m) {
				return store.CommitResult{}, fmt.Errorf("append: waited for the appends before it: %w", ctx.Err())
			}
			t = <-m.turn // what runs is waited for: what became of it has to be known
		}
	}
	if t == turnLead {
		s.lead(ctx, m)
	}
	if m.alone {
		return s.commitAlone(ctx, m.c, m.ids)
	}
	return m.res, m.err
}

// lead runs the group that begins with m.
func (s *Store) lead(ctx context.Context, m *member) {
	group := s.groups.join(m)
	ended := false
	defer func() {
		if !ended { // a panic, which goes on
			for _, g := range group {
				g.err = errors.New("append: another append in the same transaction panicked")
			}
		}
		s.groups.end(group)
		for _, g := range group[1:] {
			g.turn <- turnDone
		}
	}()
	if len(group) == 1 {
		m.res, m.err = s.commitAlone(ctx, m.c, m.ids)
	} else {
		s.commitGroup(ctx, group)
	}
	ended = true
}

// commitGroup commits the members' appends in one transaction, the fast way.
func (s *Store) commitGroup(ctx context.Context, group []*member) {
	// Not the leader's alone to cancel; the server's own limits end it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*s.opt.Timeout+endWait)
	defer cancel()
	var whole store.Commit
	var ids []store.ID
	for _, m := range group {
		whole.Streams = append(whole.Streams, m.c.Streams...)
		ids = append(ids, m.ids...)
	}
	var res store.CommitResult
	err := s.engine.write(ctx, "append", func(se *session) (err error) {
		res, err = s.newAppend(ctx, se).commit(&whole, ids, wayFast)
		return err
	})
	if err == nil {
		s.wakes.Wake(store.EventsTopic)
	}
	class, _ := classOf(err)
	alone := errors.Is(err, errRaced) || class == sqlstore.Data || class == sqlstore.Unlisted
	for _, m := range group {
		if m.alone, m.err = alone, err; err == nil {
			n := len(m.c.Streams)
			m.res.Streams, res.Streams = res.Streams[:n:n], res.Streams[n:]
		}
	}
}

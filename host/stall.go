package host

import (
	"fmt"
	"slices"
	"time"

	"github.com/projhost/projhost/host/lane"
)

// A lane that makes no progress for stallChecks looks, two in every TTL of the
// instance, though messages wait, has its host stay out of the consumer: it may be
// the host whose disk, memory or rights are broken, and only its heartbeats are
// well (P5). It does so only while another host runs the consumer, at first for
// stallPause looks, twice as long each time, up to an hour, and comes back at once
// if all the others have left too: then it is nobody's own trouble. Looks are
// counted and not time, of which a host that was stopped for a while has seen
// nothing, and none of them while surveys fail: then it is the database's.
const (
	stallChecks = 8
	stuckChecks = 4 // after so many the host is not ready
	stallPause  = 8
	stallMax    = time.Hour
)

// stall watches whether the lanes of a crew get on.
type stall struct {
	next     time.Time
	lanes    map[place]pace
	out      time.Duration // how long the latest withdrawal is, or was before there was progress
	returnAt time.Time     // zero: not withdrawn
	why      string        // it is
}

// place is a lane that may be made anew again and again.
type place struct{ group, lane int }

type pace struct {
	lane    *lane.Lane // the latest
	steps   uint64     // it had taken
	applied int64      // over all topics
	looks   int        // without progress
}

// watch looks whether it is time to leave the consumer to others, or to come back.
func (w *crew) watch() {
	c, s, now := w.c, &w.stall, time.Now()
	if now.Before(s.next) {
		return
	}
	look := c.host.cfg.InstanceTTL / 2
	s.next = now.Add(look)
	switch {
	case !s.returnAt.IsZero():
		if now.Before(s.returnAt) && c.share.Others() > 0 {
			return
		}
		c.log.Info("consumer is run here again")
		s.returnAt = time.Time{}
		c.share.Return()
	case c.isStopped(), time.Since(c.share.Orders().At) > 2*c.host.cfg.Rebalance:
		clear(s.lanes)
	case w.stalled() && c.share.Others() > 0:
		s.out = min(max(2*s.out, stallPause*look), stallMax)
		s.returnAt = now.Add(s.out)
		clear(s.lanes)
		s.why = fmt.Sprintf("no progress for %s though messages wait: other hosts are to run it until %s",
			stallChecks*look, s.returnAt.UTC().Format(time.RFC3339))
		c.log.Error("consumer is left to other hosts", "reason", s.why)
		c.share.Withdraw(s.why)
	}
}

// stalled counts one more look, and tells whether some lane has had too many.
func (w *crew) stalled() bool {
	s, before := &w.stall, w.stall.lanes
	s.lanes = make(map[place]pace, len(before))
	worst := 0
	var stuck []int
	for group, partitions := range w.idle {
		for at, p := range before {
			if at.group == group {
				p.looks++
				s.lanes[at] = p
				worst = max(worst, p.looks)
			}
		}
		if worst >= stuckChecks {
			stuck = append(stuck, partitions...)
		}
	}
	for _, session := range w.sessions {
		for i, l := range session.lanes {
			at := place{session.group, i}
			p, known := before[at]
			steps, applied, waiting := l.Stats().Steps, int64(0), false
			for t := range w.c.topics {
				applied += l.Applied(t)
				waiting = waiting || l.Applied(t) < session.topicEnd(t)
			}
			waiting = waiting && !l.Stats().Blocked // that is a message's trouble, on any host
			rose := known && applied > p.applied
			if rose {
				s.out = 0
			}
			if p.looks++; !known || !waiting || rose || p.lane == l && steps > p.steps {
				p.looks = 0
			}
			s.lanes[at] = pace{l, steps, applied, p.looks}
			worst = max(worst, p.looks)
			if p.looks >= stuckChecks {
				stuck = append(stuck, session.partitionsOf(i)...)
			}
		}
	}
	slices.Sort(stuck)
	w.c.mu.Lock()
	w.c.stuck = stuck
	w.c.mu.Unlock()
	return worst >= stallChecks
}

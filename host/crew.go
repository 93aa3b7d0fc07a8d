package host

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/host/retry"
	"github.com/projhost/projhost/store"
)

// crew is what a consumer has at work on this host. Its sessions are over
// different partitions, grouped by how they came here: what is taken later is
// worked off beside what is there already, and joins it once it has come as far.
// It belongs to the consumer's own goroutine.
type crew struct {
	c        *consumer
	sessions []*session
	idle     map[int][]int // by group: partitions that are held and not at work
	groups   int           // the highest number of a group so far
	ends     chan *session
	claims   *retry.Loop // what fails and passes is counted apart: claims,
	opens    *retry.Loop // what a session is opened with,
	restarts *retry.Loop // and sessions
	report   func(error) // of those
	rest     time.Time   // nothing is taken or begun before
	stall    stall
	pruning  *pruning  // nil: none is under way
	prune    time.Time // none begins before
}

// groupsMax is how many sessions a consumer has at most: each has guests of its
// own. What is taken while there are as many joins the latest.
const groupsMax = 2

// run carries out orders until stop ends, and then waits for the batches in hand,
// at most until ctx ends.
func (c *consumer) run(ctx, stop context.Context) {
	if c.differs != nil && !c.stayOut(stop) {
		return
	}
	policy := c.host.policy()
	w := &crew{
		c: c, idle: make(map[int][]int), ends: make(chan *session),
		claims: policy.NewLoop(c.reporter().report), opens: policy.NewLoop(c.reporter().report),
		restarts: policy.NewLoop(nil), report: c.reporter().report,
	}
	for stop.Err() == nil {
		changed := c.share.Changed()
		w.turn(ctx, stop)
		w.wait(stop, changed)
	}
	if w.pruning != nil {
		w.pruning.stop()
		<-w.pruning.done
	}
	// Others take what each session gives back: a slow consumer holds up its own
	// partitions only.
	c.share.Withdraw(errShutdown.Error())
	w.handOver(ctx)
	for len(w.sessions) > 0 {
		s := <-w.ends
		w.ended(stop, s)
		if s.ended.kept { // else a batch may hold their rows locked, and that is not waited for twice
			w.handOver(ctx)
		}
	}
	if !c.isStopped() {
		c.setState(StateStopped, "", nil)
	}
}

// handOver gives back what is held and not at work.
func (w *crew) handOver(ctx context.Context) {
	c := w.c
	var back []int
	for p := range c.host.partitions {
		if _, held := c.share.Lease(p); held && !slices.ContainsFunc(w.sessions, func(s *session) bool { return s.has(p) }) {
			back = append(back, p)
		}
	}
	if len(back) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.host.cfg.ReleaseTimeout)
	defer cancel()
	if err := c.share.Release(ctx, back); err != nil {
		c.log.Warn("partitions are given back only when the host leaves", "partitions", len(back), "error", err)
	}
}

// wait lasts until there may be something to do.
func (w *crew) wait(stop context.Context, changed <-chan struct{}) {
	next := time.Until(w.stall.next)
	switch rest := time.Until(w.rest); {
	case rest > 0:
		next = min(next, rest)
	case len(w.sessions) > 1 || len(w.sessions) == 1 && w.sessions[0].replay.until != nil:
		next = min(next, w.c.host.cfg.Poll)
	}
	var pruned <-chan struct{}
	if w.pruning != nil {
		pruned = w.pruning.done
	}
	timer := time.NewTimer(next)
	defer timer.Stop()
	select {
	case <-changed:
	case s := <-w.ends:
		w.ended(stop, s)
	case <-pruned:
		w.pruneEnded()
	case <-timer.C:
	case <-stop.Done():
	}
}

// turn does what is to be done as things are. It never waits for a session: an
// end of one is another turn.
func (w *crew) turn(ctx, stop context.Context) {
	c := w.c
	w.watch()
	orders := c.share.Orders()
	c.heed(orders)
	stopped := c.isStopped()
	for _, s := range w.sessions {
		switch {
		case stopped:
			s.end(errHalted)
		case slices.ContainsFunc(s.partitions, func(p int) bool { return slices.Contains(orders.Drop, p) }):
			s.end(errMoved)
		}
	}
	w.giveBack(stop, orders.Drop)
	if !stopped && time.Until(w.rest) <= 0 {
		w.take(stop, orders.Take)
		w.begin(ctx, stop)
	}
	if !stopped {
		w.rebuild(stop, orders)
	}
	if !stopped && len(orders.Take) == 0 && len(orders.Drop) == 0 {
		w.join()
	}
	w.tell(!orders.At.IsZero())
}

// giveBack hands over what is not at work and due to others, and forgets what is
// not held any more.
func (w *crew) giveBack(stop context.Context, drop []int) {
	c := w.c
	var back []int
	for group, partitions := range w.idle {
		w.idle[group] = slices.DeleteFunc(partitions, func(p int) bool {
			_, held := c.share.Lease(p)
			due := held && slices.Contains(drop, p)
			if due {
				back = append(back, p)
			}
			if due || !held {
				c.place(nil, []int{p})
			}
			return due || !held
		})
		if len(w.idle[group]) == 0 {
			delete(w.idle, group)
		}
	}
	if len(back) == 0 {
		return
	}
	slices.Sort(back)
	if err := c.share.Release(stop, back); err != nil && stop.Err() == nil {
		c.log.Warn("partitions are not handed back yet", "partitions", len(back), "error", err)
	}
}

// take claims what is due to this host and not with a session that is about to
// end.
func (w *crew) take(stop context.Context, partitions []int) {
	c := w.c
	partitions = slices.DeleteFunc(slices.Clone(partitions), func(p int) bool {
		return slices.ContainsFunc(w.sessions, func(s *session) bool { return s.has(p) })
	})
	if len(partitions) == 0 {
		w.claims.Done() // what failed was for partitions that are not due any more
		return
	}
	grant, err := c.share.Take(stop, partitions)
	if err != nil {
		if stop.Err() == nil {
			// Whatever it fails with says nothing of a message: it never halts.
			w.pause(stop, w.claims, &store.TransientError{Op: "take partitions", Err: err})
		}
		return
	}
	w.claims.Done()
	if len(grant.Leases) == 0 {
		return
	}
	at := make(map[int]bool)
	for _, s := range w.sessions {
		at[s.group] = true
	}
	for group := range w.idle {
		at[group] = true
	}
	if len(at) < groupsMax && (len(at) == 0 || !c.together()) {
		w.groups++
	}
	for _, l := range grant.Leases {
		w.idle[w.groups] = append(w.idle[w.groups], l.Partition)
	}
	for _, s := range w.sessions {
		if s.group == w.groups {
			s.end(errJoined)
		}
	}
}

// begin has work done on what is idle, group by group.
func (w *crew) begin(ctx, stop context.Context) {
	c := w.c
	if len(w.idle) == 0 {
		w.opens.Done() // what failed was for partitions that are not held any more
	}
	for group, partitions := range maps.Clone(w.idle) {
		switch {
		case slices.ContainsFunc(w.sessions, func(s *session) bool { return s.group == group }):
			continue // the rest of the group is about to end
		case c.together() && len(partitions) < c.host.partitions:
			continue // nothing is applied before all are here
		}
		s, err := c.open(stop, partitions)
		switch {
		case err == nil:
		case errors.Is(err, errHalted):
			return
		case stop.Err() != nil:
			return
		case errors.Is(err, errOrphan):
			w.retry(stop, endingOf(c, err))
			return
		default:
			w.pause(stop, w.opens, endingOf(c, err).err)
			return
		}
		w.opens.Done()
		s.group = group
		delete(w.idle, group)
		w.sessions = append(w.sessions, s)
		c.place(s, s.partitions)
		w.report(nil)
		s.begin(ctx, stop, w.ends)
	}
}

// join makes one session of two that are about as far.
func (w *crew) join() {
	for _, a := range w.sessions {
		for _, b := range w.sessions {
			if a.group < b.group && a.near(b) {
				w.regroup(b.group, a.group)
				a.end(errJoined)
				b.end(errJoined)
				return
			}
		}
	}
}

// regroup makes one group of two.
func (w *crew) regroup(from, to int) {
	for _, s := range w.sessions {
		if s.group == from {
			s.group = to
		}
	}
	if idle := w.idle[from]; len(idle) > 0 {
		w.idle[to] = append(w.idle[to], idle...)
		delete(w.idle, from)
	}
}

// ended draws the consequences of a session's end.
func (w *crew) ended(stop context.Context, s *session) {
	c := w.c
	if s.late != nil {
		s.late.Stop()
	}
	w.sessions = slices.DeleteFunc(w.sessions, func(other *session) bool { return other == s })
	c.forget(s)
	maps.Copy(c.careful, s.ended.careful)
	if stop.Err() != nil {
		if s.ended.err != nil && !errors.Is(s.ended.err, errTooLong) {
			c.log.Warn("consumer stopped with an error; it goes on from its checkpoints", "error", s.ended.err)
		}
		return
	}
	if errors.Is(s.ended.err, store.ErrFenced) {
		c.mu.Lock()
		c.fenced++
		c.mu.Unlock()
	}
	if s.progressed() {
		w.restarts.Done()
	}
	c.keepRefused(s.ended.rows)
	switch s.ended.after {
	case halts:
		switch {
		case s.ended.untold != nil:
			w.untold(stop, s, s.ended.untold)
		case s.ended.recorded:
			w.halted(*s.ended.halt)
		default:
			w.halt(stop, *s.ended.halt)
		}
	case refused:
		c.log.Warn("database refuses a batch: looking for the message", "error", s.ended.err)
		w.report(s.ended.err)
	case failed, lost:
		w.retry(stop, s.ended)
	}
	if s.ended.kept {
		w.idle[s.group] = append(w.idle[s.group], s.partitions...)
		return
	}
	c.place(nil, s.partitions)
	c.share.Lost(s.partitions)
}

// retry is after the end of a session that is not to be its last.
func (w *crew) retry(stop context.Context, e ending) {
	if !errors.Is(e.err, errOrphan) { // the member has told it for all
		w.report(e.err)
	}
	w.pause(stop, w.restarts, e.err)
}

// pause is before anything is taken or begun again, longer and longer while
// nothing gets better. An error of a kind nobody knows halts the consumer where it
// does not go away.
func (w *crew) pause(stop context.Context, loop *retry.Loop, err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		// Nobody here gave it a time: whoever did had no answer by then.
		err = &store.TransientError{Op: "apply " + w.c.id.String(), Err: err}
	}
	pause, err := loop.Next(err)
	w.rest = time.Now().Add(pause)
	if err != nil {
		loop.Done()
		w.halt(stop, store.Halt{
			Reason: store.HaltApplyError, Code: int(abi.CodeDatabase), Message: err.Error(), Digest: w.c.plugin.Module.Digest(),
		})
	}
}

// tell says what the consumer is doing; known tells whether anybody has said
// what it is to do.
func (w *crew) tell(known bool) {
	c := w.c
	switch {
	case c.isStopped():
	case !w.stall.returnAt.IsZero():
		c.setState(StateWithdrawn, w.stall.why, nil)
	case len(w.sessions) > 0 && w.sessions[0].replay.until != nil:
		c.setState(StateRebuilding, "", nil)
	case len(w.sessions) > 0:
		c.setState(StateRunning, "", nil)
	case len(w.idle) == 0 && known:
		w.report(nil) // what failed was for partitions that are not due any more
		c.setState(StateWaiting, "", nil)
	}
}

package mark

import "strings"

// tracker is the algorithm without the database. An observation is the end of
// the sequence and then, read after it, who holds its lock.
//
// Why it is right: let T have drawn p ≤ the mark that an observation gave. The
// sequence only rises, so p was drawn before that end was read, and the lock was
// taken before p was drawn. If T still held the lock, it was first seen in some
// observation and not in the one before, so it took the lock after the end of
// the one before had been read: p is above that end, which is T's floor, and the
// mark does not pass a floor. So T has let go, which it does after its rows
// became visible.
type tracker struct {
	mark    int64
	prevEnd int64 // of the last observation
	seen    map[string]int64
	fresh   bool // nothing was observed yet: the holders may have drawn anything above the mark
}

func newTracker(mark int64) *tracker { return &tracker{mark: mark, fresh: true} }

// observe moves the mark. holders are virtual transactions, which name a
// transaction for its whole life: process ids do not, a session that has
// prepared one transaction runs the next.
func (t *tracker) observe(end int64, holders []string) int64 {
	if end < t.prevEnd {
		// Positions are handed out again: whoever is open may hold one below
		// the floor he was given.
		t.forget()
	}
	holding := make(map[string]bool, len(holders))
	for _, h := range holders {
		holding[h] = true
	}
	// A prepared transaction that was recovered, or that an old server renames,
	// shows as -1/xid. It may be one of those that are missing now.
	renamed := t.prevEnd
	for h, floor := range t.seen {
		if !holding[h] {
			renamed = min(renamed, floor)
		}
	}
	seen, safe := make(map[string]int64, len(holders)), end
	for h := range holding {
		floor, known := t.seen[h]
		switch {
		case known:
		case t.fresh:
			floor = t.mark
		case strings.HasPrefix(h, "-1/"):
			floor = renamed
		default:
			floor = t.prevEnd
		}
		seen[h] = floor
		safe = min(safe, floor)
	}
	t.mark = max(t.mark, safe)
	t.prevEnd, t.seen, t.fresh = end, seen, false
	return t.mark
}

// raise takes over a mark that another detector has committed.
func (t *tracker) raise(mark int64) { t.mark = max(t.mark, mark) }

// forget keeps the mark and nothing of what was observed.
func (t *tracker) forget() { t.prevEnd, t.seen, t.fresh = 0, nil, true }

// holding gives those that the mark waits for first: the holders of the lowest
// floor.
func (t *tracker) holding() (holders []string) {
	for h, floor := range t.seen {
		switch {
		case len(holders) == 0 || floor < t.seen[holders[0]]:
			holders = append(holders[:0], h)
		case floor == t.seen[holders[0]]:
			holders = append(holders, h)
		}
	}
	return holders
}

package host

import (
	"slices"
	"time"

	"github.com/projhost/projhost/store"
)

// RebuildStatus is how far a rebuild in place is, on all hosts. Positions stand for
// messages, of which there may be fewer; a partition that is half through counts for
// half.
type RebuildStatus struct {
	Total     int64   // positions to be applied anew, of all topics
	Remaining int64   // of them
	Rate      float64 // of them a second, as of late; 0: not known
	// Pruned of Partitions are done with it, and wait for the others.
	Pruned, Partitions int
	// HistoryMissing: what of the history is gone is not made again, and so nothing
	// is pruned.
	HistoryMissing bool
}

// rebuilding tells how far a rebuild is, nil if none is under way. applied tells
// what is known here of a partition, or less.
func rebuilding(told map[string][]store.Standing, applied func(topic string, p int) int64) *RebuildStatus {
	r := &RebuildStatus{}
	under := false
	var unpruned []int
	for topic, list := range told {
		r.Partitions = max(r.Partitions, len(list))
		through, left := int64(0), int64(0)
		for _, s := range list {
			if s.Rebuilding && !slices.Contains(unpruned, s.Partition) {
				unpruned = append(unpruned, s.Partition)
			}
			under = under || s.Rebuilding || s.ReplayThrough > 0
			r.HistoryMissing = r.HistoryMissing || s.IncompleteThrough > 0
			through = max(through, s.ReplayThrough)
			left += max(0, s.ReplayThrough-max(s.Applied, applied(topic, s.Partition)))
		}
		if len(list) > 0 {
			r.Total += through
			r.Remaining += (left + int64(len(list)) - 1) / int64(len(list))
		}
	}
	if !under {
		return nil
	}
	r.Pruned = r.Partitions - len(unpruned)
	return r
}

// rateEvery is the time over which the rate of a rebuild is told, at least.
const rateEvery = time.Second

// pulse is what a rebuild had left at some time.
type pulse struct {
	epoch, left int64
	at          time.Time
	rate        float64
}

// beat tells how fast a rebuild is since it was looked at last. The consumer's lock
// is held.
func (p *pulse) beat(epoch, left int64) float64 {
	now := time.Now()
	switch since := now.Sub(p.at); {
	case p.epoch != epoch || left > p.left:
		*p = pulse{epoch: epoch, left: left, at: now}
	case since >= rateEvery:
		*p = pulse{epoch: epoch, left: left, at: now, rate: float64(p.left-left) / since.Seconds()}
	}
	return p.rate
}

// replayLag is how many positions the partition has left that is furthest behind of
// those a rebuild has here.
func replayLag(placed []*session) (left int64) {
	for p, s := range placed {
		if s == nil {
			continue
		}
		for t, until := range s.replay.until {
			left = max(left, until-s.applied(t, p))
		}
	}
	return left
}

// keptRows tells of rows that were not pruned since history was missing.
func keptRows(told map[string][]store.Standing) (through int64, topic string) {
	for name, list := range told {
		for _, s := range list {
			if s.IncompleteThrough > through {
				through, topic = s.IncompleteThrough, name
			}
		}
	}
	return through, topic
}

package lane

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
	"time"

	"github.com/projhost/projhost/store"
)

// lines are the keys of a lane's partitions that are held: an earlier message of
// theirs could not be applied, and what follows waits behind it in the database.
// Only the heads' states are kept here; whoever tries one again reads its row.
//
// What they say is true as long as the lane's writes are not refused: whoever
// else changes a row raises the generation of its partition first (H13).
type lines struct {
	byKey map[lineKey]*line
	due   dueLines // those that are ever tried
	// inOrder: all keys are one scope (H22), so only the line that is oldest is
	// ever tried.
	inOrder bool
	added   int
}

type lineKey struct {
	partition int
	key       string
}

// line is a key that is held. rows counts the head and those behind it.
type line struct {
	lineKey
	status store.UndeliveredStatus // of the head
	rows   int64
	due    time.Time // of a head that is tried; a WAITING one is due at once
	place  int       // in dueLines, -1: never due
	age    int       // the oldest line has the lowest
}

func newLines(heads []store.Head, inOrder bool) *lines {
	ls := &lines{byKey: make(map[lineKey]*line, len(heads)), inOrder: inOrder}
	heads = slices.SortedFunc(slices.Values(heads), func(a, b store.Head) int { return cmp.Compare(a.ID, b.ID) })
	now := time.Now()
	for i := range heads {
		h := &heads[i]
		ls.add(h.Partition, h.Key, h.Status, now.Add(h.RetryIn)).rows += h.Followers
	}
	return ls
}

// count is how many rows there are in all lines.
func (ls *lines) count() int64 {
	n := int64(0)
	for _, ln := range ls.byKey {
		n += ln.rows
	}
	return n
}

// get returns the line of a key, nil if it is not held.
func (ls *lines) get(partition int, key string) *line {
	if len(ls.byKey) == 0 {
		return nil
	}
	return ls.byKey[lineKey{partition, key}]
}

// add holds a key that was not.
func (ls *lines) add(partition int, key string, status store.UndeliveredStatus, due time.Time) *line {
	ls.added++
	// Keys share memory with the page of their message: keep copies.
	ln := &line{lineKey: lineKey{partition, strings.Clone(key)}, rows: 1, place: -1, age: ls.added}
	ls.byKey[ln.lineKey] = ln
	ls.set(ln, status, due)
	return ln
}

// set gives a line's head another state.
func (ls *lines) set(ln *line, status store.UndeliveredStatus, due time.Time) {
	ln.status, ln.due = status, due
	tried := status == store.StatusFailed || status == store.StatusWaiting
	switch {
	case tried && ln.place < 0:
		heap.Push(&ls.due, ln)
	case tried:
		heap.Fix(&ls.due, ln.place)
	case ln.place >= 0:
		heap.Remove(&ls.due, ln.place)
	}
}

// remove lets a key go on.
func (ls *lines) remove(ln *line) {
	if ln.place >= 0 {
		heap.Remove(&ls.due, ln.place)
	}
	delete(ls.byKey, ln.lineKey)
}

// next returns the line that is due first, nil if none ever is.
func (ls *lines) next() *line {
	if ls.inOrder {
		var oldest *line
		for _, ln := range ls.byKey {
			if oldest == nil || ln.age < oldest.age {
				oldest = ln
			}
		}
		if oldest == nil || oldest.place < 0 {
			return nil
		}
		return oldest
	}
	if len(ls.due) == 0 {
		return nil
	}
	return ls.due[0]
}

// dueLines is a heap, first due first.
type dueLines []*line

func (d dueLines) Len() int           { return len(d) }
func (d dueLines) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d dueLines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].place, d[j].place = i, j
}

func (d *dueLines) Push(x any) {
	ln := x.(*line)
	ln.place = len(*d)
	*d = append(*d, ln)
}

func (d *dueLines) Pop() any {
	last := len(*d) - 1
	ln := (*d)[last]
	(*d)[last] = nil
	*d, ln.place = (*d)[:last], -1
	return ln
}

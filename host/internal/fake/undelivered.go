package fake

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/store"
)

// undelivered is what a build keeps of messages that could not be applied.
type undelivered struct {
	rows  []store.UndeliveredMessage // by id
	skips map[store.Skip]bool
}

// Rows of a build are lines by partition and key.
type lineOf struct {
	partition int
	key       string
}

// head returns the index of the first row of a line that holds it, -1 if none.
func (u *undelivered) head(at lineOf) int {
	return slices.IndexFunc(u.rows, func(m store.UndeliveredMessage) bool {
		return m.Partition == at.partition && m.Key == at.key && m.Status != store.StatusDeadLetter
	})
}

// Undelivered returns the rows of a consumer's live build, by id.
func (s *Store) Undelivered(id store.ConsumerID) []store.UndeliveredMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown(s.builds[s.consumers[id].Build].rows)
}

// SkipsOf returns the skip records of a consumer's live build.
func (s *Store) SkipsOf(id store.ConsumerID) []store.Skip {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.builds[s.consumers[id].Build].skips), compareSkips)
}

func compareSkips(a, b store.Skip) int {
	return cmp.Or(strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Position, b.Position),
		cmp.Compare(a.Partition, b.Partition), strings.Compare(a.Key, b.Key))
}

// shown gives rows the form in which they are read now.
func (s *Store) shown(rows []store.UndeliveredMessage) []store.UndeliveredMessage {
	rows = slices.Clone(rows)
	now := time.Now().UnixMicro()
	for i := range rows {
		rows[i].RetryIn = max(0, time.Duration(rows[i].RetryUS-now)*time.Microsecond)
		if rows[i].RetryUS == 0 {
			rows[i].RetryIn = 0
		}
	}
	return rows
}

func bare(m store.UndeliveredMessage) store.UndeliveredMessage {
	m.Event.Data, m.Event.Metadata = nil, nil
	return m
}

// checkOutcomes holds a batch to what package store says of its retries, records
// and skips.
func (s *Store) checkOutcomes(b *build, batch *store.Batch, leased map[int]bool) error {
	retried := make(map[lineOf]bool)
	for i, r := range batch.Retries {
		if i > 0 && batch.Retries[i-1].ID >= r.ID {
			s.breach("retries are not sorted: %v", batch.Retries)
		}
		if !leased[r.Partition] {
			s.breach("retry in partition %d without its lease", r.Partition)
		}
		at := b.row(r.ID)
		if at < 0 {
			return store.ErrRetryMoved
		}
		m := &b.rows[at]
		if m.Partition != r.Partition || m.Status != r.Status || m.Attempts != r.Attempts || m.Passing != r.Passing {
			return store.ErrRetryMoved
		}
		retried[lineOf{m.Partition, m.Key}] = true
		if r.Then != nil {
			s.checkWords(r.Then)
		}
	}
	seen := make(map[lineOf]store.UndeliveredStatus)
	for i := range batch.Records {
		r := &batch.Records[i]
		at := lineOf{r.Partition, r.Key}
		s.checkWords(r)
		if !leased[r.Partition] {
			s.breach("record in partition %d without its lease", r.Partition)
		}
		if r.Event == nil || r.Event.ID == (store.ID{}) && r.Event.Position == 0 {
			s.breach("record without a copy: %+v", r)
			continue
		}
		if slices.ContainsFunc(b.rows, func(m store.UndeliveredMessage) bool {
			return m.Topic == r.Topic && m.Event.Position == r.Event.Position && m.Partition == r.Partition && m.Key == r.Key
		}) {
			s.breach("message %d is recorded twice for %q", r.Event.Position, r.Key)
			return &store.DataError{Table: "undelivered", Err: errors.New("unique")}
		}
		if r.Unresolved {
			if r.Event.Position <= b.checkpoints[r.Topic][r.Partition] || r.Event.Data != nil {
				s.breach("record of unresolved message %d: it is behind the checkpoint, or has a copy", r.Event.Position)
			}
			continue
		}
		if partition.Of(r.Key, s.N) != r.Partition {
			s.breach("record of %q in partition %d", r.Key, r.Partition)
		}
		if !slices.ContainsFunc(batch.Checkpoints, func(m store.CheckpointMove) bool {
			return m.Topic == r.Topic && m.Partition == r.Partition && m.From < r.Event.Position && r.Event.Position <= m.To
		}) {
			s.breach("record of message %d in partition %d, which the batch does not pass", r.Event.Position, r.Partition)
		}
		before, held := seen[at]
		if h := b.head(at); !held && h >= 0 {
			before, held = b.rows[h].Status, true
		}
		follows := r.Status == store.StatusWaiting || r.Status == store.StatusDeadLetterKey && r.Code == 0
		switch {
		case held && !follows:
			s.breach("message %d of %q fails as %s though its key is held", r.Event.Position, r.Key, r.Status)
		case held && (before == store.StatusDeadLetterKey) != (r.Status == store.StatusDeadLetterKey):
			s.breach("message %d of %q is %s behind %s", r.Event.Position, r.Key, r.Status, before)
		case !held && r.Status != store.StatusDeadLetter:
			seen[at] = r.Status
		}
	}
	for _, k := range batch.Skips {
		if !leased[k.Partition] {
			s.breach("skip in partition %d without its lease", k.Partition)
		}
	}
	// A key that was held before the batch changes by retries only (P3).
	for _, w := range batch.Tables {
		for _, write := range w.Writes {
			at := lineOf{partition.Of(write.Key.Key, s.N), write.Key.Key}
			if !w.Table.Table.Free && b.head(at) >= 0 && !retried[at] {
				s.breach("row %v is written though its key is held", write.Key)
			}
		}
	}
	return nil
}

func (s *Store) checkWords(r *store.Record) {
	if !utf8.ValidString(r.Reason) || strings.ContainsRune(r.Reason, 0) || utf8.RuneCountInString(r.Reason) > store.UndeliveredReasonMax {
		s.breach("reason %q cannot be stored", r.Reason)
	}
	switch r.Status {
	case store.StatusFailed, store.StatusWaiting, store.StatusHalted, store.StatusDeadLetterKey, store.StatusDeadLetter:
	default:
		s.breach("status %q", r.Status)
	}
	if r.RetryIn != 0 && r.Status != store.StatusFailed {
		s.breach("%s is due in %s", r.Status, r.RetryIn)
	}
	if r.Status == store.StatusFailed && (r.Code == 0 || r.Attempts+r.Passing == 0) {
		s.breach("FAILED without a failure: %+v", r)
	}
}

func (u *undelivered) row(id int64) int {
	at, ok := slices.BinarySearchFunc(u.rows, id, func(m store.UndeliveredMessage, id int64) int { return cmp.Compare(m.ID, id) })
	if !ok {
		return -1
	}
	return at
}

// become gives a row the state that a record says.
func become(m *store.UndeliveredMessage, r *store.Record) {
	now := time.Now().UnixMicro()
	if m.Attempts+m.Passing == 0 {
		m.BudgetUS = now
	}
	m.Status, m.Code, m.Reason, m.Attempts, m.Passing, m.Digest = r.Status, r.Code, r.Reason, r.Attempts, r.Passing, r.Digest
	m.LastUS, m.RetryUS = now, 0
	if r.RetryIn > 0 {
		m.RetryUS = now + r.RetryIn.Microseconds()
	}
}

// writeOutcomes does what checkOutcomes has found right.
func (s *Store) writeOutcomes(b *build, c *consumer, batch *store.Batch) {
	for _, r := range batch.Retries {
		at := b.row(r.ID)
		line := lineOf{b.rows[at].Partition, b.rows[at].Key}
		if r.Line != "" {
			b.setLine(line, r.ID, r.Line)
		}
		if r.Then == nil {
			b.rows = slices.Delete(b.rows, at, at+1)
			continue
		}
		become(&b.rows[at], r.Then)
	}
	for i := range batch.Records {
		r := &batch.Records[i]
		s.rowIDs++
		m := store.UndeliveredMessage{
			ID: s.rowIDs, Topic: r.Topic, Partition: r.Partition, Key: strings.Clone(r.Key), Unresolved: r.Unresolved,
			FirstUS: time.Now().UnixMicro(), Event: *r.Event,
		}
		m.Event.Data, m.Event.Metadata = slices.Clone(r.Event.Data), slices.Clone(r.Event.Metadata)
		become(&m, r)
		m.BudgetUS = m.FirstUS
		b.rows = append(b.rows, m)
	}
	for _, k := range batch.Skips {
		b.skips[k] = true
		c.tell(store.HistoryEntry{Actor: "host", Action: store.ActionSkip, Topic: k.Topic, Partition: k.Partition, Position: k.Position, Key: k.Key})
	}
	if batch.Halt != nil && (c.State == store.StateRunning || c.State == store.StateRebuilding) {
		h := *batch.Halt
		c.State, c.Consumer.Halt = store.StateHalted, &h
	}
}

// setLine gives those behind a row of a line another state.
func (u *undelivered) setLine(line lineOf, behind int64, to store.UndeliveredStatus) {
	for i := range u.rows {
		m := &u.rows[i]
		if m.ID > behind && m.Partition == line.partition && m.Key == line.key &&
			(m.Status == store.StatusWaiting || m.Status == store.StatusDeadLetterKey) {
			m.Status = to
		}
	}
}

func (c *consumer) tell(e store.HistoryEntry) {
	e.ID, e.Build, e.AtUS = int64(len(c.history)+1), c.Build, time.Now().UnixMicro()
	c.history = append(c.history, e)
}

// Heads implements store.Undelivered.
func (s *Store) Heads(_ context.Context, id int64, partitions []int) ([]store.Head, error) {
	after, err := s.call("Heads")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := make(map[lineOf]int)
	var out []store.Head
	for _, m := range s.shown(s.builds[id].rows) {
		line := lineOf{m.Partition, m.Key}
		if m.Status == store.StatusDeadLetter || !slices.Contains(partitions, m.Partition) {
			continue
		}
		if i, ok := at[line]; ok {
			out[i].Followers++
			continue
		}
		at[line] = len(out)
		out = append(out, store.Head{UndeliveredMessage: bare(m)})
	}
	slices.SortFunc(out, func(a, b store.Head) int {
		return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.ID, b.ID))
	})
	return out, after
}

// Line implements store.Undelivered.
func (s *Store) Line(_ context.Context, id int64, partition int, key string, above int64, limit int) ([]store.UndeliveredMessage, error) {
	after, err := s.call("Line")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []store.UndeliveredMessage
	for _, m := range s.shown(s.builds[id].rows) {
		if m.Partition == partition && m.Key == key && m.Status != store.StatusDeadLetter && m.ID > above && len(out) < limit {
			out = append(out, m)
		}
	}
	return out, after
}

// Skips implements store.Undelivered.
func (s *Store) Skips(_ context.Context, id int64, topic string, above int64) ([]store.Skip, error) {
	after, err := s.call("Skips")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []store.Skip
	for k := range s.builds[id].skips {
		if k.Topic == topic && k.Position > above {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, compareSkips)
	return out, after
}

// SweepSkips implements store.Undelivered.
func (s *Store) SweepSkips(_ context.Context, id int64) (int, error) {
	after, err := s.call("SweepSkips")
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.builds[id]
	n := len(b.skips)
	maps.DeleteFunc(b.skips, func(k store.Skip, _ bool) bool {
		at := b.checkpoints[k.Topic][k.Partition]
		if k.EveryKey {
			at = slices.Min(b.checkpoints[k.Topic])
		}
		return at >= k.Position && !slices.ContainsFunc(b.rows, func(m store.UndeliveredMessage) bool {
			return m.Topic == k.Topic && m.Event.Position == k.Position
		})
	})
	return n - len(b.skips), after
}

// CountUndelivered implements store.Undelivered.
func (s *Store) CountUndelivered(context.Context) (map[store.ConsumerID]map[store.UndeliveredStatus]int64, error) {
	after, err := s.call("CountUndelivered")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[store.ConsumerID]map[store.UndeliveredStatus]int64)
	for id, c := range s.consumers {
		for _, m := range s.builds[c.Build].rows {
			if out[id] == nil {
				out[id] = make(map[store.UndeliveredStatus]int64)
			}
			out[id][m.Status]++
		}
	}
	return out, after
}

// ListUndelivered implements store.Undelivered.
func (s *Store) ListUndelivered(_ context.Context, q store.UndeliveredQuery) ([]store.UndeliveredMessage, error) {
	after, err := s.call("ListUndelivered")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []store.UndeliveredMessage
	if c := s.consumers[q.Consumer]; c != nil {
		for _, m := range s.shown(s.builds[c.Build].rows) {
			if m.ID > q.After && selected(q.Selection, &m) && len(out) < q.Limit {
				out = append(out, bare(m))
			}
		}
	}
	return out, after
}

func selected(q store.Selection, m *store.UndeliveredMessage) bool {
	return (q.ID == 0 || q.ID == m.ID) && (q.Key == "" || q.Key == m.Key) && (q.EventType == "" || q.EventType == m.Event.Type) &&
		(q.Status == "" || q.Status == m.Status) && (q.Topic == "" || q.Topic == m.Topic)
}

// UndeliveredMessage implements store.Undelivered.
func (s *Store) UndeliveredMessage(_ context.Context, id store.ConsumerID, row int64) (store.UndeliveredMessage, error) {
	after, err := s.call("UndeliveredMessage")
	if err != nil {
		return store.UndeliveredMessage{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.consumers[id]
	if c == nil {
		return store.UndeliveredMessage{}, store.ErrNotFound
	}
	b := s.builds[c.Build]
	at := b.row(row)
	if at < 0 {
		return store.UndeliveredMessage{}, store.ErrNotFound
	}
	return s.shown(b.rows[at : at+1])[0], after
}

// History implements store.Undelivered.
func (s *Store) History(_ context.Context, id store.ConsumerID, above int64, limit int) ([]store.HistoryEntry, error) {
	after, err := s.call("History")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []store.HistoryEntry
	if c := s.consumers[id]; c != nil {
		for _, e := range c.history {
			if e.ID > above && len(out) < limit {
				out = append(out, e)
			}
		}
	}
	return out, after
}

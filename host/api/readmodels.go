package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/partition"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

const (
	waitDefault = 2 * time.Second
	waitMax     = time.Minute
)

// freshness is what a reader of a read model asks for.
type freshness struct {
	wanted   bool
	topic    string
	position int64
	wait     time.Duration
	stale    bool
}

func freshnessOf(p *params) (f freshness) {
	if s, ok := p.str("min_position"); ok {
		f.wanted, f.topic = true, store.EventsTopic
		// A topic's name may hold colons: the position follows the last one.
		if i := strings.LastIndexByte(s, ':'); i >= 0 {
			f.topic, s = s[:i], s[i+1:]
		}
		var err error
		if f.position, err = strconv.ParseInt(s, 10, 64); err != nil || f.position < 0 || f.topic == "" {
			p.fail("parameter %q must be a position of topic events, or TOPIC:POSITION", "min_position")
		}
	}
	f.wait = p.duration("wait", waitDefault, waitMax)
	if s, ok := p.str("stale"); ok {
		if s != "ok" {
			p.fail(`parameter "stale" can only be "ok"`)
		}
		f.stale = true
	}
	return f
}

// read opens a view of the projection that is as fresh as asked for, and puts
// the headers that say how fresh it is. partitionOf tells the partition of the
// messages of key, or AllPartitions where the rows are of more than one key.
func (s *Server) read(w http.ResponseWriter, r *http.Request, f freshness, name, key string, partitionOf func(c *store.Consumer) (int, error),
	use func(v store.ReadView) error) error {
	id := store.ConsumerID{Type: "projection", Name: name}
	c, err := s.consumer(r.Context(), id)
	if err != nil {
		return err
	}
	part, err := partitionOf(c)
	if err != nil {
		return err
	}
	// No view is open while we wait, so that the database can tidy up behind us.
	reached := false
	if f.wanted {
		if reached, err = s.await(r.Context(), w, c, f, part); err != nil {
			return err
		}
	}
	// Positions are taken before the rows: the rows are at least as fresh.
	applied := map[string]int64{}
	for _, topic := range c.Topics {
		if p, ok := s.deps.Runtime.Applied(id, topic, part); ok {
			applied[topic] = p
		}
	}
	if reached {
		applied[f.topic] = max(applied[f.topic], f.position)
	}
	return s.view(r.Context(), id, func(v store.ReadView) error {
		now := v.Consumer()
		if now.Build != c.Build {
			// Another build is live by now; what we asked was about the old one.
			s.consumers.Store(id, &now)
			clear(applied)
		}
		if err := mergePositions(applied, v, part); err != nil {
			return err
		}
		if h := s.deps.Runtime.Halted(id); h != nil {
			now.State, now.Halt = store.StateHalted, h
		}
		w.Header().Set("Projhost-Position", positionHeader(now.Topics, applied))
		w.Header().Set("Projhost-State", string(now.State))
		if now.State == store.StateHalted && !f.stale {
			return halted(now.ID, now.Halt)
		}
		if err := held(w, v, f, part, key); err != nil {
			return err
		}
		return use(v)
	})
}

// held tells by a header whether messages of the key wait, or how many do of all
// keys. A checkpoint passes them, so who waits for a position cannot see it from
// that: if one up to there is not in the row, it is an error.
func held(w http.ResponseWriter, v store.ReadView, f freshness, part int, key string) error {
	if part == AllPartitions {
		n, err := v.CountHeld()
		if n > 0 {
			w.Header().Set(HeldHeader, strconv.FormatInt(n, 10))
		}
		return err
	}
	m, err := v.Held(part, key)
	if m == nil || err != nil {
		return err
	}
	w.Header().Set(HeldHeader, "1")
	// Behind the head of another topic there may be anything of this one.
	if !f.wanted || f.stale || m.Topic == f.topic && m.Event.Position > f.position {
		return nil
	}
	why := m.Reason
	if why == "" {
		why = "its turn has not come"
	}
	c := v.Consumer()
	item := undeliveredOf(c.ID, m)
	return fail(http.StatusServiceUnavailable, CodeKeyHeld, "message %d of %s is not applied to key %q and holds it (undelivered message %d, %s): %s; stale=ok reads the row without it",
		m.Event.Position, m.Topic, m.Key, m.ID, m.Status, why).
		with("key", m.Key).with("undelivered", item)
}

// HeldHeader says of a row that messages of its key wait, and of a list how many do.
const HeldHeader = "Projhost-Held"

// mergePositions raises the positions to the view's.
func mergePositions(applied map[string]int64, v store.ReadView, part int) error {
	if part == AllPartitions {
		positions, err := v.Positions()
		for topic, p := range positions {
			applied[topic] = max(applied[topic], p)
		}
		return err
	}
	for _, topic := range v.Consumer().Topics {
		p, err := v.Position(topic, part)
		if err != nil {
			return err
		}
		applied[topic] = max(applied[topic], p)
	}
	return nil
}

// consumer gives a projection's inputs and tables, which its build fixes: what
// an earlier reader saw of them will do. Its state is of that time.
func (s *Server) consumer(ctx context.Context, id store.ConsumerID) (*store.Consumer, error) {
	if c, ok := s.consumers.Load(id); ok {
		return c.(*store.Consumer), nil
	}
	var c store.Consumer
	if err := s.view(ctx, id, func(v store.ReadView) error { c = v.Consumer(); return nil }); err != nil {
		return nil, err
	}
	s.consumers.Store(id, &c)
	return &c, nil
}

func (s *Server) view(ctx context.Context, id store.ConsumerID, use func(v store.ReadView) error) (err error) {
	v, err := s.deps.Store.View(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		// At a first start projections appear while the host already answers.
		if ready, reasons := s.deps.Runtime.Ready(); !ready {
			return fail(http.StatusServiceUnavailable, CodeNotReady, "there is no projection %q yet: the host is not ready", id.Name).with("reasons", reasons)
		}
		return fail(http.StatusNotFound, CodeNotFound, "there is no projection %q", id.Name)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	return use(v)
}

// positionHeader is the bare position for a projection of the events alone,
// else TOPIC:POSITION of each topic.
func positionHeader(topics []string, applied map[string]int64) string {
	if len(topics) == 1 && topics[0] == store.EventsTopic {
		return strconv.FormatInt(applied[topics[0]], 10)
	}
	parts := make([]string, len(topics))
	for i, t := range topics {
		parts[i] = fmt.Sprintf("%s:%d", t, applied[t])
	}
	return strings.Join(parts, ", ")
}

func halted(id store.ConsumerID, h *store.Halt) *apiError {
	if h == nil {
		h = &store.Halt{}
	}
	return fail(http.StatusServiceUnavailable, CodeProjectionHalted,
		"%s is halted (%s): %s; stale=ok reads what it has", id, h.Reason, h.Message).
		with("halt_reason", h.Reason).with("halt", HaltOf(h))
}

func notAnInput(c *store.Consumer, topic string) error {
	return fail(http.StatusBadRequest, CodeNotAnInput, "%s does not read topic %q; it reads %s", c.ID, topic, strings.Join(c.Topics, ", ")).
		with("topic", topic).with("inputs", c.Topics)
}

// errPaused is a wait for a projection that is paused and not there.
var errPaused = errors.New("the projection is paused")

// await blocks until the projection has applied what the reader asks for. One that
// is paused will not: a reader who takes old rows gets them at once, and is told
// that the position is not reached.
func (s *Server) await(ctx context.Context, w http.ResponseWriter, c *store.Consumer, f freshness, part int) (reached bool, err error) {
	if !slices.Contains(c.Topics, f.topic) {
		return false, notAnInput(c, f.topic)
	}
	ctx, cancel := context.WithTimeout(ctx, f.wait)
	defer cancel()
	switch err = s.waitApplied(ctx, w, c, f, part); {
	case errors.Is(err, errPaused) && f.stale:
		return false, nil
	case errors.Is(err, errPaused):
		w.Header().Set("Projhost-State", string(store.StatePaused))
		return false, fail(http.StatusServiceUnavailable, CodeProjectionPaused, "%s is paused and has not applied %s up to %d: it will when it is resumed; stale=ok reads what it has", c.ID, f.topic, f.position).
			with("topic", f.topic).with("position", f.position)
	}
	return err == nil, err
}

// A wait looks after pausedSoon whether the projection is paused, and then every
// pausedLate: most are over before.
const (
	pausedSoon = 50 * time.Millisecond
	pausedLate = time.Second
)

// waitApplied waits until ctx, which is of the reader's wait, ends.
func (s *Server) waitApplied(ctx context.Context, w http.ResponseWriter, c *store.Consumer, f freshness, part int) (err error) {
	for step := pausedSoon; ; step = pausedLate {
		look, cancel := context.WithTimeout(ctx, step)
		err = s.deps.Runtime.WaitApplied(look, c.ID, f.topic, f.position, part)
		cancel()
		if _, late := errors.AsType[*NotCaughtUpError](err); !late || ctx.Err() != nil {
			break
		}
		if lagging, err := s.lagging(context.WithoutCancel(ctx), w, c.ID, f, part); err != nil || len(lagging) == 0 {
			return err
		}
	}
	if err == nil {
		return nil
	}
	late := fail(http.StatusGatewayTimeout, CodeNotCaughtUp, "%s has not applied %s up to %d within %s", c.ID, f.topic, f.position, f.wait).
		with("topic", f.topic).with("position", f.position)
	if e, ok := errors.AsType[*NotCaughtUpError](err); ok {
		return late.with("lagging", listed(e.Lagging))
	}
	if e, ok := errors.AsType[*HaltedError](err); ok {
		w.Header().Set("Projhost-State", string(store.StateHalted))
		if f.stale {
			return late.with("lagging", listed(e.Lagging)).with("halt_reason", e.Halt.Reason)
		}
		return halted(c.ID, &e.Halt)
	}
	if !errors.Is(err, ErrNotRun) {
		return err
	}
	// Nobody here knows: what hosts have told the store is all there is to know.
	for {
		lagging, err := s.lagging(context.WithoutCancel(ctx), w, c.ID, f, part)
		if err != nil || len(lagging) == 0 {
			return err
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return late.with("lagging", lagging)
		}
	}
}

// lookEvery is the pause between looks at how far other hosts are.
const lookEvery = 100 * time.Millisecond

// lagging lists by the store alone the partitions that are not as far as the reader
// asks for. A projection that is halted is an error, and errPaused a paused one that
// is not there.
func (s *Server) lagging(ctx context.Context, w http.ResponseWriter, id store.ConsumerID, f freshness, part int) (list []Lagging, err error) {
	err = s.view(ctx, id, func(v store.ReadView) error {
		now := v.Consumer()
		if now.State == store.StateHalted && !f.stale {
			w.Header().Set("Projhost-State", string(now.State))
			return halted(now.ID, now.Halt)
		}
		standings, err := v.Standings()
		for _, at := range standings[f.topic] {
			if (part == AllPartitions || part == at.Partition) && at.Applied < f.position {
				list = append(list, Lagging{at.Partition, at.Applied})
			}
		}
		if err == nil && len(list) > 0 && now.State == store.StatePaused {
			return errPaused
		}
		return err
	})
	return list, err
}

// listed is a list that is never null.
func listed(list []Lagging) []Lagging { return append([]Lagging{}, list...) }

// tableOf finds the table asked for, by default the projection's first that is
// no child table.
func tableOf(c *store.Consumer, name string) (*readmodel.Table, error) {
	var names []string
	for _, t := range c.Tables {
		if name == "" && t.Table.Parent == nil || strings.EqualFold(t.Table.Name, name) {
			return t.Table, nil
		}
		names = append(names, t.Table.Name)
	}
	return nil, fail(http.StatusNotFound, CodeNotFound, "%s has no table %q; it has %s", c.ID, name, strings.Join(names, ", "))
}

// getRow is GET /v1/read-models/{projection}/{key}: one row with the first
// children of each child table; with ?table= naming a child table, a page of
// that table's children of the key.
func (s *Server) getRow(w http.ResponseWriter, r *http.Request) error {
	p := paramsOf(r)
	f := freshnessOf(p)
	tableName, _ := p.str("table")
	after, _ := p.str("after")
	limit := int(p.int("limit", defaultLimit, 1, rowsMax))
	if err := p.done(); err != nil {
		return err
	}
	key := r.PathValue("key")
	info, err := s.deps.Store.Info(r.Context())
	if err != nil {
		return err
	}
	var out []byte
	err = s.read(w, r, f, r.PathValue("projection"), key, func(c *store.Consumer) (int, error) {
		t, err := tableOf(c, tableName)
		if err != nil {
			return 0, err
		}
		if after != "" && t.Parent == nil {
			return 0, badRequest(`parameter "after" needs "table" with the name of a child table`)
		}
		if t.Free {
			return AllPartitions, nil // its keys are not those of the messages
		}
		return partition.Of(key, info.Partitions), nil
	}, func(v store.ReadView) error {
		c := v.Consumer()
		t, err := tableOf(&c, tableName)
		if err != nil {
			return err
		}
		if t.Parent != nil {
			out, err = appendChildren(r.Context(), out, v, t, key, after, limit, true)
			return err
		}
		out, err = appendWhole(r.Context(), out, v, t, key, limit)
		return err
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func appendWhole(ctx context.Context, out []byte, v store.ReadView, t *readmodel.Table, key string, limit int) ([]byte, error) {
	row, err := v.Get(ctx, t.Name, store.RowKey{Key: key})
	if errors.Is(err, store.ErrNotFound) {
		return nil, fail(http.StatusNotFound, CodeNotFound, "%s has no row %q in table %s", v.Consumer().ID, key, t.Name)
	}
	if err != nil {
		return nil, err
	}
	out = appendRow(out, t, &row, false)
	if len(t.Children) == 0 {
		return out, nil
	}
	out = append(out[:len(out)-1], `,"children":{`...)
	next := []byte(`,"children_next":{`)
	for i, child := range t.Children {
		rows, cursor, err := childrenOf(ctx, v, child.Name, key, "", limit)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out, next = append(out, ','), append(next, ',')
		}
		out = append(jsonl.AppendString(out, child.Name), ':')
		next = append(jsonl.AppendString(next, child.Name), ':')
		out = appendRows(out, child, rows, true)
		next = appendCursor(next, cursor)
	}
	out = append(out, '}')
	out = append(out, next...)
	return append(out, `}}`...), nil
}

func appendChildren(ctx context.Context, out []byte, v store.ReadView, t *readmodel.Table, key, after string, limit int, short bool) ([]byte, error) {
	rows, cursor, err := childrenOf(ctx, v, t.Name, key, after, limit)
	if err != nil {
		return nil, err
	}
	out = append(out, `{"items":`...)
	out = appendRows(out, t, rows, short)
	out = append(out, `,"next":`...)
	return append(appendCursor(out, cursor), '}'), nil
}

func appendCursor(out []byte, cursor string) []byte {
	if cursor == "" {
		return append(out, "null"...)
	}
	return jsonl.AppendString(out, cursor)
}

func appendRows(out []byte, t *readmodel.Table, rows []store.StoredRow, short bool) []byte {
	out = append(out, '[')
	for i := range rows {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendRow(out, t, &rows[i], short)
	}
	return append(out, ']')
}

// appendRow appends one row; short leaves the key of a child's parent out.
func appendRow(out []byte, t *readmodel.Table, row *store.StoredRow, short bool) []byte {
	out = append(out, '{')
	if !short || t.Parent == nil {
		out = append(out, `"key":`...)
		out = append(jsonl.AppendString(out, row.Key.Key), ',')
	}
	if t.Parent != nil {
		out = append(out, `"child":`...)
		out = append(jsonl.AppendString(out, row.Child), ',')
	}
	out = append(out, `"row":`...)
	out = t.AppendJSON(out, row.Row)
	out = append(out, `,"position":`...)
	out = strconv.AppendInt(out, row.Position, 10)
	out = append(out, `,"updated_at":"`...)
	out = jsonl.AppendTime(out, row.UpdatedUS)
	return append(out, `"}`...)
}

// listRows is GET /v1/read-models/{projection}.
func (s *Server) listRows(w http.ResponseWriter, r *http.Request) error {
	p := paramsOf(r)
	f := freshnessOf(p)
	tableName, _ := p.str("table")
	q := store.Query{Limit: int(p.int("limit", defaultLimit, 1, rowsMax))}
	q.After, _ = p.str("after")
	q.AfterKey, _ = p.str("after_key")
	if order, ok := p.str("order"); ok {
		field, dir, has := strings.Cut(order, ":")
		if has && dir != "asc" && dir != "desc" || field == "" {
			p.fail(`parameter "order" must be FIELD, FIELD:asc or FIELD:desc, it is %q`, order)
		}
		q.Order, q.Desc = field, dir == "desc"
	}
	if field, ok := p.str("where_null"); ok {
		q.Where = append(q.Where, readmodel.Cond{Column: field, Null: true})
	}
	for _, field := range p.prefixed("where.") {
		for _, v := range p.values["where."+field] {
			q.Where = append(q.Where, readmodel.Cond{Column: field, Text: v})
		}
	}
	if err := p.done(); err != nil {
		return err
	}
	var out []byte
	err := s.read(w, r, f, r.PathValue("projection"), "", func(c *store.Consumer) (int, error) {
		_, err := tableOf(c, tableName)
		return AllPartitions, err
	}, func(v store.ReadView) error {
		c := v.Consumer()
		t, err := tableOf(&c, tableName)
		if err != nil {
			return err
		}
		q.Build = c.Build
		rows, next, err := pageOf(r.Context(), v, t.Name, q)
		if err != nil {
			return err
		}
		out = append(out, `{"items":`...)
		out = appendRows(out, t, rows, false)
		out = append(out, `,"next":`...)
		out = append(appendCursor(out, next), '}')
		return nil
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

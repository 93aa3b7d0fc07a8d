package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/internal/rawjson"
	"github.com/projhost/projhost/store"
)

// Undelivered is a message that could not be applied for one of its keys. The
// answer for one message has the copy as well, as member "event".
type Undelivered struct {
	ID            int64   `json:"id"`
	Consumer      string  `json:"consumer"`
	Topic         string  `json:"topic"`
	Position      int64   `json:"position"`
	Partition     int     `json:"partition"`
	Key           string  `json:"key"`
	Unresolved    bool    `json:"unresolved,omitempty"` // its keys cannot be told: everything behind it in its topic waits
	Status        string  `json:"status"`
	Code          int     `json:"code,omitempty"`  // of the last failure; absent: it was never tried
	Class         string  `json:"class,omitempty"` // what the code means
	Reason        string  `json:"reason,omitempty"`
	Attempts      int     `json:"attempts"` // that count against the budget
	Passing       int     `json:"passing"`  // failed tries that do not, since they may pass
	NextRetryAt   *string `json:"next_retry_at"`
	Digest        string  `json:"digest,omitempty"` // of the module that failed
	RecordedAt    string  `json:"recorded_at"`
	ChangedAt     string  `json:"changed_at"`
	EventID       string  `json:"event_id"`
	EventType     string  `json:"event_type"`
	AggregateType string  `json:"aggregate_type"`
	AggregateID   string  `json:"aggregate_id"`
	// Head is the first message of the key's line, which the others wait for.
	// Behind is how many wait behind this one, up to BehindMax. Both are in the
	// answer for one message only.
	Head   int64  `json:"head,omitempty"`
	Behind *int64 `json:"behind,omitempty"`
}

// BehindMax bounds how far the messages behind one are counted.
const BehindMax = 1000

// undeliveredStatuses are all there are, the most urgent first.
var undeliveredStatuses = []store.UndeliveredStatus{
	store.StatusHalted, store.StatusFailed, store.StatusDeadLetterKey, store.StatusDeadLetter, store.StatusWaiting,
}

// UndeliveredStatuses are the names of the states of undelivered messages.
func UndeliveredStatuses() []string {
	names := make([]string, len(undeliveredStatuses))
	for i, s := range undeliveredStatuses {
		names[i] = string(s)
	}
	return names
}

// classOf says what the code of a failure means.
func classOf(code int) string {
	switch abi.Status(code) {
	case abi.StatusReject:
		return "rejected by the plugin"
	case abi.StatusFatal:
		return "the plugin asks for a halt"
	case abi.StatusRetry:
		return "the plugin asks to be tried later"
	case abi.CodeTrap:
		return "trap"
	case abi.CodeFuel:
		return "out of fuel"
	case abi.CodeMemory:
		return "out of memory"
	case abi.CodeMalformed:
		return "bad op or argument"
	case abi.CodeOrder:
		return "results in the wrong order"
	case abi.CodeDeadline:
		return "out of time"
	case abi.CodeDatabase:
		return "the database cannot be used"
	case abi.CodeData:
		return "the database refuses the data"
	}
	return ""
}

func undeliveredOf(id store.ConsumerID, m *store.UndeliveredMessage) Undelivered {
	out := Undelivered{
		ID: m.ID, Consumer: id.String(), Topic: m.Topic, Position: m.Event.Position, Partition: m.Partition, Key: m.Key, Unresolved: m.Unresolved,
		Status: string(m.Status), Code: m.Code, Class: classOf(m.Code), Reason: m.Reason, Attempts: m.Attempts, Passing: m.Passing, Digest: m.Digest,
		RecordedAt: jsonl.FormatTime(m.FirstUS), ChangedAt: jsonl.FormatTime(m.LastUS),
		EventID: m.Event.ID.String(), EventType: m.Event.Type, AggregateType: m.Event.AggregateType, AggregateID: m.Event.AggregateID,
	}
	if m.Status == store.StatusFailed {
		at := out.ChangedAt // due since
		if m.RetryUS != 0 {
			at = jsonl.FormatTime(m.RetryUS)
		}
		out.NextRetryAt = &at
	}
	return out
}

// identifier is a parameter that narrows a list. One that is given and empty
// would not.
func (p *params) identifier(name string) string {
	s, ok := p.str(name)
	if !ok {
		return ""
	}
	if why := store.CheckIdentifier(s); why != "" {
		p.fail("parameter %q %s", name, why)
	}
	return s
}

// flag is a parameter that is 1 or 0. Anything else is refused: a dry run must
// not become a real one by a typing mistake.
func (p *params) flag(name string) bool {
	s, ok := p.str(name)
	if ok && s != "1" && s != "0" && s != "true" && s != "false" {
		p.fail("parameter %q must be 1 or 0, it is %q", name, s)
	}
	return s == "1" || s == "true"
}

func statusNamed(name string) (store.UndeliveredStatus, error) {
	s := store.UndeliveredStatus(name)
	if !slices.Contains(undeliveredStatuses, s) {
		return "", errors.New("must be one of " + strings.Join(UndeliveredStatuses(), ", "))
	}
	return s, nil
}

// listUndelivered is GET /v1/consumers/{type}/{name}/undelivered.
func (s *Server) listUndelivered(w http.ResponseWriter, r *http.Request) error {
	p := paramsOf(r)
	q := store.UndeliveredQuery{Selection: store.Selection{Key: p.identifier("key"), EventType: p.identifier("event_type"), Topic: p.identifier("topic")}}
	if name, ok := p.str("status"); ok {
		var err error
		if q.Selection.Status, err = statusNamed(name); err != nil {
			p.fail("parameter %q %v, it is %q", "status", err, name)
		}
	}
	q.After = p.int("after", 0, 0, maxInt64)
	limit := int(p.int("limit", defaultLimit, 1, rowsMax))
	if err := p.done(); err != nil {
		return err
	}
	var err error
	if q.Consumer, err = consumerID(r); err != nil {
		return err
	}
	q.Limit = limit + 1 // one more tells whether there is more
	list, err := s.deps.Store.ListUndelivered(r.Context(), q)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		if err := s.known(r.Context(), q.Consumer); err != nil {
			return err
		}
	}
	page := Page[Undelivered]{Items: []Undelivered{}}
	for i := range list[:min(limit, len(list))] {
		page.Items = append(page.Items, undeliveredOf(q.Consumer, &list[i]))
	}
	page.Next = next(len(list) > limit, func() int64 { return list[limit-1].ID })
	return marshal(w, http.StatusOK, page)
}

// next is the cursor of a list that goes by ids.
func next(more bool, last func() int64) *string {
	if !more {
		return nil
	}
	cursor := strconv.FormatInt(last(), 10)
	return &cursor
}

// rowOf is the id of an undelivered message in the path.
func rowOf(r *http.Request) (int64, error) {
	row, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil || row < 1 {
		return 0, badRequest("%q is not the id of an undelivered message: those are whole numbers", r.PathValue("id"))
	}
	return row, nil
}

func noMessage(id store.ConsumerID, row int64) error {
	return fail(http.StatusNotFound, CodeNotFound, "%s has no undelivered message %d: it was applied or deleted, or is another consumer's", id, row)
}

// getUndelivered is GET /v1/consumers/{type}/{name}/undelivered/{id}.
func (s *Server) getUndelivered(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	id, err := consumerID(r)
	if err != nil {
		return err
	}
	row, err := rowOf(r)
	if err != nil {
		return err
	}
	m, err := s.deps.Store.UndeliveredMessage(r.Context(), id, row)
	if errors.Is(err, store.ErrNotFound) {
		return noMessage(id, row)
	}
	if err != nil {
		return err
	}
	item := undeliveredOf(id, &m)
	if err := s.place(r.Context(), id, &m, &item); err != nil {
		return err
	}
	out, err := json.Marshal(item)
	if err != nil {
		return err
	}
	if !m.Unresolved { // there is no copy of one of which the keys cannot be told
		// By hand, as the library would take the spaces out of the payload.
		out = append(out[:len(out)-1], `,"event":`...)
		out = append(jsonl.AppendMessage(out, &m.Event), '}')
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// place tells where a message stands in the line of its key.
func (s *Server) place(ctx context.Context, id store.ConsumerID, m *store.UndeliveredMessage, item *Undelivered) error {
	if m.Unresolved || m.Key == "" || m.Status == store.StatusDeadLetter {
		return nil // nothing stands behind these
	}
	// A line is of one key in one partition, and a key is always in the same one.
	q := store.UndeliveredQuery{Consumer: id, Selection: store.Selection{Key: m.Key}, Limit: BehindMax}
	list, err := s.deps.Store.ListUndelivered(ctx, q)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].Status != store.StatusDeadLetter {
			item.Head = list[i].ID
			break
		}
	}
	if q.After = m.ID; len(list) == BehindMax {
		if list, err = s.deps.Store.ListUndelivered(ctx, q); err != nil {
			return err
		}
	}
	behind := int64(0)
	for i := range list {
		if list[i].ID > m.ID && list[i].Status != store.StatusDeadLetter {
			behind++
		}
	}
	item.Behind = &behind
	return nil
}

// Decision answers an action on undelivered messages: what it did, or with
// DryRun would do. Rows are the first of them.
type Decision struct {
	DryRun  bool         `json:"dry_run"`
	Count   int64        `json:"count"`
	Refused int64        `json:"refused"`
	Rows    []DecidedRow `json:"rows"`
}

// DecidedRow is a message of a decision. Refused is why the action passes it over.
type DecidedRow struct {
	ID        int64  `json:"id"`
	Topic     string `json:"topic"`
	Position  int64  `json:"position"`
	Key       string `json:"key"`
	EventType string `json:"event_type"`
	Was       string `json:"was"`
	Refused   string `json:"refused,omitempty"`
}

// decide does an action on undelivered messages. selection gives which.
func (s *Server) decide(w http.ResponseWriter, r *http.Request, name string, selection func(body []byte) (store.Selection, error)) error {
	p := paramsOf(r)
	opts := store.Action{DryRun: p.flag("dry_run")}
	if name == store.ActionRetry {
		opts.OutOfOrder = p.flag("out_of_order")
	}
	if err := p.done(); err != nil {
		return err
	}
	return s.operate(w, r, name, func(ctx context.Context, a *action) (any, []any, error) {
		sel, err := selection(a.body)
		if err != nil {
			return nil, nil, err
		}
		opts.Actor = a.actor
		do := s.deps.Store.DeleteUndelivered
		if name == store.ActionRetry {
			do = s.deps.Store.RetryUndelivered
		}
		d, err := do(ctx, a.id, sel, opts)
		if errors.Is(err, store.ErrNotFound) && sel.ID != 0 {
			return nil, nil, noMessage(a.id, sel.ID)
		}
		if err != nil {
			return nil, nil, err
		}
		if sel.ID != 0 && d.Refused > 0 && !opts.DryRun {
			return nil, nil, refusedOne(a.id, sel.ID, &d)
		}
		out := Decision{DryRun: opts.DryRun, Count: d.Count, Refused: d.Refused, Rows: make([]DecidedRow, len(d.Rows))}
		for i, row := range d.Rows {
			out.Rows[i] = DecidedRow{row.ID, row.Topic, row.Position, row.Key, row.EventType, string(row.Was), row.Refused}
		}
		// Not the key: it is a user's.
		return out, []any{"id", sel.ID, "by_key", sel.Key != "", "event_type", sel.EventType, "status", sel.Status, "topic", sel.Topic,
			"dry_run", opts.DryRun, "out_of_order", opts.OutOfOrder, "count", d.Count, "refused", d.Refused}, nil
	})
}

// refusedOne says why an action passes over the one message that was named.
func refusedOne(id store.ConsumerID, row int64, d *store.Decision) error {
	why, was := "its state does not allow it", ""
	for _, r := range d.Rows {
		if r.ID == row && r.Refused != "" {
			why, was = r.Refused, string(r.Was)
		}
	}
	return fail(http.StatusConflict, CodeRefused, "undelivered message %d of %s is refused: %s", row, id, why).with("id", row).with("status", was)
}

// selected decodes a selection for an action on many.
func selected(body []byte) (sel store.Selection, err error) {
	err = decode(body, func(d *bodyDecoder) error { return d.selection(&sel) })
	return sel, err
}

func (d *bodyDecoder) selection(sel *store.Selection) error {
	all := false
	_, err := d.object(func(name string) (err error) {
		switch name {
		case "key":
			sel.Key, err = value(d, identifier)
		case "event_type":
			sel.EventType, err = value(d, identifier)
		case "topic":
			sel.Topic, err = value(d, identifier)
		case "status":
			sel.Status, err = value(d, func(v []byte) (store.UndeliveredStatus, error) {
				name, err := rawjson.String(v)
				if err != nil {
					return "", err
				}
				return statusNamed(name)
			})
		case "all":
			all, err = value(d, boolean)
		default:
			return badRequest("unknown member %q; the members are key, event_type, status, topic, all", name)
		}
		return err
	})
	if err == nil && !all && *sel == (store.Selection{}) {
		err = badRequest(`the selection is empty: give key, event_type, status or topic, or "all":true for every message of the consumer`)
	}
	return err
}

func boolean(v []byte) (bool, error) {
	switch string(v) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, errors.New("must be true or false")
}

// one is the selection of the message in the path; such a call has no body.
func one(r *http.Request) func(body []byte) (store.Selection, error) {
	return func(body []byte) (store.Selection, error) {
		row, err := rowOf(r)
		if err != nil {
			return store.Selection{}, err
		}
		return store.Selection{ID: row}, empty(body)
	}
}

// retryUndelivered is POST /v1/consumers/{type}/{name}/undelivered/{id}/retry.
func (s *Server) retryUndelivered(w http.ResponseWriter, r *http.Request) error {
	return s.decide(w, r, store.ActionRetry, one(r))
}

// deleteUndelivered is DELETE /v1/consumers/{type}/{name}/undelivered/{id}.
func (s *Server) deleteUndelivered(w http.ResponseWriter, r *http.Request) error {
	return s.decide(w, r, store.ActionDelete, one(r))
}

// retryMany is POST /v1/consumers/{type}/{name}/undelivered/retry.
func (s *Server) retryMany(w http.ResponseWriter, r *http.Request) error {
	return s.decide(w, r, store.ActionRetry, selected)
}

// deleteMany is POST /v1/consumers/{type}/{name}/undelivered/delete.
func (s *Server) deleteMany(w http.ResponseWriter, r *http.Request) error {
	return s.decide(w, r, store.ActionDelete, selected)
}

// countUndelivered fills in how many undelivered messages consumers have.
func (s *Server) countUndelivered(ctx context.Context, list []Consumer) error {
	counts, err := s.deps.Store.CountUndelivered(ctx)
	if err != nil {
		return err
	}
	for i := range list {
		c := &list[i]
		c.Undelivered = make(map[string]int64, len(undeliveredStatuses))
		for _, status := range undeliveredStatuses {
			c.Undelivered[string(status)] = counts[store.ConsumerID{Type: c.Type, Name: c.Name}][status]
		}
	}
	return nil
}

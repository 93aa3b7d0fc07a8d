package api

import (
	"encoding/json"
	"net/http"

	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/store"
)

// HistoryEntry is something that was done to a consumer and that its rows do not
// tell.
type HistoryEntry struct {
	ID        int64           `json:"id"`
	At        string          `json:"at"`
	Actor     string          `json:"actor"` // "host" for what hosts decide
	Action    string          `json:"action"`
	Build     int64           `json:"build"`
	Topic     string          `json:"topic,omitempty"`
	Partition *int            `json:"partition,omitempty"`
	Position  int64           `json:"position,omitempty"`
	Key       string          `json:"key,omitempty"`
	Detail    json.RawMessage `json:"detail,omitempty"`
}

func historyOf(e *store.HistoryEntry) HistoryEntry {
	out := HistoryEntry{ID: e.ID, At: jsonl.FormatTime(e.AtUS), Actor: e.Actor, Action: e.Action, Build: e.Build, Topic: e.Topic, Position: e.Position, Key: e.Key}
	if e.Partition >= 0 {
		out.Partition = &e.Partition
	}
	if e.Detail != "" {
		if out.Detail = json.RawMessage(e.Detail); !json.Valid(out.Detail) {
			out.Detail = jsonl.AppendString(nil, e.Detail)
		}
	}
	return out
}

// history is GET /v1/consumers/{type}/{name}/history.
func (s *Server) history(w http.ResponseWriter, r *http.Request) error {
	p := paramsOf(r)
	after := p.int("after", 0, 0, maxInt64)
	limit := int(p.int("limit", defaultLimit, 1, rowsMax))
	if err := p.done(); err != nil {
		return err
	}
	id, err := consumerID(r)
	if err != nil {
		return err
	}
	list, err := s.deps.Store.History(r.Context(), id, after, limit+1)
	if err != nil {
		return err
	}
	if len(list) == 0 && after == 0 { // that of a dropped one is kept
		if err := s.known(r.Context(), id); err != nil {
			return err
		}
	}
	page := Page[HistoryEntry]{Items: []HistoryEntry{}}
	for i := range list[:min(limit, len(list))] {
		page.Items = append(page.Items, historyOf(&list[i]))
	}
	page.Next = next(len(list) > limit, func() int64 { return list[limit-1].ID })
	return marshal(w, http.StatusOK, page)
}

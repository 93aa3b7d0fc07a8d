package api

import (
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/store"
)

// Page is a list of the API.
type Page[T any] struct {
	Items []T     `json:"items"`
	Next  *string `json:"next"`
}

// Topic is a topic item.
type Topic struct {
	Name          string `json:"name"`
	Kind          string `json:"kind"`
	Start         int64  `json:"start"`
	End           int64  `json:"end"`
	HighWaterMark int64  `json:"high_water_mark"`
	// Lag is how many positions have been handed out and may not be read yet.
	Lag      int64       `json:"lag"`
	Messages *int64      `json:"messages,omitempty"`
	Holder   *MarkHolder `json:"holder,omitempty"`
	Reason   string      `json:"reason,omitempty"` // why the mark stands still where nothing holds it
}

// MarkHolder is the open transaction that has held the mark back longest.
type MarkHolder struct {
	PID         int64   `json:"pid,omitempty"`      // of its session
	Prepared    string  `json:"prepared,omitempty"` // name of a prepared transaction
	Application string  `json:"application,omitempty"`
	State       string  `json:"state,omitempty"`
	Since       string  `json:"since"`
	AgeSeconds  float64 `json:"age_seconds"`
}

// TopicOf gives a topic its form on the wire.
func TopicOf(t store.Topic) Topic {
	out := Topic{Name: t.Name, Kind: t.Kind, Start: t.Start, End: t.End, HighWaterMark: t.HighWaterMark, Lag: max(0, t.End-t.HighWaterMark), Reason: t.Reason}
	if t.Messages >= 0 {
		out.Messages = &t.Messages
	}
	if h := t.Holder; h != nil {
		out.Holder = &MarkHolder{
			PID: h.PID, Prepared: h.Prepared, Application: h.Application, State: h.State, Since: jsonl.FormatTime(h.SinceUS),
			AgeSeconds: max(0, time.Since(time.UnixMicro(h.SinceUS)).Seconds()),
		}
	}
	return out
}

// listTopics is GET /v1/topics.
func (s *Server) listTopics(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	list, err := s.deps.Store.ListTopics(r.Context())
	if err != nil {
		return err
	}
	page := Page[Topic]{Items: make([]Topic, len(list))}
	for i := range list {
		page.Items[i] = TopicOf(list[i])
	}
	return marshal(w, http.StatusOK, page)
}

// getTopic is GET /v1/topics/{topic}.
func (s *Server) getTopic(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	t, err := s.topic(r)
	if err != nil {
		return err
	}
	return marshal(w, http.StatusOK, TopicOf(t))
}

func (s *Server) topic(r *http.Request) (store.Topic, error) {
	name := r.PathValue("topic")
	t, err := s.deps.Store.Topic(r.Context(), name)
	if errors.Is(err, store.ErrNotFound) {
		return t, fail(http.StatusNotFound, CodeNotFound, "there is no topic %q", name)
	}
	return t, err
}

// readMessages is GET /v1/topics/{topic}/messages.
func (s *Server) readMessages(w http.ResponseWriter, r *http.Request) error {
	p := paramsOf(r)
	after := p.int("after", 0, 0, maxInt64)
	limit := int(p.int("limit", defaultLimit, 1, messagesMax))
	if err := p.done(); err != nil {
		return err
	}
	if accept := r.Header.Get("Accept"); strings.Contains(accept, "text/event-stream") && !strings.Contains(accept, "json") && !strings.Contains(accept, "*/*") {
		return fail(http.StatusNotAcceptable, CodeNotAcceptable, "this version has no live streams: ask again with after set to the last position")
	}
	t, err := s.topic(r)
	if err != nil {
		return err
	}
	page, err := s.deps.Store.ReadPage(r.Context(), store.PageQuery{Topic: t.Name, After: after, Limit: limit, MaxBytes: pageBytes})
	if err != nil {
		return err
	}
	next := int64(0)
	if n := len(page.Events); n > 0 && page.To < page.End {
		next = page.Events[n-1].Position
	}
	writeJSON(w, http.StatusOK, append(appendMessages(nil, page.Events, next), '}'))
	return nil
}

package api

import (
	"bytes"
	"net/http"

	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/internal/rawjson"
	"github.com/projhost/projhost/store"
)

// Imported answers POST /v1/import.
type Imported struct {
	Stored       int `json:"stored"`
	AlreadyThere int `json:"already_there"`
	// There are the indexes of the lines that were stored before.
	There        []int `json:"already_there_at,omitempty"`
	LastPosition int64 `json:"last_position"`
}

// importLines is POST /v1/import: lines of the import format, of any streams,
// each with an id, stored in one transaction at the ends of their streams. It
// is what the import command calls; a line that is stored already is counted,
// so a batch can be sent again.
func (s *Server) importLines(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	body, release, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer release()
	events := make([]store.ImportEvent, 0, bytes.Count(body, []byte("\n"))+1)
	var d jsonl.Decoder
	for rest, start := body, 0; len(rest) > 0; {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		if len(bytes.TrimSpace(line)) > 0 {
			i := len(events)
			events = append(events, store.ImportEvent{})
			if err := d.Decode(line, &events[i]); err != nil {
				e := badRequest("line %d: %v", i+1, err).with("index", i)
				if se, ok := err.(*rawjson.SyntaxError); ok {
					e.with("offset", start+se.Offset)
				}
				return e
			}
			if !events[i].HasID {
				return badRequest(`line %d: member "id" is missing: without it the batch could not be sent again`, i+1).with("index", i)
			}
		}
		start += len(rest) - len(after)
		rest = after
	}
	if len(events) == 0 {
		return badRequest("the body has no lines")
	}
	res, err := s.deps.Store.Import(r.Context(), events)
	if err != nil {
		return err
	}
	return marshal(w, http.StatusOK, Imported{res.Stored, res.AlreadyThere, res.There, res.LastPosition})
}

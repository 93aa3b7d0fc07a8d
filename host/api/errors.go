package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/internal/rawjson"
	"github.com/projhost/projhost/readmodel"
	"github.com/projhost/projhost/store"
)

// Codes of errors. They are part of the interface and never change.
const (
	CodeBadRequest       = "bad_request"
	CodeUnauthorized     = "unauthorized"
	CodeForbidden        = "forbidden"
	CodeNotFound         = "not_found"
	CodeNoSnapshot       = "no_snapshot"
	CodeMethodNotAllowed = "method_not_allowed"
	CodeNotAcceptable    = "not_acceptable"
	CodeConcurrentWrite  = "concurrent_write"
	CodeDuplicateEvent   = "duplicate_event"
	CodeDuplicateStream  = "duplicate_stream"
	CodeCursorExpired    = "cursor_expired"
	CodeTooLarge         = "too_large"
	CodeUnsupportedMedia = "unsupported_media_type"
	CodeUnknownField     = "unknown_field"
	CodeNotAnInput       = "not_an_input"
	CodeProjectionHalted = "projection_halted"
	CodeProjectionPaused = "projection_paused"
	CodeKeyHeld          = "key_held"
	CodeWrongState       = "wrong_state"
	CodeChanged          = "changed"
	CodeRefused          = "refused"
	CodeInUse            = "in_use"
	CodeNotCaughtUp      = "not_caught_up"
	CodeNotReady         = "not_ready"
	CodeOverloaded       = "overloaded"
	CodeUnavailable      = "unavailable"
	CodeOutcomeUnknown   = "outcome_unknown"
	CodeInternal         = "internal"
)

// An apiError is an answer that is not a success. Members are added to the
// envelope in their order.
type apiError struct {
	status  int
	code    string
	message string
	members []member
	cause   error // logged where the client is told less
}

type member struct {
	name  string
	value any
}

func (e *apiError) Error() string { return e.code + ": " + e.message }

func (e *apiError) with(name string, value any) *apiError {
	e.members = append(e.members, member{name, value})
	return e
}

func fail(status int, code, format string, args ...any) *apiError {
	return &apiError{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) *apiError {
	return fail(http.StatusBadRequest, CodeBadRequest, format, args...)
}

// body is the error's envelope.
func (e *apiError) body() []byte {
	b := append([]byte(nil), `{"error":{"code":`...)
	b = jsonl.AppendString(b, e.code)
	b = append(b, `,"message":`...)
	b = jsonl.AppendString(b, e.message)
	for _, m := range e.members {
		b = append(b, ',')
		b = jsonl.AppendString(b, m.name)
		b = append(b, ':')
		v, err := json.Marshal(m.value)
		if err != nil {
			v = []byte("null")
		}
		b = append(b, v...)
	}
	return append(b, `}}`...)
}

// asAPI finds the answer for an error. What it does not know is an internal
// error, whose text goes to the log and not to the client.
func asAPI(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	if e, ok := errors.AsType[*rawjson.SyntaxError](err); ok {
		return badRequest("%v", err).with("offset", e.Offset)
	}
	if e, ok := errors.AsType[*store.InvalidError](err); ok {
		status := http.StatusBadRequest
		switch e.Code {
		case CodeTooLarge:
			status = http.StatusRequestEntityTooLarge
		case CodeDuplicateEvent:
			status = http.StatusConflict
		}
		a := fail(status, e.Code, "%s", e.Reason)
		if e.Index >= 0 {
			a.with("index", e.Index)
		}
		return a
	}
	if a := refusal(err); a != nil {
		return a
	}
	if e, ok := errors.AsType[*store.ConflictError](err); ok {
		return fail(http.StatusConflict, CodeConcurrentWrite, "%v: somebody else appended; read the stream and decide again", e).
			with("aggregate_type", e.AggregateType).with("aggregate_id", e.AggregateID).with("expected", e.Expected).with("actual", e.Actual)
	}
	if e, ok := errors.AsType[*store.DuplicateEventError](err); ok {
		return fail(http.StatusConflict, CodeDuplicateEvent, "%v", e).with("id", e.ID.String()).with("index", e.Index).
			with("aggregate_type", e.AggregateType).with("aggregate_id", e.AggregateID).with("position", e.Position).with("reason", e.Reason)
	}
	if e, ok := errors.AsType[*readmodel.UnknownFieldError](err); ok {
		return fail(http.StatusBadRequest, CodeUnknownField, "%v", e).with("field", e.Field).with("allowed", e.Allowed)
	}
	if e, ok := errors.AsType[*readmodel.CursorError](err); ok {
		if e.Expired {
			return fail(http.StatusGone, CodeCursorExpired, "%v: begin again without after", e)
		}
		return badRequest("%v", e)
	}
	if e, ok := errors.AsType[*readmodel.ValueError](err); ok {
		return badRequest("%v", e)
	}
	if e, ok := errors.AsType[*store.TransientError](err); ok {
		if e.OutcomeUnknown {
			a := fail(http.StatusServiceUnavailable, CodeOutcomeUnknown, "%s: it is not known whether this was stored: send it again with the same event ids", e.Op)
			a.cause = err
			return a
		}
		// Where something is known to have to be done, trying again is not it.
		a := fail(http.StatusServiceUnavailable, CodeUnavailable, "%s: the database cannot be used right now: %s", e.Op, cmp.Or(e.Hint, "try again"))
		a.cause = err
		return a
	}
	if errors.Is(err, store.ErrNotFound) {
		return fail(http.StatusNotFound, CodeNotFound, "not found")
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		a := fail(http.StatusServiceUnavailable, CodeUnavailable, "the request ended before its answer was there")
		a.cause = err
		return a
	}
	a := fail(http.StatusInternalServerError, CodeInternal, "internal error; the host's log has it under the request's id")
	a.cause = err
	return a
}

func writeError(w http.ResponseWriter, e *apiError) {
	if e.status == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, e.status, e.body())
}

// writeJSON sends a whole answer at once. It is in memory until the client has
// taken it: with too many large ones there already, this one is refused.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	if rec, ok := w.(*recorder); ok && !rec.hold(int64(len(body))) {
		writeError(w, fail(http.StatusServiceUnavailable, CodeOverloaded, "too many large answers are being read at one time: try again, or with a smaller limit"))
		return
	}
	body = append(body, '\n')
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that went away is no error of ours
}

// marshal answers with a value of the wire types.
func marshal(w http.ResponseWriter, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	writeJSON(w, status, b)
	return nil
}

package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/projhost/projhost/internal/rawjson"
	"github.com/projhost/projhost/store"
)

// ActorHeader names who is at work on the client's side, for the audit. Nobody
// has checked it, and so it is kept as what the token's holder says.
const ActorHeader = "Projhost-Actor"

const (
	claimMax = 64
	// The name of a token is the configuration's, which does not bound it.
	tokenNameMax = 128
)

// actorOf is who asks, as histories keep it: the name of the token, or "http"
// where there are none, and behind it in parentheses who that says it is.
func actorOf(r *http.Request) (string, error) {
	actor, _ := r.Context().Value(tokenKey{}).(string)
	if actor == "" {
		actor = "http"
	}
	if runes := []rune(actor); len(runes) > tokenNameMax {
		actor = string(runes[:tokenNameMax])
	}
	claims := r.Header.Values(ActorHeader)
	if len(claims) == 0 {
		return actor, nil
	}
	if len(claims) > 1 || !PlainActor(claims[0]) {
		return "", badRequest(`header %s must be given once: 1 to %d letters, digits, and "%s"`, ActorHeader, claimMax, actorMarks)
	}
	return actor + " (" + claims[0] + ")", nil
}

const actorMarks = `._-@+\`

// PlainActor reports whether s can be the value of [ActorHeader]: nothing that
// could be taken for another part of a line of the log or of the history.
func PlainActor(s string) bool {
	return s != "" && utf8.ValidString(s) && utf8.RuneCountInString(s) <= claimMax && strings.IndexFunc(s, func(c rune) bool { return !ActorRune(c) }) < 0
}

// ActorRune reports whether the value of [ActorHeader] may hold c.
func ActorRune(c rune) bool {
	return unicode.IsLetter(c) || unicode.IsDigit(c) || strings.ContainsRune(actorMarks, c)
}

// Acted answers an action on a consumer.
type Acted struct {
	Type     string `json:"type"`
	Name     string `json:"name"`
	State    string `json:"state,omitempty"`    // after pause, resume and rebuild
	Mode     string `json:"mode,omitempty"`     // of a rebuild
	Topic    string `json:"topic,omitempty"`    // of reset
	Position *int64 `json:"position,omitempty"` // of reset: what follows it is applied
	Dropped  bool   `json:"dropped,omitempty"`
}

// An action is what an operator asks for.
type action struct {
	id    store.ConsumerID
	actor string
	body  []byte
}

// operate does an action and puts it on record in the log; the store puts it
// into the consumer's history.
func (s *Server) operate(w http.ResponseWriter, r *http.Request, name string, do func(ctx context.Context, a *action) (answer any, note []any, err error)) error {
	id, err := consumerID(r)
	if err != nil {
		return err
	}
	a := action{id: id}
	if a.actor, err = actorOf(r); err != nil {
		return err
	}
	body, release, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer release()
	a.body = body
	answer, note, err := do(r.Context(), &a)
	if err != nil {
		return operated(id, err)
	}
	s.deps.Runtime.Look()
	s.requestLog(r).Info("an operator acted", append([]any{"action", name, "consumer", id, "actor", a.actor}, note...)...)
	return marshal(w, http.StatusOK, answer)
}

// consumerTypes are the types of consumers there can be.
var consumerTypes = []string{"projection", "saga", "handler"}

func consumerID(r *http.Request) (store.ConsumerID, error) {
	id := store.ConsumerID{Type: r.PathValue("type"), Name: r.PathValue("name")}
	if !slices.Contains(consumerTypes, id.Type) || store.CheckIdentifier(id.Name) != "" {
		return id, noConsumer(id)
	}
	return id, nil
}

func noConsumer(id store.ConsumerID) error {
	return fail(http.StatusNotFound, CodeNotFound, "there is no consumer %s", id)
}

// known gives an error for a consumer that the store does not have. That a list
// is empty does not tell.
func (s *Server) known(ctx context.Context, id store.ConsumerID) error {
	_, err := s.deps.Store.Consumer(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return noConsumer(id)
	}
	return err
}

// operated gives the errors of an action their answers.
func operated(id store.ConsumerID, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return noConsumer(id)
	}
	if e, ok := errors.AsType[*store.TransientError](err); ok && e.OutcomeUnknown {
		a := fail(http.StatusServiceUnavailable, CodeOutcomeUnknown, "%s: it is not known whether this was done: the history of %s tells", e.Op, id)
		a.cause = err
		return a
	}
	return err
}

// refusal gives the store's refusals of actions their answers, nil for other
// errors.
func refusal(err error) *apiError {
	if e, ok := errors.AsType[*store.StateError](err); ok {
		return fail(http.StatusConflict, CodeWrongState, "%v: %s", e, wayOut(e)).
			with("type", e.Consumer.Type).with("name", e.Consumer.Name).with("action", e.Action).with("state", e.State)
	}
	if e, ok := errors.AsType[*store.ChangedError](err); ok {
		return fail(http.StatusConflict, CodeChanged, "%v: look at what is there now and decide again", e).with("id", e.ID)
	}
	if e, ok := errors.AsType[*store.InUseError](err); ok {
		return fail(http.StatusConflict, CodeInUse, "%v", e).with("type", e.Consumer.Type).with("name", e.Consumer.Name).with("instances", e.Instances)
	}
	return nil
}

// wayOut says what to do first where a consumer's state does not allow an action.
func wayOut(e *store.StateError) string {
	switch e.State {
	case store.StateRunning:
		if e.Action == store.ActionResume {
			return "there is nothing to resume"
		}
		return "pause it first"
	case store.StatePaused:
		return "resume it first"
	case store.StateHalted:
		if e.Action == store.ActionPause {
			return "it stands still already"
		}
		return "see its halt, mend that and resume it first"
	case store.StateRebuilding:
		if e.Action == store.ActionResume {
			return "there is nothing to resume"
		}
		return "wait until it is rebuilt"
	}
	return "wait until that has ended"
}

// rebuild is POST /v1/consumers/{type}/{name}/rebuild.
func (s *Server) rebuild(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	return s.operate(w, r, store.ActionRebuild, func(ctx context.Context, a *action) (any, []any, error) {
		mode := defaultMode
		if len(a.body) > 0 {
			if err := decode(a.body, func(d *bodyDecoder) error { return d.rebuild(&mode) }); err != nil {
				return nil, nil, err
			}
		}
		if mode != store.RebuildInPlace {
			return nil, nil, badRequest("%v", &store.UnknownModeError{Mode: mode})
		}
		return Acted{Type: a.id.Type, Name: a.id.Name, State: string(store.StateRebuilding), Mode: mode}, []any{"mode", mode},
			s.deps.Store.RebuildInPlace(ctx, a.id, store.Rebuild{Actor: a.actor})
	})
}

// defaultMode is that of a rebuild that names none.
const defaultMode = store.RebuildShadow

func (d *bodyDecoder) rebuild(mode *string) error {
	_, err := d.object(func(name string) (err error) {
		if name != "mode" {
			return badRequest("unknown member %q; the only member is mode", name)
		}
		*mode, err = value(d, identifier)
		return err
	})
	return err
}

// empty takes no body, or an object without members.
func empty(body []byte) error {
	if len(body) == 0 {
		return nil
	}
	return decode(body, func(d *bodyDecoder) error {
		_, err := d.object(func(name string) error { return badRequest("unknown member %q; there are none", name) })
		return err
	})
}

// pause is POST /v1/consumers/{type}/{name}/pause.
func (s *Server) pause(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	return s.operate(w, r, store.ActionPause, func(ctx context.Context, a *action) (any, []any, error) {
		if err := empty(a.body); err != nil {
			return nil, nil, err
		}
		return Acted{Type: a.id.Type, Name: a.id.Name, State: string(store.StatePaused)}, nil, s.deps.Store.Pause(ctx, a.id, a.actor)
	})
}

// resume is POST /v1/consumers/{type}/{name}/resume.
func (s *Server) resume(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	return s.operate(w, r, store.ActionResume, func(ctx context.Context, a *action) (any, []any, error) {
		var pastPoison int64
		if len(a.body) > 0 {
			if err := decode(a.body, func(d *bodyDecoder) error { return d.resume(&pastPoison) }); err != nil {
				return nil, nil, err
			}
		}
		done := Acted{Type: a.id.Type, Name: a.id.Name, State: string(store.StateRunning)}
		err := s.deps.Store.Resume(ctx, a.id, pastPoison, a.actor)
		if err == nil {
			// One whose rebuild was interrupted goes on with that.
			if c, err := s.deps.Store.Consumer(ctx, a.id); err == nil && c.State == store.StateRebuilding {
				done.State = string(c.State)
			}
		}
		return done, []any{"past_poison", pastPoison}, err
	})
}

func (d *bodyDecoder) resume(pastPoison *int64) error {
	_, err := d.object(func(name string) (err error) {
		if name != "past_poison" {
			return badRequest("unknown member %q; the only member is past_poison", name)
		}
		*pastPoison, err = value(d, rowID)
		return err
	})
	return err
}

func rowID(v []byte) (int64, error) {
	n, err := rawjson.Int(v, 64)
	if err == nil && n < 1 {
		err = errors.New("must be the id of the undelivered message to pass over")
	}
	return n, err
}

// fromNow asks for the end of a topic.
const fromNow = -1

// reset is POST /v1/consumers/{type}/{name}/reset.
func (s *Server) reset(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	return s.operate(w, r, store.ActionReset, func(ctx context.Context, a *action) (any, []any, error) {
		var topic string
		var position int64
		if err := decode(a.body, func(d *bodyDecoder) error { return d.reset(&topic, &position) }); err != nil {
			return nil, nil, err
		}
		c, err := s.deps.Store.Consumer(ctx, a.id)
		if err != nil {
			return nil, nil, err
		}
		if topic == "" {
			if len(c.Topics) != 1 {
				return nil, nil, badRequest(`member "topic" is missing: %s reads %s`, a.id, strings.Join(c.Topics, ", "))
			}
			topic = c.Topics[0]
		}
		if !slices.Contains(c.Topics, topic) {
			return nil, nil, notAnInput(&c, topic)
		}
		if position == fromNow {
			t, err := s.deps.Store.Topic(ctx, topic)
			if err != nil {
				return nil, nil, fmt.Errorf("end of topic %s: %w", topic, err)
			}
			position = t.HighWaterMark
		}
		return Acted{Type: a.id.Type, Name: a.id.Name, Topic: topic, Position: &position}, []any{"topic", topic, "position", position},
			s.deps.Store.Reset(ctx, a.id, topic, position, a.actor)
	})
}

func (d *bodyDecoder) reset(topic *string, position *int64) error {
	seen, err := d.object(func(name string) (err error) {
		switch name {
		case "topic":
			*topic, err = value(d, identifier)
		case "from":
			*position, err = value(d, resetFrom)
		default:
			return badRequest("unknown member %q; the members are topic, from", name)
		}
		return err
	})
	if err != nil {
		return err
	}
	return need(seen, "from")
}

func resetFrom(v []byte) (int64, error) {
	if string(v) == `"now"` {
		return fromNow, nil
	}
	n, err := rawjson.Int(v, 64)
	if err != nil || n < 0 {
		return 0, errors.New(`must be the position behind which to go on, or "now"`)
	}
	return n, nil
}

// identifier is a name or key in a body. The empty one is refused: in a
// selection it would not narrow anything.
func identifier(v []byte) (string, error) {
	s, err := rawjson.String(v)
	if err != nil {
		return "", err
	}
	if why := store.CheckIdentifier(s); why != "" {
		return "", errors.New(why)
	}
	return s, nil
}

// drop is DELETE /v1/consumers/{type}/{name}.
func (s *Server) drop(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	return s.operate(w, r, store.ActionDrop, func(ctx context.Context, a *action) (any, []any, error) {
		if err := empty(a.body); err != nil {
			return nil, nil, err
		}
		err := s.deps.Store.Drop(ctx, a.id, a.actor)
		s.consumers.Delete(a.id) // one of the name may come again, with other tables
		return Acted{Type: a.id.Type, Name: a.id.Name, Dropped: true}, nil, err
	})
}

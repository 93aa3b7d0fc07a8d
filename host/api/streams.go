package api

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/projhost/projhost/internal/jsonl"
	"github.com/projhost/projhost/internal/rawjson"
	"github.com/projhost/projhost/store"
)

const (
	defaultLimit = 100
	rowsMax      = 1000
	messagesMax  = 10_000

	// eventsFirst bounds the room that is made for events before they are read.
	eventsFirst = 256
)

// appendStream is POST /v1/streams/{type}/{id}.
func (s *Server) appendStream(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	body, release, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer release()
	a := store.StreamAppend{AggregateType: r.PathValue("type"), AggregateID: r.PathValue("id")}
	err = decode(body, func(d *bodyDecoder) error { return d.stream(&a, false) })
	if err != nil {
		return err
	}
	res, err := s.deps.Store.Commit(r.Context(), store.Commit{Streams: []store.StreamAppend{a}})
	if err != nil {
		return err
	}
	if len(res.Streams) != 1 {
		return fmt.Errorf("commit of one stream answered for %d", len(res.Streams))
	}
	status := http.StatusCreated
	if res.Streams[0].Replayed {
		status = http.StatusOK
	}
	writeJSON(w, status, append(appendStreamResult([]byte{'{'}, &res.Streams[0]), '}'))
	return nil
}

// commit is POST /v1/commits.
func (s *Server) commit(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	body, release, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer release()
	var c store.Commit
	err = decode(body, func(d *bodyDecoder) error { return d.commit(&c) })
	if err != nil {
		return err
	}
	res, err := s.deps.Store.Commit(r.Context(), c)
	if err != nil {
		return err
	}
	status := http.StatusCreated
	out := []byte(`{"streams":[`)
	replayed := len(res.Streams) > 0
	for i := range res.Streams {
		st := &res.Streams[i]
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, `{"aggregate_type":`...)
		out = jsonl.AppendString(out, st.AggregateType)
		out = append(out, `,"aggregate_id":`...)
		out = jsonl.AppendString(out, st.AggregateID)
		out = append(out, ',')
		out = append(appendStreamResult(out, st), '}')
		replayed = replayed && st.Replayed
	}
	if replayed {
		status = http.StatusOK
	}
	writeJSON(w, status, append(out, "]}"...))
	return nil
}

func appendStreamResult(b []byte, r *store.StreamResult) []byte {
	b = slices.Grow(b, 256+len(`"96f9a74e-4bb1-5940-b42b-1789908e7cf0",`)*len(r.IDs))
	b = append(b, `"version":`...)
	b = strconv.AppendInt(b, r.Version, 10)
	b = append(b, `,"first_position":`...)
	b = strconv.AppendInt(b, r.FirstPosition, 10)
	b = append(b, `,"last_position":`...)
	b = strconv.AppendInt(b, r.LastPosition, 10)
	b = append(b, `,"ids":[`...)
	for i, id := range r.IDs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = id.Append(b)
		b = append(b, '"')
	}
	b = append(b, ']')
	if r.Replayed {
		b = append(b, `,"replayed":true`...)
	}
	return b
}

// bodyDecoder decodes the bodies of appends, in one pass; payloads stay views of
// the body, byte for byte. Its errors name the place: events[3]: member "type"
// is missing.
type bodyDecoder struct {
	text   *rawjson.Cursor
	events jsonl.Decoder
	event  store.ImportEvent
}

// decode decodes a body. One that is not JSON is told so, and where, whatever
// else was found wrong with it first.
func decode(body []byte, into func(d *bodyDecoder) error) error {
	text, err := rawjson.Read(body)
	if err != nil {
		return err
	}
	d := bodyDecoder{text: text, events: jsonl.Decoder{Stream: jsonl.StreamRefused}}
	if err := into(&d); err != nil {
		if malformed := rawjson.Check(body); malformed != nil {
			return malformed
		}
		return err
	}
	return text.End("object")
}

func (d *bodyDecoder) commit(c *store.Commit) error {
	_, err := d.object(func(name string) error {
		switch name {
		case "streams":
			return d.array(func(i int) error {
				c.Streams = append(c.Streams, store.StreamAppend{})
				return d.element("streams", i, func() error { return d.stream(&c.Streams[i], true) })
			})
		case "snapshots":
			return d.array(func(i int) error {
				c.Snapshots = append(c.Snapshots, store.Snapshot{})
				return d.element("snapshots", i, func() error { return d.snapshot(&c.Snapshots[i], true) })
			})
		case "outbox":
			return badRequest(`member "outbox": this version has no outbox`)
		}
		return badRequest("unknown member %q; the members are streams, snapshots", name)
	})
	if err == nil && len(c.Streams)+len(c.Snapshots) == 0 {
		err = badRequest("the commit is empty: give streams or snapshots")
	}
	return err
}

// stream decodes an append to one stream. named: the body names the stream.
func (d *bodyDecoder) stream(a *store.StreamAppend, named bool) error {
	seen, err := d.object(func(name string) (err error) {
		switch {
		case name == "expected_version":
			a.ExpectedVersion, err = value(d, expectedVersion)
		case name == "events":
			err = d.array(func(i int) error {
				before := d.text.Left()
				if err := d.events.DecodeNext(d.text, &d.event); err != nil {
					return within("events", i, err)
				}
				if i == 0 {
					// As many as there will be, if all are as long as the first.
					left := d.text.Left()
					a.Events = make([]store.NewEvent, 0, min(1+left/(before-left), eventsFirst))
				}
				a.Events = append(a.Events, d.event.NewEvent)
				return nil
			})
		case named && name == "aggregate_type":
			a.AggregateType, err = value(d, rawjson.String)
		case named && name == "aggregate_id":
			a.AggregateID, err = value(d, rawjson.String)
		case named:
			return badRequest("unknown member %q; the members are aggregate_type, aggregate_id, expected_version, events", name)
		default:
			return badRequest("unknown member %q; the members are expected_version, events", name)
		}
		return err
	})
	if err != nil {
		return err
	}
	needed := []string{"expected_version", "events"}
	if named {
		needed = []string{"aggregate_type", "aggregate_id", "expected_version", "events"}
	}
	if err := need(seen, needed...); err != nil {
		return err
	}
	if len(a.Events) == 0 {
		return badRequest(`member "events" is empty: there is nothing to append`)
	}
	return nil
}

func (d *bodyDecoder) snapshot(sn *store.Snapshot, named bool) error {
	sn.Codec, sn.CodecVersion, sn.Version = store.DefaultCodec, store.DefaultCodecVersion, 1
	seen, err := d.object(func(name string) (err error) {
		switch {
		case name == "sequence":
			sn.Sequence, err = value(d, sequence)
		case name == "version":
			sn.Version, err = value(d, positive32)
		case name == "codec":
			sn.Codec, err = value(d, rawjson.String)
		case name == "codec_version":
			sn.CodecVersion, err = value(d, positive32)
		case name == "data":
			sn.Data, err = d.text.Value()
		case name == "data_base64":
			sn.Data, err = value(d, jsonl.Base64)
		case named && name == "aggregate_type":
			sn.AggregateType, err = value(d, rawjson.String)
		case named && name == "aggregate_id":
			sn.AggregateID, err = value(d, rawjson.String)
		default:
			known := "sequence, version, data, data_base64, codec, codec_version"
			if named {
				known = "aggregate_type, aggregate_id, " + known
			}
			return badRequest("unknown member %q; the members are %s", name, known)
		}
		return err
	})
	if err != nil {
		return err
	}
	if seen["data"] && seen["data_base64"] {
		return badRequest(`members "data" and "data_base64" are both given`)
	}
	seen["data"] = seen["data"] || seen["data_base64"]
	needed := []string{"sequence", "data"}
	if named {
		needed = []string{"aggregate_type", "aggregate_id", "sequence", "data"}
	}
	return need(seen, needed...)
}

// value passes the value ahead and parses it.
func value[T any](d *bodyDecoder, parse func(v []byte) (T, error)) (T, error) {
	v, err := d.text.Value()
	if err != nil {
		var none T
		return none, err
	}
	return parse(v)
}

func sequence(v []byte) (int64, error) {
	n, err := rawjson.Int(v, 64)
	if err == nil && n < 1 {
		err = errors.New("must be at least 1: the last event that is in the snapshot")
	}
	return n, err
}

func positive32(v []byte) (int32, error) {
	n, err := rawjson.Int(v, 32)
	if err == nil && n < 1 {
		err = errors.New("must be at least 1")
	}
	return int32(n), err
}

func expectedVersion(v []byte) (int64, error) {
	switch string(v) {
	case `"any"`:
		return store.AnyVersion, nil
	case `"new"`:
		return store.NewStream, nil
	}
	n, err := rawjson.Int(v, 64)
	if err != nil || n < 0 {
		return 0, errors.New(`must be the number of events you believe the stream has, "new" or "any"`)
	}
	return n, nil
}

// object calls each for the members of the object ahead, whose names may not
// repeat.
func (d *bodyDecoder) object(each func(name string) error) (map[string]bool, error) {
	seen := map[string]bool{}
	return seen, d.text.Members(func(name []byte) error {
		n := string(name)
		if seen[n] {
			return badRequest("member %q is given twice", n)
		}
		seen[n] = true
		return memberError(n, each(n))
	})
}

func (d *bodyDecoder) array(each func(i int) error) error {
	if kind := d.text.Kind(); kind != "an array" {
		return fmt.Errorf("must be an array, it is %s", kind)
	}
	i := -1
	return d.text.Elements(func() error {
		i++
		return each(i)
	})
}

// element decodes an object in an array.
func (d *bodyDecoder) element(list string, i int, decode func() error) error {
	if kind := d.text.Kind(); kind != "an object" {
		return within(list, i, fmt.Errorf("must be an object, it is %s", kind))
	}
	if err := decode(); err != nil {
		return within(list, i, err)
	}
	return nil
}

func memberError(name string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*apiError](err); ok {
		return err
	}
	return badRequest("member %q %v", name, err)
}

// within puts the place before an error's text. Where JSON is malformed is the
// whole body's to tell: see [decode].
func within(list string, i int, err error) error {
	place := fmt.Sprintf("%s[%d]: ", list, i)
	if e, ok := errors.AsType[*apiError](err); ok {
		e.message = place + e.message
		return e
	}
	if e, ok := errors.AsType[*rawjson.SyntaxError](err); ok {
		return badRequest("%s%s", place, e.Reason)
	}
	return badRequest("%s%v", place, err)
}

func need(seen map[string]bool, names ...string) error {
	missing := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return seen[n] })
	switch len(missing) {
	case 0:
		return nil
	case 1:
		return badRequest("member %q is missing", missing[0])
	}
	return badRequest("members %s are missing", `"`+strings.Join(missing, `", "`)+`"`)
}

// readStream is GET /v1/streams/{type}/{id}.
func (s *Server) readStream(w http.ResponseWriter, r *http.Request) error {
	p := paramsOf(r)
	from := p.int("from", 1, 1, maxInt64)
	limit := int(p.int("limit", defaultLimit, 1, rowsMax))
	if err := p.done(); err != nil {
		return err
	}
	typ, id := r.PathValue("type"), r.PathValue("id")
	// The version is read first: events between the reads are merely not
	// counted yet.
	version, err := s.deps.Store.StreamVersion(r.Context(), typ, id)
	if err != nil {
		return err
	}
	events, next, err := s.eventsOf(r.Context(), typ, id, from, limit)
	if err != nil {
		return err
	}
	if n := len(events); n > 0 {
		version = max(version, events[n-1].Sequence)
	}
	out := appendMessages(nil, events, next)
	out = append(out, `,"version":`...)
	out = strconv.AppendInt(out, version, 10)
	writeJSON(w, http.StatusOK, append(out, '}'))
	return nil
}

// appendMessages appends {"items":[…],"next":… without the closing brace.
func appendMessages(out []byte, events []store.Event, next int64) []byte {
	out = append(out, `{"items":[`...)
	for i := range events {
		if i > 0 {
			out = append(out, ',')
		}
		out = jsonl.AppendMessage(out, &events[i])
	}
	out = append(out, `],"next":`...)
	if next > 0 {
		return strconv.AppendInt(out, next, 10)
	}
	return append(out, "null"...)
}

// getSnapshot is GET /v1/streams/{type}/{id}/snapshot.
func (s *Server) getSnapshot(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	sn, err := s.deps.Store.LoadSnapshot(r.Context(), r.PathValue("type"), r.PathValue("id"))
	if errors.Is(err, store.ErrNotFound) {
		return fail(http.StatusNotFound, CodeNoSnapshot, "the stream has no snapshot, or only one that is ahead of it")
	}
	if err != nil {
		return err
	}
	b := append([]byte(nil), `{"aggregate_type":`...)
	b = jsonl.AppendString(b, sn.AggregateType)
	b = append(b, `,"aggregate_id":`...)
	b = jsonl.AppendString(b, sn.AggregateID)
	b = append(b, `,"sequence":`...)
	b = strconv.AppendInt(b, sn.Sequence, 10)
	b = append(b, `,"version":`...)
	b = strconv.AppendInt(b, int64(sn.Version), 10)
	b = jsonl.AppendPayload(b, sn.Codec, sn.CodecVersion, sn.Data, false)
	b = append(b, `,"created_at":"`...)
	b = jsonl.AppendTime(b, sn.CreatedUS)
	writeJSON(w, http.StatusOK, append(b, `"}`...))
	return nil
}

// putSnapshot is PUT /v1/streams/{type}/{id}/snapshot.
func (s *Server) putSnapshot(w http.ResponseWriter, r *http.Request) error {
	if err := paramsOf(r).done(); err != nil {
		return err
	}
	body, release, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	defer release()
	sn := store.Snapshot{AggregateType: r.PathValue("type"), AggregateID: r.PathValue("id")}
	err = decode(body, func(d *bodyDecoder) error { return d.snapshot(&sn, false) })
	if err != nil {
		return err
	}
	if err := s.deps.Store.SaveSnapshot(r.Context(), sn); err != nil {
		return err
	}
	return marshal(w, http.StatusOK, struct {
		Sequence int64 `json:"sequence"`
		Version  int32 `json:"version"`
	}{sn.Sequence, sn.Version})
}

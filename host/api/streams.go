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
	d := bodyDecoder{body: body}
	if err := d.stream(body, &a, false); err != nil {
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
	d := bodyDecoder{body: body}
	c, err := d.commit()
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
		b = append(b, id.String()...)
		b = append(b, '"')
	}
	b = append(b, ']')
	if r.Replayed {
		b = append(b, `,"replayed":true`...)
	}
	return b
}

// bodyDecoder decodes the bodies of appends; payloads stay views of the body,
// byte for byte. Its errors name the place: events[3]: member "type" is
// missing.
type bodyDecoder struct {
	body   []byte
	events jsonl.Decoder
}

func (d *bodyDecoder) commit() (c store.Commit, err error) {
	_, err = d.object(d.body, func(name string, value []byte) error {
		switch name {
		case "streams":
			return d.array(value, func(i int, el []byte) error {
				var a store.StreamAppend
				if err := d.stream(el, &a, true); err != nil {
					return within(fmt.Sprintf("streams[%d]", i), err)
				}
				c.Streams = append(c.Streams, a)
				return nil
			})
		case "snapshots":
			return d.array(value, func(i int, el []byte) error {
				var sn store.Snapshot
				if err := d.snapshot(el, &sn, true); err != nil {
					return within(fmt.Sprintf("snapshots[%d]", i), err)
				}
				c.Snapshots = append(c.Snapshots, sn)
				return nil
			})
		case "outbox":
			return badRequest(`member "outbox": this version has no outbox`)
		}
		return badRequest("unknown member %q; the members are streams, snapshots", name)
	})
	if err == nil && len(c.Streams)+len(c.Snapshots) == 0 {
		err = badRequest("the commit is empty: give streams or snapshots")
	}
	return c, err
}

// stream decodes an append to one stream. named: the body names the stream.
func (d *bodyDecoder) stream(b []byte, a *store.StreamAppend, named bool) error {
	d.events.Stream = jsonl.StreamRefused
	seen, err := d.object(b, func(name string, value []byte) (err error) {
		switch {
		case name == "expected_version":
			a.ExpectedVersion, err = expectedVersion(value)
		case name == "events":
			err = d.array(value, func(i int, el []byte) error {
				var e store.ImportEvent
				if err := d.events.Decode(el, &e); err != nil {
					return within(fmt.Sprintf("events[%d]", i), plain(err, false))
				}
				a.Events = append(a.Events, e.NewEvent)
				return nil
			})
		case named && name == "aggregate_type":
			a.AggregateType, err = rawjson.String(value)
		case named && name == "aggregate_id":
			a.AggregateID, err = rawjson.String(value)
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

func (d *bodyDecoder) snapshot(b []byte, sn *store.Snapshot, named bool) error {
	sn.Codec, sn.CodecVersion, sn.Version = store.DefaultCodec, store.DefaultCodecVersion, 1
	seen, err := d.object(b, func(name string, value []byte) (err error) {
		switch {
		case name == "sequence":
			if sn.Sequence, err = rawjson.Int(value, 64); err == nil && sn.Sequence < 1 {
				err = errors.New("must be at least 1: the last event that is in the snapshot")
			}
		case name == "version":
			sn.Version, err = positive32(value)
		case name == "codec":
			sn.Codec, err = rawjson.String(value)
		case name == "codec_version":
			sn.CodecVersion, err = positive32(value)
		case name == "data":
			sn.Data = value
		case name == "data_base64":
			sn.Data, err = jsonl.Base64(value)
		case named && name == "aggregate_type":
			sn.AggregateType, err = rawjson.String(value)
		case named && name == "aggregate_id":
			sn.AggregateID, err = rawjson.String(value)
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

// object calls each for the members of the body or of an object in it, whose
// names may not repeat. The whole body was scanned by the outermost call, so
// only that one can tell where JSON is malformed.
func (d *bodyDecoder) object(b []byte, each func(name string, value []byte) error) (map[string]bool, error) {
	outermost := len(b) == len(d.body)
	if !outermost && b[0] != '{' {
		return nil, fmt.Errorf("must be an object, it is %s", rawjson.Kind(b))
	}
	seen := map[string]bool{}
	err := rawjson.Members(b, func(name, value []byte, _ int) error {
		n := string(name)
		if seen[n] {
			return badRequest("member %q is given twice", n)
		}
		seen[n] = true
		return memberError(n, each(n, value))
	})
	return seen, plain(err, outermost)
}

func (d *bodyDecoder) array(b []byte, each func(i int, el []byte) error) error {
	if b[0] != '[' {
		return fmt.Errorf("must be an array, it is %s", rawjson.Kind(b))
	}
	i := -1
	return rawjson.Elements(b, func(el []byte, _ int) error {
		i++
		return each(i, el)
	})
}

// plain takes the offset off an error that counts from within the body.
func plain(err error, outermost bool) error {
	if se, ok := errors.AsType[*rawjson.SyntaxError](err); ok && !outermost {
		return badRequest("%s", se.Reason)
	}
	return err
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

// within puts the place before an error's text.
func within(place string, err error) error {
	if e, ok := errors.AsType[*apiError](err); ok {
		e.message = place + ": " + e.message
		return e
	}
	return badRequest("%s: %v", place, err)
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
	d := bodyDecoder{body: body}
	if err := d.snapshot(body, &sn, false); err != nil {
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

// Package jsonl is the import and export format: one event a line, in JSON,
// as the documentation of the command line describes it.
//
// It promises that data and metadata pass through byte for byte, that a line is
// taken whole or refused with the reason, and that a line without id gets the
// same id whenever it is read from the same file (see [Namer]). It stores
// nothing.
package jsonl

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/projhost/projhost/internal/rawjson"
	"github.com/projhost/projhost/store"
)

// Stream says whether an event names its stream.
type Stream int

// Where an event is read from decides.
const (
	StreamRequired Stream = iota // a line of a file
	StreamOptional               // a line for one given stream
	StreamRefused                // an event of a request for one given stream
)

// Decoder decodes events. Its zero value is ready; it is not safe for
// concurrent use.
type Decoder struct {
	Stream Stream

	interned map[string]string // short strings that repeat in every line
	lastID   string
	present  uint16
}

type member uint16

const (
	mID member = 1 << iota
	mAggregateType
	mAggregateID
	mSequence
	mType
	mRevision
	mCodec
	mCodecVersion
	mData
	mDataBase64
	mMetadata
	mMetadataBase64
	mOccurredAt
)

func memberOf(name []byte) member {
	switch string(name) {
	case "id":
		return mID
	case "aggregate_type":
		return mAggregateType
	case "aggregate_id":
		return mAggregateID
	case "sequence":
		return mSequence
	case "type":
		return mType
	case "revision":
		return mRevision
	case "codec":
		return mCodec
	case "codec_version":
		return mCodecVersion
	case "data":
		return mData
	case "data_base64":
		return mDataBase64
	case "metadata":
		return mMetadata
	case "metadata_base64":
		return mMetadataBase64
	case "occurred_at":
		return mOccurredAt
	}
	return 0
}

const (
	streamMembers = "aggregate_type, aggregate_id, "
	eventMembers  = "id, type, revision, data, data_base64, codec, codec_version, metadata, metadata_base64, occurred_at"
)

// Decode reads one event into e, which it resets. Data and Metadata are views
// of line where they stand there as JSON. Identifiers and sizes are the store's
// to judge.
func (d *Decoder) Decode(line []byte, e *store.ImportEvent) error {
	c, err := rawjson.Read(line)
	if err == nil {
		err = d.members(c, e)
	}
	if err == nil {
		err = c.End("object")
	}
	if err == nil {
		err = d.complete(e)
	}
	return err
}

// DecodeNext is [Decoder.Decode] for the event that a cursor stands before, which
// it passes.
func (d *Decoder) DecodeNext(c *rawjson.Cursor, e *store.ImportEvent) error {
	if err := d.members(c, e); err != nil {
		return err
	}
	return d.complete(e)
}

func (d *Decoder) members(c *rawjson.Cursor, e *store.ImportEvent) error {
	*e = store.ImportEvent{}
	d.present = 0
	return c.Members(func(name []byte) error {
		value, err := c.Value()
		if err != nil {
			return err
		}
		return d.member(name, value, e)
	})
}

func (d *Decoder) member(name, value []byte, e *store.ImportEvent) error {
	m := memberOf(name)
	if d.Stream == StreamRefused && m&(mAggregateType|mAggregateID|mSequence) != 0 {
		m = 0
	}
	if m == 0 {
		known := streamMembers + eventMembers + ", sequence"
		if d.Stream == StreamRefused {
			known = eventMembers
		}
		return fmt.Errorf("unknown member %q; the members are %s", name, known)
	}
	if d.present&uint16(m) != 0 {
		return fmt.Errorf("member %q is given twice", name)
	}
	d.present |= uint16(m)
	if err := d.set(m, value, e); err != nil {
		return fmt.Errorf("member %q %w", name, err)
	}
	return nil
}

func (d *Decoder) set(m member, v []byte, e *store.ImportEvent) (err error) {
	switch m {
	case mID:
		e.ID, err = parseID(v)
		e.HasID = true
	case mAggregateType:
		e.AggregateType, err = d.text(v)
	case mAggregateID:
		if d.lastID != "" && len(v) == len(d.lastID)+2 && string(v[1:len(v)-1]) == d.lastID && v[0] == '"' && !strings.Contains(d.lastID, `\`) {
			e.AggregateID = d.lastID // files often keep a stream's events together
			break
		}
		e.AggregateID, err = rawjson.String(v)
		d.lastID = e.AggregateID
	case mSequence:
		if e.Sequence, err = rawjson.Int(v, 64); err == nil && e.Sequence < 1 {
			err = errors.New("must be at least 1: it is the event's place in its stream")
		}
	case mType:
		e.Type, err = d.text(v)
	case mRevision:
		e.Revision, err = int32Of(v, 0)
		e.HasRevision = true
	case mCodec:
		if e.Codec, err = d.text(v); err == nil && e.Codec == "" {
			err = errors.New("must not be empty")
		}
	case mCodecVersion:
		e.CodecVersion, err = int32Of(v, 1)
	case mData:
		e.Data = v
	case mDataBase64:
		e.Data, err = Base64(v)
	case mMetadata:
		if !rawjson.IsNull(v) {
			e.Metadata = v
		}
	case mMetadataBase64:
		if e.Metadata, err = Base64(v); err == nil {
			if rawjson.Check(e.Metadata) != nil {
				err = errors.New("does not hold JSON")
			}
		}
	case mOccurredAt:
		if v, err = rawjson.Text(v); err == nil {
			e.OccurredUS, err = ParseTime(v)
			e.HasOccurred = true
		}
	}
	return err
}

func (d *Decoder) complete(e *store.ImportEvent) error {
	both := func(a, b member) bool { return d.present&uint16(a) != 0 && d.present&uint16(b) != 0 }
	neither := func(a, b member) bool { return d.present&uint16(a|b) == 0 }
	var missing []string
	if d.Stream == StreamRequired {
		if neither(mAggregateType, 0) {
			missing = append(missing, `"aggregate_type"`)
		}
		if neither(mAggregateID, 0) {
			missing = append(missing, `"aggregate_id"`)
		}
	}
	if neither(mType, 0) {
		missing = append(missing, `"type"`)
	}
	if neither(mData, mDataBase64) {
		missing = append(missing, `"data"`)
	}
	switch {
	case len(missing) == 1:
		return fmt.Errorf("member %s is missing", missing[0])
	case len(missing) > 1:
		return fmt.Errorf("members %s are missing", strings.Join(missing, ", "))
	case both(mData, mDataBase64):
		return errors.New(`members "data" and "data_base64" are both given`)
	case both(mMetadata, mMetadataBase64):
		return errors.New(`members "metadata" and "metadata_base64" are both given`)
	case neither(mCodec, 0) && !neither(mCodecVersion, 0):
		return errors.New(`member "codec_version" needs "codec"`)
	}
	return nil
}

func int32Of(v []byte, least int64) (int32, error) {
	n, err := rawjson.Int(v, 32)
	if err == nil && n < least {
		err = fmt.Errorf("must be at least %d", least)
	}
	return int32(n), err
}

// text decodes a string. Short ones are kept, since types and streams repeat.
func (d *Decoder) text(v []byte) (string, error) {
	if len(v) < 2 || len(v) > 66 || v[0] != '"' {
		return rawjson.String(v)
	}
	if s, ok := d.interned[string(v)]; ok {
		return s, nil
	}
	s, err := rawjson.String(v)
	if err != nil {
		return "", err
	}
	if d.interned == nil || len(d.interned) >= 4096 {
		d.interned = make(map[string]string)
	}
	d.interned[string(v)] = s
	return s, nil
}

var errUUID = errors.New(`must be a UUID, such as "96f9a74e-4bb1-5940-b42b-1789908e7cf0"`)

// parseID reads a UUID in its usual form.
func parseID(v []byte) (id store.ID, err error) {
	if len(v) != 38 || v[0] != '"' {
		return id, errUUID
	}
	s := v[1:37]
	if s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, errUUID
	}
	var digits [32]byte
	copy(digits[:], s[:8])
	copy(digits[8:], s[9:13])
	copy(digits[12:], s[14:18])
	copy(digits[16:], s[19:23])
	copy(digits[20:], s[24:])
	if _, err := hex.Decode(id[:], digits[:]); err != nil {
		return store.ID{}, errUUID
	}
	return id, nil
}

// Base64 decodes a JSON string of standard base64.
func Base64(v []byte) ([]byte, error) {
	s, err := rawjson.String(v)
	if err != nil {
		return nil, err
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || strings.ContainsAny(s, "\r\n") {
		return nil, errors.New("must be standard base64 with padding")
	}
	return b, nil
}

// DecodeMessage reads an event in the form that [AppendMessage] gives it.
func (d *Decoder) DecodeMessage(b []byte, out *store.Event) error {
	var e store.ImportEvent
	d.Stream, d.present = StreamRequired, 0
	*out = store.Event{}
	err := rawjson.Members(b, func(name, value []byte, _ int) (err error) {
		var n int64
		switch string(name) {
		case "position":
			out.Position, err = rawjson.Int(value, 64)
		case "partition":
			n, err = rawjson.Int(value, 32)
			out.Partition = int(n)
		default:
			return d.member(name, value, &e)
		}
		return err
	})
	if err == nil {
		err = d.complete(&e)
	}
	if err != nil {
		return err
	}
	out.ID, out.AggregateType, out.AggregateID, out.Sequence = e.ID, e.AggregateType, e.AggregateID, e.Sequence
	out.Type, out.Revision, out.Data, out.Metadata, out.OccurredUS = e.Type, e.Revision, e.Data, e.Metadata, e.OccurredUS
	out.Codec, out.CodecVersion = store.DefaultCodec, store.DefaultCodecVersion
	if e.Codec != "" {
		out.Codec, out.CodecVersion = e.Codec, max(e.CodecVersion, 1)
	}
	return nil
}

package store

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/projhost/projhost/internal/rawjson"
)

// DefaultMaxEvent bounds an event's data and metadata together, in bytes.
const DefaultMaxEvent = 1 << 20

// Times outside of the years 1 to 9999 cannot be held by every engine.
const (
	minTimeUS = -62135596800_000_000
	maxTimeUS = 253402300799_999_999
)

// CheckIdentifier returns what is wrong with an id, key or name, "" if nothing
// is. The rule is the strictest engine's, so that what one database takes all
// take: valid UTF-8 of 1 to [IdentifierMax] code points, without U+0000 and
// without U+0020 at its end.
func CheckIdentifier(s string) string {
	switch {
	case s == "":
		return "is empty"
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	case len(s) > IdentifierMax && utf8.RuneCountInString(s) > IdentifierMax:
		return fmt.Sprintf("has %d characters, at most %d are allowed", utf8.RuneCountInString(s), IdentifierMax)
	case strings.IndexByte(s, 0) >= 0:
		return "holds the character U+0000"
	case s[len(s)-1] == ' ':
		return "ends with a space"
	}
	return ""
}

// CheckCodec returns what is wrong with a payload and its codec, "" if nothing
// is. The codec json has version 1: one JSON text in UTF-8, nested at most 1000
// deep. Payloads of other codecs are opaque.
func CheckCodec(codec string, version int32, data []byte) string {
	if why := CheckStoredCodec(codec, version); why != "" {
		return why
	}
	if codec == DefaultCodec {
		return checkJSON("data", data)
	}
	return ""
}

// CheckStoredCodec is the part of [CheckCodec] that readers check as well: a
// newer host may have stored what this one cannot tell the meaning of.
func CheckStoredCodec(codec string, version int32) string {
	switch {
	case codec == DefaultCodec && version != DefaultCodecVersion:
		return fmt.Sprintf("codec json has no version %d, only %d", version, DefaultCodecVersion)
	case version < 1:
		return fmt.Sprintf("codec version %d: versions start at 1", version)
	}
	if why := CheckIdentifier(codec); why != "" {
		return "codec " + why
	}
	return ""
}

func checkJSON(what string, data []byte) string {
	if err := rawjson.Check(data); err != nil {
		return what + ": " + err.Error()
	}
	return ""
}

// Validate refuses what no database is asked about: names, sizes, codecs, a
// stream named twice, an event id given twice. The error is an [*InvalidError].
func (c *Commit) Validate(maxEvent int) error {
	if len(c.Streams) == 0 && len(c.Snapshots) == 0 {
		return invalid("bad_request", -1, "the commit is empty: it has neither events nor snapshots")
	}
	type stream struct{ typ, id string }
	streams := make(map[stream]bool, len(c.Streams))
	var ids map[ID]bool
	index := 0
	for i := range c.Streams {
		s := &c.Streams[i]
		if err := validateStream(s.AggregateType, s.AggregateID, index); err != nil {
			return err
		}
		if len(s.Events) == 0 {
			return invalid("bad_request", -1, "stream %s/%s: no events to append", s.AggregateType, s.AggregateID)
		}
		if s.ExpectedVersion < AnyVersion {
			return invalid("bad_request", -1, "stream %s/%s: expected version %d: versions count events", s.AggregateType, s.AggregateID, s.ExpectedVersion)
		}
		if key := (stream{s.AggregateType, s.AggregateID}); len(c.Streams) > 1 {
			if streams[key] {
				return invalid("duplicate_stream", index, "stream %s/%s is named twice in one commit: put its events into one append", s.AggregateType, s.AggregateID)
			}
			streams[key] = true
		}
		for j := range s.Events {
			e := &s.Events[j]
			if err := e.validate(index, maxEvent); err != nil {
				return err
			}
			if e.HasID {
				if ids[e.ID] {
					return invalid("duplicate_event", index, "event id %s is given twice in one commit", e.ID)
				}
				if ids == nil {
					ids = make(map[ID]bool, len(s.Events)-j)
				}
				ids[e.ID] = true
			}
			index++
		}
	}
	for i := range c.Snapshots {
		if err := c.Snapshots[i].Validate(maxEvent); err != nil {
			return err
		}
	}
	return nil
}

// ValidateImport is [Commit.Validate] for an import. Ids may repeat: the second
// of two equal events is already there.
func ValidateImport(events []ImportEvent, maxEvent int) error {
	for i := range events {
		e := &events[i]
		if err := validateStream(e.AggregateType, e.AggregateID, i); err != nil {
			return err
		}
		if err := e.validate(i, maxEvent); err != nil {
			return err
		}
		if !e.HasID {
			return invalid("bad_request", i, "an imported event has no id")
		}
		if e.Sequence < 0 {
			return invalid("bad_request", i, "sequence %d: sequences start at 1", e.Sequence)
		}
	}
	return nil
}

// Validate refuses a snapshot that no database is asked about.
func (s *Snapshot) Validate(maxSize int) error {
	if err := validateStream(s.AggregateType, s.AggregateID, -1); err != nil {
		return err
	}
	switch {
	case s.Sequence < 1:
		return invalid("bad_request", -1, "snapshot of %s/%s: sequence %d: sequences start at 1", s.AggregateType, s.AggregateID, s.Sequence)
	case s.Version < 0:
		return invalid("bad_request", -1, "snapshot of %s/%s: version %d is negative", s.AggregateType, s.AggregateID, s.Version)
	case len(s.Data) > maxSize:
		return invalid("too_large", -1, "snapshot of %s/%s: %d bytes, at most %d are allowed ([store] max_event)", s.AggregateType, s.AggregateID, len(s.Data), maxSize)
	}
	codec, version := codecOf(s.Codec, s.CodecVersion)
	if why := CheckCodec(codec, version, s.Data); why != "" {
		return invalid("bad_request", -1, "snapshot of %s/%s: %s", s.AggregateType, s.AggregateID, why)
	}
	return nil
}

// CodecOf is the event's codec with defaults filled in.
func (e *NewEvent) CodecOf() (string, int32) { return codecOf(e.Codec, e.CodecVersion) }

// CodecOf is the snapshot's codec with defaults filled in.
func (s *Snapshot) CodecOf() (string, int32) { return codecOf(s.Codec, s.CodecVersion) }

func codecOf(codec string, version int32) (string, int32) {
	if codec == "" {
		codec = DefaultCodec
	}
	if version == 0 {
		version = DefaultCodecVersion
	}
	return codec, version
}

func (e *NewEvent) validate(index, maxEvent int) error {
	if why := CheckIdentifier(e.Type); why != "" {
		return invalid("bad_request", index, "event type %s", why)
	}
	switch {
	case len(e.Data)+len(e.Metadata) > maxEvent:
		return invalid("too_large", index, "event has %d bytes of data and metadata, at most %d are allowed ([store] max_event)", len(e.Data)+len(e.Metadata), maxEvent)
	case e.HasID && e.ID == ID{}:
		return invalid("bad_request", index, "event id is the nil UUID")
	case e.Revision < 0:
		return invalid("bad_request", index, "revision %d is negative", e.Revision)
	case e.HasOccurred && (e.OccurredUS < minTimeUS || e.OccurredUS > maxTimeUS):
		return invalid("bad_request", index, "occurred_at is outside of the years 1 to 9999")
	}
	codec, version := e.CodecOf()
	if why := CheckCodec(codec, version, e.Data); why != "" {
		return invalid("bad_request", index, "event of type %s: %s", e.Type, why)
	}
	if e.Metadata != nil {
		if why := checkJSON("metadata", e.Metadata); why != "" {
			return invalid("bad_request", index, "event of type %s: %s", e.Type, why)
		}
	}
	return nil
}

func validateStream(typ, id string, index int) error {
	if why := CheckIdentifier(typ); why != "" {
		return invalid("bad_request", index, "aggregate type %s", why)
	}
	if why := CheckIdentifier(id); why != "" {
		return invalid("bad_request", index, "aggregate id %s", why)
	}
	return nil
}

func invalid(code string, index int, format string, args ...any) *InvalidError {
	return &InvalidError{Code: code, Index: index, Reason: fmt.Sprintf(format, args...)}
}

// Differs names the member in which a stored event is not the one given, "" if
// it is equal in all that the caller gave. What the store fills in is not
// compared, so that a call can be repeated.
func (e *NewEvent) Differs(stored *Event) string {
	codec, version := e.CodecOf()
	switch {
	case e.Type != stored.Type:
		return "type"
	case e.HasRevision && e.Revision != stored.Revision:
		return "revision"
	case codec != stored.Codec || version != stored.CodecVersion:
		return "codec"
	case string(e.Data) != string(stored.Data):
		return "data"
	case e.Metadata != nil && string(e.Metadata) != string(stored.Metadata):
		return "metadata"
	case e.HasOccurred && e.OccurredUS != stored.OccurredUS:
		return "occurred_at"
	}
	return ""
}

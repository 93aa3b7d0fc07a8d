package jsonl

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"github.com/projhost/projhost/store"
)

// AppendLine appends an event as a line of the format, with its newline.
// Reading the line gives an event of equal content, byte for byte.
func AppendLine(dst []byte, e *store.Event, sequence bool) []byte {
	dst = append(dst, `{"id":"`...)
	dst = e.ID.Append(dst)
	dst = append(dst, `","aggregate_type":`...)
	dst = AppendString(dst, e.AggregateType)
	dst = append(dst, `,"aggregate_id":`...)
	dst = AppendString(dst, e.AggregateID)
	if sequence {
		dst = append(dst, `,"sequence":`...)
		dst = strconv.AppendInt(dst, e.Sequence, 10)
	}
	dst = appendEvent(dst, e, true)
	return append(dst, '}', '\n')
}

// AppendMessage appends an event as the object that the HTTP API answers: the
// members of a line, and where the event is.
func AppendMessage(dst []byte, e *store.Event) []byte {
	dst = append(dst, `{"position":`...)
	dst = strconv.AppendInt(dst, e.Position, 10)
	dst = append(dst, `,"id":"`...)
	dst = e.ID.Append(dst)
	dst = append(dst, `","aggregate_type":`...)
	dst = AppendString(dst, e.AggregateType)
	dst = append(dst, `,"aggregate_id":`...)
	dst = AppendString(dst, e.AggregateID)
	dst = append(dst, `,"sequence":`...)
	dst = strconv.AppendInt(dst, e.Sequence, 10)
	dst = appendEvent(dst, e, false)
	dst = append(dst, `,"partition":`...)
	dst = strconv.AppendInt(dst, int64(e.Partition), 10)
	return append(dst, '}')
}

func appendEvent(dst []byte, e *store.Event, oneLine bool) []byte {
	dst = append(dst, `,"type":`...)
	dst = AppendString(dst, e.Type)
	dst = append(dst, `,"revision":`...)
	dst = strconv.AppendInt(dst, int64(e.Revision), 10)
	dst = AppendPayload(dst, e.Codec, e.CodecVersion, e.Data, oneLine)
	if e.Metadata != nil {
		dst = appendRaw(dst, "metadata", e.Metadata, oneLine)
	}
	dst = append(dst, `,"occurred_at":"`...)
	dst = AppendTime(dst, e.OccurredUS)
	return append(dst, '"')
}

// AppendPayload appends ,"data": or ,"data_base64": with a codec that is not
// the default one.
func AppendPayload(dst []byte, codec string, version int32, data []byte, oneLine bool) []byte {
	if codec != store.DefaultCodec || version != store.DefaultCodecVersion {
		dst = append(dst, `,"codec":`...)
		dst = AppendString(dst, codec)
		dst = append(dst, `,"codec_version":`...)
		dst = strconv.AppendInt(dst, int64(version), 10)
	}
	if codec != store.DefaultCodec {
		return appendBase64(dst, "data", data)
	}
	return appendRaw(dst, "data", data, oneLine)
}

// appendRaw embeds JSON as it is stored. White space around the value would be
// lost to a reader, and line ends within it break a line: such a text goes as
// base64.
func appendRaw(dst []byte, name string, raw []byte, oneLine bool) []byte {
	if len(raw) == 0 || blank(raw[0]) || blank(raw[len(raw)-1]) || oneLine && bytes.ContainsAny(raw, "\r\n") ||
		name == "metadata" && raw[0] == 'n' {
		return appendBase64(dst, name, raw)
	}
	dst = append(dst, `,"`...)
	dst = append(dst, name...)
	dst = append(dst, `":`...)
	return append(dst, raw...)
}

func appendBase64(dst []byte, name string, raw []byte) []byte {
	dst = append(dst, `,"`...)
	dst = append(dst, name...)
	dst = append(dst, `_base64":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, raw)
	return append(dst, '"')
}

func blank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string. What is not valid UTF-8 becomes the
// replacement character.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			dst = append(dst, s[start:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, `\n`...)
			case '\r':
				dst = append(dst, `\r`...)
			case '\t':
				dst = append(dst, `\t`...)
			default:
				dst = append(dst, `\u00`...)
				dst = append(dst, hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, s[start:i]...)
			dst = append(dst, `\ufffd`...)
			start = i + n
		}
		i += n
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

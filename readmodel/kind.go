package readmodel

import "github.com/projhost/projhost/abi"

// Kind is the type of a declared column.
type Kind uint8

// The kinds of columns.
const (
	Text Kind = iota + 1
	Int
	Decimal
	Float
	Bool
	Date
	Time
	Timestamp
	UUID
	Bytes
	JSON
)

// kindInfo says what a kind holds, alike on every engine. Dialects add the
// column type.
type kindInfo struct {
	name      string
	tag       abi.Tag // of its canonical form; a bool is TagTrue or TagFalse
	accepts   string  // values of ops
	canonical string
	domain    string
	order     string // "" for a kind that has no index and so no order
}

var kinds = [...]kindInfo{
	Text: {"text", abi.TagText, "text", "as given",
		"UTF-8 without U+0000; `max` counts UTF-16 code units", "by code point"},
	Int: {"int", abi.TagInt, "int", "as given",
		"−2⁶³ … 2⁶³−1", "by value"},
	Decimal: {"decimal", abi.TagDecimal, "decimal, int", "all digits of `scale` after the point, no superfluous zeros before it, no −0",
		"`precision` 1 … 38 digits, `scale` 0 … 30 of them after the point; other digits than zeros beyond the scale are refused, never rounded", "by value"},
	Float: {"float", abi.TagFloat, "float, int up to ±2⁵³", "−0 is 0, subnormal numbers are 0",
		"IEEE 754 double without NaN and infinities", "by value"},
	Bool: {"bool", abi.TagTrue, "bool", "as given",
		"false, true", "false, true"},
	Date: {"date", abi.TagDate, "date", "as given",
		"1000-01-01 … 9999-12-31", "by time"},
	Time: {"time", abi.TagTime, "time", "as given",
		"00:00:00.000000 … 23:59:59.999999", "by time"},
	Timestamp: {"timestamp", abi.TagTimestamp, "timestamp", "as given",
		"1000-01-01 00:00:00.000000 … 9999-12-31 23:59:59.999999, UTC", "by time"},
	UUID: {"uuid", abi.TagUUID, "uuid", "16 bytes",
		"any 16 bytes", "by byte"},
	Bytes: {"bytes", abi.TagBytes, "bytes", "as given",
		"any bytes", ""},
	JSON: {"json", abi.TagJSON, "json", "kept byte for byte",
		"one JSON value (RFC 8259) in UTF-8, at most 512 levels deep", ""},
}

// ParseKind reads a kind's name.
func ParseKind(name string) (Kind, bool) {
	for k := Text; k <= JSON; k++ {
		if kinds[k].name == name {
			return k, true
		}
	}
	return 0, false
}

func (k Kind) String() string {
	if k < Text || k > JSON {
		return "unknown"
	}
	return kinds[k].name
}

// indexable tells whether a column of the kind may have an index.
func (k Kind) indexable() bool { return kinds[k].order != "" }

package abi

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawValue(t *rapid.T) Value {
	switch tag := Tag(rapid.IntRange(int(TagNull), int(TagJSON)).Draw(t, "tag")); tag {
	case TagInt, TagTimestamp, TagTime:
		return Value{Tag: tag, I: rapid.Int64().Draw(t, "int")}
	case TagDate:
		return Date(rapid.Int32().Draw(t, "days"))
	case TagFloat:
		return Float(rapid.Float64().Filter(func(f float64) bool { return !math.IsInf(f, 0) }).Draw(t, "float"))
	case TagBytes:
		return Bytes(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
	case TagUUID:
		return UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "uuid"))
	case TagText, TagDecimal, TagJSON:
		return Value{Tag: tag, B: []byte(drawText().Draw(t, "text"))}
	default:
		return Value{Tag: tag}
	}
}

func drawText() *rapid.Generator[string] {
	return rapid.String().Filter(func(s string) bool { return ValidText([]byte(s)) })
}

func drawKey() *rapid.Generator[string] {
	return rapid.StringN(1, 255, -1).Filter(func(s string) bool { return CheckKey(s) == nil })
}

func describeValues(values []Value) []valueVector {
	out := []valueVector{}
	for _, v := range values {
		out = append(out, describeValue(v))
	}
	return out
}

func TestRowsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Custom(drawValue), 0, 20).Draw(t, "values")
		back, err := ReadRow(AppendRow(nil, values), nil)
		require.NoError(t, err)
		require.Equal(t, describeValues(values), describeValues(back))
	})
}

func TestFramesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Entry {
			e := Entry{
				Position: rapid.Uint64().Draw(t, "position"), Sequence: rapid.Uint64().Draw(t, "sequence"),
				TimeUS: rapid.Int64().Draw(t, "time"), Input: rapid.Uint16().Draw(t, "input"),
				Type: rapid.Uint16().Draw(t, "type"), Kind: Kind(rapid.Uint8().Draw(t, "kind")),
				Flags: rapid.Uint8().Draw(t, "flags"), CascadeDepth: rapid.Uint16().Draw(t, "depth"),
				Revision: rapid.Uint32().Draw(t, "revision"), Key: rapid.String().Draw(t, "key"),
				TypeName: rapid.String().Draw(t, "type name"), AggregateType: rapid.String().Draw(t, "aggregate type"),
				AggregateID: rapid.String().Draw(t, "aggregate id"),
				Metadata:    rapid.SliceOf(rapid.Byte()).Draw(t, "metadata"), Data: rapid.SliceOf(rapid.Byte()).Draw(t, "data"),
			}
			copy(e.ID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
			return e
		}), 0, 8).Draw(t, "entries")
		consumer := rapid.Uint16().Draw(t, "consumer")
		b := AppendFrame([]byte("before"), consumer, entries)[len("before"):]
		require.Len(t, b, FrameSize(entries))
		f, err := ParseFrame(b)
		require.NoError(t, err)
		require.Equal(t, consumer, f.Consumer)
		for i := range entries {
			var e Entry
			ok, err := f.Next(&e)
			require.NoError(t, err)
			require.True(t, ok)
			require.Equal(t, describeEntry(&entries[i]), describeEntry(&e))
		}
		ok, err := f.Next(&Entry{})
		require.NoError(t, err)
		require.False(t, ok)
	})
}

func drawOp(t *rapid.T) opVector {
	str := func(s string) *string { return &s }
	key := func(label string) *string { return str(drawKey().Draw(t, label)) }
	payload := func(label string) string { return blob(rapid.SliceOf(rapid.Byte()).Draw(t, label)) }
	code := rapid.SampledFrom([]OpCode{OpUpsert, OpInsert, OpPatch, OpDelete, OpAdd, OpDeleteChildren, OpSend,
		OpDeadline, OpCancel, OpComplete}).Draw(t, "code")
	v := opVector{Op: opNames[code]}
	switch code {
	case OpSend:
		v.Name, v.Key, v.Headers = key("name"), key("key"), blob([]byte(drawText().Draw(t, "headers")))
		v.Payload = payload("payload")
		return v
	case OpDeadline:
		v.Name, v.DueUS, v.Payload = key("name"), fmt.Sprint(rapid.Int64().Draw(t, "due")), payload("payload")
		return v
	case OpCancel:
		v.Name = key("name")
		return v
	case OpComplete:
		return v
	}
	table := uint16(rapid.IntRange(0, len(fuzzTables)-1).Draw(t, "table"))
	if code == OpDeleteChildren {
		table |= 1 // a child table
	}
	v.Table = &table
	if fuzzTables[table].Free {
		v.Key = key("key")
	}
	if fuzzTables[table].Child && code != OpDeleteChildren {
		v.Child = key("child")
	}
	if code == OpDelete || code == OpDeleteChildren {
		return v
	}
	for _, c := range rapid.SliceOfNDistinct(rapid.Uint16Range(0, MaxColumns-1), 0, 10, rapid.ID).Draw(t, "columns") {
		value := drawValue(t)
		if code == OpAdd {
			value = Int(rapid.Int64().Draw(t, "n"))
		}
		v.Columns = append(v.Columns, columnVector{c, describeValue(value)})
	}
	return v
}

func TestOpsComeBack(t *testing.T) {
	var w OpWriter
	rapid.Check(t, func(r *rapid.T) {
		ops := rapid.SliceOfN(rapid.Custom(drawOp), 0, 8).Draw(r, "ops")
		w.Reset()
		for _, op := range ops {
			writeOp(t, &w, fuzzTables, op)
		}
		back, err := readOps(w.Bytes(), fuzzTables)
		require.NoError(r, err)
		require.Equal(r, append([]opVector{}, ops...), back)
	})
}

func TestKeysAndListsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOfN(drawKey(), 0, 20).Draw(t, "keys")
		back := []string{}
		require.NoError(t, ReadKeys(AppendKeys(nil, keys...), func(k []byte) error {
			back = append(back, string(k))
			return nil
		}))
		require.Equal(t, append([]string{}, keys...), back)

		answer, found := AppendCount(nil, len(keys)), AppendCount(nil, len(keys))
		rows := [][]byte{}
		for i, k := range keys {
			row := AppendRow(nil, []Value{drawValue(t)})
			answer = AppendChild(answer, k, row)
			if i%2 == 1 {
				row = nil
			}
			found = AppendFound(found, row)
			rows = append(rows, row)
		}
		back = back[:0]
		require.NoError(t, ReadChildren(answer, func(c, row []byte) error {
			back = append(back, string(c))
			return nil
		}))
		require.Equal(t, append([]string{}, keys...), back)
		require.NoError(t, ReadFound(found, func(i int, row []byte) error {
			require.Equal(t, rows[i], row)
			return nil
		}))
	})
}

// TestPointersFindWhatWasPut makes a document around a value and looks for it
// by the pointer to its place.
func TestPointersFindWhatWasPut(t *testing.T) {
	escape := func(s string) string {
		out := ""
		for _, r := range s {
			switch r {
			case '~':
				out += "~0"
			case '/':
				out += "~1"
			default:
				out += string(r)
			}
		}
		return out
	}
	rapid.Check(t, func(t *rapid.T) {
		key := drawKey().Draw(t, "key")
		doc, pointer := string(appendQuoted(nil, key)), ""
		for range rapid.IntRange(0, 4).Draw(t, "depth") {
			if rapid.Bool().Draw(t, "array") {
				before := rapid.IntRange(0, 3).Draw(t, "index")
				inner := doc
				doc = "["
				for range before {
					doc += `{"x":[1,"]"]},`
				}
				doc += inner + `,true]`
				pointer = fmt.Sprintf("/%d%s", before, pointer)
				continue
			}
			name := drawText().Filter(func(s string) bool { return s != "\x01x" }).Draw(t, "name") // not the filler's
			quoted := string(appendQuoted(nil, name))
			doc = `{` + quoted + `:[false],"` + `\u0001x":"}", ` + quoted + ` : ` + doc + `}`
			pointer = "/" + escape(name) + pointer
		}
		require.Equal(t, PointerResult{State: PointerKey, Key: key}, Pointer([]byte(doc), pointer), doc)
	})
}

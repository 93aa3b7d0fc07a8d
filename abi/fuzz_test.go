package abi

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// goldenBytes gives every message of a file, found by the names of its members.
func goldenBytes(t testing.TB, file string, members ...string) (messages [][]byte) {
	b, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	var vectors []map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(b, &vectors))
	for _, v := range vectors {
		for _, m := range members {
			var s string
			require.NoError(t, json.Unmarshal(v[m], &s))
			b, err := hex.DecodeString(s)
			require.NoError(t, err)
			messages = append(messages, b)
		}
	}
	return messages
}

func seedHex(f *testing.F, file string, members ...string) {
	for _, b := range goldenBytes(f, file, members...) {
		f.Add(b)
	}
}

// wellFormed tells whether a decoder took its input, and that it refused it in
// the right way if not.
func wellFormed(t *testing.T, input []byte, err error) bool {
	if err == nil {
		return true
	}
	var malformed *MalformedError
	require.ErrorAs(t, err, &malformed)
	require.ErrorIs(t, err, ErrMalformed)
	require.GreaterOrEqual(t, malformed.Offset, 0)
	require.LessOrEqual(t, malformed.Offset, len(input))
	return false
}

// In ABI v1 a message has one encoding: what a decoder took, encoded again,
// gives the same bytes. Only frames of later minors and empty ops differ.

func FuzzFrame(f *testing.F) {
	seedHex(f, "frames.json", "hex")
	seedHex(f, "frames_later.json", "hex")
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := ParseFrame(b)
		if !wellFormed(t, b, err) {
			return
		}
		entries := []Entry{}
		for {
			var e Entry
			ok, err := frame.Next(&e)
			if !wellFormed(t, b, err) {
				return
			}
			if !ok {
				break
			}
			entries = append(entries, e)
		}
		require.Len(t, entries, frame.Count)
		again := AppendFrame(nil, frame.Consumer, entries)
		require.Len(t, again, FrameSize(entries))
		if len(again) == len(b) { // no entry is longer than ours
			le.PutUint16(again[4:], frame.Minor)
			le.PutUint32(again[8:], frame.Flags)
			require.Equal(t, b, again)
		}
	})
}

func FuzzValue(f *testing.F) {
	seedHex(f, "values.json", "hex")
	f.Fuzz(func(t *testing.T, b []byte) {
		v, rest, err := ReadValue(b)
		if wellFormed(t, b, err) {
			require.Equal(t, b, append(AppendValue(nil, v), rest...))
		}
	})
}

func FuzzRow(f *testing.F) {
	seedHex(f, "rows.json", "hex")
	f.Fuzz(func(t *testing.T, b []byte) {
		values, err := ReadRow(b, nil)
		if wellFormed(t, b, err) {
			require.Equal(t, b, AppendRow(nil, values))
		}
	})
}

var fuzzTables = []shapeVector{{}, {Child: true}, {Free: true}, {Free: true, Child: true}}

func FuzzOps(f *testing.F) {
	seedHex(f, "ops.json", "hex")
	f.Fuzz(func(t *testing.T, b []byte) {
		r := ReadOps(b, shapesOf(fuzzTables))
		var w OpWriter
		var op Op
		for {
			ok, err := r.Next(&op)
			if !wellFormed(t, b, err) {
				return
			}
			if !ok {
				break
			}
			switch op.Code {
			case OpSend:
				w.Send(string(op.Name), string(op.Key), op.Headers, op.Payload)
			case OpDeadline:
				w.Deadline(string(op.Name), op.DueUS, op.Payload)
			case OpCancel:
				w.Cancel(string(op.Name))
			case OpComplete:
				w.Complete()
			default:
				w.Begin(op.Code, op.Table, TableShape(fuzzTables[op.Table]), string(op.Key), string(op.Child))
				for _, c := range op.Columns {
					w.Value(c.Column, c.Value)
				}
			}
		}
		if len(b) > 0 {
			require.Equal(t, b, w.Bytes())
		}
	})
}

func FuzzKeys(f *testing.F) {
	seedHex(f, "keys.json", "hex")
	seedHex(f, "list.json", "hex")
	seedHex(f, "row_keys.json", "hex")
	seedHex(f, "get_many.json", "request_hex", "answer_hex")
	f.Fuzz(func(t *testing.T, b []byte) {
		var keys []string
		err := ReadKeys(b, func(k []byte) error {
			keys = append(keys, string(k))
			stored, _ := StorableKey(k)
			require.NoError(t, CheckKey(stored))
			return nil
		})
		if wellFormed(t, b, err) {
			require.Equal(t, b, AppendKeys(nil, keys...))
		}
		for _, shape := range fuzzTables {
			shape := TableShape(shape)
			key, child, err := ReadRowKey(b, shape)
			if wellFormed(t, b, err) {
				require.Equal(t, string(b), string(AppendRowKey(nil, shape, string(key), string(child))))
			}
			if key, err = ReadListKey(b, shape); wellFormed(t, b, err) {
				require.Equal(t, string(b), string(AppendListKey(nil, shape, string(key))))
			}
		}
		rows := []GetKey{}
		err = ReadGetMany(b, shapesOf(fuzzTables), func(table uint16, k []byte) error {
			shape := TableShape(fuzzTables[table])
			key, child, err := ReadRowKey(k, shape)
			rows = append(rows, GetKey{table, shape, string(key), string(child)})
			return err
		})
		if wellFormed(t, b, err) {
			require.Equal(t, b, AppendGetMany(nil, rows))
		}
		again := AppendCount(nil, 0)
		n := 0
		err = ReadFound(b, func(i int, row []byte) error {
			require.Equal(t, n, i)
			n++
			again = AppendFound(again, row)
			return nil
		})
		if PutCount(again, n); wellFormed(t, b, err) {
			require.Equal(t, b, again)
		}
		again, n = AppendCount(again[:0], 0), 0
		err = ReadChildren(b, func(child, row []byte) error {
			n++
			again = AppendChild(again, string(child), row)
			return nil
		})
		if PutCount(again, n); wellFormed(t, b, err) {
			require.Equal(t, b, again)
		}
	})
}

func FuzzManifest(f *testing.F) {
	for _, c := range manifestCases {
		f.Add([]byte(c.manifest))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			var problems *ManifestError
			require.ErrorAs(t, err, &problems)
			require.ErrorIs(t, err, ErrMalformed)
			require.NotEmpty(t, problems.Problems)
			require.True(t, utf8.ValidString(err.Error()))
			return
		}
		again, err := ParseManifest(m.AppendJSON(nil))
		require.NoError(t, err)
		require.Equal(t, m, again)
		var second Manifest
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&second))
		require.NoError(t, second.Validate())
		require.Equal(t, string(m.AppendJSON(nil)), string(second.AppendJSON(nil)))
	})
}

// FuzzPointer compares with encoding/json and a plain walk over its tree.
func FuzzPointer(f *testing.F) {
	for _, c := range pointerCases {
		f.Add([]byte(c.Data), c.Pointer)
	}
	f.Add([]byte(strings.Repeat(`[`, 20)+strings.Repeat(`]`, 20)), "/0/0/0")
	f.Fuzz(func(t *testing.T, data []byte, pointer string) {
		p, err := CompilePointers(pointer, "/a", pointer)
		if err != nil {
			require.ErrorIs(t, err, ErrMalformed)
			return
		}
		got := p.Extract(nil, data)
		require.Equal(t, got[0], got[2])
		require.Equal(t, got[0], Pointer(data, pointer))
		require.Equal(t, got[1], Pointer(data, "/a"))
		for _, r := range got {
			if r.State == PointerKey {
				require.NoError(t, CheckKey(r.Key))
			}
		}
		if !json.Valid(data) {
			require.Equal(t, PointerResult{State: PointerUnresolved}, got[0])
			return
		}
		if !utf8.Valid(data) || bytes.Contains(bytes.ToLower(data), []byte(`\ud`)) {
			return // encoding/json puts U+FFFD where we keep the difference
		}
		require.Equal(t, slowPointer(t, data, pointer), got[0])
	})
}

// slowPointer builds the tree and walks it.
func slowPointer(t *testing.T, data []byte, pointer string) PointerResult {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v))
	_, err := d.Token()
	require.True(t, errors.Is(err, io.EOF))
	for _, token := range strings.Split(pointer, "/")[1:] {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch at := v.(type) {
		case map[string]any:
			v = at[token]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || strconv.Itoa(i) != token || i < 0 || i >= len(at) {
				return PointerResult{}
			}
			v = at[i]
		default:
			return PointerResult{}
		}
	}
	switch v := v.(type) {
	case nil:
		return PointerResult{}
	case string:
		if v == "" {
			return PointerResult{}
		}
		key, ok := StorableKey([]byte(v))
		return PointerResult{State: PointerKey, StandIn: !ok, Key: key}
	case json.Number:
		key, ok := StorableKey([]byte(v))
		return PointerResult{State: PointerKey, StandIn: !ok, Key: key}
	}
	return PointerResult{State: PointerUnresolved}
}

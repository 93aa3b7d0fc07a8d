package abi

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "rewrite testdata/*.json")

// golden compares the vectors with their file, or writes it.
func golden(t *testing.T, name string, vectors any) {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	require.NoError(t, enc.Encode(vectors))
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, b.Bytes(), 0o666))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "ABI v1 is frozen: %s must not change, only grow", path)
}

// The descriptions below are what the JSON files hold; testdata/README.md
// explains them.

type shapeVector struct {
	Child bool `json:"child,omitempty"`
	Free  bool `json:"free,omitempty"`
}

func shapesOf(list []shapeVector) func(uint16) (TableShape, bool) {
	return func(table uint16) (TableShape, bool) {
		if int(table) >= len(list) {
			return TableShape{}, false
		}
		return TableShape(list[table]), true
	}
}

// valueVector is [tag] or [tag, spelling].
type valueVector []string

var tagNames = []string{"null", "false", "true", "int", "float", "text", "bytes", "decimal", "timestamp", "date",
	"time", "uuid", "json"}

func describeValue(v Value) valueVector {
	name := tagNames[v.Tag]
	switch v.Tag {
	case TagNull, TagFalse, TagTrue:
		return valueVector{name}
	case TagInt, TagTimestamp, TagDate, TagTime:
		return valueVector{name, strconv.FormatInt(v.I, 10)}
	case TagFloat:
		return valueVector{name, fmt.Sprintf("%016x", math.Float64bits(v.F))}
	case TagBytes, TagUUID:
		return valueVector{name, hex.EncodeToString(v.B)}
	}
	return valueVector{name, string(v.B)}
}

func (v valueVector) value(t *testing.T) Value {
	for tag, name := range tagNames {
		if name != v[0] {
			continue
		}
		value := Value{Tag: Tag(tag)}
		var err error
		switch value.Tag {
		case TagNull, TagFalse, TagTrue:
		case TagInt, TagTimestamp, TagDate, TagTime:
			value.I, err = strconv.ParseInt(v[1], 10, 64)
		case TagFloat:
			var bits uint64
			bits, err = strconv.ParseUint(v[1], 16, 64)
			value.F = math.Float64frombits(bits)
		case TagBytes, TagUUID:
			value.B, err = hex.DecodeString(v[1])
		default:
			value.B = []byte(v[1])
		}
		require.NoError(t, err)
		return value
	}
	t.Fatalf("no tag %q", v[0])
	return Value{}
}

// blob spells bytes as "text:…" where they are UTF-8, else as "hex:…".
func blob(b []byte) string {
	if utf8.Valid(b) {
		return "text:" + string(b)
	}
	return "hex:" + hex.EncodeToString(b)
}

func unblob(t *testing.T, s string) []byte {
	if text, ok := strings.CutPrefix(s, "text:"); ok {
		return []byte(text)
	}
	text, ok := strings.CutPrefix(s, "hex:")
	require.True(t, ok, s)
	b, err := hex.DecodeString(text)
	require.NoError(t, err)
	return b
}

func fromHex(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

type entryVector struct {
	Position      string `json:"position"`
	Sequence      string `json:"sequence"`
	TimeUS        string `json:"time_us"`
	ID            string `json:"id"`
	Input         uint16 `json:"input"`
	Type          uint16 `json:"type"`
	Kind          uint8  `json:"kind"`
	Flags         uint8  `json:"flags"`
	CascadeDepth  uint16 `json:"cascade_depth"`
	Revision      uint32 `json:"revision"`
	Key           string `json:"key"`
	TypeName      string `json:"type_name"`
	AggregateType string `json:"aggregate_type"`
	AggregateID   string `json:"aggregate_id"`
	Metadata      string `json:"metadata"`
	Data          string `json:"data"`
}

func describeEntry(e *Entry) entryVector {
	return entryVector{
		Position: strconv.FormatUint(e.Position, 10), Sequence: strconv.FormatUint(e.Sequence, 10),
		TimeUS: strconv.FormatInt(e.TimeUS, 10), ID: hex.EncodeToString(e.ID[:]), Input: e.Input, Type: e.Type,
		Kind: uint8(e.Kind), Flags: e.Flags, CascadeDepth: e.CascadeDepth, Revision: e.Revision, Key: e.Key,
		TypeName: e.TypeName, AggregateType: e.AggregateType, AggregateID: e.AggregateID,
		Metadata: blob(e.Metadata), Data: blob(e.Data),
	}
}

func (v entryVector) entry(t *testing.T) Entry {
	e := Entry{
		Input: v.Input, Type: v.Type, Kind: Kind(v.Kind), Flags: v.Flags, CascadeDepth: v.CascadeDepth,
		Revision: v.Revision, Key: v.Key, TypeName: v.TypeName, AggregateType: v.AggregateType,
		AggregateID: v.AggregateID, Metadata: unblob(t, v.Metadata), Data: unblob(t, v.Data),
	}
	var err error
	e.Position, err = strconv.ParseUint(v.Position, 10, 64)
	require.NoError(t, err)
	e.Sequence, err = strconv.ParseUint(v.Sequence, 10, 64)
	require.NoError(t, err)
	e.TimeUS, err = strconv.ParseInt(v.TimeUS, 10, 64)
	require.NoError(t, err)
	copy(e.ID[:], fromHex(t, v.ID))
	return e
}

type frameVector struct {
	Name     string        `json:"name"`
	Consumer uint16        `json:"consumer"`
	Minor    uint16        `json:"minor"`
	Flags    uint32        `json:"flags"`
	Entries  []entryVector `json:"entries"`
	Hex      string        `json:"hex"`
}

func readFrame(t *testing.T, b []byte) frameVector {
	f, err := ParseFrame(b)
	require.NoError(t, err)
	v := frameVector{Consumer: f.Consumer, Minor: f.Minor, Flags: f.Flags, Entries: []entryVector{}}
	var e Entry
	for {
		ok, err := f.Next(&e)
		require.NoError(t, err)
		if !ok {
			return v
		}
		v.Entries = append(v.Entries, describeEntry(&e))
	}
}

func TestGoldenFrames(t *testing.T) {
	blank := entryVector{
		Position: "1", Sequence: "0", TimeUS: "0", ID: strings.Repeat("00", 16), Key: "k",
		Metadata: "text:", Data: "text:",
	}
	loan := entryVector{
		Position: "4294967298", Sequence: "3", TimeUS: "1317422324546000", ID: "96f9a74e4bb15940b42b1789908e7cf0",
		Input: 0, Type: 1, Revision: 2, Key: "173688", TypeName: "A_DECLINED", AggregateType: "loan-application",
		AggregateID: "173688", Metadata: `text:{"actor":"112"}`, Data: `text:{"case":{"AMOUNT_REQ":"20000"}}`,
	}
	fanOut := loan
	fanOut.Key, fanOut.Input, fanOut.Type, fanOut.TypeName = "Ä-7", 1, TypeByName, "Ä/1"
	fanOut.Flags, fanOut.CascadeDepth, fanOut.Data = FlagReplay, 2, "hex:00ff10"
	extreme := entryVector{
		Position: "9223372036854775807", Sequence: "18446744073709551615", TimeUS: "-9223372036854775808",
		ID: strings.Repeat("ff", 16), Input: 65535, Type: 65534, Kind: 2, Flags: 255, CascadeDepth: 65535,
		Revision: 4294967295, Key: strings.Repeat("k", 255), Metadata: "text:", Data: "text:",
	}
	tombstone := blank
	tombstone.Kind = uint8(KindTombstone)
	vectors := []frameVector{
		{Name: "no entries", Consumer: 3, Entries: []entryVector{}},
		{Name: "one entry with empty fields", Entries: []entryVector{blank}},
		{Name: "one loan event", Consumer: 1, Entries: []entryVector{loan}},
		{Name: "a message with two keys, a type by name, opaque data, replayed", Entries: []entryVector{loan, fanOut}},
		{Name: "a tombstone, then every field at its limit", Entries: []entryVector{tombstone, extreme}},
	}
	for i := range vectors {
		v := &vectors[i]
		var entries []Entry
		for _, e := range v.Entries {
			entries = append(entries, e.entry(t))
		}
		b := AppendFrame(nil, v.Consumer, entries)
		require.Len(t, b, FrameSize(entries))
		back := readFrame(t, b)
		back.Name = v.Name
		require.Equal(t, *v, back)
		v.Hex = hex.EncodeToString(b)
	}
	golden(t, "frames.json", vectors)

	// A later minor appends to entries; a guest of minor 0 skips what it does
	// not know. Our writer cannot make one, so it is made here.
	later := AppendFrame(nil, 0, []Entry{loan.entry(t)})
	le.PutUint16(later[4:], 1)
	le.PutUint32(later[frameHeader:], le.Uint32(later[frameHeader:])+3)
	later = append(later, 0xAA, 0xBB, 0xCC)
	v := readFrame(t, later)
	require.Equal(t, []entryVector{loan}, v.Entries)
	v.Name, v.Hex = "of minor 1: three unknown bytes end the entry", hex.EncodeToString(later)
	golden(t, "frames_later.json", []frameVector{v})
}

type rowVector struct {
	Name   string        `json:"name"`
	Values []valueVector `json:"values"`
	Hex    string        `json:"hex"`
}

// sampleValues has each tag, and its limits.
func sampleValues() []Value {
	values := []Value{
		Null(), Bool(false), Bool(true), Int(0), Int(-1), Int(math.MinInt64), Int(math.MaxInt64),
		Float(0), Float(-1.5), Float(math.MaxFloat64), Float(math.SmallestNonzeroFloat64),
		Text(""), Text("ä\U0001F600\n"), Bytes(nil), Bytes([]byte{0, 0xFF}), Decimal("-12.50"), Decimal("0"),
		Timestamp(1317422324546000), Timestamp(-1), Date(0), Date(-719162), Date(2932896), Time(86399999999),
		UUID([]byte("\x96\xf9\xa7\x4e\x4b\xb1\x59\x40\xb4\x2b\x17\x89\x90\x8e\x7c\xf0")), JSON([]byte(`{"a":[1,null]}`)),
	}
	return values
}

func TestGoldenValues(t *testing.T) {
	type vector struct {
		Value valueVector `json:"value"`
		Hex   string      `json:"hex"`
	}
	var vectors []vector
	for _, v := range sampleValues() {
		b := AppendValue(nil, v)
		back, rest, err := ReadValue(append(b, 0xEE))
		require.NoError(t, err)
		require.Equal(t, []byte{0xEE}, rest)
		require.Equal(t, describeValue(v), describeValue(back))
		require.Equal(t, describeValue(v), describeValue(describeValue(v).value(t)))
		vectors = append(vectors, vector{describeValue(v), hex.EncodeToString(b)})
	}
	golden(t, "values.json", vectors)
}

func describeRow(t *testing.T, name string, row []byte) rowVector {
	values, err := ReadRow(row, nil)
	require.NoError(t, err)
	v := rowVector{Name: name, Values: []valueVector{}, Hex: hex.EncodeToString(row)}
	for _, value := range values {
		v.Values = append(v.Values, describeValue(value))
	}
	return v
}

func TestGoldenRows(t *testing.T) {
	vectors := []rowVector{
		describeRow(t, "no columns", AppendRow(nil, nil)),
		describeRow(t, "one null", AppendRow(nil, []Value{Null()})),
		describeRow(t, "a loan", AppendRow(nil, []Value{Text("A_DECLINED"), Decimal("20000.00"), Int(3)})),
		describeRow(t, "every tag", AppendRow(nil, sampleValues())),
	}
	for _, v := range vectors {
		var values []Value
		for _, value := range v.Values {
			values = append(values, value.value(t))
		}
		require.Equal(t, v.Hex, hex.EncodeToString(AppendRow(nil, values)))
	}
	golden(t, "rows.json", vectors)
}

type opVector struct {
	Op      string         `json:"op"`
	Table   *uint16        `json:"table,omitempty"`
	Key     *string        `json:"key,omitempty"`
	Child   *string        `json:"child,omitempty"`
	Columns []columnVector `json:"columns,omitempty"`
	Name    *string        `json:"name,omitempty"`
	DueUS   string         `json:"due_us,omitempty"`
	Headers string         `json:"headers,omitempty"`
	Payload string         `json:"payload,omitempty"`
}

type columnVector struct {
	Column uint16      `json:"column"`
	Value  valueVector `json:"value"`
}

type opsVector struct {
	Name   string        `json:"name"`
	Tables []shapeVector `json:"tables"`
	Ops    []opVector    `json:"ops"`
	Hex    string        `json:"hex"`
}

var opNames = map[OpCode]string{
	OpUpsert: "upsert", OpInsert: "insert", OpPatch: "patch", OpDelete: "delete", OpAdd: "add",
	OpDeleteChildren: "delete_children", OpSend: "send", OpDeadline: "deadline", OpCancel: "cancel",
	OpComplete: "complete",
}

func describeOp(op *Op) opVector {
	v := opVector{Op: opNames[op.Code]}
	str := func(b []byte) *string {
		if b == nil {
			return nil
		}
		s := string(b)
		return &s
	}
	v.Key, v.Child, v.Name = str(op.Key), str(op.Child), str(op.Name)
	switch op.Code {
	case OpSend:
		v.Headers, v.Payload = blob(op.Headers), blob(op.Payload)
	case OpDeadline:
		v.DueUS, v.Payload = strconv.FormatInt(op.DueUS, 10), blob(op.Payload)
	case OpCancel, OpComplete:
	default:
		table := op.Table
		v.Table = &table
	}
	for _, c := range op.Columns {
		v.Columns = append(v.Columns, columnVector{c.Column, describeValue(c.Value)})
	}
	return v
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func writeOp(t *testing.T, w *OpWriter, shapes []shapeVector, v opVector) {
	switch v.Op {
	case "send":
		w.Send(deref(v.Name), deref(v.Key), unblob(t, v.Headers), unblob(t, v.Payload))
	case "deadline":
		due, err := strconv.ParseInt(v.DueUS, 10, 64)
		require.NoError(t, err)
		w.Deadline(deref(v.Name), due, unblob(t, v.Payload))
	case "cancel":
		w.Cancel(deref(v.Name))
	case "complete":
		w.Complete()
	default:
		for code, name := range opNames {
			if name == v.Op {
				w.Begin(code, *v.Table, TableShape(shapes[*v.Table]), deref(v.Key), deref(v.Child))
			}
		}
		for _, c := range v.Columns {
			w.Value(c.Column, c.Value.value(t))
		}
	}
}

func readOps(b []byte, shapes []shapeVector) ([]opVector, error) {
	r := ReadOps(b, shapesOf(shapes))
	ops := []opVector{}
	var op Op
	for {
		ok, err := r.Next(&op)
		if !ok {
			return ops, err
		}
		ops = append(ops, describeOp(&op))
	}
}

func TestGoldenOps(t *testing.T) {
	tables := []shapeVector{{}, {Child: true}, {Free: true}, {Free: true, Child: true}}
	table := func(i uint16) *uint16 { return &i }
	str := func(s string) *string { return &s }
	columns := []columnVector{
		{0, describeValue(Text("A_DECLINED"))}, {2, describeValue(Int(3))}, {1, describeValue(Decimal("20000.00"))},
	}
	var every []columnVector
	for i, v := range sampleValues() {
		every = append(every, columnVector{uint16(i), describeValue(v)})
	}
	increments := []columnVector{{2, describeValue(Int(-1))}, {1, describeValue(Decimal("0.50"))}}
	vectors := []opsVector{
		{Name: "none"},
		{Name: "patch of the entry's own row", Ops: []opVector{{Op: "patch", Table: table(0), Columns: columns}}},
		{Name: "upsert without columns", Ops: []opVector{{Op: "upsert", Table: table(0)}}},
		{Name: "upsert with every tag", Ops: []opVector{{Op: "upsert", Table: table(0), Columns: every}}},
		{Name: "each op on a plain table", Ops: []opVector{
			{Op: "upsert", Table: table(0), Columns: columns}, {Op: "insert", Table: table(0), Columns: columns},
			{Op: "patch", Table: table(0), Columns: columns[:1]}, {Op: "add", Table: table(0), Columns: increments},
			{Op: "delete", Table: table(0)},
		}},
		{Name: "each op on a child table", Ops: []opVector{
			{Op: "upsert", Table: table(1), Child: str("line-1"), Columns: columns},
			{Op: "insert", Table: table(1), Child: str("Ä"), Columns: columns[:1]},
			{Op: "patch", Table: table(1), Child: str("line-1"), Columns: columns[:1]},
			{Op: "add", Table: table(1), Child: str("line-1"), Columns: increments},
			{Op: "delete", Table: table(1), Child: str("line-1")},
			{Op: "delete_children", Table: table(1)},
		}},
		{Name: "ops on a free table carry the key", Ops: []opVector{
			{Op: "upsert", Table: table(2), Key: str("k"), Columns: columns[:1]},
			{Op: "delete", Table: table(2), Key: str("k")},
		}},
		{Name: "ops on a free child table carry key and child", Ops: []opVector{
			{Op: "add", Table: table(3), Key: str("k"), Child: str("c"), Columns: increments},
			{Op: "delete", Table: table(3), Key: str("k"), Child: str("c")},
			{Op: "delete_children", Table: table(3), Key: str("k")},
		}},
		{Name: "ops of sagas", Ops: []opVector{
			{Op: "send", Name: str("invoices"), Key: str("order-7"), Headers: `text:{"tenant":"a"}`, Payload: "hex:00ff"},
			{Op: "send", Name: str("invoices"), Key: str("order-7"), Headers: "text:", Payload: "text:{}"},
			{Op: "deadline", Name: str("pay"), DueUS: "1317422324546000", Payload: `text:{"n":1}`},
			{Op: "cancel", Name: str("pay")}, {Op: "complete"},
		}},
	}
	var w OpWriter
	for i := range vectors {
		v := &vectors[i]
		v.Tables = tables
		if v.Ops == nil {
			v.Ops = []opVector{}
		}
		w.Reset()
		for _, op := range v.Ops {
			writeOp(t, &w, tables, op)
		}
		require.Equal(t, len(v.Ops), w.Len())
		back, err := readOps(w.Bytes(), tables)
		require.NoError(t, err)
		require.Equal(t, v.Ops, back)
		v.Hex = hex.EncodeToString(w.Bytes())
	}
	golden(t, "ops.json", vectors)
}

func TestGoldenKeys(t *testing.T) {
	type vector struct {
		Name string   `json:"name"`
		Keys []string `json:"keys"`
		Hex  string   `json:"hex"`
	}
	vectors := []vector{
		{Name: "not interested", Keys: []string{}},
		{Name: "one key", Keys: []string{"112"}},
		{Name: "two keys, one of them twice", Keys: []string{"a", "Ä", "a"}},
	}
	for i := range vectors {
		v := &vectors[i]
		b := AppendKeys(nil, v.Keys...)
		back := []string{}
		require.NoError(t, ReadKeys(b, func(k []byte) error { back = append(back, string(k)); return nil }))
		require.Equal(t, v.Keys, back)
		v.Hex = hex.EncodeToString(b)
	}
	golden(t, "keys.json", vectors)
}

type rowKeyVector struct {
	Import string      `json:"import"` // get or list
	Shape  shapeVector `json:"shape"`
	Key    string      `json:"key,omitempty"`
	Child  string      `json:"child,omitempty"`
	Hex    string      `json:"hex"`
}

func TestGoldenRowKeys(t *testing.T) {
	vectors := []rowKeyVector{
		{Import: "get"},
		{Import: "get", Shape: shapeVector{Child: true}, Child: "line-1"},
		{Import: "get", Shape: shapeVector{Free: true}, Key: "Ä"},
		{Import: "get", Shape: shapeVector{Free: true, Child: true}, Key: "k", Child: "c"},
		{Import: "list", Shape: shapeVector{Child: true}},
		{Import: "list", Shape: shapeVector{Free: true, Child: true}, Key: "k"},
	}
	for i := range vectors {
		v := &vectors[i]
		shape := TableShape(v.Shape)
		var b, key, child []byte
		var err error
		if v.Import == "list" {
			b = AppendListKey(nil, shape, v.Key)
			key, err = ReadListKey(b, shape)
		} else {
			b = AppendRowKey(nil, shape, v.Key, v.Child)
			key, child, err = ReadRowKey(b, shape)
		}
		require.NoError(t, err)
		require.Equal(t, v.Key, string(key))
		require.Equal(t, v.Child, string(child))
		v.Hex = hex.EncodeToString(b)
	}
	golden(t, "row_keys.json", vectors)
}

func TestGoldenGetMany(t *testing.T) {
	type row struct {
		Table uint16 `json:"table"`
		Key   string `json:"key,omitempty"`
		Child string `json:"child,omitempty"`
		Row   string `json:"row"` // hex, "" if absent
	}
	type vector struct {
		Name    string        `json:"name"`
		Tables  []shapeVector `json:"tables"`
		Rows    []row         `json:"rows"`
		Request string        `json:"request_hex"`
		Answer  string        `json:"answer_hex"`
	}
	tables := []shapeVector{{}, {Child: true}, {Free: true}, {Free: true, Child: true}}
	loan := hex.EncodeToString(AppendRow(nil, []Value{Text("A_DECLINED"), Int(3)}))
	vectors := []vector{
		{Name: "nothing", Rows: []row{}},
		{Name: "one of each table", Rows: []row{
			{Table: 0, Row: loan}, {Table: 1, Child: "line-1"}, {Table: 2, Key: "k", Row: "0000"},
			{Table: 3, Key: "k", Child: "c", Row: loan},
		}},
	}
	for i := range vectors {
		v := &vectors[i]
		v.Tables = tables
		var keys []GetKey
		answer := AppendCount(nil, 0)
		for _, r := range v.Rows {
			keys = append(keys, GetKey{Table: r.Table, Shape: TableShape(tables[r.Table]), Key: r.Key, Child: r.Child})
			var found []byte
			if r.Row != "" {
				found = fromHex(t, r.Row)
			}
			answer = AppendFound(answer, found)
		}
		PutCount(answer, len(v.Rows))
		request := AppendGetMany(nil, keys)

		back := []row{}
		require.NoError(t, ReadGetMany(request, shapesOf(tables), func(table uint16, b []byte) error {
			key, child, err := ReadRowKey(b, TableShape(tables[table]))
			back = append(back, row{Table: table, Key: string(key), Child: string(child)})
			return err
		}))
		require.NoError(t, ReadFound(answer, func(i int, found []byte) error {
			back[i].Row = hex.EncodeToString(found)
			return nil
		}))
		require.Equal(t, v.Rows, back)
		v.Request, v.Answer = hex.EncodeToString(request), hex.EncodeToString(answer)
	}
	golden(t, "get_many.json", vectors)
}

func TestGoldenList(t *testing.T) {
	type child struct {
		Child string `json:"child"`
		Row   string `json:"row"` // hex
	}
	type vector struct {
		Name     string  `json:"name"`
		Children []child `json:"children"`
		Hex      string  `json:"hex"`
	}
	loan := hex.EncodeToString(AppendRow(nil, []Value{Text("A_DECLINED"), Int(3)}))
	vectors := []vector{
		{Name: "no children", Children: []child{}},
		{Name: "two children, one without columns", Children: []child{{"line-1", loan}, {"Ä", "0000"}}},
	}
	for i := range vectors {
		v := &vectors[i]
		b := AppendCount(nil, len(v.Children))
		for _, c := range v.Children {
			b = AppendChild(b, c.Child, fromHex(t, c.Row))
		}
		back := []child{}
		require.NoError(t, ReadChildren(b, func(c, row []byte) error {
			back = append(back, child{string(c), hex.EncodeToString(row)})
			return nil
		}))
		require.Equal(t, v.Children, back)
		v.Hex = hex.EncodeToString(b)
	}
	golden(t, "list.json", vectors)
}

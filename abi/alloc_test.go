package abi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHotPathsDoNotAllocate keeps what the package comment says: with a warm
// buffer neither side of the boundary allocates.
func TestHotPathsDoNotAllocate(t *testing.T) {
	entries := sampleEntries(256)
	frame := AppendFrame(nil, 0, entries)
	row := sampleRow()
	rowBytes := AppendRow(nil, row)
	child := TableShape{Free: true, Child: true}
	shapes := func(uint16) (TableShape, bool) { return child, true }
	var w OpWriter
	ops := append([]byte(nil), writeSampleOps(&w, row)...)
	keys := AppendKeys(nil, "a", "b")
	get := []GetKey{{Shape: child, Key: "k", Child: "c"}, {Shape: child, Key: "k", Child: "d"}}
	getMany := AppendGetMany(nil, get)
	found := AppendFound(AppendFound(AppendCount(nil, 2), rowBytes), nil)
	children := AppendChild(AppendCount(nil, 1), "c", rowBytes)
	pointers, err := CompilePointers("/account", "/booked/by", "/org:resource", "/none")
	require.NoError(t, err)
	data := samplePayload()

	var (
		buf     = make([]byte, 0, 2*len(frame))
		values  []Value
		op      Op
		e       Entry
		results = make([]PointerResult, 0, 8)
		names   = make([]string, 0, 8)
		seen    int
	)
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	for name, f := range map[string]func(){
		"AppendFrame": func() { buf = AppendFrame(buf[:0], 0, entries) },
		"Frame.Next": func() {
			f, err := ParseFrame(frame)
			must(err)
			for more := true; more; {
				more, err = f.Next(&e)
				must(err)
			}
		},
		"AppendRow": func() { buf = AppendRow(buf[:0], row) },
		"ReadRow": func() {
			values, err = ReadRow(rowBytes, values)
			must(err)
		},
		"OpWriter": func() {
			w.Reset()
			w.Begin(OpUpsert, 3, child, "key", "child")
			w.Null(0)
			w.Bool(1, true)
			w.Int(2, 1)
			w.Float(3, 1)
			w.Text(4, "text")
			w.Blob(5, data)
			w.Decimal(6, "1.5")
			w.Timestamp(7, 1)
			w.Date(8, 1)
			w.Time(9, 1)
			w.UUID(10, e.ID)
			w.JSON(11, data)
			w.Value(12, row[0])
			w.Begin(OpDelete, 3, child, "key", "child")
			w.Begin(OpDeleteChildren, 3, child, "key", "")
			w.Send("to", "key", nil, data)
			w.Deadline("name", 1, data)
			w.Cancel("name")
			w.Complete()
			seen += len(w.Bytes())
		},
		"OpReader": func() {
			r := ReadOps(ops, plainTable)
			for more := true; more; {
				more, err = r.Next(&op)
				must(err)
			}
		},
		"AppendKeys":    func() { buf = AppendKeys(buf[:0], "a", "b") },
		"ReadKeys":      func() { must(ReadKeys(keys, func(k []byte) error { seen += len(k); return nil })) },
		"AppendRowKey":  func() { buf = AppendRowKey(buf[:0], child, "k", "c") },
		"ReadRowKey":    func() { _, _, err := ReadRowKey(buf[:0], TableShape{}); must(err) },
		"AppendGetMany": func() { buf = AppendGetMany(buf[:0], get) },
		"ReadGetMany": func() {
			must(ReadGetMany(getMany, shapes, func(_ uint16, k []byte) error { seen += len(k); return nil }))
		},
		"AppendFound":  func() { buf = AppendFound(AppendCount(buf[:0], 1), rowBytes) },
		"ReadFound":    func() { must(ReadFound(found, func(_ int, r []byte) error { seen += len(r); return nil })) },
		"AppendChild":  func() { buf = AppendChild(AppendCount(buf[:0], 1), "c", rowBytes) },
		"ReadChildren": func() { must(ReadChildren(children, func(c, r []byte) error { seen += len(r); return nil })) },
		"Extract":      func() { results = pointers.Extract(results[:0], data) },
		"Keys":         func() { names, _ = pointers.Keys(names[:0], data) },
		"CheckKey":     func() { must(CheckKey("account-42")) },
	} {
		require.Zero(t, testing.AllocsPerRun(100, f), name)
	}
	require.NotZero(t, seen)
}

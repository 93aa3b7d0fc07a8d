package abi

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// sampleEntries are entries the size of a bank's account events.
func sampleEntries(n int) []Entry {
	entries := make([]Entry, n)
	for i := range entries {
		entries[i] = Entry{
			Position: uint64(i + 1), Sequence: uint64(i%7 + 1), TimeUS: 1_700_000_000_000_000 + int64(i),
			ID: [16]byte{1, 2, 3, byte(i)}, Type: 1, Revision: 1,
			Key: fmt.Sprintf("account-%d", i%40), TypeName: "money-deposited", AggregateType: "account",
			AggregateID: fmt.Sprintf("account-%d", i%40), Data: samplePayload(),
		}
	}
	return entries
}

// samplePayload has 200 bytes.
func samplePayload() []byte {
	b := []byte(`{"account":"account-42","amount":"1200.50","currency":"EUR","booked":{"by":"clerk-7","at":"2011-10-01T00:38:44.546+02:00"},` +
		`"note":"a transfer between two accounts of one owner","org:resource":"112"}`)
	for len(b) < 200 {
		b = append(b, ' ')
	}
	return b
}

func sampleRow() []Value {
	return []Value{
		Text("A_SUBMITTED"), Decimal("20000.00"), Int(7), Timestamp(1_700_000_000_000_000), Null(), Bool(true),
		JSON([]byte(`{"amount":"20000.00","status":"A_SUBMITTED","offers":1,"events":7,"last_resource":"112"}`)),
	}
}

func BenchmarkFrame(b *testing.B) {
	entries := sampleEntries(256)
	buf := make([]byte, 0, FrameSize(entries))
	perEvent := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(entries)), "ns/event")
	}
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = AppendFrame(buf[:0], 0, entries)
		}
		perEvent(b)
	})
	buf = AppendFrame(buf[:0], 0, entries)
	b.Run("parse", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f, err := ParseFrame(buf)
			require.NoError(b, err)
			var e Entry
			for {
				ok, err := f.Next(&e)
				if err != nil {
					b.Fatal(err)
				}
				if !ok {
					break
				}
			}
		}
		perEvent(b)
	})
}

func plainTable(uint16) (TableShape, bool) { return TableShape{}, true }

func writeSampleOps(w *OpWriter, row []Value) []byte {
	w.Reset()
	w.Begin(OpUpsert, 0, TableShape{}, "", "")
	for i := range row {
		w.Value(uint16(i), row[i])
	}
	return w.Bytes()
}

func BenchmarkOps(b *testing.B) {
	var w OpWriter
	row := sampleRow()
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			writeSampleOps(&w, row)
		}
	})
	ops := writeSampleOps(&w, row)
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		var op Op
		for b.Loop() {
			r := ReadOps(ops, plainTable)
			for {
				ok, err := r.Next(&op)
				if err != nil {
					b.Fatal(err)
				}
				if !ok {
					break
				}
			}
		}
	})
}

func BenchmarkRow(b *testing.B) {
	row := sampleRow()
	buf := AppendRow(nil, row)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf = AppendRow(buf[:0], row)
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var err error
			if row, err = ReadRow(buf, row); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkPointer(b *testing.B) {
	data := samplePayload()
	for _, pointers := range [][]string{{"/org:resource"}, {"/account", "/booked/by", "/org:resource"}} {
		b.Run(fmt.Sprint(len(pointers)), func(b *testing.B) {
			p, err := CompilePointers(pointers...)
			require.NoError(b, err)
			keys := make([]string, 0, 8)
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				var ok bool
				if keys, ok = p.Keys(keys[:0], data); !ok || len(keys) != len(pointers) {
					b.Fatal(keys)
				}
			}
		})
	}
}

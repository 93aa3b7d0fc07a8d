package projhost

import (
	"unsafe"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/sdk/go/internal/fast"
)

// frame reads a request frame. It does what [abi.Frame] does, in a fifth of the
// time in a guest: fields go straight into the message, without a call for each.
type frame struct {
	b    []byte
	at   int
	left int // entries not read yet
}

const (
	frameHeader = 16
	entryFixed  = 52 // an entry's fields of fixed places, after its size
)

// openFrame reads the header and tells the consumer.
func openFrame(b []byte) (frame, int) {
	if len(b) < frameHeader || le.Uint32(b) != abi.Magic {
		panic("request frame: it does not begin with PHA1")
	}
	return frame{b: b, at: frameHeader, left: int(le.Uint32(b[12:]))}, int(le.Uint16(b[6:]))
}

// next reads the next entry into m and returns the index of its type within the
// types of its input. Everything is a view of the frame.
func (f *frame) next(m *Message) (typ int) {
	start := f.at + 4
	end := start + int(le.Uint32(f.b[f.at:]))
	if end > len(f.b) || end-start < entryFixed {
		panic(shortFrame)
	}
	f.at, f.left = end, f.left-1

	b := f.b[start:end]
	p := unsafe.Pointer(unsafe.SliceData(b))
	m.Position = fast.Load64(p)
	m.Sequence = fast.Load64(unsafe.Add(p, 8))
	m.Time = Timestamp(fast.Load64(unsafe.Add(p, 16)))
	m.ID = *(*UUID)(unsafe.Add(p, 24))
	m.Input = int(fast.Load16(unsafe.Add(p, 40)))
	typ = int(fast.Load16(unsafe.Add(p, 42)))
	m.Tombstone = abi.Kind(b[44]) == abi.KindTombstone
	m.Replay = b[45]&abi.FlagReplay != 0
	m.CascadeDepth = fast.Load16(unsafe.Add(p, 46))
	m.Revision = fast.Load32(unsafe.Add(p, 48))
	at := entryFixed
	var data string
	m.Key, at = str(b, at)
	m.Type, at = str(b, at)
	m.AggregateType, at = str(b, at)
	m.AggregateID, at = str(b, at)
	data, at = str(b, at)
	m.Metadata = unsafe.Slice(unsafe.StringData(data), len(data))
	data, _ = str(b, at)
	m.Data = unsafe.Slice(unsafe.StringData(data), len(data))
	return typ
}

const shortFrame = "request frame: an entry ends too early"

// str reads a str and returns where it ends.
func str(b []byte, at int) (string, int) {
	from := at + 4
	s := b[from : from+int(le.Uint32(b[at:]))]
	return unsafe.String(unsafe.SliceData(s), len(s)), from + len(s)
}

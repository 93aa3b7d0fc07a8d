package abi

const (
	frameHeader = 4 + 2 + 2 + 4 + 4
	// entryFixed is the part of an entry with fixed places, after its size.
	entryFixed = 8 + 8 + 8 + 16 + 2 + 2 + 1 + 1 + 2 + 4
	entryMin   = entryFixed + 6*4
)

// EntrySize is what one entry adds to the size of a frame.
func EntrySize(e *Entry) int {
	return 4 + entryMin + len(e.Key) + len(e.TypeName) + len(e.AggregateType) + len(e.AggregateID) +
		len(e.Metadata) + len(e.Data)
}

// FrameHeaderSize is the size of a frame without entries.
const FrameHeaderSize = frameHeader

// FrameSize is the length of what [AppendFrame] appends.
func FrameSize(entries []Entry) int {
	n := frameHeader
	for i := range entries {
		n += EntrySize(&entries[i])
	}
	return n
}

// AppendFrame appends a request frame. It does not allocate if dst has room for
// [FrameSize] bytes: to write straight into a guest's memory, pass its region
// with length zero, having compared its capacity with FrameSize.
func AppendFrame(dst []byte, consumer uint16, entries []Entry) []byte {
	dst = le.AppendUint32(dst, Magic)
	dst = le.AppendUint16(dst, Minor)
	dst = le.AppendUint16(dst, consumer)
	dst = le.AppendUint32(dst, 0)
	dst = le.AppendUint32(dst, uint32(len(entries)))
	for i := range entries {
		dst = appendEntry(dst, &entries[i])
	}
	return dst
}

func appendEntry(dst []byte, e *Entry) []byte {
	var f [4 + entryFixed]byte
	le.PutUint32(f[0:], uint32(EntrySize(e)-4))
	le.PutUint64(f[4:], e.Position)
	le.PutUint64(f[12:], e.Sequence)
	le.PutUint64(f[20:], uint64(e.TimeUS))
	copy(f[28:44], e.ID[:])
	le.PutUint16(f[44:], e.Input)
	le.PutUint16(f[46:], e.Type)
	f[48] = uint8(e.Kind)
	f[49] = e.Flags
	le.PutUint16(f[50:], e.CascadeDepth)
	le.PutUint32(f[52:], e.Revision)
	dst = append(dst, f[:]...)
	dst = appendStr(dst, e.Key)
	dst = appendStr(dst, e.TypeName)
	dst = appendStr(dst, e.AggregateType)
	dst = appendStr(dst, e.AggregateID)
	dst = appendStr(dst, e.Metadata)
	return appendStr(dst, e.Data)
}

// Frame is a request frame being read.
type Frame struct {
	Minor    uint16 // of the host; entries may be longer than ours
	Consumer uint16 // index in the manifest
	Flags    uint32
	Count    int // entries in all

	b    []byte
	off  int
	next int
}

// ParseFrame reads the header of a frame. Entries are read by [Frame.Next]; they
// are views of b.
func ParseFrame(b []byte) (Frame, error) {
	c := cursor{b: b}
	if magic := c.u32(); magic != Magic {
		c.fail(0, "it does not begin with PHA1")
	}
	f := Frame{Minor: c.u16(), Consumer: c.u16(), Flags: c.u32(), b: b}
	count := c.u32()
	if uint64(count) > uint64(c.left()/(4+entryMin)) {
		c.fail(frameHeader-4, "more entries are announced than fit")
	}
	if err := c.err("frame"); err != nil {
		return Frame{}, err
	}
	f.Count, f.off = int(count), c.off
	return f, nil
}

// Next reads the next entry into e and tells whether there was one. Bytes after
// the last entry are malformed. After an error it must not be called again.
func (f *Frame) Next(e *Entry) (bool, error) {
	c := cursor{b: f.b, off: f.off}
	if f.next == f.Count {
		c.end()
		return false, c.err("frame")
	}
	body := c.bytes()
	if c.reason != "" {
		return false, c.err("frame")
	}
	start := c.off - len(body)
	if len(body) < entryMin {
		c.fail(start, "an entry is shorter than its fixed fields")
		return false, c.err("frame")
	}
	e.Position = le.Uint64(body[0:])
	e.Sequence = le.Uint64(body[8:])
	e.TimeUS = int64(le.Uint64(body[16:]))
	copy(e.ID[:], body[24:40])
	e.Input = le.Uint16(body[40:])
	e.Type = le.Uint16(body[42:])
	e.Kind = Kind(body[44])
	e.Flags = body[45]
	e.CascadeDepth = le.Uint16(body[46:])
	e.Revision = le.Uint32(body[48:])
	// Read here rather than by a cursor: in a guest calls are what costs.
	var fields [6][]byte
	at := entryFixed
	for i := range fields {
		if len(body)-at < 4 {
			c.fail(start+at, truncated)
			return false, c.err("frame")
		}
		n := le.Uint32(body[at:])
		if uint64(n) > uint64(len(body)-at-4) {
			c.fail(start+at, tooLong)
			return false, c.err("frame")
		}
		end := at + 4 + int(n)
		fields[i] = body[at+4 : end : end]
		at = end
	}
	e.Key = viewString(fields[0])
	e.TypeName = viewString(fields[1])
	e.AggregateType = viewString(fields[2])
	e.AggregateID = viewString(fields[3])
	e.Metadata = fields[4]
	e.Data = fields[5]
	f.off = c.off
	f.next++
	return true, nil
}

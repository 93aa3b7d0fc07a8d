package jsonl

import (
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"path/filepath"
	"strings"

	"github.com/projhost/projhost/store"
)

// Name is the import name of a file that was given none: its base name without
// .gz, and the SHA-256 of the start of its text. Tomorrow's file of the same
// name is another import, and the same file packed is the same.
func Name(path string, head []byte) string {
	sum := sha256.Sum256(head)
	return strings.TrimSuffix(filepath.Base(path), ".gz") + "@" + hex.EncodeToString(sum[:])
}

// namespace of derived ids; a constant of the format.
var namespace = [16]byte{0x2b, 0x6c, 0x3f, 0x1d, 0x8e, 0x4a, 0x5b, 0x07, 0x9d, 0x21, 0x5e, 0x0c, 0x7f, 0x93, 0xa6, 0x48}

// Namer gives ids to lines that have none: UUIDv5 of the import name, the
// stream, the ordinal of the line among the file's lines of that stream, and
// the SHA-256 of the line. So a file can be imported again, and an equal line
// of another file, or further down, is another event.
type Namer struct {
	name string
	// By a hash of the stream: two streams that share one would share their
	// ordinals, which makes no two ids equal, since the id names the stream.
	ordinals map[uint64]uint32
	buf      []byte
}

// NewNamer starts an import of that name.
func NewNamer(name string) *Namer {
	return &Namer{name: name, ordinals: map[uint64]uint32{}}
}

// Take counts a line of e's stream and, if e has no id, gives it one and
// reports so. Every line that could be read must be taken, in order.
func (n *Namer) Take(line []byte, e *store.ImportEvent) (derived bool) {
	h := fnv.New64a()
	h.Write([]byte(e.AggregateType))
	h.Write([]byte{0})
	h.Write([]byte(e.AggregateID))
	n.ordinals[h.Sum64()]++
	if e.HasID {
		return false
	}
	b := append(n.buf[:0], namespace[:]...)
	for _, part := range []string{n.name, e.AggregateType, e.AggregateID} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(part)))
		b = append(b, part...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(n.ordinals[h.Sum64()]))
	sum := sha256.Sum256(line)
	b = append(b, sum[:]...)
	n.buf = b
	id := sha1.Sum(b)
	copy(e.ID[:], id[:16])
	e.ID[6] = e.ID[6]&0x0f | 0x50
	e.ID[8] = e.ID[8]&0x3f | 0x80
	e.HasID = true
	return true
}

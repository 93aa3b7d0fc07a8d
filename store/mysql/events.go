package mysql

import (
	"bytes"
	"database/sql/driver"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/projhost/projhost/store"
)

// names keeps one string for each value that repeats in every row, so that a
// page does not hold a thousand copies of it. The zero value is ready.
type names struct {
	mu   sync.RWMutex
	kept map[string]string
}

const namesMax = 4096

func (n *names) intern(b []byte) string {
	n.mu.RLock()
	s, ok := n.kept[string(b)]
	n.mu.RUnlock()
	if ok {
		return s
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.kept == nil || len(n.kept) >= namesMax {
		n.kept = map[string]string{}
	}
	s = string(b)
	n.kept[s] = s
	return s
}

// scanEvent reads the values of eventColumns. They are good until the next row,
// so what is kept is copied: aggregate id, data and metadata of an event in one
// piece.
func (s *Store) scanEvent(vals []driver.Value, e *store.Event) error {
	integer := func(i int) int64 {
		n, _ := vals[i].(int64)
		return n
	}
	text := func(i int) []byte {
		b, _ := vals[i].([]byte)
		return b
	}
	e.Position, e.Sequence, e.OccurredUS, e.Revision = integer(0), integer(1), integer(2), int32(integer(3))
	if copy(e.ID[:], text(4)) != len(e.ID) {
		return fmt.Errorf("the row of position %d was changed: its id is no UUID", e.Position)
	}
	e.Codec, e.CodecVersion = store.DefaultCodec, store.DefaultCodecVersion
	if other := text(5); other != nil {
		version, codec, _ := bytes.Cut(other, []byte(" "))
		n, _ := strconv.ParseInt(string(version), 10, 32) // is an int column's
		e.Codec, e.CodecVersion = s.names.intern(codec), int32(n)
	}
	e.AggregateType, e.Type = s.names.intern(text(6)), s.names.intern(text(8))
	id, data, metadata := text(7), text(9), text(10)
	e.AggregateID = string(id)
	kept := make([]byte, 0, len(data)+len(metadata))
	kept = append(append(kept, data...), metadata...)
	e.Data = kept[:len(data):len(data)]
	if vals[10] != nil {
		e.Metadata = kept[len(data):]
	}
	e.Partition = store.PartitionOf(e.AggregateID, s.Partitions())
	return nil
}

// readEvent is scanEvent for readers: it refuses what this program cannot tell
// the meaning of.
func (s *Store) readEvent(vals []driver.Value, e *store.Event) error {
	if err := s.scanEvent(vals, e); err != nil || vals[5] == nil {
		return err
	}
	if why := store.CheckStoredCodec(e.Codec, e.CodecVersion); why != "" {
		return fmt.Errorf("event %s at position %d: %s: a newer projhost may have stored it", e.ID, e.Position, why)
	}
	return nil
}

// statement is a statement of many rows that is built row by row, and the size
// that its text will have at most.
type statement struct {
	text strings.Builder
	args []any
	rows int
	size int
}

// literalMax is the length that an argument has at most in the text of a
// statement.
func literalMax(arg any) int {
	switch a := arg.(type) {
	case string:
		return 2*len(a) + 2
	case []byte:
		return 2*len(a) + len("_binary''")
	}
	return 26
}

// add takes a row up unless that makes the statement longer than max.
func (st *statement) add(head, row string, args []any, sizeMax int) bool {
	size := len(row) + 2
	for _, a := range args {
		size += literalMax(a)
	}
	if st.rows > 0 && (st.size+size > sizeMax || st.rows == rowsMax) {
		return false
	}
	if st.rows == 0 {
		st.text.WriteString(head)
		st.size = len(head)
	} else {
		st.text.WriteString(", ")
	}
	st.text.WriteString(row)
	st.args = append(st.args, args...)
	st.size += size
	st.rows++
	return true
}

// rowsMax and statementMax bound a statement of many rows. Longer ones gain
// little and hold more memory on both sides.
const (
	rowsMax      = 5000
	statementMax = 8 << 20
)

// sizeMax is the length that a statement may have.
func (s *Store) sizeMax() int { return min(s.server.packetMax-packetSpare/2, statementMax) }

// viewOf gives bytes as a string without copying them, where they do not change
// as long as the string is used.
func viewOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Package samples generates events for the demo, the benchmarks and tests: the
// same ones from the same arguments, on every machine and with every release of
// Go. Sequences are walked, not held: what is kept is the state of the accounts
// or applications that are under way.
package samples

import (
	"encoding/hex"
	"strconv"
)

// Event is one generated event.
type Event struct {
	ID            [16]byte // a UUID
	AggregateType string
	AggregateID   string
	Type          string
	Data          []byte // JSON
	Metadata      []byte // JSON, or nil
	OccurredUS    int64  // microseconds since 1970, UTC
}

// AppendLine appends the event as a line of the import format, with its newline.
func (e *Event) AppendLine(dst []byte) []byte {
	dst = append(dst, `{"id":"`...)
	dst = appendUUID(dst, e.ID)
	dst = append(dst, `","aggregate_type":`...)
	dst = strconv.AppendQuote(dst, e.AggregateType)
	dst = append(dst, `,"aggregate_id":`...)
	dst = strconv.AppendQuote(dst, e.AggregateID)
	dst = append(dst, `,"type":`...)
	dst = strconv.AppendQuote(dst, e.Type)
	dst = append(dst, `,"data":`...)
	dst = append(dst, e.Data...)
	if e.Metadata != nil {
		dst = append(append(dst, `,"metadata":`...), e.Metadata...)
	}
	dst = append(dst, `,"occurred_at":"`...)
	dst = appendTime(dst, e.OccurredUS)
	return append(dst, "\"}\n"...)
}

func appendUUID(dst []byte, id [16]byte) []byte {
	for i, part := range [][]byte{id[:4], id[4:6], id[6:8], id[8:10], id[10:]} {
		if i > 0 {
			dst = append(dst, '-')
		}
		dst = hex.AppendEncode(dst, part)
	}
	return dst
}

// source is splitmix64. The sequences of math/rand may change with Go.
type source uint64

func (s *source) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// below returns a number from 0 to n-1.
func (s *source) below(n int) int { return int(s.next() % uint64(n)) }

// chance is true in percent of 100 cases.
func (s *source) chance(percent int) bool { return s.below(100) < percent }

// pick returns one of the words, the first ones more often.
func (s *source) pick(words []string) string {
	return words[min(s.below(len(words)), s.below(len(words)))]
}

func (s *source) uuid() (id [16]byte) {
	high, low := s.next(), s.next()
	for i := range 8 {
		id[i], id[8+i] = byte(high>>(8*i)), byte(low>>(8*i))
	}
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

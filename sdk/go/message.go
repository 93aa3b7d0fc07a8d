package projhost

import "github.com/projhost/projhost/sdk/go/json"

// Message is one message, as it concerns one key. It and everything it holds
// live until the handler returns.
type Message struct {
	Key           string // the key it is applied for
	Type          string
	AggregateType string
	AggregateID   string
	Data          []byte // the payload, byte for byte as it was appended
	Metadata      []byte // JSON, or empty

	ID           UUID
	Position     uint64    // its place in the topic
	Sequence     uint64    // its place in its stream, from 1; 0: it has none
	Time         Timestamp // when it happened, as recorded
	Input        int       // which of the projection's inputs it came by
	Revision     uint32    // of its schema
	CascadeDepth uint16
	Replay       bool // it was applied before and is applied again to rebuild rows
	Tombstone    bool // its key was deleted from the topic
}

// JSON reads the payload, which must be JSON. Nothing is parsed before it is
// asked for.
func (m *Message) JSON() json.Value { return json.Parse(m.Data) }

// MetadataJSON reads the metadata; it is absent where there is none.
func (m *Message) MetadataJSON() json.Value { return json.Parse(m.Metadata) }

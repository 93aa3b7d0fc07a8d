package reader

import (
	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/store"
)

// Entry is one message for one key, on its way to a lane. It shares the memory
// of its page.
type Entry struct {
	Event     *store.Event
	Key       string
	Partition uint16
	Input     uint16 // index in the consumer's inputs
	Type      uint16 // index in that input's types, or abi.TypeByName
	// StandIn: the key can be told but not stored, and Key stands for it. Such
	// an entry cannot be applied.
	StandIn bool
	// Replay: its effects were had before.
	Replay bool
}

// Slice is what one lane gets of a stretch (From, To] of a topic: the entries
// of its partitions, those of one message side by side. It may have none; the
// stretch counts all the same.
type Slice struct {
	Topic       int // index in the consumer's topics
	From, To    int64
	End         int64 // the topic's end as far as known when it was read
	Incarnation uint64
	Entries     []Entry
	Bytes       int // memory the entries hold on to, about
}

// ABI fills in what a guest is given of the entry. All but the fixed fields are
// views of the page.
func (e *Entry) ABI(to *abi.Entry) {
	ev := e.Event
	*to = abi.Entry{
		Position:      uint64(ev.Position),
		Sequence:      uint64(ev.Sequence),
		TimeUS:        ev.OccurredUS,
		ID:            ev.ID,
		Input:         e.Input,
		Type:          e.Type,
		Kind:          abi.KindMessage,
		Revision:      uint32(ev.Revision),
		Key:           e.Key,
		TypeName:      ev.Type,
		AggregateType: ev.AggregateType,
		AggregateID:   ev.AggregateID,
		Metadata:      ev.Metadata,
		Data:          ev.Data,
	}
	if e.Replay {
		to.Flags = abi.FlagReplay
	}
}

package projhost

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/projhost/projhost/abi"
)

func entryOf(m *Message) abi.Entry {
	e := abi.Entry{
		Position: m.Position, Sequence: m.Sequence, TimeUS: int64(m.Time), ID: m.ID, Input: uint16(m.Input), Type: 3,
		CascadeDepth: m.CascadeDepth, Revision: m.Revision, Key: m.Key, TypeName: m.Type,
		AggregateType: m.AggregateType, AggregateID: m.AggregateID, Metadata: m.Metadata, Data: m.Data,
	}
	if m.Replay {
		e.Flags = abi.FlagReplay
	}
	if m.Tombstone {
		e.Kind = abi.KindTombstone
	}
	return e
}

func TestFramesAreReadAsTheHostWritesThem(t *testing.T) {
	messages := []Message{
		{},
		{
			Key: "k", Type: "type", AggregateType: "aggregate", AggregateID: "id", Data: []byte(`{"a":1}`), Metadata: []byte(`{}`),
			ID: UUID{1, 15: 16}, Position: 1<<63 + 5, Sequence: 7, Time: -1, Input: 2, Revision: 1 << 31, CascadeDepth: 65535,
			Replay: true, Tombstone: true,
		},
		{Key: "last", Data: []byte("x")},
	}
	var entries []abi.Entry
	for i := range messages {
		entries = append(entries, entryOf(&messages[i]))
	}
	b := abi.AppendFrame(nil, 9, entries)
	f, consumer := openFrame(b)
	require.Equal(t, 9, consumer)
	var m Message
	for i := range messages {
		require.Positive(t, f.left)
		require.Equal(t, 3, f.next(&m))
		if len(m.Data) == 0 {
			m.Data = messages[i].Data // empty and nil are the same
		}
		if len(m.Metadata) == 0 {
			m.Metadata = messages[i].Metadata
		}
		require.Equal(t, messages[i], m)
	}
	require.Zero(t, f.left)
}

// A frame is cut out of the input region, so that its slice could be grown into
// what lies behind it.
func TestFramesThatEndTooEarlyPanic(t *testing.T) {
	m := Message{Key: "key", Type: "type", AggregateType: "a", AggregateID: "id", Data: []byte("data"), Metadata: []byte("m")}
	whole := abi.AppendFrame(nil, 0, []abi.Entry{entryOf(&m), entryOf(&m)})
	region := append(append([]byte(nil), whole...), whole...)
	for n := range len(whole) {
		require.Panics(t, func() {
			f, _ := openFrame(region[:n])
			for f.left > 0 {
				f.next(&m)
			}
		}, n)
	}
	for i := frameHeader; i < frameHeader+4; i++ { // the entry's own size
		bad := append([]byte(nil), region...)
		bad[i] ^= 0x40
		require.Panics(t, func() {
			f, _ := openFrame(bad[:len(whole)])
			for f.left > 0 {
				f.next(&m)
			}
		}, i)
	}
	require.Panics(t, func() { openFrame([]byte("no frame at all")) })
}

func TestEveryTypeFindsItsHandler(t *testing.T) {
	plugin := New("test", "1")
	p := NewProjection[struct{ N int64 }](plugin, "totals")
	var ran string
	for i := range 200 {
		typ := fmt.Sprintf("t%dx", i%10*100+i/10)
		p.OnMessage(typ, func(c *Ctx, m *Message) error { ran = typ; return nil })
	}
	p.p.seal()
	types := p.p.types(&p.p.inputs[0])
	require.Len(t, types, 200)
	for i, typ := range types {
		for _, index := range []int{i, int(abi.TypeByName)} {
			ran = ""
			m := Message{Type: typ}
			require.NoError(t, p.p.handler(&m, index).run(nil, &m, nil))
			require.Equal(t, typ, ran)
		}
	}
	require.Nil(t, p.p.handler(&Message{Type: "nobody's"}, int(abi.TypeByName)))
	require.Nil(t, p.p.handler(&Message{}, int(abi.TypeByName)))
}

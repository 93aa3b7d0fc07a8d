package projhosttest

import (
	"testing"

	"github.com/projhost/projhost/abi"
	projhost "github.com/projhost/projhost/sdk/go"
	"github.com/projhost/projhost/sdk/go/internal/bridge"
)

// Garbage applies an event to rows that exist, over and over, and returns how
// many objects its handlers leave behind each time. Garbage costs a guest more
// than other Go (see [projhost.Plugin.Heap]); a handler on the hot path should
// leave none.
func Garbage(t testing.TB, plugin *projhost.Plugin, event Event) float64 {
	t.Helper()
	h := New(t, plugin)
	h.Apply(event)
	var stamped abi.Entry
	h.stamp(&event, &stamped)
	total := 0.0
	for i := range h.manifest.Consumers {
		total += h.garbageOf(uint16(i), event, stamped)
	}
	return total
}

func (h *Harness) garbageOf(consumer uint16, event Event, e abi.Entry) float64 {
	h.t.Helper()
	c := &h.manifest.Consumers[consumer]
	var ok bool
	if e.Input, e.Type, ok = c.Match(event.Topic, e.AggregateType, e.TypeName); !ok {
		return 0
	}
	keys, err := h.keys(consumer, &e, event)
	if err != nil {
		h.t.Fatalf("garbage: %v", err)
	}
	total := 0.0
	for _, key := range keys {
		e.Key = key
		host := &replayer{call: call{consumer: c, entries: []abi.Entry{e}, harness: h}}
		frame := abi.AppendFrame(nil, consumer, host.call.entries)
		guests.Lock()
		bridge.Current = host
		h.guest.Apply(frame)
		host.recorded = true
		total += testing.AllocsPerRun(100, func() {
			host.next = 0
			h.guest.Apply(frame)
		})
		bridge.Current = nil
		guests.Unlock()
	}
	return total
}

// replayer is a host that allocates nothing: it answers the reads of an entry as
// they were answered the first time, and does not look at its ops.
type replayer struct {
	call
	recorded bool
	answers  [][]byte // nil: absent
	next     int
}

func (r *replayer) Done(index, status int32, ops []byte) int32 {
	if abi.Status(status).Failed() {
		return abi.ResultStop
	}
	return 0
}

func (r *replayer) Get(table int32, key, out []byte) int64 {
	if r.recorded {
		return r.answer(out, abi.ResultAbsent)
	}
	return r.record(r.call.Get(table, key, out), out)
}

func (r *replayer) List(table int32, key, after []byte, limit int32, out []byte) int64 {
	if r.recorded {
		return r.answer(out, 0)
	}
	return r.record(r.call.List(table, key, after, limit, out), out)
}

func (r *replayer) record(n int64, out []byte) int64 {
	switch {
	case n < 0:
		r.answers = append(r.answers, nil)
	case n <= int64(len(out)):
		r.answers = append(r.answers, append([]byte{}, out[:n]...))
	}
	return n
}

func (r *replayer) answer(out []byte, absent int64) int64 {
	if r.next == len(r.answers) {
		panic("the handler reads more than it did the first time")
	}
	b := r.answers[r.next]
	if b == nil {
		r.next++
		return absent
	}
	if len(b) <= len(out) {
		r.next++
		copy(out, b)
	}
	return int64(len(b))
}

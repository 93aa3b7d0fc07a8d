// Package projhosttest runs a plugin in a Go test, without WebAssembly and
// without a host: events go through the plugin's handlers into tables in memory,
// by the same frames, ops and rules as in a host, and come out as rows to
// compare.
//
//	func TestDeposit(t *testing.T) {
//		h := projhosttest.New(t, plugin())
//		h.Apply(
//			projhosttest.Event{Type: "opened", AggregateType: "account", AggregateID: "A-1", Data: `{"owner":"Ada"}`},
//			projhosttest.Event{Type: "deposited", AggregateType: "account", AggregateID: "A-1", Data: `{"amount":"12.50"}`},
//		)
//		require.JSONEq(t, `{"owner":"Ada","balance":"12.50"}`, h.Row("accounts", "A-1"))
//	}
//
// What a handler may not keep (strings of a message, of a row) is spoilt after
// it, so that a plugin that keeps it fails here. Memory is not restored between
// batches as a host does it: a plugin that counts in a global variable is not
// found out, but by [SameInAnySplit].
package projhosttest

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/projhost/projhost/abi"
	projhost "github.com/projhost/projhost/sdk/go"
	"github.com/projhost/projhost/sdk/go/internal/bridge"
)

// Event is a message for a plugin under test. Type, AggregateType and
// AggregateID are needed; the rest has defaults.
type Event struct {
	AggregateType string
	AggregateID   string
	Type          string
	Data          string // default: {}
	Metadata      string
	Revision      uint32
	Time          projhost.Timestamp // default: a second after the event before, from 2026-01-01
	ID            projhost.UUID      // default: made from the position
	Topic         string             // default: events
	Replay        bool
	Tombstone     bool
}

// Failure says that a message was not applied, and why.
type Failure struct {
	Projection string
	Event      Event
	Status     abi.Status
	Reason     string
}

func (f *Failure) Error() string {
	return fmt.Sprintf("projection %s: %s %s/%s: %s: %s", f.Projection,
		f.Event.Type, f.Event.AggregateType, f.Event.AggregateID, f.Status, f.Reason)
}

// Harness is a plugin with its tables.
type Harness struct {
	t        testing.TB
	guest    bridge.Guest
	manifest *abi.Manifest
	tables   map[string]*table
	position uint64
	clock    projhost.Timestamp
	sequence map[string]uint64
	log      []string
	call     call
}

// guests serialises calls: the seam between plugin and host is one variable.
var guests sync.Mutex

// New starts a plugin without config.
func New(t testing.TB, plugin *projhost.Plugin) *Harness {
	t.Helper()
	return NewWithConfig(t, plugin, "{}")
}

// NewWithConfig starts a plugin with its operator's config, a JSON object. It
// fails the test where a host would refuse the plugin, naming every reason.
func NewWithConfig(t testing.TB, plugin *projhost.Plugin, config string) *Harness {
	t.Helper()
	h := &Harness{
		t: t, guest: bridge.GuestOf(plugin), tables: map[string]*table{}, sequence: map[string]uint64{},
		clock: projhost.Timestamp(int64(projhost.NewDate(2026, 1, 1)) * 86_400_000_000),
	}
	manifest, err := abi.ParseManifest(h.guest.Describe())
	if err != nil {
		t.Fatalf("the host would refuse the plugin: %v", err)
	}
	h.manifest = manifest
	for i := range manifest.Consumers {
		c := &manifest.Consumers[i]
		for j := range c.Tables {
			h.tables[strings.ToLower(c.Tables[j].Name)] = newTable(&c.Tables[j])
		}
	}
	if failure := h.guarded(nil, func() { h.call.returned = h.guest.Init([]byte(config)) }); failure != nil {
		t.Fatalf("the plugin does not start: %v", failure)
	}
	if h.call.returned != 0 {
		t.Fatalf("the plugin does not start: %s", h.call.reason)
	}
	return h
}

// Apply applies events, all of them as one batch, and fails the test if one of
// them cannot be applied.
func (h *Harness) Apply(events ...Event) {
	h.t.Helper()
	if err := h.apply(events); err != nil {
		h.t.Fatalf("apply: %v", err)
	}
}

// Try applies one event. The error is a [*Failure] whose Reason is what an
// operator would read; of a message that fails nothing is written.
func (h *Harness) Try(event Event) error { return h.apply([]Event{event}) }

// Log returns the lines the plugin has logged, each with its level.
func (h *Harness) Log() []string { return h.log }

// SameInAnySplit applies the same events to a plugin of its own as one batch, in
// batches of 7, and one by one, and fails the test if the rows differ, as they
// do when a handler keeps something from one message to the next.
func SameInAnySplit(t testing.TB, plugin func() *projhost.Plugin, events []Event) {
	t.Helper()
	var want string
	for _, size := range []int{max(len(events), 1), 7, 1} {
		h := New(t, plugin())
		for from := 0; from < len(events); from += size {
			h.Apply(events[from:min(from+size, len(events))]...)
		}
		if got := h.Dump(); want == "" {
			want = got
		} else if got != want {
			t.Fatalf("batches of %d give other rows than one batch:\n%s\nin one batch:\n%s", size, got, want)
		}
	}
}

// apply gives events to every projection that wants them.
func (h *Harness) apply(events []Event) error {
	entries := make([]abi.Entry, len(events))
	for i := range events {
		h.stamp(&events[i], &entries[i])
	}
	for consumer := range h.manifest.Consumers {
		if err := h.applyTo(uint16(consumer), events, entries); err != nil {
			return err
		}
	}
	return nil
}

// stamp makes an entry without a key out of an event.
func (h *Harness) stamp(event *Event, e *abi.Entry) {
	h.position++
	h.clock += 1_000_000
	if event.Time == 0 {
		event.Time = h.clock
	}
	h.clock = max(h.clock, event.Time)
	stream := event.AggregateType + "\x00" + event.AggregateID
	h.sequence[stream]++
	if event.ID == (projhost.UUID{}) {
		sum := sha256.Sum256(binary.LittleEndian.AppendUint64(nil, h.position))
		event.ID = projhost.UUID(sum[:16])
	}
	if event.Data == "" {
		event.Data = "{}"
	}
	if event.Topic == "" {
		event.Topic = "events"
	}
	*e = abi.Entry{
		Position: h.position, Sequence: h.sequence[stream], TimeUS: int64(event.Time), ID: event.ID,
		Revision: event.Revision, TypeName: event.Type, AggregateType: event.AggregateType,
		AggregateID: event.AggregateID, Metadata: []byte(event.Metadata), Data: []byte(event.Data),
	}
	if event.Replay {
		e.Flags = abi.FlagReplay
	}
	if event.Tombstone {
		e.Kind = abi.KindTombstone
	}
}

// applyTo finds the entries of one projection and applies them.
func (h *Harness) applyTo(consumer uint16, events []Event, stamped []abi.Entry) error {
	c := &h.manifest.Consumers[consumer]
	var entries []abi.Entry
	var origin []int
	for i := range stamped {
		e := stamped[i]
		if e.Flags&abi.FlagReplay != 0 && c.IgnoreOnReplay {
			continue
		}
		var ok bool
		if e.Input, e.Type, ok = c.Match(events[i].Topic, e.AggregateType, e.TypeName); !ok {
			continue
		}
		keys, err := h.keys(consumer, &e, events[i])
		if err != nil {
			return err
		}
		for _, key := range keys {
			e.Key = key
			entries, origin = append(entries, e), append(origin, i)
		}
	}
	if len(entries) == 0 {
		return nil
	}
	h.call = call{consumer: c, entries: entries, harness: h, undo: map[*table]map[rowKey]row{}}
	frame := abi.AppendFrame(nil, consumer, entries)
	failure := h.guarded(c, func() { h.call.returned = h.guest.Apply(frame) })
	for i := range frame {
		frame[i] = 0xDB // a kept view of a message fails loudly
	}
	if failure == nil && int(h.call.returned) != len(entries) {
		failure = &Failure{Projection: c.Name, Status: abi.CodeOrder, Reason: fmt.Sprintf("%d of %d entries were answered", h.call.returned, len(entries))}
	}
	if failure != nil {
		failure.Event = events[origin[min(h.call.done, len(origin)-1)]]
		return failure
	}
	return nil
}

// keys finds the keys of a message by the rule of its input.
func (h *Harness) keys(consumer uint16, e *abi.Entry, event Event) ([]string, error) {
	c := &h.manifest.Consumers[consumer]
	switch rule := c.Inputs[e.Input].Key; rule.Kind {
	case abi.KeyAggregateID:
		return []string{e.AggregateID}, nil
	case abi.KeyPointers:
		pointers, err := abi.CompilePointers(rule.Pointers...)
		if err != nil {
			return nil, err
		}
		keys, ok := pointers.Keys(nil, e.Data)
		if !ok {
			return nil, &Failure{Projection: c.Name, Event: event, Status: abi.StatusReject, Reason: "its keys cannot be told"}
		}
		return keys, nil
	}
	h.call = call{consumer: c, harness: h}
	frame := abi.AppendFrame(nil, consumer, []abi.Entry{*e})
	failure := h.guarded(c, func() { h.call.returned = h.guest.Keys(frame) })
	if failure == nil && h.call.returned != 1 {
		failure = &Failure{Projection: c.Name, Status: abi.StatusReject, Reason: h.call.reason}
	}
	if failure != nil {
		failure.Event = event
		return nil, failure
	}
	return h.call.keys, nil
}

// guarded calls the guest with the harness as its host.
func (h *Harness) guarded(c *abi.Consumer, run func()) (failure *Failure) {
	guests.Lock()
	defer guests.Unlock()
	bridge.Current = &h.call
	h.call.harness = h
	defer func() {
		if cause := recover(); cause != nil {
			h.t.Logf("panic: %v\n%s", cause, debug.Stack())
			failure = &Failure{Status: abi.CodeTrap, Reason: h.call.reason}
		}
		if failure == nil && h.call.status.Failed() {
			failure = &Failure{Status: h.call.status, Reason: h.call.reason}
		}
		if failure != nil && c != nil {
			failure.Projection = c.Name
		}
		bridge.Current = nil
	}()
	run()
	return nil
}

// call is one call of the guest: the host's side of the imports.
type call struct {
	harness  *Harness
	consumer *abi.Consumer
	entries  []abi.Entry
	done     int // entries answered well
	status   abi.Status
	reason   string
	keys     []string
	returned int32
	undo     map[*table]map[rowKey]row
}

var errShort = errors.New("done is called for an entry that is not next")

func (c *call) Done(index, status int32, ops []byte) int32 {
	if int(index) != c.done || c.done >= len(c.entries) {
		return c.failed(abi.CodeOrder, errShort.Error())
	}
	switch s := abi.Status(status); {
	case s.Failed():
		return c.failed(s, c.reason)
	case s == abi.StatusOK:
		if err := c.fold(ops); err != nil {
			return c.failed(abi.CodeMalformed, err.Error())
		}
	default:
		if r := abi.ReadOps(ops, c.consumer.Shape); r.Len() > 0 {
			return c.failed(abi.CodeMalformed, "an ignored message carries ops")
		}
	}
	c.done++
	return 0
}

func (c *call) failed(status abi.Status, reason string) int32 {
	c.status, c.reason = status, reason
	return abi.ResultStop
}

func (c *call) Keys(_ int32, keys []byte) int32 {
	err := abi.ReadKeys(keys, func(key []byte) error {
		for _, k := range c.keys {
			if k == string(key) {
				return nil
			}
		}
		c.keys = append(c.keys, string(key))
		return nil
	})
	if err != nil {
		return c.failed(abi.CodeMalformed, err.Error())
	}
	return 0
}

func (c *call) table(index int32) (*table, bool) {
	if index < 0 || int(index) >= len(c.consumer.Tables) {
		return nil, false
	}
	return c.harness.tables[strings.ToLower(c.consumer.Tables[index].Name)], true
}

func (c *call) Get(index int32, key, out []byte) int64 {
	t, ok := c.table(index)
	if !ok {
		return abi.ResultRefused
	}
	k, child, err := abi.ReadRowKey(key, t.decl.Shape())
	if err != nil {
		return abi.ResultRefused
	}
	values, ok := t.rows[c.rowKey(t, k, child)]
	if !ok {
		return abi.ResultAbsent
	}
	b := abi.AppendRow(nil, values)
	if len(b) <= len(out) {
		copy(out, b)
	}
	return int64(len(b))
}

func (c *call) rowKey(t *table, key, child []byte) rowKey {
	k := rowKey{string(key), string(child)}
	if !t.decl.Free {
		k.key = c.entries[c.done].Key
	}
	return k
}

func (c *call) List(index int32, key, after []byte, limit int32, out []byte) int64 {
	t, ok := c.table(index)
	if !ok || t.decl.Parent == "" {
		return abi.ResultRefused
	}
	k, err := abi.ReadListKey(key, t.decl.Shape())
	if err != nil {
		return abi.ResultRefused
	}
	parent := c.rowKey(t, k, nil).key
	b := abi.AppendCount(nil, 0)
	count := 0
	for _, at := range t.sorted() {
		if at.key == parent && at.child > string(after) && count < int(limit) {
			b = abi.AppendChild(b, at.child, abi.AppendRow(nil, t.rows[at]))
			count++
		}
	}
	abi.PutCount(b, count)
	if len(b) <= len(out) {
		copy(out, b)
	}
	return int64(len(b))
}

func (c *call) Log(level int32, message string) {
	names := [...]string{"trace", "debug", "info", "warn", "error"}
	line := names[min(max(int(level), 0), 4)] + ": " + message
	c.harness.log = append(c.harness.log, line)
	c.harness.t.Logf("plugin: %s", line)
}

func (c *call) Fail(_ int32, reason string) { c.reason = strings.Clone(reason) }

// Random is seeded as a host seeds it: by what is applied, not by when.
func (c *call) Random(b []byte) {
	seed := []byte(c.harness.manifest.Name)
	if c.consumer != nil {
		e := &c.entries[c.done]
		seed = fmt.Appendf(seed, "\x00%s\x00%s\x00%s", c.consumer.Name, projhost.UUID(e.ID), e.Key)
	}
	for i := 0; len(b) > 0; i++ {
		sum := sha256.Sum256(fmt.Appendf(seed, "\x00%d", i))
		b = b[copy(b, sum[:]):]
	}
}

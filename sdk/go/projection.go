package projhost

import (
	"errors"
	"reflect"
	"strconv"
	"unsafe"

	"github.com/projhost/projhost/abi"
)

// Input says which messages a projection reads and what their keys are. The zero
// Input is every message of the event store with the types that have handlers,
// keyed by aggregate id. A message belongs to the first input it fits.
type Input struct {
	// Topic is the log to read.
	// Default: "events", the event store.
	Topic string
	// AggregateTypes are the types of streams to read.
	// Default: all.
	AggregateTypes []string
	// Types are the types of messages to read.
	// Default: those with handlers; all of them where OnAny is used.
	Types []string
	// Key finds the keys of a message: which rows it concerns.
	// Default: AggregateID().
	Key KeyRule
	// KeysVersion is raised beside a Function whose change demands a rebuild.
	// Default: 0.
	KeysVersion int
}

// KeyRule is how the keys of a message are found.
type KeyRule struct {
	rule     abi.KeyRule
	function func(m *Message, keys *Keys) error
}

// AggregateID keys a message by its stream.
func AggregateID() KeyRule { return KeyRule{rule: abi.KeyRule{Kind: abi.KeyAggregateID}} }

// Pointers keys a message by what JSON pointers find in its data, each a string
// or a number. Null, the empty string and nothing give no key; a message without
// any does not concern the projection.
func Pointers(pointers ...string) KeyRule {
	return KeyRule{rule: abi.KeyRule{Kind: abi.KeyPointers, Pointers: pointers}}
}

// Function lets the plugin find the keys itself, from the message alone.
func Function(keys func(m *Message, keys *Keys) error) KeyRule {
	return KeyRule{rule: abi.KeyRule{Kind: abi.KeyFunction}, function: keys}
}

// Keys collects the keys of a message.
type Keys struct {
	buf   []byte
	count uint32
}

// Add adds a key; the same key twice is one.
func (k *Keys) Add(key string) {
	k.buf = appendStr(k.buf, key)
	k.count++
}

// handler is what runs for a message. Handlers without state take a nil row.
type handler struct {
	run      func(c *Ctx, m *Message, row unsafe.Pointer) error
	stateful bool
}

type named struct {
	typ string
	handler
}

// projection is a consumer without its row's Go type.
type projection struct {
	plugin      *Plugin
	index       int
	name        string
	inputs      []Input
	tables      []*table // [0] is its own, unless it has none
	own         *table
	scratch             // the row handlers work on
	handlers    []named // in the order of registration, which is that of the manifest
	any         *handler
	singleOwner bool
	noReplay    bool
	version     int

	byType  [][]*handler // input → type index → handler
	byName  typeTable
	sealed  bool
	getKeys []func(m *Message, keys *Keys) error // by input
}

// Projection is a read model: a table whose rows are S, kept by handlers, one
// for each type of message. S is a struct; its exported fields are the columns,
// named in snake case, with options in a tag:
//
//	type Account struct {
//		Owner   string `ph:"owner,index,max=100"`
//		Balance projhost.Decimal `ph:",precision=19,scale=2"`
//		Closed  projhost.Null[projhost.Timestamp]
//		Note    string `ph:"-"` // no column
//	}
//
// Options are index, unique, max= (text), precision= and scale= (decimal),
// default=, and from= with of= (a copy out of a json column). A plain field is
// never null; a Null, a nil []byte and a nil JSON are.
//
// S = struct{} is a projection without a table of its own.
type Projection[S any] struct{ p *projection }

// NewProjection adds a projection to a plugin. Its table has its name. Without
// inputs it reads the event store.
func NewProjection[S any](plugin *Plugin, name string, inputs ...Input) *Projection[S] {
	what := "projection " + name
	if name == "" {
		mustNot("projection", errNoName)
	}
	p := &projection{plugin: plugin, index: len(plugin.projections), name: name, inputs: inputs}
	if len(inputs) == 0 {
		p.inputs = []Input{{}}
	}
	typ, err := newRowType(reflect.TypeFor[S]())
	mustNot(what, err)
	p.scratch = newScratch[S](typ)
	if len(typ.columns) > 0 {
		p.own = p.addTable(name, typ)
		p.own.scratch = newScratch[S](typ)
	}
	plugin.projections = append(plugin.projections, p)
	return &Projection[S]{p}
}

func (p *projection) addTable(name string, row *rowType) *table {
	if p.sealed {
		panic("projhost: projection " + p.name + ": table " + name + " is added after the plugin was served")
	}
	t := &table{name: name, index: uint16(len(p.tables)), rowType: row, projection: p}
	p.tables = append(p.tables, t)
	return t
}

// On sets the handler of a type of message. The row of the message's key is
// loaded before and written after it, if it has changed; a new row starts with
// zeros and defaults. m and what it holds live until the handler returns, and so
// do strings, bytes and JSON of the row: clone what is kept elsewhere.
func (p *Projection[S]) On(typ string, handle func(c *Ctx, m *Message, row *S) error) {
	p.p.on(typ, stateful(handle))
}

// OnAny sets the handler of every type that has none of its own.
func (p *Projection[S]) OnAny(handle func(c *Ctx, m *Message, row *S) error) {
	p.p.onAny(stateful(handle))
}

// OnMessage sets the handler of a type that does without the row: nothing is
// loaded for it.
func (p *Projection[S]) OnMessage(typ string, handle func(c *Ctx, m *Message) error) {
	p.p.on(typ, stateless(handle))
}

// OnAnyMessage is OnAny without the row.
func (p *Projection[S]) OnAnyMessage(handle func(c *Ctx, m *Message) error) {
	p.p.onAny(stateless(handle))
}

// SingleOwner makes one host apply the whole projection in the total order of
// its messages. Unique columns and free tables need it; it does not scale out.
func (p *Projection[S]) SingleOwner() { p.p.singleOwner = true }

// IgnoreOnReplay keeps messages that were applied before from the handlers when
// the host replays history.
func (p *Projection[S]) IgnoreOnReplay() { p.p.noReplay = true }

// StateVersion is raised when rows of an older version of the plugin must be
// built anew, for instance because the members of a JSON column changed.
func (p *Projection[S]) StateVersion(version int) { p.p.version = version }

// Table is the projection's own table, for handlers that do without the row or
// want more than reading and writing it whole.
func (p *Projection[S]) Table() *Table[S] {
	if p.p.own == nil {
		panic("projhost: projection " + p.p.name + " has no table of its own")
	}
	return &Table[S]{p.p.own}
}

func stateful[S any](handle func(c *Ctx, m *Message, row *S) error) handler {
	return handler{stateful: true, run: func(c *Ctx, m *Message, row unsafe.Pointer) error {
		return handle(c, m, (*S)(row))
	}}
}

func stateless(handle func(c *Ctx, m *Message) error) handler {
	return handler{run: func(c *Ctx, m *Message, _ unsafe.Pointer) error { return handle(c, m) }}
}

func (p *projection) on(typ string, h handler) {
	what := "projection " + p.name + ": handler of " + strconv.Quote(typ)
	if typ == "" || typ == "*" {
		mustNot(what, errors.New("it needs the name of a type; OnAny takes all"))
	}
	for _, n := range p.handlers {
		if n.typ == typ {
			mustNot(what, errors.New("the type has one already"))
		}
	}
	p.handlers = append(p.handlers, named{typ, h})
}

func (p *projection) onAny(h handler) {
	if p.any != nil {
		panic("projhost: projection " + p.name + " has a handler for any type already")
	}
	p.any = &h
}

// declare makes the projection's part of the manifest.
func (p *projection) declare() abi.Consumer {
	c := abi.Consumer{Type: abi.Projection, Name: p.name, IgnoreOnReplay: p.noReplay, StateVersion: p.version}
	if p.singleOwner {
		c.Distribution = abi.SingleOwner
	}
	for i := range p.inputs {
		c.Inputs = append(c.Inputs, p.declareInput(&p.inputs[i]))
	}
	for _, t := range p.tables {
		c.Tables = append(c.Tables, t.declare())
	}
	return c
}

func (p *projection) declareInput(in *Input) abi.Input {
	d := abi.Input{Topic: in.Topic, AggregateTypes: in.AggregateTypes, Types: p.types(in), Key: in.Key.rule, KeysVersion: in.KeysVersion}
	if d.Topic == "" {
		d.Topic = "events"
	}
	if d.Key.Kind == abi.KeyNone {
		d.Key.Kind = abi.KeyAggregateID
	}
	return d
}

// types are what an input asks the host for.
func (p *projection) types(in *Input) []string {
	switch {
	case len(in.Types) > 0:
		return in.Types
	case p.any != nil:
		return []string{"*"}
	}
	types := make([]string, len(p.handlers))
	for i := range p.handlers {
		types[i] = p.handlers[i].typ
	}
	return types
}

// seal builds what finds a handler without maps or comparisons of names.
func (p *projection) seal() {
	p.sealed = true
	p.byName = newTypeTable(p.handlers)
	for i := range p.inputs {
		in := &p.inputs[i]
		types := p.types(in)
		handlers := make([]*handler, len(types))
		for j, typ := range types {
			handlers[j] = p.named(typ)
		}
		p.byType = append(p.byType, handlers)
		p.getKeys = append(p.getKeys, in.Key.function)
	}
}

func (p *projection) named(typ string) *handler {
	if h := p.byName.find(typ); h != nil {
		return h
	}
	return p.any
}

// handler finds what runs for a message; nil if nobody wants it.
func (p *projection) handler(m *Message, typ int) *handler {
	if m.Input < len(p.byType) {
		if types := p.byType[m.Input]; typ < len(types) {
			return types[typ]
		}
	}
	return p.named(m.Type) // abi.TypeByName is beyond every list
}

// typeTable finds a handler by the name of a type: an open hash of the name's
// length and ends, cheaper in a guest than a map.
type typeTable struct {
	slots []*named
}

func newTypeTable(handlers []named) typeTable {
	size := 8
	for size < 4*len(handlers) {
		size *= 2
	}
	t := typeTable{slots: make([]*named, size)}
	for i := range handlers {
		slot := t.slot(handlers[i].typ)
		for t.slots[slot] != nil {
			slot = (slot + 1) & (size - 1)
		}
		t.slots[slot] = &handlers[i]
	}
	return t
}

func (t typeTable) slot(typ string) int {
	n := len(typ)
	if n == 0 {
		return 0
	}
	h := uint32(n)*31 + uint32(typ[0])*7 + uint32(typ[n/2])*13 + uint32(typ[n-1])*61
	return int(h) & (len(t.slots) - 1)
}

func (t typeTable) find(typ string) *handler {
	for slot := t.slot(typ); ; slot = (slot + 1) & (len(t.slots) - 1) {
		n := t.slots[slot]
		if n == nil {
			return nil
		}
		if n.typ == typ {
			return &n.handler
		}
	}
}

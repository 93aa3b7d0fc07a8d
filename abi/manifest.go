package abi

// Manifest is what a plugin says about itself: its consumers, what they read,
// by which keys, and the tables they write. Anything undeclared is refused.
//
// The JSON tags are the member names of ABI v1. [ParseManifest] reads it;
// [Manifest.AppendJSON] writes it without reflection, for guests.
type Manifest struct {
	ABI          int        `json:"abi"` // 1
	Name         string     `json:"name"`
	Version      string     `json:"version"`
	Consumers    []Consumer `json:"consumers"`
	Capabilities []string   `json:"capabilities,omitempty"` // "send:invoices", …
	Heap         string     `json:"heap,omitempty"`         // what a collected guest grows to in ph_init: "16MiB"
}

// Types of consumers.
const (
	Projection = "projection"
	Saga       = "saga"
	Handler    = "handler"
)

// Distributions of a consumer over partitions.
const (
	Spread      = "spread"       // partitions are applied in parallel, order is kept per key
	SingleOwner = "single-owner" // one lane applies everything in total order
)

// Consumer is one projection, saga or handler of a plugin.
type Consumer struct {
	Type           string   `json:"type"`
	Name           string   `json:"name"`
	Aliases        []string `json:"aliases,omitempty"` // handlers: former names
	Inputs         []Input  `json:"inputs"`
	Tables         []Table  `json:"tables,omitempty"`
	Distribution   string   `json:"distribution,omitempty"` // Spread if left out
	IgnoreOnReplay bool     `json:"ignore_on_replay,omitempty"`
	StateVersion   int      `json:"state_version,omitempty"` // another one needs a rebuild
}

// Input is a topic and which of its messages a consumer wants. A message
// belongs to the first input that fits it.
type Input struct {
	Topic          string   `json:"topic"`
	AggregateTypes []string `json:"aggregate_types,omitempty"` // none: all
	Types          []string `json:"types"`                     // ["*"]: all
	Key            KeyRule  `json:"key,omitzero"`
	KeysVersion    int      `json:"keys_version,omitempty"` // beside "function"
	// Associations are a saga's look-up by association, instead of Key: name
	// to JSON pointer.
	Associations map[string]string `json:"associations,omitempty"`
}

// KeyKind tells how the keys of a message are found.
type KeyKind uint8

// The ways to find keys.
const (
	KeyNone        KeyKind = iota // no rule
	KeyAggregateID                // the message's aggregate id
	KeyFunction                   // the guest's ph_keys
	KeyPointers                   // JSON pointers into the data, one key each
)

// KeyRule is how the keys of a message are found: in JSON "aggregate_id",
// "function", {"pointer": "/a"} or {"pointers": ["/a", "/b"]}.
type KeyRule struct {
	Kind     KeyKind
	Pointers []string // of KeyPointers, RFC 6901
}

// Table is a read model's table. Its key column is the entry's key and not
// declared. A child table has a second key column, child: its rows belong to the
// row of its parent with the same key.
type Table struct {
	Name    string   `json:"name"`
	Parent  string   `json:"parent,omitempty"` // of a child table
	Child   *KeyRule `json:"child,omitempty"`  // aggregate_id or one pointer: the row an entry will want
	Free    bool     `json:"free,omitempty"`   // any key, in total order; single-owner only
	Columns []Column `json:"columns"`
}

// Kinds of columns.
const (
	ColumnText      = "text"
	ColumnInt       = "int"     // 64 bit
	ColumnDecimal   = "decimal" // precision and scale
	ColumnFloat     = "float"   // 64 bit
	ColumnBool      = "bool"
	ColumnDate      = "date"
	ColumnTime      = "time"      // of day, microseconds
	ColumnTimestamp = "timestamp" // UTC, microseconds
	ColumnUUID      = "uuid"
	ColumnBytes     = "bytes"
	ColumnJSON      = "json" // kept byte for byte
)

// Column is a declared column.
type Column struct {
	Name      string  `json:"name"`
	Kind      string  `json:"kind"`
	Max       int     `json:"max,omitempty"`       // text: UTF-16 code units; 0: no limit
	Precision int     `json:"precision,omitempty"` // decimal: digits in all
	Scale     int     `json:"scale,omitempty"`     // decimal: digits after the point
	Index     bool    `json:"index,omitempty"`     // can be filtered and ordered by
	Unique    bool    `json:"unique,omitempty"`    // single-owner only; implies an index
	Null      *bool   `json:"null,omitempty"`      // false: a value is needed
	Default   RawJSON `json:"default,omitempty"`
	From      string  `json:"from,omitempty"` // JSON pointer into the column Of …
	Of        string  `json:"of,omitempty"`   // … a json column of the same table
}

// Nullable tells whether the column may be null.
func (c *Column) Nullable() bool { return c.Null == nil || *c.Null }

// RawJSON is JSON kept as it is spelled.
type RawJSON []byte

// Shape tells which key parts the ops of a table carry.
func (t *Table) Shape() TableShape { return TableShape{Child: t.Parent != "", Free: t.Free} }

// Shape is the shape of a table by its index, as [ReadOps] asks for it.
func (c *Consumer) Shape(table uint16) (TableShape, bool) {
	if int(table) >= len(c.Tables) {
		return TableShape{}, false
	}
	return c.Tables[table].Shape(), true
}

// Match finds the first input that fits a message, and the place of its type in
// that input's types ([TypeByName] where they are ["*"]).
func (c *Consumer) Match(topic, aggregateType, typ string) (input, typeIndex uint16, ok bool) {
	for i := range c.Inputs {
		in := &c.Inputs[i]
		if in.Topic != topic || len(in.AggregateTypes) > 0 && indexOf(in.AggregateTypes, aggregateType) < 0 {
			continue
		}
		if in.AllTypes() {
			return uint16(i), TypeByName, true
		}
		if t := indexOf(in.Types, typ); t >= 0 {
			return uint16(i), uint16(t), true
		}
	}
	return 0, 0, false
}

// AllTypes tells whether the input takes messages of every type.
func (in *Input) AllTypes() bool { return len(in.Types) == 1 && in.Types[0] == "*" }

func indexOf(list []string, s string) int {
	for i := range list {
		if list[i] == s {
			return i
		}
	}
	return -1
}

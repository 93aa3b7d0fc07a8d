package abi

// Magic opens every request frame: "PHA1".
const Magic uint32 = 0x31414850

// Minor is the minor version this package writes. A later minor appends fields
// to an entry; older guests skip them by the entry's size.
const Minor uint16 = 0

// TypeByName is the value of [Entry.Type] for a type that the input's list does
// not name (inputs of types ["*"]).
const TypeByName uint16 = 0xFFFF

// Kind tells what an entry is.
type Kind uint8

// The kinds of an entry.
const (
	KindMessage   Kind = 0
	KindTombstone Kind = 1
	KindDeadline  Kind = 2
)

// FlagReplay is bit 0 of [Entry.Flags]: the entry's effects were already had,
// it is applied again to rebuild rows (position ≤ effects_through).
const FlagReplay uint8 = 1

// Entry is one message for one key: a message with k keys is k entries.
// On the guest's side every string and slice is a view of the frame.
type Entry struct {
	Position     uint64   // place in the topic's total order
	Sequence     uint64   // 1-based place in the stream; 0: none
	TimeUS       int64    // occurred_at, microseconds since 1970 UTC
	ID           [16]byte // the message's UUID
	Input        uint16   // index in the consumer's inputs
	Type         uint16   // index in that input's types, or TypeByName
	Kind         Kind
	Flags        uint8
	CascadeDepth uint16
	Revision     uint32 // the event's schema revision

	Key           string
	TypeName      string
	AggregateType string
	AggregateID   string
	Metadata      []byte // JSON, or empty
	Data          []byte
}

// Status is what a guest answers to an entry with `done`, or the code the host
// gives a failure of its own making.
type Status int32

// Statuses a guest may answer.
const (
	StatusOK      Status = 0 // ops follow
	StatusIgnored Status = 1 // nothing to write
	StatusReject  Status = 2 // this message can never be applied
	StatusFatal   Status = 3 // halt the consumer
	StatusRetry   Status = 4 // later, perhaps
)

// Codes the host gives a failed entry.
const (
	CodeTrap      Status = 100
	CodeFuel      Status = 101
	CodeMemory    Status = 102
	CodeMalformed Status = 103 // a bad frame or op
	CodeOrder     Status = 104 // done out of order, twice, or not at all
	CodeDeadline  Status = 110
	CodeDatabase  Status = 120
	CodeData      Status = 121 // the database refuses this entry's data
)

// Tag tells the type of a [Value] on the wire.
type Tag uint8

// The tags of values.
const (
	TagNull      Tag = 0
	TagFalse     Tag = 1
	TagTrue      Tag = 2
	TagInt       Tag = 3 // i64
	TagFloat     Tag = 4 // f64
	TagText      Tag = 5
	TagBytes     Tag = 6
	TagDecimal   Tag = 7  // str
	TagTimestamp Tag = 8  // i64 microseconds, UTC
	TagDate      Tag = 9  // i32 days since 1970-01-01
	TagTime      Tag = 10 // i64 microseconds since midnight
	TagUUID      Tag = 11 // 16 bytes
	TagJSON      Tag = 12 // str
)

// Value is one typed column value. Which field counts is told by Tag:
// I for TagInt, TagTimestamp, TagDate and TagTime; F for TagFloat; B for
// TagText, TagBytes, TagDecimal, TagUUID (16 bytes) and TagJSON.
// A decoded Value's B is a view of the decoder's input.
type Value struct {
	Tag Tag
	I   int64
	F   float64
	B   []byte
}

// OpCode names an op.
type OpCode uint8

// The ops of ABI v1.
const (
	OpUpsert         OpCode = 1 // whole row; columns not named get null or their default
	OpInsert         OpCode = 2 // as upsert; a row that exists is a bad op
	OpPatch          OpCode = 3 // only the named columns; an absent row is created
	OpDelete         OpCode = 4
	OpAdd            OpCode = 5 // numeric increment; an absent row starts at zero
	OpDeleteChildren OpCode = 6
	OpSend           OpCode = 16
	OpDeadline       OpCode = 17
	OpCancel         OpCode = 18
	OpComplete       OpCode = 19
)

// ColumnValue is a value for one column, named by its index in the table.
type ColumnValue struct {
	Column uint16
	Value  Value
}

// Op is one decoded op. Key is set for free tables only (other tables use the
// entry's key), Child for child tables only. Columns is set for upsert, insert,
// patch and add. The slices are views: Columns is reused by the next decode.
// Name, Due, Headers and Payload belong to send (Name is the destination, Key
// its key), deadline and cancel.
type Op struct {
	Code    OpCode
	Table   uint16
	Key     []byte
	Child   []byte
	Columns []ColumnValue

	Name    []byte
	DueUS   int64
	Headers []byte
	Payload []byte
}

// TableShape tells a decoder which key parts the ops of a table carry.
type TableShape struct {
	Child bool // a child table: `str child` follows
	Free  bool // a free table: `str key` comes first
}

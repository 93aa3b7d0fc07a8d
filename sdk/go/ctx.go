package projhost

import (
	"unsafe"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/sdk/go/internal/bridge"
	"github.com/projhost/projhost/sdk/go/json"
)

// Ctx is what a handler may do besides changing its row. It is valid until the
// handler returns.
type Ctx struct {
	plugin     *Plugin
	projection *projection
	exists     bool // the own row, when it was loaded
	deleted    bool // the own row, by Delete

	ops     []byte // of the entry: u32 count, ops
	count   uint32
	pending []pending // the ops again, for reading one's own writes
	arena   []byte    // rows got during the entry; views live until its end
	used    int
	keyBuf  []byte
	writers []*json.Writer
	writing int
	keys    Keys
}

// Level is the importance of a line in the host's log.
type Level int32

// The levels of the log.
const (
	Trace Level = abi.LogTrace
	Debug Level = abi.LogDebug
	Info  Level = abi.LogInfo
	Warn  Level = abi.LogWarn
	Error Level = abi.LogError
)

// Log writes a line to the host's log, which adds plugin, projection and
// position. Lines are limited in length and rate.
func (c *Ctx) Log(level Level, line string) { bridge.Log(int32(level), line) }

// Exists tells whether the message's row was there when the handler of On was
// called.
func (c *Ctx) Exists() bool { return c.exists }

// Delete deletes the message's row with all its children. What the handler
// does to its row is not written any more.
func (c *Ctx) Delete() {
	t := c.projection.own
	if t == nil {
		panic("projhost: projection " + c.projection.name + " has no table of its own")
	}
	c.delete(t, "", "")
	c.deleted = true
}

// Config is the plugin's config as its operator wrote it, an empty object where
// there is none.
func (c *Ctx) Config() json.Value { return json.Parse(c.plugin.config) }

// JSON returns an empty writer for a JSON column. What it wrote is good until
// the handler's row is written:
//
//	w := c.JSON()
//	w.BeginObject()
//	…
//	w.EndObject()
//	row.State = w.Bytes()
func (c *Ctx) JSON() *json.Writer {
	if c.writing == len(c.writers) {
		c.writers = append(c.writers, new(json.Writer))
	}
	w := c.writers[c.writing]
	c.writing++
	w.Reset()
	return w
}

// Random fills b with bytes that are the same whenever this message is applied
// for this key.
func (c *Ctx) Random(b []byte) { bridge.Random(b) }

// NewUUID returns a random UUID (version 4), the same whenever this message is
// applied for this key.
func (c *Ctx) NewUUID() UUID {
	var id UUID
	bridge.Random(id[:])
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return id
}

// reset makes c ready for an entry.
func (c *Ctx) reset() {
	c.exists, c.deleted = false, false
	c.dropOps()
	c.used, c.writing = 0, 0
}

func (c *Ctx) dropOps() {
	c.ops = append(c.ops[:0], 0, 0, 0, 0)
	c.count = 0
	c.pending = c.pending[:0]
}

// get asks the host for a row; nil if it is absent. The bytes live until the end
// of the entry, as the strings that look at them do.
func (c *Ctx) get(t *table, key, child string) []byte {
	c.keyBuf = t.appendKey(c.keyBuf[:0], key, child)
	for {
		free := c.arena[c.used:]
		n := bridge.Get(int32(t.index), c.keyBuf, free)
		switch {
		case n == abi.ResultAbsent:
			return nil
		case n < 0:
			panic("the host refuses to read table " + t.name)
		case n <= int64(len(free)):
			c.used += int(n)
			return free[:n:n]
		}
		// Rows got before stay alive in the old arena while somebody looks at them.
		c.arena, c.used = make([]byte, max(2*len(c.arena), int(n), 4096)), 0
	}
}

// load reads the own row before its handler.
func (c *Ctx) load(p *projection) {
	b := c.get(p.own, "", "")
	if b == nil {
		c.exists = false
		p.begin()
		return
	}
	c.exists = true
	p.own.readRow(p.row, b)
	p.remember()
	p.own.detach(p.row)
}

// store writes the own row after its handler: whole if it is new, else the
// columns that have changed.
func (c *Ctx) store(p *projection) {
	t := p.own
	if !c.exists {
		c.open(abi.OpUpsert, t, "", "")
		c.appendRow(t, p.row)
		return
	}
	ops, n := c.ops, 0
	start := len(ops)
	for i := range t.columns {
		column := &t.columns[i]
		if column.untouched(p.row, p.before) || column.copied || column.same(p.row, p.before) {
			continue
		}
		if n == 0 {
			ops = append(ops, byte(abi.OpPatch), byte(t.index), byte(t.index>>8), 0, 0)
		}
		n++
		ops = t.appendColumn(ops, i, p.row)
	}
	if n > 0 {
		le.PutUint16(ops[start+3:], uint16(n))
		c.count++
	}
	c.ops = ops
}

// open begins an op on a row.
func (c *Ctx) open(code abi.OpCode, t *table, key, child string) {
	c.count++
	c.ops = append(c.ops, byte(code), byte(t.index), byte(t.index>>8))
	c.ops = t.appendKey(c.ops, key, child)
}

// appendRow appends all columns of an op.
func (c *Ctx) appendRow(t *table, row unsafe.Pointer) {
	c.ops = le.AppendUint16(c.ops, uint16(t.written))
	for i := range t.columns {
		if !t.columns[i].copied {
			c.ops = t.appendColumn(c.ops, i, row)
		}
	}
}

func (c *Ctx) delete(t *table, key, child string) {
	c.open(abi.OpDelete, t, key, child)
	c.note(abi.OpDelete, t, key, child, 0)
}

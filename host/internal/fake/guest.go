package fake

import (
	"context"
	"errors"
	"fmt"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/plugins"
	"github.com/projhost/projhost/store"
)

// Guest is a guest written in Go.
type Guest struct {
	// Handle does one entry. Status and ops are what the guest answers with;
	// a failure ends the call as a trap would.
	Handle func(c *Call, e *abi.Entry) (abi.Status, *plugins.Failure)
	// FrameMax bounds the frames; 0: no bound.
	FrameMax int
	// Shapes are those of the consumer's tables.
	Shapes func(table uint16) (abi.TableShape, bool)
	// Before, if set, runs before every call of the guest.
	Before func(ctx context.Context, entries int) error

	Calls  int
	Closed bool
	busy   bool
}

// Call is what a handler has to work with.
type Call struct {
	Ops    abi.OpWriter
	Sizes  int // entries of the call
	Index  int // of the entry in it
	sink   plugins.Sink
	shapes func(table uint16) (abi.TableShape, bool)
	err    error
}

// Get returns a row, nil if absent. Key is for free tables, child for child
// tables.
func (c *Call) Get(table uint16, key, child string) []byte {
	shape, _ := c.shapes(table)
	row, ok, err := c.sink.Get(table, abi.AppendRowKey(nil, shape, key, child))
	if err != nil {
		c.err = errors.Join(c.err, err)
	}
	if !ok {
		return nil
	}
	return append([]byte(nil), row...)
}

// Values returns a row's values, nil if absent.
func (c *Call) Values(table uint16, key, child string) []abi.Value {
	row := c.Get(table, key, child)
	if row == nil {
		return nil
	}
	values, err := abi.ReadRow(row, nil)
	if err != nil {
		c.err = errors.Join(c.err, err)
	}
	return values
}

// List returns the children of a key.
func (c *Call) List(table uint16, key, after string, limit int) (children []string) {
	shape, _ := c.shapes(table)
	answer, err := c.sink.List(table, abi.AppendListKey(nil, shape, key), []byte(after), limit)
	if err == nil {
		err = abi.ReadChildren(answer, func(child, _ []byte) error {
			children = append(children, string(child))
			return nil
		})
	}
	c.err = errors.Join(c.err, err)
	return children
}

// Begin starts an op.
func (c *Call) Begin(code abi.OpCode, table uint16, key, child string) {
	shape, _ := c.shapes(table)
	c.Ops.Begin(code, table, shape, key, child)
}

// Apply implements the guest side of a batch.
func (g *Guest) Apply(ctx context.Context, _ int, entries []abi.Entry, sink plugins.Sink) (int, *plugins.Failure, error) {
	if g.busy || g.Closed {
		panic(fmt.Sprintf("guest called while busy (%v) or closed (%v)", g.busy, g.Closed))
	}
	g.busy = true
	defer func() { g.busy = false }()
	g.Calls++
	if g.Before != nil {
		if err := g.Before(ctx, len(entries)); err != nil {
			return 0, nil, err
		}
	}
	c := &Call{sink: sink, shapes: g.Shapes, Sizes: len(entries)}
	for i := range entries {
		c.Ops.Reset()
		c.Index = i
		status, fail := g.Handle(c, &entries[i])
		if c.err != nil {
			return g.fault(i, c.err)
		}
		if fail == nil && status.Failed() {
			fail = &plugins.Failure{Code: status, Message: "said no"}
		}
		if fail != nil {
			fail.Index = i
			return i, fail, nil
		}
		if err := sink.Done(i, status, c.Ops.Bytes()); err != nil {
			return g.fault(i, err)
		}
	}
	return len(entries), nil, nil
}

// fault tells a fault of the sink from the guest's own.
func (g *Guest) fault(i int, err error) (int, *plugins.Failure, error) {
	var transient *store.TransientError
	if errors.As(err, &transient) {
		return i, nil, transient
	}
	return i, &plugins.Failure{Index: i, Code: abi.CodeMalformed, Message: err.Error(), Deterministic: true}, nil
}

// FrameFits tells whether a frame is within the bound.
func (g *Guest) FrameFits(entries []abi.Entry) bool {
	return g.FrameMax == 0 || abi.FrameSize(entries) <= g.FrameMax
}

// Close ends the guest.
func (g *Guest) Close(context.Context) error {
	if g.busy || g.Closed {
		panic("guest closed while busy, or twice")
	}
	g.Closed = true
	return nil
}

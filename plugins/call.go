package plugins

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"github.com/projhost/projhost/abi"
)

// Answers of the imports that are no lengths.
const (
	answerAbsent = -1 // get: there is no such row
	answerStop   = -1 // done, keys: return at once
	answerBad    = -2 // get, get_many, list: no such table, no such key, or no entry is worked on
)

// rowsMax bounds the rows one list or get_many asks for: no clock stops the
// host while it looks for them.
const rowsMax = 10_000

type phase uint8

const (
	phaseStart phase = iota // _initialize to ph_init: no entry, no rows
	phaseApply
	phaseKeys
)

func (p phase) export() string {
	if p == phaseKeys {
		return "ph_keys"
	}
	return "ph_apply"
}

func (p phase) answer() string {
	if p == phaseKeys {
		return "keys"
	}
	return "done"
}

// call is one call of a guest, and what the imports do in it. The result of
// the last entry is kept back until the guest has returned well: a batch is
// either answered to its end or fails at an entry that has no result.
type call struct {
	phase    phase
	module   *Module
	mem      *memory
	log      *guestLog
	clock    *callClock
	ctx      context.Context // the caller's
	ended    <-chan struct{} // of ctx
	consumer *abi.Consumer
	name     string // of the consumer
	entries  []abi.Entry
	sink     Sink
	each     func(index int, keys [][]byte) error

	next  int // the entry worked on: as many have been answered
	given int // results the sink has
	held  struct {
		status abi.Status
		bytes  []byte
	}
	over     bool     // nothing more is taken
	fail     *Failure // why, if it is the guest's doing
	hostErr  error    // why, if it is not
	outside  bool     // the caller's code runs: a panic is not the guest's
	calls    int      // of done or keys that were answered with 0
	reason   string   // what the guest gave to fail
	panicked panicLines
	out      [2]lineBuffer // file descriptors 1 and 2
	reads    uint64        // of the monotonic clock
	random   randomness
	keys     [][]byte
	answer   []byte // of get_many
}

// callContext carries the call to the imports without a look-up: the engine
// hands its context on as it is.
type callContext struct {
	context.Context
	call *call
}

func callOf(ctx context.Context) *call { return ctx.(*callContext).call }

var errTooMuch = errors.New("more rows than one call may ask for")

// cutOff ends a guest from within an import. The engine unwinds the guest and
// returns it as the error of the call.
type cutOff struct{}

func (*cutOff) Error() string { return "cut off by the host" }

var errCutOff = &cutOff{}

// exited is a guest that called proc_exit.
type exited struct{ code uint32 }

func (e *exited) Error() string { return fmt.Sprintf("exit(%d)", e.code) }

// begin makes the call ready for a batch, keeping its buffers.
func (c *call) begin(ctx context.Context, p phase, consumer *abi.Consumer, entries []abi.Entry) {
	c.phase, c.ctx, c.ended = p, ctx, ctx.Done()
	c.consumer, c.name, c.entries = consumer, "", entries
	if consumer != nil {
		c.name = consumer.Type + "/" + consumer.Name
	}
	c.sink, c.each = nil, nil
	c.next, c.given, c.calls = 0, 0, 0
	c.held.bytes = c.held.bytes[:0]
	c.over, c.fail, c.hostErr, c.outside = false, nil, nil, false
	c.mem.refused = false
	c.startEntry()
}

// startEntry forgets what belongs to the entry before: reason, clock, random.
func (c *call) startEntry() {
	c.reason = ""
	c.reads = 0
	c.random.reset()
	c.mem.refused = false
	if len(c.panicked.lines) > 0 {
		c.panicked.reset()
	}
}

// end lets go of what the call was given.
func (c *call) end() {
	c.clock, c.ctx, c.ended, c.consumer, c.entries, c.sink, c.each = nil, nil, nil, nil, nil, nil, nil
}

// entry is the one worked on; nil outside of any.
func (c *call) entry() *abi.Entry {
	if c.next < len(c.entries) {
		return &c.entries[c.next]
	}
	return nil
}

// refuse records why entry index fails. What came first counts.
func (c *call) refuse(index int, code abi.Status, format string, args ...any) int32 {
	if !c.over {
		c.over = true
		c.fail = &Failure{Index: index, Code: code, Message: c.reason, Digest: c.module.digest}
		if c.reason == "" {
			c.fail.Message = fmt.Sprintf(format, args...)
		}
	}
	return answerStop
}

// kill records why the entry fails and ends the guest here.
func (c *call) kill(code abi.Status, format string, args ...any) {
	c.refuse(c.blamed(), code, format, args...)
	panic(errCutOff)
}

// blamed is the entry a failure belongs to that comes now: the one worked on,
// or the last if all are answered (the sink does not have its result yet).
func (c *call) blamed() int { return max(min(c.next, len(c.entries)-1), 0) }

// hostFails ends the guest for a reason that is none of its doing.
func (c *call) hostFails(err error) {
	if !c.over {
		c.over, c.hostErr = true, err
	}
	panic(errCutOff)
}

// checkpoint opens every import that answers or asks for rows. It cuts off a
// guest that went on after a negative answer, and one whose caller is gone.
func (c *call) checkpoint() {
	if c.over {
		panic(errCutOff)
	}
	select {
	case <-c.ended:
		c.hostFails(context.Cause(c.ctx))
	default:
	}
}

// arg returns a slice the guest passed by pointer and length.
func (c *call) arg(what string, ptr, n uint32) []byte {
	b, ok := c.mem.view(ptr, n)
	if !ok {
		c.kill(abi.CodeMalformed, "%s: %d bytes at 0x%x are outside of the memory", what, n, ptr)
	}
	return b
}

func (c *call) done(index, status, ptr, n uint32) int32 {
	c.checkpoint()
	if c.phase != phaseApply {
		c.kill(abi.CodeOrder, "done is for ph_apply")
	}
	if stop := c.inOrder(index); stop {
		return answerStop
	}
	switch s := abi.Status(int32(status)); s {
	case abi.StatusOK, abi.StatusIgnored:
		ops := c.arg("done: ops", ptr, n)
		if s == abi.StatusIgnored && n > 0 {
			return c.refuse(c.next, abi.CodeMalformed, "done(%d, 1) with ops: an ignored entry has none", index)
		}
		return c.take(s, ops)
	case abi.StatusReject, abi.StatusFatal, abi.StatusRetry:
		return c.refuse(c.next, s, "no reason given")
	default:
		return c.refuse(c.next, abi.CodeMalformed, "done(%d, %d): unknown status", index, s)
	}
}

func (c *call) giveKeys(index, ptr, n uint32) int32 {
	c.checkpoint()
	if c.phase != phaseKeys {
		c.kill(abi.CodeOrder, "keys is for ph_keys")
	}
	if stop := c.inOrder(index); stop {
		return answerStop
	}
	return c.take(abi.StatusOK, c.arg("keys", ptr, n))
}

func (c *call) inOrder(index uint32) (stop bool) {
	if int64(index) == int64(c.next) && c.next < len(c.entries) {
		return false
	}
	if c.next == len(c.entries) {
		c.refuse(c.blamed(), abi.CodeOrder, "%s(%d) after all %d entries were answered", c.phase.answer(), index, len(c.entries))
	} else {
		c.refuse(c.next, abi.CodeOrder, "%s(%d) where entry %d is next", c.phase.answer(), index, c.next)
	}
	return true
}

// take passes a result on, or keeps the last one back.
func (c *call) take(status abi.Status, b []byte) int32 {
	if c.next == len(c.entries)-1 {
		c.held.status = status
		c.held.bytes = append(c.held.bytes[:0], b...)
	} else if err := c.give(c.next, status, b); err != nil {
		if host, ok := asHostFault(err); ok {
			c.hostFails(host)
		}
		return c.refuse(c.next, abi.CodeMalformed, "%s", clean([]byte(err.Error()), c.log.lineMax))
	}
	c.next++
	c.calls++
	c.startEntry()
	return 0
}

func (c *call) give(index int, status abi.Status, b []byte) (err error) {
	c.leave()
	if c.phase == phaseKeys {
		c.keys = c.keys[:0]
		err = abi.ReadKeys(b, func(key []byte) error {
			c.keys = append(c.keys, key)
			return nil
		})
		if err == nil {
			err = c.each(index, c.keys)
		}
	} else {
		err = c.sink.Done(index, status, b)
	}
	c.enter()
	if err == nil {
		c.given++
	}
	return err
}

// reading tells whether rows can be asked for: while an entry is worked on.
func (c *call) reading() bool {
	c.checkpoint()
	return c.phase == phaseApply && c.next < len(c.entries)
}

func (c *call) get(table, keyPtr, keyLen, outPtr, outCap uint32) int64 {
	if !c.reading() || table > 0xffff {
		return answerBad
	}
	key, out := c.arg("get: key", keyPtr, keyLen), c.arg("get: room for the row", outPtr, outCap)
	row, ok, err := c.row(uint16(table), key)
	switch {
	case err != nil:
		return answerBad
	case !ok:
		return answerAbsent
	}
	return c.fit(row, out)
}

// leave and enter are called around the sink, which may wait for a database:
// for the rows a guest asks for, and for those a result is folded onto.
func (c *call) leave() {
	c.outside = true
	c.clock.enter()
}

func (c *call) enter() {
	c.clock.leave()
	c.outside = false
}

// row asks the sink. Its own failure ends the call.
func (c *call) row(table uint16, key []byte) ([]byte, bool, error) {
	c.leave()
	row, ok, err := c.sink.Get(table, key)
	c.enter()
	if err != nil {
		c.faultOrNote("get", err)
	}
	return row, ok, err
}

// faultOrNote ends the call for a fault of the host; a fault of the guest it
// writes to the log, because the guest gets no more than a number.
func (c *call) faultOrNote(what string, err error) {
	if host, ok := asHostFault(err); ok {
		c.hostFails(host)
	}
	c.note(hclog.Debug, []byte(what+": "+err.Error()))
}

// fit writes an answer if it fits, and tells its length in any case.
func (c *call) fit(answer, out []byte) int64 {
	if len(answer) <= len(out) {
		copy(out, answer)
	}
	return int64(len(answer))
}

func (c *call) getMany(reqPtr, reqLen, outPtr, outCap uint32) int64 {
	if !c.reading() {
		return answerBad
	}
	req, out := c.arg("get_many: request", reqPtr, reqLen), c.arg("get_many: room for rows", outPtr, outCap)
	c.answer = abi.AppendCount(c.answer[:0], 0)
	count := 0
	err := abi.ReadGetMany(req, c.consumer.Shape, func(table uint16, key []byte) error {
		if count++; count > rowsMax || len(c.answer) > len(c.mem.buf) {
			return errTooMuch
		}
		row, ok, err := c.row(table, key)
		if err != nil {
			return err
		}
		if !ok {
			row = nil
		}
		c.answer = abi.AppendFound(c.answer, row)
		return nil
	})
	if err != nil {
		return answerBad
	}
	abi.PutCount(c.answer, count)
	return c.fit(c.answer, out)
}

func (c *call) list(table, keyPtr, keyLen, afterPtr, afterLen, limit, outPtr, outCap uint32) int64 {
	if !c.reading() || table > 0xffff || limit == 0 || limit > rowsMax {
		return answerBad
	}
	key, after := c.arg("list: key", keyPtr, keyLen), c.arg("list: after", afterPtr, afterLen)
	out := c.arg("list: room for rows", outPtr, outCap)
	c.leave()
	children, err := c.sink.List(uint16(table), key, after, int(limit))
	c.enter()
	if err != nil {
		c.faultOrNote("list", err)
		return answerBad
	}
	return c.fit(children, out)
}

// note logs a line about the entry worked on.
func (c *call) note(level hclog.Level, text []byte) {
	position := uint64(0)
	if e := c.entry(); e != nil {
		position = e.Position
	}
	c.log.line(level, text, c.name, position)
}

func (c *call) logLine(level, ptr, n uint32) {
	c.note(guestLevel(level), c.arg("log", ptr, n))
}

// failReason keeps why the entry will fail, for the done or the trap to come.
func (c *call) failReason(code, ptr, n uint32) {
	b := c.arg("fail", ptr, n)
	text := clean(bytes.TrimSpace(b[:min(len(b), c.log.lineMax+1)]), c.log.lineMax)
	if int32(code) != 0 {
		text = fmt.Sprintf("code %d: %s", int32(code), text)
	}
	c.reason = text
}

func (c *call) nowUS() int64 {
	if e := c.entry(); e != nil {
		return e.TimeUS
	}
	return 0
}

// monotonicNS advances a microsecond per read and starts anew at every entry.
func (c *call) monotonicNS() uint64 {
	c.reads++
	return c.realtimeNS() + c.reads*1000
}

// realtimeNS is the entry's time; years before 1970 do not exist for WASI.
func (c *call) realtimeNS() uint64 { return uint64(max(c.nowUS(), 0)) * 1000 }

func (c *call) fillRandom(b []byte) {
	c.random.fill(b, c.module.settings.Name, c.name, c.entry())
}

// write takes what the guest writes to standard output (0) or error (1).
func (c *call) write(which int, b []byte) {
	c.out[which].write(b, c.log.lineMax, func(line []byte) { c.outLine(which, line) })
}

func (c *call) outLine(which int, line []byte) {
	if which == 0 {
		c.note(hclog.Info, line)
		return
	}
	c.panicked.add(line)
	c.note(hclog.Warn, line)
}

func (c *call) flushOut() {
	for which := range c.out {
		if len(c.out[which].buf) > 0 {
			c.out[which].flush(func(line []byte) { c.outLine(which, line) })
		}
	}
}

// finish judges how the call ended. err is the engine's, returned the guest's
// result.
func (c *call) finish(err error, returned int32) (*Failure, error) {
	c.flushOut()
	switch {
	case c.hostErr != nil:
		return nil, c.hostErr
	case c.outside:
		return nil, fmt.Errorf("panic while the host took a result of entry %d: %w", c.next, err)
	case c.fail != nil:
	case err != nil && c.clock.exceeded():
		c.refuse(c.blamed(), abi.CodeDeadline, "it took longer than %v", c.module.settings.Timeout)
	case err != nil && c.ctx.Err() != nil:
		return nil, context.Cause(c.ctx)
	case wasClosed(err):
		return nil, errInstanceClosed
	case err != nil:
		c.trapped(err)
	case c.phase != phaseStart:
		c.checkReturn(returned)
	}
	if c.fail == nil && len(c.entries) > 0 {
		if err := c.giveHeld(); err != nil {
			return nil, err
		}
	}
	if c.fail == nil {
		return nil, nil
	}
	if c.fail.Trap == "" && err != nil && c.fail.Code != abi.CodeDeadline && !isCutOff(err) {
		c.fail.Trap = trapText(err, c.module.exports)
	}
	c.fail.Deterministic = c.fail.Code.Deterministic()
	return c.fail, nil
}

// trapped blames the entry worked on for a trap.
func (c *call) trapped(err error) {
	code, text := abi.CodeTrap, trapText(err, c.module.exports)
	if c.mem.refused {
		code = abi.CodeMemory
	}
	if c.reason == "" {
		c.reason = c.panicked.text(c.log.lineMax)
	}
	if code == abi.CodeMemory && c.reason == "" {
		text = fmt.Sprintf("memory limit of %d bytes reached", c.mem.limit)
	}
	c.refuse(c.blamed(), code, "%s", text)
}

func (c *call) checkReturn(returned int32) {
	switch {
	case c.next < len(c.entries):
		c.refuse(c.next, abi.CodeOrder, "%s returned after %d of %d entries", c.phase.export(), c.next, len(c.entries))
	case int(returned) != c.calls:
		c.refuse(c.blamed(), abi.CodeOrder, "%s returned %d after %d calls of %s", c.phase.export(), returned, c.calls, c.phase.answer())
	}
}

// giveHeld hands out the last result, now that the guest has returned well.
func (c *call) giveHeld() (err error) {
	last := len(c.entries) - 1
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic while the host took the result of entry %d: %v", last, p)
		}
	}()
	if err := c.give(last, c.held.status, c.held.bytes); err != nil {
		if host, ok := asHostFault(err); ok {
			return host
		}
		c.refuse(last, abi.CodeMalformed, "%s", clean([]byte(err.Error()), c.log.lineMax))
	}
	return nil
}

package projhost

import (
	"strconv"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/sdk/go/internal/bridge"
)

// apply runs one request frame and returns how many entries it did. After an
// entry that failed the host restores the instance, so it returns at once.
func (p *Plugin) apply(frame []byte) (done int32) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case abort:
			p.fail(done, cause.status, cause.reason)
		default:
			reportCause(cause)
		}
	}()
	f, err := abi.ParseFrame(frame)
	if err != nil {
		panic("request frame: " + err.Error())
	}
	projection := p.projection(f.Consumer)
	var e abi.Entry
	for {
		more, err := f.Next(&e)
		if err != nil {
			panic("request frame: " + err.Error())
		}
		if !more {
			return done
		}
		status, reason := p.entry(projection, &e)
		if status >= abi.StatusReject {
			p.fail(done, status, reason)
			return done
		}
		le.PutUint32(p.ctx.ops, p.ctx.count)
		if bridge.Done(done, int32(status), p.ctx.ops) < 0 {
			return done
		}
		scribble(&p.ctx)
		done++
	}
}

func (p *Plugin) projection(index uint16) *projection {
	if int(index) >= len(p.projections) {
		panic("request frame: consumer " + strconv.Itoa(int(index)) + " is not declared")
	}
	projection := p.projections[index]
	if !projection.sealed {
		projection.seal()
	}
	return projection
}

// fail answers an entry that failed.
func (p *Plugin) fail(index int32, status abi.Status, reason string) {
	bridge.Fail(int32(status), reason)
	bridge.Done(index, int32(status), nil)
}

// entry runs the handler of one entry; its ops are in p.ctx.
func (p *Plugin) entry(projection *projection, e *abi.Entry) (abi.Status, string) {
	c, m := &p.ctx, &p.msg
	c.reset()
	h := projection.handler(e)
	if h == nil {
		return abi.StatusIgnored, ""
	}
	c.plugin, c.projection = p, projection
	m.set(e)
	owned := h.stateful && projection.own != nil
	if owned {
		c.load(projection)
	}
	if err := h.run(c, m, projection.row); err != nil {
		status, reason := statusOf(err)
		c.dropOps()
		return status, reason
	}
	if owned && !c.deleted {
		c.store(projection)
	}
	return abi.StatusOK, ""
}

func (m *Message) set(e *abi.Entry) {
	m.Key, m.Type, m.AggregateType, m.AggregateID = e.Key, e.TypeName, e.AggregateType, e.AggregateID
	m.Data, m.Metadata = e.Data, e.Metadata
	m.ID, m.Position, m.Sequence, m.Time = e.ID, e.Position, e.Sequence, Timestamp(e.TimeUS)
	m.Input, m.Revision, m.CascadeDepth = int(e.Input), e.Revision, e.CascadeDepth
	m.Replay, m.Tombstone = e.Flags&abi.FlagReplay != 0, e.Kind == abi.KindTombstone
}

// keys finds the keys of messages whose input says so.
func (p *Plugin) keys(frame []byte) (done int32) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case abort:
			bridge.Fail(int32(cause.status), cause.reason)
		default:
			reportCause(cause)
		}
	}()
	f, err := abi.ParseFrame(frame)
	if err != nil {
		panic("request frame: " + err.Error())
	}
	projection := p.projection(f.Consumer)
	keys := &p.ctx.keys
	var e abi.Entry
	for {
		more, err := f.Next(&e)
		if err != nil {
			panic("request frame: " + err.Error())
		}
		if !more {
			return done
		}
		if int(e.Input) >= len(projection.getKeys) || projection.getKeys[e.Input] == nil {
			panic("request frame: input " + strconv.Itoa(int(e.Input)) + " has no key function")
		}
		p.msg.set(&e)
		keys.buf, keys.count = append(keys.buf[:0], 0, 0, 0, 0), 0
		if err := projection.getKeys[e.Input](&p.msg, keys); err != nil {
			status, reason := statusOf(err)
			if status != abi.StatusIgnored {
				bridge.Fail(int32(status), reason)
				return done
			}
			keys.buf, keys.count = keys.buf[:4], 0
		}
		le.PutUint32(keys.buf, keys.count)
		if bridge.Keys(done, keys.buf) < 0 {
			return done
		}
		done++
	}
}

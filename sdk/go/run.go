package projhost

import (
	"strconv"

	"github.com/projhost/projhost/abi"
	"github.com/projhost/projhost/sdk/go/internal/bridge"
)

// apply runs one request frame and returns how many entries it did. After an
// entry that failed the host restores the instance, so it returns at once.
func (p *Plugin) apply(b []byte) (done int32) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case abort:
			p.fail(done, cause.status, cause.reason)
		default:
			reportCause(cause)
		}
	}()
	f, consumer := openFrame(b)
	projection := p.projection(consumer)
	for f.left > 0 {
		typ := f.next(&p.msg)
		status, reason := p.entry(projection, typ)
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
	return done
}

func (p *Plugin) projection(index int) *projection {
	if index >= len(p.projections) {
		panic("request frame: consumer " + strconv.Itoa(index) + " is not declared")
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

// entry runs the handler of the entry in p.msg; its ops are in p.ctx.
func (p *Plugin) entry(projection *projection, typ int) (abi.Status, string) {
	c, m := &p.ctx, &p.msg
	c.reset()
	h := projection.handler(m, typ)
	if h == nil {
		return abi.StatusIgnored, ""
	}
	c.plugin, c.projection = p, projection
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

// keys finds the keys of messages whose input says so.
func (p *Plugin) keys(b []byte) (done int32) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case abort:
			bridge.Fail(int32(cause.status), cause.reason)
		default:
			reportCause(cause)
		}
	}()
	f, consumer := openFrame(b)
	projection := p.projection(consumer)
	keys, m := &p.ctx.keys, &p.msg
	for f.left > 0 {
		f.next(m)
		if m.Input >= len(projection.getKeys) || projection.getKeys[m.Input] == nil {
			panic("request frame: input " + strconv.Itoa(m.Input) + " has no key function")
		}
		keys.buf, keys.count = append(keys.buf[:0], 0, 0, 0, 0), 0
		if err := projection.getKeys[m.Input](m, keys); err != nil {
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
	return done
}

package plugins

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/tetratelabs/wazero/api"

	"github.com/projhost/projhost/abi"
)

// Instance is a guest with memory of its own. It serves one call at a time.
type Instance struct {
	module *Module
	log    *guestLog

	mu     sync.Mutex // held for the length of a call
	guest  *guest     // nil: none could be made, the next call tries again
	fresh  bool       // nothing has run since it was made or put back
	closed bool
	stats  Stats

	told atomic.Pointer[Stats] // as of the last call
}

// Stats tells what an instance has done since it was made.
type Stats struct {
	Calls        uint64
	Entries      uint64 // answered well
	Failures     uint64
	Restores     uint64 // the state was put back in place
	Instantiated uint64 // a new guest was made because it could not be
	Dropped      uint64 // log lines over the rate
	MemoryBytes  uint64 // linear memory after the last call
}

var errInstanceClosed = errors.New("the plugin's instance is closed")

// SetLogger makes the guest's lines go to log, which names the lane. By
// default they go to the engine's, named by the plugin.
func (i *Instance) SetLogger(log hclog.Logger) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.log.log = log
}

// FrameMax is the size of the input region: a frame of at most so many bytes
// fits.
func (i *Instance) FrameMax() int { return i.module.settings.FrameMax }

// FrameFits reports whether a batch fits the input region.
func (i *Instance) FrameFits(entries []abi.Entry) bool {
	return abi.FrameSize(entries) <= i.FrameMax()
}

// Apply hands the guest a batch and gives its results to sink, in order. The
// guest starts from its state after ph_init (IsolateBatch).
//
// done counts the entries with a result. A failure belongs to entry number
// done: entries before it have their results, entries after it have none, and
// the instance is as good as new. err is not the guest's doing: ctx ended, a
// batch larger than the input region (*[FrameError]), a fault of the sink, an
// instance that could not be made; results given so far are to be dropped.
//
// The result of the last entry is given once the guest has returned: a guest
// that answers everything and traps then has failed at the last entry.
func (i *Instance) Apply(ctx context.Context, consumer int, entries []abi.Entry, sink Sink) (done int, fail *Failure, err error) {
	return i.serve(ctx, phaseApply, consumer, entries, func(c *call) { c.sink = sink })
}

// Keys asks the guest for the keys of each message (key rule "function") and
// gives them to each in order; keys are views valid during that call only. An
// error of each is the guest's fault unless wrapped by [HostFault]. Results
// are as for Apply.
func (i *Instance) Keys(ctx context.Context, consumer int, entries []abi.Entry, each func(index int, keys [][]byte) error) (done int, fail *Failure, err error) {
	return i.serve(ctx, phaseKeys, consumer, entries, func(c *call) { c.each = each })
}

func (i *Instance) serve(ctx context.Context, p phase, consumer int, entries []abi.Entry, to func(*call)) (int, *Failure, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(entries) == 0 {
		return 0, nil, nil
	}
	consumers := i.module.manifest.Consumers
	if consumer < 0 || consumer >= len(consumers) {
		return 0, nil, fmt.Errorf("plugin %s has %d consumers, there is no number %d", i.module.settings.Name, len(consumers), consumer)
	}
	size := abi.FrameSize(entries)
	if size > i.FrameMax() {
		return 0, nil, &FrameError{Size: size, Max: i.FrameMax(), Entries: len(entries)}
	}
	if err := ctx.Err(); err != nil {
		return 0, nil, context.Cause(ctx)
	}
	if err := i.ready(ctx); err != nil {
		return 0, nil, err
	}
	g := i.guest
	fn := g.apply
	if p == phaseKeys {
		if fn = g.keys; fn == nil {
			return 0, nil, fmt.Errorf("plugin %s exports no ph_keys", i.module.settings.Name)
		}
	}
	i.fresh = false
	c := g.call
	c.begin(ctx, p, &consumers[consumer], entries)
	to(c)
	fail, err := i.callWithFrame(ctx, g, fn, consumer, entries, size)
	given := c.given
	c.end()
	i.count(g, given, fail)
	if fail != nil || err != nil {
		i.retire(ctx)
	}
	return given, fail, err
}

// callWithFrame writes the frame straight into the guest's memory. It is not
// read back: what the guest does to it is the guest's affair.
func (i *Instance) callWithFrame(ctx context.Context, g *guest, fn api.Function, consumer int, entries []abi.Entry, size int) (*Failure, error) {
	region, ok := g.mem.view(g.region, uint32(i.FrameMax()))
	if !ok {
		return nil, fmt.Errorf("plugin %s: the input region is gone", i.module.settings.Name)
	}
	frame := abi.AppendFrame(region[:0], uint16(consumer), entries)
	if len(frame) != size {
		return nil, fmt.Errorf("frame of %d bytes where %d were counted", len(frame), size)
	}
	stack := [2]uint64{uint64(g.region), uint64(size)}
	return g.run(ctx, fn, stack[:])
}

func (i *Instance) count(g *guest, given int, fail *Failure) {
	i.stats.Calls++
	i.stats.Entries += uint64(given)
	if fail != nil {
		i.stats.Failures++
	}
	if n := len(g.mem.buf); n > 0 { // 0: it was closed
		i.stats.MemoryBytes = uint64(n)
	}
	i.stats.Dropped = i.log.total
	told := i.stats
	i.told.Store(&told)
}

// ready makes the guest what it was after ph_init, by the cheapest way that is
// right.
func (i *Instance) ready(ctx context.Context) error {
	if i.closed {
		return errInstanceClosed
	}
	img := i.module.image
	switch {
	case i.guest == nil || i.guest.mod.IsClosed():
		return i.renew(ctx)
	case i.fresh || i.module.settings.Isolate == IsolateLane:
		return nil
	case i.module.disposable || !i.guest.restorable(img):
		return i.renew(ctx)
	}
	i.guest.restore(img)
	i.stats.Restores++
	i.fresh = true
	return nil
}

// retire makes sure that a guest that failed does not go on as it is, however
// instances are isolated.
func (i *Instance) retire(ctx context.Context) {
	if i.module.settings.Isolate == IsolateLane && !i.module.disposable && i.guest.restorable(i.module.image) {
		i.guest.restore(i.module.image)
		i.stats.Restores++
		return
	}
	if i.module.settings.Isolate == IsolateLane {
		_ = i.guest.close(ctx)
	}
}

// renew replaces the guest by a new one.
func (i *Instance) renew(ctx context.Context) error {
	if i.guest != nil {
		_ = i.guest.close(ctx)
		i.guest = nil
		i.stats.Instantiated++
	}
	g, err := i.module.newGuest(ctx)
	if err != nil {
		return err
	}
	g.call.log = i.log
	i.guest, i.fresh = g, true
	return nil
}

// Stats tells what the instance had done by the end of its last call. It does
// not wait for one under way.
func (i *Instance) Stats() Stats {
	if told := i.told.Load(); told != nil {
		return *told
	}
	return Stats{}
}

// Close ends the instance. It waits for a call under way.
func (i *Instance) Close(ctx context.Context) error {
	i.module.forget(i)
	return i.close(ctx)
}

func (i *Instance) close(ctx context.Context) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return nil
	}
	i.closed = true
	if i.guest == nil {
		return nil
	}
	err := i.guest.close(ctx)
	i.guest = nil
	return err
}
